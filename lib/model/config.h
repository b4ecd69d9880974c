// What determines a model: sizes and constants, from options, a checkpoint or an imported
// configuration.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"
#include "base/options.h"

namespace mt {

struct ModelConfig {
  std::string kind = "gpt";
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t ffn_hidden_size = 0;  // 0: 4 * hidden_size, resolved by check()
  std::int64_t max_position_embeddings = 0;
  std::int64_t vocab_size = 0;  // true, not padded; comes from the data or the imported model
  bool untie_embeddings_and_output_weights = false;
  double layernorm_epsilon = 1e-5;
  double init_method_std = 0.02;
  double hidden_dropout = 0.1;
  double attention_dropout = 0.1;

  // Registers every field but kind and vocab_size, under Megatron-LM's names.
  void add_to(Options& options);
  // Resolves ffn_hidden_size. Throws UsageError with the arithmetic: sizes not positive, heads that
  // do not divide the width, absurd sizes (products that overflow, or a model larger than 2^48
  // parameters), probabilities outside [0, 1).
  void check();

  // As stored in checkpoints; dropout belongs to training, and is stored there.
  [[nodiscard]] Json to_json() const;
  // Throws DataError naming `where` and the key for what is missing, unknown or out of range; runs
  // check().
  [[nodiscard]] static ModelConfig from_json(const Json& json, const std::string& where);

  [[nodiscard]] std::int64_t parameter_count() const;
  // Floating-point operations of forward and backward for one token of a sequence of s, full
  // attention: 6 N' + 12 l h s with N' the weights of all products (Narayanan et al.,
  // arXiv:2104.04473, eq. 3 without recomputation).
  [[nodiscard]] double training_flops_per_token(std::int64_t sequence) const;
  // Bytes that training in f32 on one process holds at its peak with micro-batches of `batch`
  // sequences and steps of `global_batch`: weights, gradients, two moments, activations and
  // workspace, counted from the shapes that the layers allocate. Throws UsageError when the number
  // does not fit 63 bits.
  [[nodiscard]] std::int64_t training_bytes_estimate(std::int64_t batch, std::int64_t sequence,
                                                     std::int64_t global_batch) const;
};

// Throws UsageError that names the option if `stored` (from a checkpoint) and `wished` differ in a
// field that was given on the command line. Sizes that were not given are taken from `stored`.
[[nodiscard]] ModelConfig reconcile(const ModelConfig& stored, const ModelConfig& wished,
                                    const Options& options);

}  // namespace mt
