#include "train/training_data.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/megatron_index.h"
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

// The name as given, or with a suffix that mt-preprocess adds to its --output-prefix; of Megatron-
// LM's data the prefix.
struct ShardFile {
  std::string path;
  bool megatron = false;
};
ShardFile shard_file(const std::string& path) {
  const bool named = path.ends_with(".bin") || path.ends_with(".idx");
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  if (exists(path) && !named && !folder) return {.path = path};
  if (exists(path + ".h5")) return {.path = path + ".h5"};
  if (std::string prefix = find_megatron_prefix(path); !prefix.empty()) {
    return {.path = std::move(prefix), .megatron = true};
  }
  return {.path = path};
}

std::unique_ptr<Tokenizer> named_tokenizer(const DataOptions& options) {
  if (options.vocab_file.empty()) return nullptr;
  const TokenizerFiles files = {.vocab = read_file(options.vocab_file, kLargestTokenizerFile),
                                .merges = read_file(options.merge_file, kLargestTokenizerFile)};
  return make_bpe_tokenizer(
      files, TokenizerNames{printable(options.vocab_file), printable(options.merge_file)});
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
                           bool split_given)
    : tokenizer_(named_tokenizer(options)) {
  if (options.data_path.empty()) {
    train_ = whole("train-data-path", options.train_data_path);
    valid_ = whole("valid-data-path", options.valid_data_path);
    test_ = whole("test-data-path", options.test_data_path);
    check_overlaps();
  } else {
    cut(options, split_given);
  }
  check_tokenizers(options);
  make_data(train_, options, seed);
  if (validation == Validation::kNone) {
    valid_ = Part{};
    test_ = Part{};
  }
  if (validation == Validation::kNeeded && valid_.pieces.empty()) {
    throw UsageError(
        "validation needs --valid-data-path, or a second weight in --split; --eval-iters 0 goes "
        "without");
  }
  if (!valid_.pieces.empty()) make_data(valid_, options, seed);
  if (!test_.pieces.empty()) make_data(test_, options, seed);
  for (const Piece& piece : train_.pieces) {
    identities_.push_back(identify(*piece.shard, piece.range));
    const auto twin = std::find(identities_.begin(), identities_.end() - 1, identities_.back());
    if (twin != identities_.end() - 1) {
      const auto at = static_cast<std::size_t>(twin - identities_.begin());
      throw UsageError(cat(piece.name, ": the same documents as ", train_.pieces[at].name,
                           "; a blend takes each token shard once, with the sum of the weights"));
    }
  }
}

const TokenShardReader* TrainingData::open(const std::string& path) {
  const auto [file, megatron] = shard_file(path);
  std::error_code ignored;  // a path that does not resolve is reported by the reader
  std::string key = std::filesystem::weakly_canonical(file, ignored).string();
  if (key.empty()) key = file;
  auto& shard = shards_[key];
  if (shard != nullptr) return shard.get();
  if (megatron && tokenizer_ == nullptr) {
    throw UsageError(cat(printable(file),
                         ".idx: that format carries no tokenizer: --vocab-file and "
                         "--merge-file must name the one that made it"));
  }
  shard = megatron ? std::make_unique<TokenShardReader>(file, *tokenizer_)
                   : std::make_unique<TokenShardReader>(file);
  return shard.get();
}

TrainingData::Part TrainingData::whole(const char* option, const std::vector<std::string>& words) {
  Part part;
  const std::vector<WeightedPath> paths = parse_blend(words, option);
  allow_open_files(shards_.size() + paths.size());
  for (const WeightedPath& entry : paths) {
    const TokenShardReader* shard = open(entry.path);
    part.pieces.push_back({.shard = shard,
                           .range = {.first = 0, .last = shard->documents()},
                           .weight = entry.weight,
                           .name = cat("--", option, " ", entry.path)});
  }
  return part;
}

// Training must not see what it is measured on.
void TrainingData::check_overlaps() const {
  for (const Part* part : {&valid_, &test_}) {
    for (const Piece& piece : part->pieces) {
      for (const Piece& train : train_.pieces) {
        if (piece.shard != train.shard) continue;
        throw UsageError(cat(piece.name, ": the same file as ", train.name,
                             "; give --data-path with --split for parts of one shard"));
      }
    }
  }
}

