// GPT-2's split of a text into the pieces that are encoded apart ("Language Models are Unsupervised
// Multitask Learners", the regular expression of its published encoder):
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// by a scanner without recursion or backtracking.
#pragma once

namespace mt {

// The end of the piece that begins at p, p < end. `end` must be the end of the text, because a run
// of white space is split differently there.
[[nodiscard]] const char* piece_end(const char* p, const char* end);

}  // namespace mt
