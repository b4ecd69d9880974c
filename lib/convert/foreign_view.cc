#include "convert/foreign_view.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/commit.h"
#include "base/error.h"
#include "base/log.h"
#include "convert/hugging_face.h"
#include "convert/hugging_face_names.h"
#include "convert/llmc_file.h"
#include "convert/stacked_names.h"
#include "io/gguf_reader.h"
#include "io/safetensors.h"

namespace mt {
namespace {

constexpr std::uint64_t kConfigLimit = std::uint64_t{1} << 20;
constexpr std::int64_t kTile = 16;  // rows and columns: both sides of a tile stay in the cache

DType floating(const ForeignTensor& tensor, const std::string& where) {
  if (tensor.type == "F32") return DType::kF32;
  if (tensor.type == "BF16") return DType::kBf16;
  if (tensor.type == "F16") return DType::kF16;
  throw DataError(cat(where, ": expected F32, BF16 or F16, found ", printable(tensor.type)));
}

template <typename T>
void gather(const ForeignView::Tensor& tensor, std::int64_t first, std::int64_t rows,
            std::int64_t columns, std::byte* out) {
  for (std::int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (std::int64_t c0 = 0; c0 < columns; c0 += kTile) {
      for (std::int64_t r = r0; r < std::min(r0 + kTile, rows); ++r) {
        for (std::int64_t c = c0; c < std::min(c0 + kTile, columns); ++c) {
          const std::int64_t at = (first + r) * tensor.row_stride + c * tensor.column_stride;
          std::memcpy(out + static_cast<std::size_t>(r * columns + c) * sizeof(T),
                      tensor.data + static_cast<std::size_t>(at) * sizeof(T), sizeof(T));
        }
      }
    }
  }
}

}  // namespace

struct ForeignView::State {
  std::string path;
  std::unique_ptr<SafetensorsReader> safetensors;
  std::unique_ptr<GgufReader> gguf;
  std::unique_ptr<LlmcFile> llmc;
  std::map<std::string, Tensor> tensors;

  explicit State(std::string name) : path(std::move(name)) {}
  void open_hugging_face();
  void open_gguf();
  void open_llmc();
  void add_gguf(const std::string& name, const GgufTensor& found);
  void add_stacked(const StackedName& name, const std::string& prefix, const GgufTensor& found,
                   const std::string& where);
};

void ForeignView::State::open_hugging_face() {
  const std::string file = path + "/config.json";
  const ModelConfig config = parse_gpt2_config(read_file(file, kConfigLimit), printable(file));
  safetensors = std::make_unique<SafetensorsReader>(path);
  const auto& found = safetensors->tensors();
  const std::string prefix = found.contains("transformer.wte.weight") ? "transformer." : "";
  std::set<std::string> known;
  for (const NamedTensor& each : gpt2_tensors(config, prefix)) {
    const TensorName& name = *each.name;
    const ForeignTensor& theirs = safetensors->info(each.theirs);
    const std::string where = cat(printable(path), ": tensor ", each.theirs);
    if (const Shape wanted = their_shape(name, config); theirs.shape != wanted) {
      throw DataError(
          cat(where, ": expected ", shape_text(wanted), ", found ", shape_text(theirs.shape)));
    }
    known.insert(each.theirs);
    Tensor ours{.shape = our_shape(name, config), .type = floating(theirs, where)};
    const std::int64_t rows = ours.shape[0], columns = size_of(name.columns, config);
    const bool turned = name.form == Form::kTransposed;
    ours.row_stride = turned ? 1 : columns;
    ours.column_stride = turned ? name.parts * rows : 1;
    const std::int64_t first = name.part * (turned ? rows : rows * columns);
    ours.data = reinterpret_cast<const std::byte*>(safetensors->data(each.theirs)) +
                static_cast<std::size_t>(first) * dtype_size(ours.type);
    tensors[each.ours] = std::move(ours);
  }
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const char* buffer : kGpt2MaskBuffers) {
      known.insert(gpt2_layer_name(prefix, layer, buffer));
    }
  }
  for (const auto& [name, info] : found) {
    if (known.contains(name)) continue;
    const std::string embedding = cat(prefix, kGpt2Ends.front().theirs);
    // A tied head may be stored once more.
    const bool again =
        name == kGpt2Head.theirs && info.bytes == found.at(embedding).bytes &&
        info.type == found.at(embedding).type &&
        std::memcmp(safetensors->data(name), safetensors->data(embedding), info.bytes) == 0;
    if (!again) {
      throw DataError(cat(printable(path), ": tensor ", printable(name), ": has no name here"));
    }
  }
}

