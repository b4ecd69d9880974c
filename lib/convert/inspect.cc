#include "convert/inspect.h"

#include <algorithm>
#include <iomanip>
#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "ckpt/compare.h"
#include "ckpt/manifest.h"
#include "convert/compare_formats.h"
#include "convert/foreign_view.h"
#include "convert/import_foreign.h"
#include "convert/meter.h"

namespace mt {
namespace {

// What a path means: a checkpoint, or another library's model.
struct Opened {
  std::unique_ptr<TensorSource> tensors;
  const CheckpointReader* checkpoint = nullptr;  // the same, if it is one
  std::string format;                            // else
  std::string tokenizer_digest;
};

Opened open(const std::string& path) {
  if (!foreign_format(path).empty()) {
    ForeignModelFiles files = open_foreign(path, {});
    return {std::move(files.weights), nullptr, files.format,
            files.tokenizer == nullptr ? "" : to_hex(files.tokenizer->digest())};
  }
  const FoundCheckpoint found = find_checkpoint(path);
  if (found.absent) throw EnvironmentError(cat(printable(path), ": there is no checkpoint"));
  auto reader = std::make_unique<CheckpointReader>(found.directory);
  const CheckpointReader* const checkpoint = reader.get();
  return {std::move(reader), checkpoint, "", checkpoint->tokenizer_digest()};
}

std::uint64_t bytes_of(const TensorSource& reader) {
  std::uint64_t bytes = 0;
  for (const auto& [name, info] : reader.tensors()) {
    bytes += checked_bytes(info.shape, info.dtype, name);
  }
  return bytes;
}

// A progress line for reading so much.
struct Reading {
  explicit Reading(std::uint64_t bytes) : meter("reading", bytes, {}) {}
  Meter meter;
  BytesRead told = [this](std::uint64_t bytes) { meter.add(bytes); };
};

Json layout_json(const CheckpointLayout& layout) {
  return {{"tensor", layout.tensor},
          {"pipeline", layout.pipeline},
          {"data", layout.data},
          {"distributed_optimizer", layout.distributed_optimizer}};
}

std::string layout_text(const CheckpointLayout& layout) {
  return cat(
      "tensor ", layout.tensor, " x pipeline ", layout.pipeline,
      layout.distributed_optimizer ? cat(", optimizer cut over ", layout.data, " data ranks") : "");
}

void list_json(const Opened& opened, const std::map<std::string, TensorNorm>& norms,
               std::ostream& out) {
  const TensorSource& reader = *opened.tensors;
  Json tensors = Json::object();
  for (const auto& [name, info] : reader.tensors()) {
    tensors[name] = {{"kind", info.optimizer ? "optimizer" : "model"},
                     {"dtype", dtype_name(info.dtype)},
                     {"shape", info.shape},
                     {"norm", finite_or_null(norms.at(name).norm)},
                     {"digest", to_hex(norms.at(name).digest)}};
  }
  const CheckpointReader* const checkpoint = opened.checkpoint;
  Json all{{"directory", reader.directory()},
           {"model", reader.model()},
           {"tokenizer_digest", opened.tokenizer_digest},
           {"bytes", bytes_of(reader)},
           {"tensors", tensors}};
  if (checkpoint != nullptr) {
    all["iteration"] = checkpoint->iteration();
    all["layout"] = layout_json(checkpoint->layout());
    all["training"] = checkpoint->training();
  } else {
    all["format"] = opened.format;
  }
  out << json_line(all) << '\n';
}

std::string digits(double value, int precision) {
  TextStream out;
  out << std::setprecision(precision) << value;
  return out.str();
}

void list_text(const Opened& opened, const std::map<std::string, TensorNorm>& norms,
               std::ostream& out) {
  const TensorSource& reader = *opened.tensors;
  if (const CheckpointReader* const checkpoint = opened.checkpoint; checkpoint != nullptr) {
    out << "checkpoint  " << printable(reader.directory()) << '\n'
        << "iteration   " << checkpoint->iteration() << '\n'
        << "layout      " << layout_text(checkpoint->layout()) << '\n'
        << "training    " << json_line(checkpoint->training()) << '\n';
  } else {
    out << "path        " << reader.directory() << '\n' << "format      " << opened.format << '\n';
  }
  out << "model       " << json_line(reader.model()) << '\n'
      << "tokenizer   " << (opened.tokenizer_digest.empty() ? "none" : opened.tokenizer_digest)
      << '\n'
      << "tensors     " << reader.tensors().size() << ", "
      << bytes_text(static_cast<double>(bytes_of(reader))) << "\n\n";
  std::size_t name_width = 4, shape_width = 5;
  for (const auto& [name, info] : reader.tensors()) {
    name_width = std::max(name_width, name.size());
    shape_width = std::max(shape_width, shape_text(info.shape).size());
  }
  const auto line = [&](const std::string& name, const std::string& type, const std::string& shape,
                        const std::string& norm, const std::string& digest) {
    out << std::left << std::setw(static_cast<int>(name_width)) << name << "  " << std::setw(5)
        << type << "  " << std::setw(static_cast<int>(shape_width)) << shape << "  "
        << std::setw(12) << norm << "  " << digest << '\n';
  };
  line("name", "type", "shape", "norm", "digest");
  for (const auto& [name, info] : reader.tensors()) {
    line(name, dtype_name(info.dtype), shape_text(info.shape), digits(norms.at(name).norm, 6),
         to_hex(norms.at(name).digest));
  }
}

Json to_json(const TensorDifference& each) {
  return {{"name", each.name},
          {"norm", finite_or_null(each.norm)},
          {"norm_a", finite_or_null(each.norm_a)},
          {"largest", finite_or_null(each.largest)},
          {"elements", each.count}};
}

void diff_text(const Differences& found, const std::string& a, const std::string& b,
               std::ostream& out) {
  const auto list = [&](const std::vector<std::string>& names, const std::string& what) {
    for (const std::string& name : names) out << name << "\t" << what << '\n';
  };
  list(found.only_a, "only in " + printable(a));
  list(found.only_b, "only in " + printable(b));
  list(found.other_shape, "another shape");
  out << "name\tnorm of the difference\tnorm\tlargest\telements\n";
  for (const TensorDifference& each : found.tensors) {
    out << each.name << '\t' << digits(each.norm, 6) << '\t' << digits(each.norm_a, 6) << '\t'
        << digits(each.largest, 6) << '\t' << each.count << '\n';
  }
}

int verify_formats(const std::string& a, const std::string& b, std::ostream& out) {
  const Compared found = compare_formats(a, b);
  if (found.difference) {
    out << *found.difference << '\n';
    return static_cast<int>(ExitStatus::kDifference);
  }
  log_info(cat(printable(a), " and ", printable(b), ": equal: ", found.tensors,
               " tensors of weights, ", bytes_text(static_cast<double>(found.bytes)), " read"));
  return 0;
}

}  // namespace

int list_checkpoint(const std::string& path, bool json, std::ostream& out) {
  const Opened opened = open(path);
  std::map<std::string, TensorNorm> norms;
  {
    Reading reading(bytes_of(*opened.tensors));
    norms = tensor_norms(*opened.tensors, reading.told);
  }
  if (json) {
    list_json(opened, norms, out);
  } else {
    list_text(opened, norms, out);
  }
  return 0;
}

int verify_one(const std::string& path) {
  const Opened opened = open(path);
  const TensorSource& tensors = *opened.tensors;
  Reading reading(bytes_of(tensors));
  if (opened.checkpoint != nullptr) {
    verify_hashes(*opened.checkpoint, reading.told);
  } else {
    static_cast<void>(tensor_norms(tensors, reading.told));
  }
  log_info(
      cat(printable(tensors.directory()),
          opened.checkpoint != nullptr ? ": sound: " : ": readable, in a format without hashes: ",
          tensors.tensors().size(), " tensors, ",
          bytes_text(static_cast<double>(reading.meter.done()))));
  return 0;
}

int verify_two(const std::string& a, const std::string& b, std::ostream& out) {
  if (is_foreign(a) || is_foreign(b)) return verify_formats(a, b, out);
  const Opened first = open(a), second = open(b);
  const TensorSource &left = *first.tensors, &right = *second.tensors;
  Reading reading(bytes_of(left) + bytes_of(right));
  const auto difference = first_difference(left, right, reading.told);
  if (difference) {
    out << *difference << '\n';
    return static_cast<int>(ExitStatus::kDifference);
  }
  log_info(cat(printable(left.directory()), " and ", printable(right.directory()),
               ": equal: ", left.tensors().size(), " tensors, ",
               bytes_text(static_cast<double>(bytes_of(left)))));
  return 0;
}

int diff_checkpoints(const std::string& a, const std::string& b, bool json, std::ostream& out) {
  const Opened first = open(a), second = open(b);
  const TensorSource &left = *first.tensors, &right = *second.tensors;
  Differences found;
  {
    Reading reading(bytes_of(left) + bytes_of(right));
    found = differences(left, right, reading.told);
  }
  if (json) {
    Json tensors = Json::array();
    for (const TensorDifference& each : found.tensors) tensors.push_back(to_json(each));
    out << json_line({{"only_a", found.only_a},
                      {"only_b", found.only_b},
                      {"other_shape", found.other_shape},
                      {"tensors", tensors}})
        << '\n';
  } else {
    diff_text(found, left.directory(), right.directory(), out);
  }
  return found.any() ? static_cast<int>(ExitStatus::kDifference) : 0;
}

}  // namespace mt
