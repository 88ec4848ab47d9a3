#include "phalanx/spec/huggingface.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "phalanx/base/error.h"
#include "phalanx/base/files.h"

namespace phalanx {
namespace {

using nlohmann::json;

json parse_object(const std::string& source, const std::string& where) {
  json object;
  try {
    object = json::parse(source);
  } catch (const json::exception& error) {
    fail(ExitCode::usage, where, " is not JSON (", error.what(), "); copy the file again");
  }
  require(object.is_object(), ExitCode::usage, where,
          " is not a JSON object; give the config.json of a model");
  return object;
}

// The values of one config.json, with errors that name the file and the key.
class ConfigReader {
 public:
  ConfigReader(const std::string& source, const std::string& where)
      : where_(where), object_(parse_object(source, where)) {}

  int64_t size(const char* key) const {
    require(has(key), ExitCode::usage, where_, ": \"", key,
            "\" is missing; a gpt2 config needs it");
    require(at(key).is_number_integer(), ExitCode::usage, where_, ": \"", key, "\" = ", at(key),
            " is not an integer");
    return at(key).get<int64_t>();
  }
  double real(const char* key, double missing) const {
    if (!has(key)) return missing;
    require(at(key).is_number(), ExitCode::usage, where_, ": \"", key, "\" = ", at(key),
            " is not a number");
    return at(key).get<double>();
  }
  bool flag(const char* key, bool missing) const {
    if (!has(key)) return missing;
    require(at(key).is_boolean(), ExitCode::usage, where_, ": \"", key, "\" = ", at(key),
            " is not true or false");
    return at(key).get<bool>();
  }
  // Refuses `key` unless it is missing, null or one of `allowed`.
  void only(const char* key, const std::vector<json>& allowed) const {
    if (!has(key)) return;
    for (const json& value : allowed)
      if (at(key) == value) return;
    fail(ExitCode::usage, where_, ": \"", key, "\" = ", at(key),
         " is not available in this version; a gpt2 config may have ", join(allowed, " or "));
  }
  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }

 private:
  const json& at(const char* key) const { return object_[key]; }
  std::string where_;
  json object_;
};

}  // namespace

ModelSpec parse_huggingface_config(const std::string& source, const std::string& where) {
  refuse_quantized(source, where);
  const ConfigReader reader(source, where);
  require(reader.has("model_type"), ExitCode::usage, where,
          ": \"model_type\" is missing; give the config.json of a model");
  reader.only("model_type", {"gpt2"});
  reader.only("activation_function", {"gelu_new", "gelu_pytorch_tanh"});
  reader.only("scale_attn_weights", {true});
  reader.only("scale_attn_by_inverse_layer_idx", {false});
  reader.only("reorder_and_upcast_attn", {false});
  reader.only("add_cross_attention", {false});
  reader.only("is_encoder_decoder", {false});
  reader.only("pruned_heads", {json::object()});

  ModelSpec model;
  model.kind = "gpt2";
  model.hidden_size = reader.size("n_embd");
  model.num_hidden_layers = reader.size("n_layer");
  model.num_attention_heads = reader.size("n_head");
  model.num_key_value_heads = model.num_attention_heads;
  model.intermediate_size = reader.has("n_inner")
                                ? reader.size("n_inner")
                                : 4 * std::clamp<int64_t>(model.hidden_size, 0, most_width);
  model.vocab_size = reader.size("vocab_size");
  model.max_position_embeddings = reader.size("n_positions");
  // What is left out has the value that `transformers` gives it.
  model.layer_norm_epsilon = reader.real("layer_norm_epsilon", 1e-5);
  model.attn_pdrop = reader.real("attn_pdrop", 0.1);
  model.resid_pdrop = reader.real("resid_pdrop", 0.1);
  model.embd_pdrop = reader.real("embd_pdrop", 0.1);
  model.tie_word_embeddings = reader.flag("tie_word_embeddings", true);
  model.initializer_range = reader.real("initializer_range", 0.02);
  for (const Violation& violation : check(model))
    fail(ExitCode::usage, where, ": ", violation.sentence);
  return model;
}

