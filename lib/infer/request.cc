#include "infer/request.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "infer/text_stream.h"

namespace mt {
namespace {

constexpr std::array<const char*, 11> kKeys{"prompt",      "id",
                                            "greedy",      "temperature",
                                            "top_k",       "top_p",
                                            "seed",        "repetition_penalty",
                                            "num_samples", "num_tokens_to_generate",
                                            "stop"};

void check_keys(const Json& object, const std::string& where) {
  if (!object.is_object()) throw DataError(cat(where, ": expected a JSON object"));
  for (const auto& item : object.items()) {
    if (std::find(kKeys.begin(), kKeys.end(), item.key()) != kKeys.end()) continue;
    std::string known;
    for (const char* key : kKeys) known += cat(known.empty() ? "" : ", ", key);
    throw DataError(cat(where, ": unknown key ", json_line(item.key()), "; there are ", known));
  }
  if (!object.value("greedy", Json(false)).is_boolean() || !object.value("greedy", false)) return;
  for (const char* key : {"temperature", "top_k", "top_p"}) {
    if (object.contains(key)) {
      throw DataError(cat(where, ": ", key, ": contradicts greedy, which draws nothing"));
    }
  }
}

std::vector<std::string> stops_of(const Json& value, const std::string& where) {
  std::vector<std::string> stops;
  if (value.is_string()) {
    stops.push_back(value.get<std::string>());
  } else {
    const bool texts = value.is_array() && std::all_of(value.begin(), value.end(),
                                                       [](const Json& v) { return v.is_string(); });
    if (!texts) throw DataError(cat(where, ": stop: expected a text or a list of texts"));
    for (const Json& text : value) stops.push_back(text.get<std::string>());
  }
  return stops;
}

}  // namespace

void RequestOptions::add_to(Options& options) {
  options.section("Length");
  options.add("num-tokens-to-generate", &num_tokens_to_generate, "N", "stop after N tokens");
  options.add_alias("out-seq-length", "num-tokens-to-generate");
  options.add("stop", &stop, "TEXT",
              "end before this text, wherever the borders of tokens lie; several may be given");
  options.add("num-samples", &num_samples, "N", "continuations of each prompt");
  options.section("Choice of tokens");
  sampling.add_to(options);
}

void RequestOptions::check() const {
  if (num_tokens_to_generate < 0) {
    throw UsageError(
        cat("--num-tokens-to-generate ", num_tokens_to_generate, ": expected 0 or more"));
  }
  if (num_samples < 1) throw UsageError(cat("--num-samples ", num_samples, ": expected 1 or more"));
  static_cast<void>(StopText(stop));
  sampling.check();
}

Request request_from_json(std::string_view line, const std::string& where,
                          const RequestOptions& defaults) {
  const Json object = parse_json(line, where);
  check_keys(object, where);
  Request request{.index = 0, .id = nullptr, .prompt = "", .context = {}, .options = defaults};
  request.prompt = json_string(object, "prompt", where);
  if (object.contains("id")) request.id = object["id"];
  if (object.contains("num_tokens_to_generate")) {
    request.options.num_tokens_to_generate = json_int(object, "num_tokens_to_generate", where);
  }
  if (object.contains("num_samples")) {
    request.options.num_samples = json_int(object, "num_samples", where);
  }
  if (object.contains("stop")) request.options.stop = stops_of(object["stop"], where);
  SamplingOptions& sampling = request.options.sampling;
  // A line that asks for a distribution wants a draw from it.
  for (const char* key : {"temperature", "top_k", "top_p"}) {
    if (object.contains(key)) sampling.greedy = false;
  }
  sampling.take(object, where);
  try {
    request.options.check();
  } catch (const UsageError& error) {
    throw DataError(cat(where, ": ", error.what()));
  }
  return request;
}

}  // namespace mt
