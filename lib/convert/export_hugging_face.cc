#include "convert/export_hugging_face.h"

#include <iomanip>
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

std::vector<Joined> join(const Gpt2Source& source, std::optional<DType> weights) {
  std::vector<Joined> out;
  for (const NamedTensor& tensor : source.tensors()) {
    const TensorName& name = *tensor.name;
    if (name.part == 0) {
      out.push_back({{tensor.theirs, weights.value_or(source.stored(tensor.ours)),
                      their_shape(name, source.config())},
                     {}});
    }
    out.back().parts.push_back(
        {tensor.ours, name.part, name.parts, name.form == Form::kTransposed});
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
  const Gpt2Source from(source);
  const auto files = cut_into_files(join(from, settings.weights), settings.most_shard);

  PendingDirectory pending(destination, settings.replace ? PendingFile::Existing::kReplace
                                                         : PendingFile::Existing::kRefuse);
  allow_open_files(files.size());
  std::vector<FileDescriptor> open;
  std::vector<ForeignFile> written;
  std::vector<ForeignTarget> targets;
  Json map = Json::object();
  std::uint64_t total = 0;
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
      targets.push_back({tensor.entry.name, tensor.entry.type, f, header.offsets[i], tensor.parts});
    }
  }
  from.write(targets, written, destination, settings);
  for (std::size_t f = 0; f < open.size(); ++f) {
    sync_file(written[f].fd, written[f].path);
    open[f].close(written[f].path);
  }
  if (files.size() > 1) {
    write_file(pending.path(), kIndexFile,
               Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
  }
  describe(from.reader(), from.config(), pending.path());
  pending.commit();
  from.report(targets.size(), total, destination);
}

}  // namespace mt
