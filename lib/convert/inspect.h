// What mt-reshard says of checkpoints without writing one. Each `path` is what a --load means. Data
// goes to `out`, everything is read and verified, and what is returned is an exit status: 0, or 1
// for checkpoints that differ.
#pragma once

#include <iosfwd>
#include <string>

namespace mt {

// Configuration, iteration, layout, and each tensor's type, shape, norm and digest: text, or one
// JSON object.
int list_checkpoint(const std::string& path, bool json, std::ostream& out);

// All hashes. Throws DataError.
int verify_one(const std::string& path);

// All hashes of both, and whether their tensors are equal bit for bit; the first difference.
int verify_two(const std::string& a, const std::string& b, std::ostream& out);

// Norms of the differences of tensors, the largest first.
int diff_checkpoints(const std::string& a, const std::string& b, bool json, std::ostream& out);

}  // namespace mt
