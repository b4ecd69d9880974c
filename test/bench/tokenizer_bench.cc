// usage: tokenizer_bench VOCAB MERGES FILE.jsonl ROUNDS
// Encodes the texts of FILE ROUNDS times, so that the first round meets new pieces and later ones
// known pieces. stdout: tokens and a digest of the ids, the same on any machine; stderr: one JSON
// line a round with the MB of text a second.
#include <chrono>
#include <iostream>

#include "base/commit.h"
#include "base/error.h"
#include "base/hash.h"
#include "io/json_lines.h"
#include "io/line_reader.h"
#include "text/tokenizer.h"

namespace {

int bench(const std::string& vocab, const std::string& merges, const std::string& file,
          int rounds) {
  constexpr std::uint64_t kLimit = std::uint64_t{64} << 20;
  const auto tokenizer =
      mt::make_bpe_tokenizer({mt::read_file(vocab, kLimit), mt::read_file(merges, kLimit)}, vocab);
  std::vector<std::string> texts;
  std::size_t bytes = 0;
  mt::LineReader reader(file);
  mt::JsonLineParser parser("text", mt::replace_invalid_utf8);
  mt::JsonDocument document;
  for (std::string_view line; reader.next(line);) {
    if (parser.parse(line, document) != mt::JsonLine::kDocument) continue;
    bytes += document.text.size();
    texts.push_back(document.text);
  }
  std::vector<std::int32_t> ids;
  for (int round = 0; round < rounds; ++round) {
    ids.clear();
    const auto start = std::chrono::steady_clock::now();
    for (const std::string& text : texts) tokenizer->encode(text, ids);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    std::cerr << R"({"bench":"tokenizer","what":"encoding alone, round )" << round
              << R"(","value":)" << static_cast<double>(bytes) / 1e6 / took.count()
              << R"(,"unit":"MB/s","goal":"","command":"tokenizer_bench"})" << '\n';
  }
  mt::StreamHash hash;
  hash.update(ids.data(), ids.size() * sizeof(std::int32_t));
  std::cout << ids.size() << " tokens, digest " << mt::to_hex(hash.digest()) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::cerr << "usage: tokenizer_bench VOCAB MERGES FILE.jsonl ROUNDS\n";
    return 2;
  }
  return bench(argv[1], argv[2], argv[3], std::stoi(argv[4]));
} catch (const std::exception& error) {
  std::cerr << "tokenizer_bench: " << error.what() << '\n';
  return 1;
}
