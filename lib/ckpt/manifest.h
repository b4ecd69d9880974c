// manifest.json of a checkpoint: what every byte of the directory must be. Format:
// mt-checkpoint(5).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/json.h"
#include "ckpt/layout.h"
#include "tensor/tensor.h"

namespace mt {

constexpr const char* kManifestName = "manifest.json";

// A box of a tensor as it lies in a file: dense, row-major, contiguous.
struct StoredBox {
  std::string file;
  Shape offset, extent;           // inside the tensor, in elements
  std::uint64_t byte_offset = 0;  // from the beginning of the file
  std::uint64_t bytes = 0;
  Digest128 hash;  // XXH3-128 of these bytes
};

struct StoredTensor {
  Shape shape;
  DType dtype = DType::kF32;
  Digest128 digest;  // tensor_digest of the whole
  bool optimizer = false;
  std::vector<StoredBox> boxes;
};

struct StoredFile {
  std::uint64_t bytes = 0;
  Digest128 hash;  // XXH3-128 of its bytes outside the boxes, in order
};

struct Manifest {
  std::int64_t iteration = 0;
  CheckpointLayout layout;
  Json model, training;  // training: null if none
  std::string tokenizer_digest;
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, StoredFile> files;  // all but the manifest; "tokenizer/vocab.json"

  // The text of manifest.json, its own hash in the last line.
  [[nodiscard]] std::string text() const;
  // Reads that text. Trusts nothing: the hash, every name, size, product and range is checked, the
  // boxes of each tensor cover it once, those of a file do not overlap. Throws DataError naming
  // `where` and the member. kPart: what one rank wrote, which covers no tensor by itself.
  enum class Scope { kWhole, kPart };
  [[nodiscard]] static Manifest parse(const std::string& text, const std::string& where,
                                      Scope scope = Scope::kWhole);
  // Takes in what another rank wrote: boxes and files are added, digests summed.
  void merge(Manifest part);
  // For every file its boxes that are not empty, in the order of their bytes; they point into the
  // manifest.
  [[nodiscard]] std::map<std::string, std::vector<const StoredBox*>> boxes_by_file() const;
};

// Refuses, with a DataError naming `where`, names that could lead out of the directory or would
// not be one name in an HDF5 file. A file may lie one folder deep.
void check_file_name(const std::string& name, const std::string& where);
void check_tensor_name(const std::string& name, const std::string& where);

// Elements times size in bytes; DataError naming `where` for negative sizes and overflow.
[[nodiscard]] std::uint64_t checked_bytes(const Shape& shape, DType dtype,
                                          const std::string& where);

}  // namespace mt
