#include "train/training_data.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/hash.h"
#include "text/tokenizer.h"

namespace mt {

namespace {

constexpr std::uint64_t kLargestTokenizerFile = std::uint64_t{1} << 30;
constexpr std::int64_t kFingerprintTokens = 4096;

DataIdentity identify(const TokenShardReader& shard, const DocumentRange& range) {
  const std::int64_t begin = shard.document_offset(range.first);
  const std::int64_t end = shard.document_offset(range.last);
  StreamHash hash;
  for (std::int64_t d = range.first; d <= range.last; ++d) {
    const std::int64_t offset = shard.document_offset(d) - begin;
    hash.update(&offset, sizeof offset);
  }
  const std::int64_t count = std::min(end - begin, kFingerprintTokens);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (const std::int64_t from : {begin, end - count}) {
    shard.read(from, count, tokens.data());
    hash.update(tokens.data(), tokens.size() * sizeof(std::int32_t));
  }
  return {.documents = range.last - range.first,
          .tokens = end - begin,
          .fingerprint = to_hex(hash.digest()),
          .tokenizer = to_hex(shard.tokenizer_digest())};
}

// The name as given, or with the suffix that mt-preprocess adds to its --output-prefix.
std::string shard_path(const std::string& path) {
  return !exists(path) && exists(path + ".h5") ? path + ".h5" : path;
}

}  // namespace

Json DataIdentity::to_json() const {
  return {{"documents", documents},
          {"tokens", tokens},
          {"fingerprint", fingerprint},
          {"tokenizer", tokenizer}};
}

DataIdentity DataIdentity::from_json(const Json& json, const std::string& where) {
  return {.documents = json_count(json, "documents", where),
          .tokens = json_count(json, "tokens", where),
          .fingerprint = json_string(json, "fingerprint", where),
          .tokenizer = json_string(json, "tokenizer", where)};
}

std::int64_t range_tokens(const TokenShardReader& shard, const DocumentRange& range) {
  return shard.document_offset(range.last) - shard.document_offset(range.first);
}

TrainingData::TrainingData(const DataOptions& options, std::uint32_t seed, Validation validation,
                           bool split_given) {
  if (options.data_path.empty()) {
    train_ = whole("train-data-path", options.train_data_path.front());
    if (!options.valid_data_path.empty()) {
      valid_ = whole("valid-data-path", options.valid_data_path.front());
    }
    if (!options.test_data_path.empty()) {
      test_ = whole("test-data-path", options.test_data_path.front());
    }
    for (const Part* part : {&valid_, &test_}) {
      if (part->shard == train_.shard) {
        throw UsageError(cat(part->name, ": the same file as ", train_.name,
                             "; give --data-path with --split for parts of one shard"));
      }
    }
  } else {
    cut(options);
    const bool weightless = test_.range.first == test_.range.last && !split_given;
    if (weightless) test_ = Part{};
  }
  check_tokenizers(options);
  make_dataset(train_, options, seed);
  if (validation == Validation::kNone) {
    valid_ = Part{};
    test_ = Part{};
  }
  if (validation == Validation::kNeeded && valid_.shard == nullptr) {
    throw UsageError(
        "validation needs --valid-data-path, or a second weight in --split; --eval-iters 0 goes "
        "without");
  }
  if (valid_.shard != nullptr) make_dataset(valid_, options, seed);
  if (test_.shard != nullptr) make_dataset(test_, options, seed);
  identity_ = identify(*train_.shard, train_.range);
}

const TokenShardReader* TrainingData::open(const std::string& path) {
  const std::string file = shard_path(path);
  std::error_code ignored;  // a path that does not resolve is reported by the reader
  std::string key = std::filesystem::weakly_canonical(file, ignored).string();
  if (key.empty()) key = file;
  auto& shard = shards_[key];
  if (shard == nullptr) shard = std::make_unique<TokenShardReader>(file);
  return shard.get();
}

TrainingData::Part TrainingData::whole(const char* option, const std::string& path) {
  Part part;
  part.shard = open(path);
  part.range = {.first = 0, .last = part.shard->documents()};
  part.name = cat("--", option, " ", path);
  return part;
}

void TrainingData::cut(const DataOptions& options) {
  const std::string& path = options.data_path.front();
  const TokenShardReader* shard = open(path);
  const auto ranges = split_documents(shard->documents(), options.split);
  const char* names[] = {"training", "validation", "test"};
  Part* parts[] = {&train_, &valid_, &test_};
  for (std::size_t i = 0; i < 3 && i < ranges.size(); ++i) {
    *parts[i] = {.shard = shard,
                 .range = ranges[i],
                 .name = cat("the ", names[i], " part of --data-path ", path, " (--split ",
                             options.split, " of ", shard->documents(), " documents)"),
                 .dataset = nullptr};
  }
  // A weight of 0 says that the part is not wanted: split_documents gives it nothing whatever the
  // number of documents.
  const auto shares = split_documents(std::int64_t{1} << 40, options.split);
  for (std::size_t i = 1; i < 3; ++i) {
    if (i >= shares.size() || shares[i].first == shares[i].last) *parts[i] = Part{};
  }
}

void TrainingData::check_tokenizers(const DataOptions& options) const {
  const std::string expected = to_hex(train_.shard->tokenizer_digest());
  for (const Part* part : {&valid_, &test_}) {
    if (part->shard == nullptr) continue;
    if (const std::string found = to_hex(part->shard->tokenizer_digest()); found != expected) {
      throw DataError(cat(part->name, ": made with tokenizer ", found, ", but ", train_.name,
                          " with ", expected));
    }
  }
  if (options.vocab_file.empty()) return;
  const TokenizerFiles files = {.vocab = read_file(options.vocab_file, kLargestTokenizerFile),
                                .merges = read_file(options.merge_file, kLargestTokenizerFile)};
  const auto tokenizer = make_bpe_tokenizer(files, options.vocab_file);
  if (const std::string found = to_hex(tokenizer->digest()); found != expected) {
    throw DataError(cat("--vocab-file ", options.vocab_file, ": is tokenizer ", found, ", but ",
                        train_.name, " was made with ", expected));
  }
}

void TrainingData::make_dataset(Part& part, const DataOptions& options, std::uint32_t seed) const {
  const std::int64_t tokens = range_tokens(*part.shard, part.range);
  if (tokens < options.seq_length + 1) {
    throw UsageError(cat(part.name, ": holds ", tokens, " tokens, but a sample of --seq-length ",
                         options.seq_length, " takes ", options.seq_length + 1,
                         &part == &train_ ? "" : "; --eval-iters 0 goes without validation"));
  }
  part.dataset = std::make_unique<GptDataset>(*part.shard, part.range, options.seq_length, seed);
}

Json TrainingData::origin(std::int64_t sample) const {
  const TokenShardReader& shard = *train_.shard;
  const std::int64_t token = train_.dataset->window(sample).first;
  std::int64_t document = 0, beyond = shard.documents();  // the last that starts at or before it
  while (beyond - document > 1) {
    const std::int64_t middle = document + (beyond - document) / 2;
    (shard.document_offset(middle) <= token ? document : beyond) = middle;
  }
  return {{"shard", shard.path()},
          {"document", document},
          {"offset", token - shard.document_offset(document)}};
}

std::string TrainingData::summary() const {
  const auto part = [](const char* name, const Part& p) {
    return p.dataset == nullptr ? std::string()
                                : cat(name, " ", range_tokens(*p.shard, p.range), " tokens in ",
                                      p.range.last - p.range.first, " documents (",
                                      p.dataset->samples_per_epoch(), " samples an epoch)");
  };
  std::string text = part("training", train_);
  for (const auto& other : {part("validation", valid_), part("test", test_)}) {
    if (!other.empty()) text += "; " + other;
  }
  return text;
}

}  // namespace mt
