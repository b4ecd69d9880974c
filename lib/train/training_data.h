// The token shards of a run and the parts that they are cut into. Everything about them that can be
// checked is checked when they are opened: which part is empty or too short, which vocabularies
// differ, whether training and validation overlap.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "data/gpt_batches.h"
#include "data/token_shard.h"
#include "train/train_options.h"

namespace mt {

// What the training part holds, so that a run is not resumed on other data. The fingerprint covers
// the lengths of all documents and the first and last 4,096 tokens.
struct DataIdentity {
  std::int64_t documents = 0, tokens = 0;
  std::string fingerprint;  // hexadecimal
  std::string tokenizer;    // hexadecimal

  [[nodiscard]] Json to_json() const;
  [[nodiscard]] static DataIdentity from_json(const Json& json, const std::string& where);
  friend bool operator==(const DataIdentity&, const DataIdentity&) = default;
};

class TrainingData {
 public:
  // What else than training will be asked for.
  enum class Validation { kNeeded, kNone };

  // options.seq_length is set. `split_given`: the user chose --split, so that a test part of weight
  // above 0 must not come out empty. Throws UsageError for a part that is needed and empty or
  // shorter than a window, and for overlapping shards; DataError for tokenizers that differ;
  // what TokenShardReader throws.
  TrainingData(const DataOptions& options, std::uint32_t seed, Validation validation,
               bool split_given);

  [[nodiscard]] const GptDataset& train() const { return *train_.dataset; }
  [[nodiscard]] const GptDataset* validation() const { return valid_.dataset.get(); }  // or null
  [[nodiscard]] const GptDataset* test() const { return test_.dataset.get(); }         // or null
  [[nodiscard]] const TokenShardReader& shard() const { return *train_.shard; }
  [[nodiscard]] const DataIdentity& identity() const { return identity_; }
  // Where a sample of the training part comes from: {"shard", "document", "offset"}, the document
  // (counted from 0 in the shard) and the token in it that the sample begins with.
  [[nodiscard]] Json origin(std::int64_t sample) const;
  // One line for the log: tokens and windows of each part.
  [[nodiscard]] std::string summary() const;

 private:
  struct Part {
    const TokenShardReader* shard = nullptr;
    DocumentRange range;
    std::string name;  // "--train-data-path FILE" or "training part of --data-path FILE (...)"
    std::unique_ptr<GptDataset> dataset;
  };

  const TokenShardReader* open(const std::string& path);
  Part whole(const char* option, const std::string& path);
  void cut(const DataOptions& options);
  void check_tokenizers(const DataOptions& options) const;
  void make_dataset(Part& part, const DataOptions& options, std::uint32_t seed) const;

  std::map<std::string, std::unique_ptr<TokenShardReader>> shards_;  // by canonical path
  Part train_, valid_, test_;
  DataIdentity identity_;
};

// The number of tokens in a range of documents.
[[nodiscard]] std::int64_t range_tokens(const TokenShardReader& shard, const DocumentRange& range);

}  // namespace mt
