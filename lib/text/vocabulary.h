// The tables of a byte-level BPE, read from vocab.json and merges.txt. The files write each byte as
// one printable character (GPT-2's bytes_to_unicode); here a token is its bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace mt {

struct BpeMerge {
  std::int32_t left, right, result;
};

struct BpeVocabulary {
  std::vector<std::string> tokens;  // bytes by id
  std::vector<BpeMerge> merges;     // in order of rank
  std::array<std::int32_t, 256> byte_ids{};
  std::int32_t end_of_document = -1;
};

// Throws DataError naming the file, the entry or the line for whatever is not such a vocabulary:
// text that is not a flat JSON object of ids, ids with gaps or repeated, a repeated token,
// characters that stand for no byte, missing single bytes, no <|endoftext|>, a merge that is
// repeated, that joins unknown tokens or whose result is unknown or special.
[[nodiscard]] BpeVocabulary read_bpe_vocabulary(const TokenizerFiles& files,
                                                const TokenizerNames& names);

}  // namespace mt