void ForeignView::State::add_stacked(const StackedName& name, const std::string& prefix,
                                     const GgufTensor& found, const std::string& where) {
  const auto parts = std::count_if(name.ours.begin(), name.ours.end(),
                                   [](const char* each) { return each != nullptr; });
  Shape shape = found.shape;
  if (shape.size() > 2 || shape[0] % parts != 0) {
    throw DataError(cat(where, ": is ", shape_text(found.shape), ", which is no ", parts,
                        parts == 1 ? " matrix or vector" : " equal parts"));
  }
  shape[0] /= parts;
  const std::int64_t columns = shape.size() == 2 ? shape[1] : 1;
  for (std::ptrdiff_t part = 0; part < parts; ++part) {
    const auto before = static_cast<std::size_t>(part * shape[0] * columns);
    tensors[prefix + name.ours.at(static_cast<std::size_t>(part))] = {
        .shape = shape,
        .type = found.type,
        .data = found.data + before * dtype_size(found.type),
        .row_stride = columns,
        .column_stride = 1,
        .widened = found.type == DType::kF32};
  }
}

void ForeignView::State::add_gguf(const std::string& name, const GgufTensor& found) {
  const std::string where = cat(printable(path), ": tensor ", printable(name));
  const auto add = [&](const auto& table, std::string_view rest, const std::string& prefix) {
    for (const StackedName& each : table) {
      if (rest != each.gguf) continue;
      add_stacked(each, prefix, found, where);
      return true;
    }
    return false;
  };
  if (add(kStackedFirst, name, "") || add(kStackedLast, name, "") ||
      add(std::array{kStackedHead}, name, "")) {
    return;
  }
  constexpr std::string_view kBlock = "blk.";
  std::int64_t layer = -1;
  if (name.starts_with(kBlock)) {
    const char* const begin = name.data() + kBlock.size();
    const char* const end = name.data() + name.size();
    const auto [next, error] = std::from_chars(begin, end, layer);
    const bool plain = error == std::errc{} && next != end && *next == '.' && layer >= 0 &&
                       std::to_string(layer) == std::string_view(begin, next);
    if (plain && add(kStackedLayer, std::string_view(next + 1, end), cat("layers.", layer, "."))) {
      return;
    }
  }
  throw DataError(cat(where, ": has no name here"));
}

void ForeignView::State::open_gguf() {
  gguf = std::make_unique<GgufReader>(path);
  const auto found = gguf->texts().find("general.architecture");
  if (found == gguf->texts().end() || found->second != "gpt2") {
    throw DataError(cat(printable(path), ": general.architecture: expected gpt2, found ",
                        found == gguf->texts().end() ? "none" : printable(found->second)));
  }
  for (const auto& [name, tensor] : gguf->tensors()) add_gguf(name, tensor);
}

void ForeignView::State::open_llmc() {
  llmc = std::make_unique<LlmcFile>(path);
  for (const LlmcTensor& each : llmc->tensors()) {
    tensors[each.ours] = {.shape = each.shape,
                          .type = llmc->type(),
                          .data = each.data,
                          .row_stride = each.shape.size() == 2 ? each.shape[1] : 1};
  }
}

ForeignView::ForeignView(const std::string& path) : state_(std::make_unique<State>(path)) {
  if (is_gguf(path)) {
    state_->open_gguf();
  } else if (is_llmc(path)) {
    state_->open_llmc();
  } else {
    state_->open_hugging_face();
  }
}
ForeignView::~ForeignView() = default;
ForeignView::ForeignView(ForeignView&&) noexcept = default;

const std::string& ForeignView::path() const {
  return state_->path;
}
const std::map<std::string, ForeignView::Tensor>& ForeignView::tensors() const {
  return state_->tensors;
}

void ForeignView::read_rows(const Tensor& tensor, std::int64_t first, std::int64_t rows,
                            std::byte* out) {
  const std::int64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
  const std::size_t element = dtype_size(tensor.type);
  if (tensor.column_stride == 1 && tensor.row_stride == columns) {
    std::memcpy(out, tensor.data + static_cast<std::size_t>(first * columns) * element,
                static_cast<std::size_t>(rows * columns) * element);
  } else if (element == 4) {
    gather<std::uint32_t>(tensor, first, rows, columns, out);
  } else {
    gather<std::uint16_t>(tensor, first, rows, columns, out);
  }
}

bool is_foreign(const std::string& path) {
  return is_hugging_face(path) || is_gguf(path) || is_llmc(path);
}

}  // namespace mt