void TrainingData::cut(const DataOptions& options, bool split_given) {
  // A weight of 0 says that the part is not wanted: split_documents gives it nothing whatever the
  // number of documents.
  const auto shares = split_documents(std::int64_t{1} << 40, options.split);
  const std::vector<WeightedPath> paths = parse_blend(options.data_path, "data-path");
  allow_open_files(paths.size());
  const char* names[] = {"training", "validation", "test"};
  Part* parts[] = {&train_, &valid_, &test_};
  for (const WeightedPath& entry : paths) {
    const TokenShardReader* shard = open(entry.path);
    const auto ranges = split_documents(shard->documents(), options.split);
    for (std::size_t i = 0; i < 3; ++i) {
      const bool wanted = i == 0 || (i < shares.size() && shares[i].first != shares[i].last);
      // The default's test part may come out empty.
      const bool empty = i < ranges.size() && ranges[i].first == ranges[i].last;
      if (!wanted || i >= ranges.size() || (i == 2 && empty && !split_given)) continue;
      parts[i]->pieces.push_back(
          {.shard = shard,
           .range = ranges[i],
           .weight = entry.weight,
           .name = cat("the ", names[i], " part of --data-path ", entry.path, " (--split ",
                       options.split, " of ", shard->documents(), " documents)")});
    }
  }
}

void TrainingData::check_tokenizers(const DataOptions& options) const {
  const Piece& first = train_.pieces.front();
  const std::string expected = to_hex(first.shard->tokenizer_digest());
  for (const Part* part : {&train_, &valid_, &test_}) {
    for (const Piece& piece : part->pieces) {
      const std::string found = to_hex(piece.shard->tokenizer_digest());
      if (found == expected) continue;
      throw DataError(cat(piece.name, ": made with tokenizer ", found, ", but ", first.name,
                          " with ", expected));
    }
  }
  if (tokenizer_ == nullptr) return;
  if (const std::string found = to_hex(tokenizer_->digest()); found != expected) {
    throw DataError(cat("--vocab-file ", options.vocab_file, ": is tokenizer ", found, ", but ",
                        first.name, " was made with ", expected));
  }
}

void TrainingData::make_data(Part& part, const DataOptions& options, std::uint32_t seed) const {
  std::vector<BlendedData::Source> sources;
  for (const Piece& piece : part.pieces) {
    const std::int64_t tokens = range_tokens(*piece.shard, piece.range);
    if (tokens < options.seq_length + 1) {
      throw UsageError(cat(piece.name, ": holds ", tokens, " tokens, but a sample of --seq-length ",
                           options.seq_length, " takes ", options.seq_length + 1,
                           &part == &train_ ? "" : "; --eval-iters 0 goes without validation"));
    }
    sources.push_back({.data = GptDataset(*piece.shard, piece.range, options.seq_length, seed),
                       .weight = piece.weight,
                       .name = piece.name});
  }
  part.data = std::make_unique<BlendedData>(std::move(sources));
}

Json TrainingData::origin(const SamplePlace& place) const {
  const auto at = static_cast<std::size_t>(place.source);
  const TokenShardReader& shard = *train_.pieces.at(at).shard;
  const std::int64_t token = train_.data->sources()[at].data.window(place.index).first;
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
    if (p.data == nullptr) return std::string();
    std::int64_t tokens = 0, documents = 0, samples = 0;
    for (std::size_t i = 0; i < p.pieces.size(); ++i) {
      tokens += range_tokens(*p.pieces[i].shard, p.pieces[i].range);
      documents += p.pieces[i].range.last - p.pieces[i].range.first;
      samples += p.data->sources()[i].data.samples_per_epoch();
    }
    return cat(name, " ", tokens, " tokens in ", documents, " documents (", samples,
               " samples an epoch", p.pieces.size() > 1 ? " of all " : "",
               p.pieces.size() > 1 ? cat(p.pieces.size(), " shards") : "", ")");
  };
  std::string text = part("training", train_);
  for (const auto& other : {part("validation", valid_), part("test", test_)}) {
    if (!other.empty()) text += "; " + other;
  }
  return text;
}

}  // namespace mt
