#include "convert/export_hugging_face.h"

#include <iomanip>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/commit.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "ckpt/box_file.h"
#include "ckpt/checkpoint.h"
#include "ckpt/manifest.h"
#include "convert/foreign_writer.h"
#include "convert/hugging_face_names.h"
#include "convert/load_model.h"
#include "convert/meter.h"
#include "io/safetensors_header.h"
#include "text/tokenizer.h"

namespace mt {
namespace {

constexpr const char* kIndexFile = "model.safetensors.index.json";

// A tensor of theirs and those of ours that it is made of.
struct Joined {
  SafetensorsEntry entry;
  std::vector<ForeignPart> parts;
};

std::vector<Joined> join(const CheckpointReader& reader, const ModelConfig& config,
                         std::optional<DType> weights) {
  std::vector<Joined> out;
  std::set<std::string> taken;
  for (const NamedTensor& tensor : gpt2_tensors(config, "transformer.")) {
    const auto found = reader.tensors().find(tensor.ours);
    if (found == reader.tensors().end() || found->second.optimizer) {
      throw DataError(cat(reader.directory(), ": tensor ", tensor.ours, ": there is none"));
    }
    const auto& info = found->second;
    if (const Shape wanted = our_shape(*tensor.name, config); info.shape != wanted) {
      throw DataError(cat(reader.directory(), ": tensor ", tensor.ours, ": expected ",
                          shape_text(wanted), ", found ", shape_text(info.shape)));
    }
    taken.insert(tensor.ours);
    const DType type = weights.value_or(info.dtype);
    const TensorName& name = *tensor.name;
    if (name.part == 0) out.push_back({{tensor.theirs, type, their_shape(name, config)}, {}});
    if (out.back().entry.name != tensor.theirs || out.back().entry.type != type) {
      throw DataError(cat(reader.directory(), ": tensor ", tensor.ours, ": is ", dtype_name(type),
                          ", and not of the type of its neighbours"));
    }
    out.back().parts.push_back(
        {tensor.ours, name.part, name.parts, name.form == Form::kTransposed});
  }
  for (const auto& [name, info] : reader.tensors()) {
    if (info.optimizer || taken.contains(name)) continue;
    throw DataError(cat(reader.directory(), ": tensor ", printable(name),
                        ": a GPT-2 of Hugging Face's has no place for it"));
  }
  return out;
}

std::uint64_t bytes_of(const Joined& tensor) {
  return checked_bytes(tensor.entry.shape, tensor.entry.type, tensor.entry.name);
}

// As many tensors in a file as its size allows, in their order.
std::vector<std::vector<Joined>> cut_into_files(std::vector<Joined> tensors, std::uint64_t most) {
  std::vector<std::vector<Joined>> files(1);
  std::uint64_t held = 0;
  for (Joined& tensor : tensors) {
    const std::uint64_t bytes = bytes_of(tensor);
    if (!files.back().empty() && held + bytes > most) {
      files.emplace_back();
      held = 0;
    }
    held += bytes;
    files.back().push_back(std::move(tensor));
  }
  return files;
}

std::string file_name(std::size_t index, std::size_t count) {
  if (count == 1) return "model.safetensors";
  TextStream out;
  out << "model-" << std::setfill('0') << std::setw(5) << index + 1 << "-of-" << std::setw(5)
      << count << ".safetensors";
  return out.str();
}

// A dropout of the run that trained the model, or what that format takes for it.
double dropout(const Json& training, const char* key) {
  const auto found = training.find(key);
  return found != training.end() && found->is_number() ? found->get<double>() : 0.1;
}

Json config_json(const ModelConfig& config, const CheckpointReader& reader, const Json& end) {
  Json json{{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"activation_function", "gelu_new"},
            {"n_layer", config.num_layers},
            {"n_embd", config.hidden_size},
            {"n_head", config.num_attention_heads},
            {"n_inner", config.ffn_hidden_size},
            {"n_positions", config.max_position_embeddings},
            {"vocab_size", config.vocab_size},
            {"layer_norm_epsilon", config.layernorm_epsilon},
            {"initializer_range", config.init_method_std},
            {"embd_pdrop", dropout(reader.training(), "hidden_dropout")},
            {"resid_pdrop", dropout(reader.training(), "hidden_dropout")},
            {"attn_pdrop", dropout(reader.training(), "attention_dropout")},
            {"scale_attn_weights", true},
            {"scale_attn_by_inverse_layer_idx", false},
            {"add_cross_attention", false},
            {"tie_word_embeddings", !config.untie_embeddings_and_output_weights},
            {"use_cache", true}};
  // Without a tokenizer nobody knows them; the defaults there are GPT-2's own.
  json["bos_token_id"] = end;
  json["eos_token_id"] = end;
  return json;
}

void write_file(const std::string& directory, const std::string& name, const std::string& text) {
  const std::string path = directory + "/" + name;
  FileDescriptor fd = create_file(path);
  write_fully(fd.get(), text.data(), text.size(), path);
  sync_file(fd.get(), path);
  fd.close(path);
}

// Everything but the tensors.
void describe(const CheckpointReader& reader, const ModelConfig& config,
              const std::string& directory) {
  Json end;  // null
  if (const std::string vocab = reader.file(kCarriedVocab); !vocab.empty()) {
    const auto tokenizer =
        make_bpe_tokenizer({vocab, reader.file(kCarriedMerges)}, reader.directory());
    end = tokenizer->end_of_document();
    write_file(directory, "vocab.json", tokenizer->files().vocab);
    write_file(directory, "merges.txt", tokenizer->files().merges);
    constexpr const char* kEnd = "<|endoftext|>";
    write_file(directory, "tokenizer_config.json",
               Json{{"tokenizer_class", "GPT2Tokenizer"},
                    {"add_prefix_space", false},
                    {"bos_token", kEnd},
                    {"eos_token", kEnd},
                    {"unk_token", kEnd},
                    {"model_max_length", config.max_position_embeddings}}
                       .dump(2) +
                   "\n");
    write_file(directory, "generation_config.json",
               Json{{"bos_token_id", end}, {"eos_token_id", end}}.dump(2) + "\n");
  } else {
    log_warning(cat(printable(reader.directory()),
                    ": no tokenizer travels with this model, so none is written"));
  }
  write_file(directory, "config.json", config_json(config, reader, end).dump(2) + "\n");
}

}  // namespace

void export_hugging_face(const std::string& source, const std::string& destination,
                         const ExportSettings& settings) {
  const FoundCheckpoint found = find_checkpoint(source);
  if (found.absent) throw EnvironmentError(cat(printable(source), ": there is no checkpoint"));
  const CheckpointReader reader(found.directory);
  const ModelConfig config =
      ModelConfig::from_json(reader.model(), reader.directory() + "/manifest.json: model");
  const auto files = cut_into_files(join(reader, config, settings.weights), settings.most_shard);

  PendingDirectory pending(destination, settings.replace ? PendingFile::Existing::kReplace
                                                         : PendingFile::Existing::kRefuse);
  allow_open_files(files.size());
  std::vector<FileDescriptor> open;
  std::vector<ForeignFile> written;
  std::vector<ForeignTarget> targets;
  Json map = Json::object();
  std::uint64_t total = 0, stored = 0;
  for (std::size_t f = 0; f < files.size(); ++f) {
    const std::string name = file_name(f, files.size());
    std::vector<SafetensorsEntry> entries;
    for (const Joined& tensor : files[f]) entries.push_back(tensor.entry);
    const SafetensorsHeader header = safetensors_header(entries);
    open.push_back(create_file(pending.path() + "/" + name));
    written.push_back({open.back().get(), pending.path() + "/" + name});
    write_fully_at(written.back().fd, header.bytes.data(), header.bytes.size(), 0,
                   written.back().path);
    for (std::size_t i = 0; i < files[f].size(); ++i) {
      const Joined& tensor = files[f][i];
      map[tensor.entry.name] = name;
      total += bytes_of(tensor);
      for (const ForeignPart& part : tensor.parts) {
        const auto& info = reader.tensors().at(part.ours);
        stored += checked_bytes(info.shape, info.dtype, part.ours);
      }
      targets.push_back({tensor.entry.name, tensor.entry.type, f, header.offsets[i], tensor.parts});
    }
  }
  {
    Meter meter(printable(destination), stored, settings.stop);
    write_foreign(reader, targets, written, settings.most_memory,
                  [&](std::uint64_t bytes) { meter.add(bytes); });
  }
  for (std::size_t f = 0; f < open.size(); ++f) {
    sync_file(written[f].fd, written[f].path);
    open[f].close(written[f].path);
  }
  if (files.size() > 1) {
    write_file(pending.path(), kIndexFile,
               Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
  }
  describe(reader, config, pending.path());
  pending.commit();
  if (!reader.training().is_null()) {
    log_info("that format holds weights only: the optimizer and the state of training stay here");
  }
  log_info(cat(printable(reader.directory()), ": ", targets.size(), " tensors of iteration ",
               reader.iteration(), ", ", bytes_text(static_cast<double>(total)), ", written to ",
               printable(destination)));
}

}  // namespace mt
