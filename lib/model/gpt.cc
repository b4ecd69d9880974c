#include "model/gpt.h"

#include <cmath>
#include <utility>

#include "model/gpt_parts.h"
#include "tensor/ops.h"

namespace mt {

GptStage::Parts::Parts(const ModelConfig& model, const StageRange& stage, const Communicator& group,
                       Pool& memory, Use what_for, DType numbers, const LayerLayout& cuts)
    : config(model),
      range(stage),
      layout(cuts),
      tp(&group),
      sliced(what_for == Use::kTraining && holds_slices(cuts, group)),
      pool(&memory),
      use(what_for) {
  add_layers(group, numbers);
  add_gradient_parts();
}

void GptStage::Parts::add_layers(const Communicator& group, DType numbers) {
  config.check();
  MT_ASSERT(0 <= range.first_layer && range.first_layer <= range.last_layer &&
            range.last_layer <= config.num_layers);
  const Gradient gradient = use == Use::kTraining ? Gradient::kZeroed : Gradient::kNone;
  LayerSetup setup{.tp = group,
                   .pool = *pool,
                   .gradient = gradient,
                   .init_std = config.init_method_std,
                   .numbers = numbers,
                   .layout = layout};
  // Decoding takes one position at a time, which no two ranks can share.
  setup.layout.sequence_parallel = sliced;
  const bool tied = !config.untie_embeddings_and_output_weights;
  if (range.first) {
    embedding.emplace(EmbeddingSizes{.vocabulary = config.vocab_size,
                                     .positions = config.max_position_embeddings,
                                     .hidden = config.hidden_size,
                                     .dropout = config.hidden_dropout},
                      setup);
    embedding->collect(parameters);
  }
  const double output_std =
      config.init_method_std / std::sqrt(2.0 * static_cast<double>(config.num_layers));
  for (std::int64_t layer = range.first_layer; layer < range.last_layer; ++layer) {
    blocks.emplace_back(BlockSizes{.hidden = config.hidden_size,
                                   .inner = config.ffn_hidden_size,
                                   .heads = config.num_attention_heads,
                                   .layer = layer,
                                   .layernorm_epsilon = config.layernorm_epsilon,
                                   .hidden_dropout = config.hidden_dropout,
                                   .attention_dropout = config.attention_dropout,
                                   .output_std = output_std},
                        setup);
    first_of_block.push_back(parameters.size());
    blocks.back().collect(parameters);
  }
  first_of_block.push_back(parameters.size());
  sums_parts = layout.sample_shards > 1;
  if (!range.last) return;
  final_norm.emplace("final_layernorm", config.hidden_size, config.layernorm_epsilon, setup);
  final_norm->collect(parameters);
  head.emplace(config.vocab_size, group, kLogitsBlockBytes, layout.virtual_shards);
  if (tied && range.first) {
    if (use == Use::kTraining) add_tied_gradients();
    return;
  }
  const OwnedRange rows = owned_range(config.vocab_size, group);
  output_weight =
      make_parameter(*pool,
                     {{.name = tied ? "embedding.word_embeddings.weight" : "output_layer.weight",
                       .global_shape = {config.vocab_size, config.hidden_size},
                       .offset = {rows.begin, 0},
                       .extent = {rows.size(), config.hidden_size}}},
                     gradient, Init::kNormal, config.init_method_std, numbers);
  output_weight.copy = tied;
  output_weight.written_by_products = true;
  head_gradient = output_weight.grad;
  parameters.push_back(&output_weight);
}

void GptStage::Parts::add_tied_gradients() {
  Parameter& words = embedding->words();
  head_gradient = words.grad;
  words.written_by_products = true;
  if (layout.virtual_shards == 1) {
    embedding_gradient.emplace(embedding->range(), config.hidden_size, *pool);
  } else {
    words.grad_apart = Tensor::zero(*pool, words.grad.shape(), DType::kF32, MemoryKind::kGradients);
  }
}

void GptStage::Parts::add_gradient_parts() {
  if (use != Use::kTraining) return;
  std::vector<Tensor> others;
  for (const Parameter* parameter : parameters) {
    const Tensor& sum = parameter->grad_shards.defined() ? parameter->grad_shards : parameter->grad;
    const bool of_head = head_gradient.defined() && sum.data() == head_gradient.data();
    if (!of_head) others.push_back(sum);
    if (parameter->grad_apart.defined()) others.push_back(parameter->grad_apart);
  }
  backward_parts = GradientParts(std::move(others), layout.sample_shards);
  if (range.last) forward_parts = GradientParts({head_gradient}, layout.sample_shards);
}

Parameter& GptStage::Parts::head_parameter() {
  return output_weight.value.defined() ? output_weight : embedding->words();
}

const Tensor& GptStage::Parts::head_weight() const {
  return output_weight.value.defined() ? output_weight.value : embedding->words().value;
}

void GptStage::Parts::check(const GptInput& input, std::int64_t start) const {
  MT_ASSERT(input.batch > 0 && input.sequence > 0 && input.tokens != nullptr);
  const std::int64_t positions = config.max_position_embeddings;
  if (input.position_ids == nullptr && start + input.sequence > positions) {
    throw UsageError(cat("a sequence of ", start + input.sequence, " tokens: the model has ",
                         positions, " positions"));
  }
  if (sliced && input.sequence % tp->size() != 0) {
    throw UsageError(cat("--sequence-parallel: a sequence of ", input.sequence,
                         " tokens is not divisible by --tensor-model-parallel-size ", tp->size()));
  }
  const auto check_ids = [&](const std::int32_t* ids, std::int64_t limit, const char* what) {
    if (ids == nullptr) return;
    for (std::int64_t i = 0; i < input.batch * input.sequence; ++i) {
      if (ids[i] >= 0 && ids[i] < limit) continue;
      throw DataError(cat(what, " ", ids[i], " at token ", i % input.sequence, " of sequence ",
                          i / input.sequence, ": expected 0 to ", limit - 1));
    }
  };
  check_ids(input.tokens, config.vocab_size, "token id");
  check_ids(input.position_ids, positions, "position");
  for (std::int64_t i = 0; input.first_key != nullptr && i < input.batch * input.sequence; ++i) {
    // A query that saw no key at all would have no result.
    MT_ASSERT(input.first_key[i] >= 0 && input.first_key[i] <= start + i % input.sequence);
  }
}

void GptStage::Parts::check_labels(const GptInput& input) const {
  MT_ASSERT(input.labels != nullptr);
  for (std::int64_t i = 0; i < input.batch * input.sequence; ++i) {
    if (input.labels[i] >= 0 && input.labels[i] < config.vocab_size) continue;
    throw DataError(cat("label ", input.labels[i], " at token ", i % input.sequence,
                        " of sequence ", i / input.sequence, ": expected 0 to ",
                        config.vocab_size - 1));
  }
}

Tensor GptStage::Parts::upload_i32(const std::int32_t* values, const GptInput& input) const {
  return upload(*pool, values, {input.batch, input.sequence}, DType::kI32,
                MemoryKind::kActivations);
}

MicroBatch GptStage::Parts::micro_batch(const GptInput& input, std::uint32_t dropout_seed) const {
  MicroBatch micro;
  micro.dropout_seed = dropout_seed;
  if (sliced) micro.first_position = tp->rank() * (input.sequence / tp->size());
  if (input.first_key != nullptr) micro.first_key = upload_i32(input.first_key, input);
  if (input.samples != nullptr) {
    micro.samples =
        upload(*pool, input.samples, {input.batch, static_cast<std::int64_t>(sizeof(std::int64_t))},
               DType::kU8, MemoryKind::kActivations);
  }
  return micro;
}

Shape GptStage::Parts::activation_shape(const GptInput& input) const {
  return {input.batch, sliced ? input.sequence / tp->size() : input.sequence, config.hidden_size};
}

Tensor GptStage::Parts::all_positions(const Tensor& x) const {
  return sliced ? gather_positions(x, *tp) : x;
}

Tensor GptStage::Parts::embed(const GptInput& input, std::int64_t start, const MicroBatch& micro,
                              VocabParallelEmbedding::Saved* saved) const {
  std::vector<std::int32_t> consecutive;
  if (input.position_ids == nullptr) {
    consecutive.resize(static_cast<std::size_t>(input.batch * input.sequence));
    for (std::size_t i = 0; i < consecutive.size(); ++i) {
      consecutive[i] =
          static_cast<std::int32_t>(start + static_cast<std::int64_t>(i) % input.sequence);
    }
  }
  const std::int32_t* ids = input.position_ids != nullptr ? input.position_ids : consecutive.data();
  return embedding->forward(upload_i32(input.tokens, input), upload_i32(ids, input), micro, saved);
}

double GptStage::Parts::train_loss(const GptInput& input, const Tensor& x, double gradient_scale,
                                   Saved& saved, double loss_before) {
  const std::int64_t count = input.batch * input.sequence;
  const auto weight_of = [&](std::int64_t i) {
    return input.loss_weight != nullptr ? static_cast<double>(input.loss_weight[i]) : 1.0;
  };
  std::vector<float> row_weight(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    row_weight[static_cast<std::size_t>(i)] = static_cast<float>(weight_of(i) * gradient_scale);
  }
  std::vector<float> nll(static_cast<std::size_t>(count));
  // The head turns the norm's result into its gradient in place.
  const Tensor normed = all_positions(final_norm->forward(x, &saved.final_norm));
  using Dx = VocabParallelHead::Dx;
  head->nll_and_gradients(
      normed.view({count, config.hidden_size}), head_weight(), head_gradient,
      upload(*pool, input.labels, {count}, DType::kI32, MemoryKind::kActivations),
      upload(*pool, row_weight.data(), {count}, DType::kF32, MemoryKind::kActivations), nll.data(),
      sliced ? Dx::kPart : Dx::kSummed,
      take_stale(head_parameter()) ? Output::kOverwrite : Output::kAdd);
  saved.d_normed = sliced ? scatter_positions(normed, *tp) : normed;
  double sum = loss_before;
  for (std::int64_t i = 0; i < count; ++i) {
    // Weight 0 takes a position out, whatever its logits are.
    if (weight_of(i) != 0.0) sum += weight_of(i) * nll[static_cast<std::size_t>(i)];
  }
  return sum;
}

GptStage::GptStage(const ModelConfig& config, StageRange range, const Communicator& tp, Pool& pool,
                   Use use, DType numbers, const LayerLayout& layout)
    : parts_(std::make_unique<Parts>(config, range, tp, pool, use, numbers, layout)) {}

GptStage::~GptStage() = default;

void GptStage::initialize(std::uint32_t seed) {
  for (const Parameter* parameter : parts_->parameters) mt::initialize(*parameter, seed);
}

const std::vector<Parameter*>& GptStage::parameters() {
  return parts_->parameters;
}

Shape GptStage::activation_shape(const GptInput& input) const {
  return parts_->activation_shape(input);
}

const ModelConfig& GptStage::config() const {
  return parts_->config;
}

const Parameter* GptStage::tied_weight() const {
  const Parts& parts = *parts_;
  if (parts.config.untie_embeddings_and_output_weights) return nullptr;
  if (parts.range.first) return &parts.embedding->words();
  return parts.range.last ? &parts.output_weight : nullptr;
}

std::unique_ptr<GptStage::Saved, GptStage::Release> GptStage::make_saved() const {
  return std::unique_ptr<Saved, Release>(std::make_unique<Saved>().release());
}

void GptStage::Release::operator()(Saved* saved) const {
  const std::unique_ptr<Saved> owned(saved);
}

void GptStage::Release::operator()(Cache* cache) const {
  const std::unique_ptr<Cache> owned(cache);
}

GptStage::ForwardResult GptStage::forward(const GptInput& input, const Tensor& activations,
                                          std::uint32_t dropout_seed, double gradient_scale,
                                          Saved& saved, double loss_before) {
  Parts& parts = *parts_;
  MT_ASSERT(parts.use == Use::kTraining);
  parts.check(input, 0);
  if (parts.range.last) parts.check_labels(input);
  saved.micro = parts.micro_batch(input, dropout_seed);
  saved.blocks.resize(parts.blocks.size());
  Tensor x = parts.range.first ? parts.embed(input, 0, saved.micro, &saved.embedding) : activations;
  for (std::size_t i = 0; i < parts.blocks.size(); ++i) {
    x = parts.blocks[i].forward(x, saved.micro, &saved.blocks[i]);
  }
  if (!parts.range.last) return {.activations = x, .loss_sum = 0};
  return {.activations = {},
          .loss_sum = parts.train_loss(input, x, gradient_scale, saved, loss_before)};
}

Tensor GptStage::backward(const GptInput& input, const Tensor& d_activations, Saved& saved,
                          const Complete& complete) {
  Parts& parts = *parts_;
  MT_ASSERT(saved.blocks.size() == parts.blocks.size());
  Tensor dx = d_activations;
  if (parts.range.last) {
    dx = parts.final_norm->backward(std::exchange(saved.d_normed, {}), {}, saved.final_norm);
    saved.final_norm = {};
  }
  MT_ASSERT(dx.shape() == parts.activation_shape(input));
  const auto say = [&](std::size_t first) {
    if (complete && !parts.sums_parts) complete(first);
  };
  say(parts.first_of_block[parts.blocks.size()]);
  for (std::size_t i = parts.blocks.size(); i-- > 0;) {
    dx = parts.blocks[i].backward(dx, saved.micro, saved.blocks[i]);
    say(parts.first_of_block[i]);
  }
  if (!parts.range.first) return dx;
  parts.embedding->backward(dx, saved.micro, saved.embedding,
                            parts.embedding_gradient ? &*parts.embedding_gradient : nullptr);
  saved.embedding = {};
  return {};
}

void GptStage::close_part(Pass pass) {
  (pass == Pass::kForward ? parts_->forward_parts : parts_->backward_parts).close();
}

int GptStage::sample_shards() const {
  return parts_->layout.sample_shards;
}

void GptStage::finish_gradients() {
  Parts& parts = *parts_;
  if (parts.embedding_gradient) parts.embedding_gradient->add_to(parts.head_gradient);
}

void GptStage::reserve_gradients(std::int64_t tokens) {
  if (parts_->embedding_gradient) parts_->embedding_gradient->reserve(tokens);
}

}  // namespace mt
