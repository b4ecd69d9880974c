// config.json of a GPT-2, and the configuration that a checkpoint stores.
#include "convert/hugging_face.h"
#include "model/config.h"
#include "test/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(mt::bytes_of(data, size));
  mt::parse_hostile([&] { static_cast<void>(mt::parse_gpt2_config(text, "config.json")); });
  mt::parse_hostile(
      [&] { static_cast<void>(mt::ModelConfig::from_json(mt::parse_json(text, "fuzz"), "fuzz")); });
  return 0;
}
