// vocab.json and merges.txt, a zero byte between them; what is a tokenizer gives any text back.
#include <algorithm>

#include "test/fuzz/fuzz.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all = mt::bytes_of(data, size);
  const std::size_t cut = std::min(all.find('\0'), all.size());
  const std::string vocab(all.substr(0, cut));
  const std::string merges(all.substr(std::min(cut + 1, all.size())));
  mt::parse_hostile([&] {
    const auto tokenizer = mt::make_bpe_tokenizer({vocab, merges}, "fuzz");
    std::vector<std::int32_t> ids;
    tokenizer->encode(all, ids);
    if (tokenizer->decode(ids.data(), ids.size()) != all) std::abort();
  });
  return 0;
}
