// A small checkpoint whose every number follows from its iteration, for tests of damage and faults.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/checkpoint.h"
#include "comm/communicator.h"

namespace mt::testing_data {

// Owns the numbers that the boxes of `content` point to.
struct SampleCheckpoint {
  CheckpointContent content;
  std::vector<std::unique_ptr<std::vector<unsigned char>>> values;
};

struct SampleTensor {
  const char* name;
  Shape shape;
  DType dtype;
};

inline const std::vector<SampleTensor>& sample_tensors() {
  static const std::vector<SampleTensor> tensors = {
      {"embedding.word.weight", {67, 24}, DType::kF32},
      {"embedding.position.weight", {16, 24}, DType::kBf16},
      {"layers.0.attention.query.weight", {24, 24}, DType::kF32},
      {"layers.0.attention.query.bias", {24}, DType::kF32},
      {"layers.0.mlp.up.weight", {96, 24}, DType::kF16},
      {"layers.0.cube", {3, 5, 7}, DType::kF32},
      {"scale", {}, DType::kF32},
      {"empty", {0, 24}, DType::kF32},
      {"counts", {11}, DType::kI32},
  };
  return tensors;
}

// Bits of small finite numbers of any type, all different from tensor to tensor and iteration.
inline std::vector<unsigned char> sample_values(const SampleTensor& tensor, std::int64_t salt) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) {
    count *= size;
  }
  const std::size_t element = dtype_size(tensor.dtype);
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count) * element);
  std::uint64_t state = static_cast<std::uint64_t>(salt) * 1000003U + tensor.shape.size();
  for (const char* c = tensor.name; *c != '\0'; ++c) {
    state = state * 131U + static_cast<unsigned char>(*c);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const bool top = i % element == element - 1;
    bytes[i] = static_cast<unsigned char>(top ? 0x3c : state >> 33);
  }
  return bytes;
}

inline SampleCheckpoint sample_checkpoint(std::int64_t iteration) {
  SampleCheckpoint sample;
  CheckpointContent& content = sample.content;
  content.iteration = iteration;
  content.model = {{"num_layers", 1}, {"hidden_size", 24}, {"init_std", 0.02}};
  content.training = {{"iteration", iteration}, {"lr", 1e-3}};
  content.tokenizer_digest = std::string(32, 'a');
  content.files = {{"tokenizer/vocab.json", "{\"a\":0}"}, {"tokenizer/merges.txt", ""}};
  const auto keep = [&](const SampleTensor& tensor, std::int64_t salt) {
    sample.values.push_back(
        std::make_unique<std::vector<unsigned char>>(sample_values(tensor, salt)));
    return sample.values.back()->data();
  };
  for (const SampleTensor& tensor : sample_tensors()) {
    const Shape origin(tensor.shape.size(), 0);
    content.weights.push_back(
        {tensor.name, tensor.shape, origin, tensor.shape, tensor.dtype, keep(tensor, iteration)});
    if (tensor.dtype == DType::kF32) {
      content.optimizer.push_back({std::string(tensor.name) + ".exp_avg", tensor.shape, origin,
                                   tensor.shape, tensor.dtype, keep(tensor, iteration + 1000)});
    }
  }
  return sample;
}

// Reads everything and compares it with what the iteration must hold. Throws DataError for damage
// and for other values.
inline void check_sample(const std::string& directory, std::int64_t iteration) {
  const CheckpointReader reader(directory);
  const SampleCheckpoint sample = sample_checkpoint(iteration);
  const auto check = [&](bool same, const std::string& what) {
    if (!same) {
      throw DataError(cat(directory, ": ", what, ": other content"));
    }
  };
  const auto compare = [&](const Box& box, bool optimizer) {
    std::size_t bytes = dtype_size(box.dtype);
    for (const std::int64_t size : box.extent) {
      bytes *= static_cast<std::size_t>(size);
    }
    std::vector<unsigned char> out(bytes);
    reader.read(box.name, box.global_shape, box.offset, box.extent, box.dtype, out.data());
    check(bytes == 0 || std::memcmp(out.data(), box.data, bytes) == 0, box.name);
    check(reader.tensors().at(box.name).optimizer == optimizer, box.name);
  };
  for (const Box& box : sample.content.weights) {
    compare(box, false);
  }
  for (const Box& box : sample.content.optimizer) {
    compare(box, true);
  }
  for (const auto& [name, text] : sample.content.files) {
    check(reader.file(name) == text, name);
  }
  check(reader.iteration() == iteration && reader.model() == sample.content.model &&
            reader.training() == sample.content.training &&
            reader.tokenizer_digest() == sample.content.tokenizer_digest &&
            reader.tensors().size() ==
                sample.content.weights.size() + sample.content.optimizer.size(),
        "manifest");
}

}  // namespace mt::testing_data