ModelSpec read_huggingface_config(const std::string& folder) {
  const std::string path = folder + "/config.json";
  require(kind_of_path(path, ExitCode::usage) == PathKind::file, ExitCode::usage, path,
          " is no file; give a folder that holds a Hugging Face model");
  return parse_huggingface_config(read_file(path, ExitCode::usage), path);
}

std::string huggingface_config(const ModelSpec& model) {
  require(model.kind == "gpt2", ExitCode::usage, "model.kind = \"", model.kind,
          "\" is not available in this version; use \"gpt2\"");
  nlohmann::ordered_json object = {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"torch_dtype", "float32"},
      {"activation_function", "gelu_new"},
      {"n_embd", model.hidden_size},
      {"n_layer", model.num_hidden_layers},
      {"n_head", model.num_attention_heads},
      {"n_inner", model.intermediate_size},
      {"n_positions", model.max_position_embeddings},
      {"vocab_size", model.vocab_size},
      {"layer_norm_epsilon", model.layer_norm_epsilon},
      {"attn_pdrop", model.attn_pdrop},
      {"resid_pdrop", model.resid_pdrop},
      {"embd_pdrop", model.embd_pdrop},
      {"initializer_range", model.initializer_range},
      {"tie_word_embeddings", model.tie_word_embeddings},
  };
  // transformers takes these ids for GPT-2's own where nothing is said.
  constexpr int64_t end_of_text = 50256;
  if (model.vocab_size <= end_of_text) object["bos_token_id"] = object["eos_token_id"] = nullptr;
  return object.dump(2) + "\n";
}

void refuse_quantized(const std::string& source, const std::string& where) {
  const json object = parse_object(source, where);
  const auto found = object.find("quantization_config");
  if (found == object.end() || found->is_null() || found->empty()) return;
  std::string method = "of an unnamed method";
  if (found->is_object()) {
    const json& fields = *found;
    if (fields.contains("quant_method")) method = "by " + fields["quant_method"].dump();
    for (const char* bits : {"load_in_8bit", "load_in_4bit"})
      if (fields.contains(bits) && fields[bits] == true) method += text(", ", bits);
  }
  fail(ExitCode::usage, where, ": \"quantization_config\" says that the weights are quantised ",
       method,
       ", which this version cannot read; take the model's float32, bfloat16 or float16 "
       "weights");
}

std::string huggingface_model_type(const std::string& source, const std::string& where) {
  const json object = parse_object(source, where);
  const auto found = object.find("model_type");
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string huggingface_name(const std::string& model_type, const std::string& name) {
  if (model_type != "gpt2") return name;
  static const std::regex buffer(R"((transformer\.)?h\.\d+\.attn\.(bias|masked_bias))");
  static const std::regex bare(R"((wte\.|wpe\.|ln_f\.|h\.\d+\.(ln_1|attn|ln_2|mlp)\.).*)");
  if (std::regex_match(name, buffer)) return "";
  return std::regex_match(name, bare) ? "transformer." + name : name;
}

std::string update_huggingface_config(const std::string& source, Dtype dtype) {
  auto object = nlohmann::ordered_json::parse(source);
  const auto wanted = nlohmann::ordered_json(name(dtype));
  bool changed = false, said = false;
  for (const char* key : {"dtype", "torch_dtype"}) {  // transformers 5, and before
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) continue;
    said = true;
    changed = changed || *found != wanted;
    *found = wanted;
  }
  // Where nothing is said, older versions of transformers take float32.
  if (!said && dtype != Dtype::float32) changed = true, object["torch_dtype"] = wanted;
  return changed ? object.dump(2) + "\n" : source;
}

std::string update_huggingface_config(const std::string& source, const ModelSpec& model) {
  const auto fields = [](const ModelSpec& spec) { return json::parse(huggingface_config(spec)); };
  const ModelSpec before = parse_huggingface_config(source, "config.json");
  if (before == model) return source;
  auto object = nlohmann::ordered_json::parse(source);
  const json old_fields = fields(before), new_fields = fields(model);
  for (const auto& [key, value] : new_fields.items())
    if (!old_fields.contains(key) || old_fields[key] != value) object[key] = value;
  return object.dump(2) + "\n";
}

}  // namespace phalanx
