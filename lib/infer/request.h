// What is asked for a prompt: how long, how often, how tokens are chosen, where it ends. Options
// give the defaults of a run; a JSON line may have its own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/options.h"
#include "infer/sampling.h"

namespace mt {

struct RequestOptions {
  SamplingOptions sampling;
  std::int64_t num_tokens_to_generate = 64;  // of each sample, at most
  std::int64_t num_samples = 1;              // continuations of the prompt
  std::vector<std::string> stop;             // texts that end it

  void add_to(Options& options);
  // Throws UsageError naming the option, its value and the range.
  void check() const;
};

struct Request {
  std::int64_t index = 0;  // of the prompt in the input, from 0
  Json id;                 // what the line calls itself, given back as it is; null: nothing
  std::string prompt;
  std::vector<std::int32_t> context;  // the prompt's tokens, at least one
  RequestOptions options;
};

// A line {"prompt": TEXT, ...}: prompt, and what there is of id, stop (a text or a list of texts)
// and the options above by their names with underscores; everything else is as in `defaults`. index
// and context are left alone. Throws DataError "WHERE: ..." naming the key for a key that is
// unknown, missing, of another type or outside its range, and for greedy together with what only
// sampling knows.
[[nodiscard]] Request request_from_json(std::string_view line, const std::string& where,
                                        const RequestOptions& defaults);

}  // namespace mt
