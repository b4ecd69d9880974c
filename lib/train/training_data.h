// The token shards of a run and the parts that they are cut into. Everything about them that can be
// checked is checked when they are opened: which part is empty or too short, which vocabularies
// differ, whether training and validation overlap.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/blend.h"
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
  // shorter than a window, a shard that is given twice, and overlapping parts; DataError for
  // tokenizers that differ; what TokenShardReader throws.
  TrainingData(const DataOptions& options, std::uint32_t seed, Validation validation,
               bool split_given);

  [[nodiscard]] const BlendedData& train() const { return *train_.data; }
  [[nodiscard]] const BlendedData* validation() const { return valid_.data.get(); }  // or null
  [[nodiscard]] const BlendedData* test() const { return test_.data.get(); }         // or null
  // The first shard, whose tokenizer is that of all.
  [[nodiscard]] const TokenShardReader& shard() const { return *train_.pieces.front().shard; }
  // Of the sources of train(), in their order.
  [[nodiscard]] const std::vector<DataIdentity>& identities() const { return identities_; }
  // Where a sample of the training part comes from: {"shard", "document", "offset"}, the document
  // (counted from 0 in the shard) and the token in it that the sample begins with.
  [[nodiscard]] Json origin(const SamplePlace& place) const;
  // One line for the log: tokens and windows of each part.
  [[nodiscard]] std::string summary() const;

 private:
  struct Piece {
    const TokenShardReader* shard = nullptr;
    DocumentRange range;
    double weight = 1;
    std::string name;  // "--train-data-path FILE" or "training part of --data-path FILE (...)"
  };
  struct Part {
    std::vector<Piece> pieces;
    std::unique_ptr<BlendedData> data;
  };

  const TokenShardReader* open(const std::string& path);
  Part whole(const char* option, const std::vector<std::string>& words);
  void cut(const DataOptions& options, bool split_given);
  void check_overlaps() const;
  void check_tokenizers(const DataOptions& options) const;
  void make_data(Part& part, const DataOptions& options, std::uint32_t seed) const;

  std::unique_ptr<Tokenizer> tokenizer_;  // that the options name, or null
  std::map<std::string, std::unique_ptr<TokenShardReader>> shards_;  // by canonical path
  Part train_, valid_, test_;
  std::vector<DataIdentity> identities_;
};

// The number of tokens in a range of documents.
[[nodiscard]] std::int64_t range_tokens(const TokenShardReader& shard, const DocumentRange& range);

}  // namespace mt
