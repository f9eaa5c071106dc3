#include "kvblocks/model_facts.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "specs/catalogue/config_fields.h"
#include "specs/catalogue/hf_families.h"
#include "specs/catalogue/pipeline_stages.h"

namespace kvblocks {
namespace {

// 4 bits and a scale byte per 32 values.
constexpr double kFourBitBytes = 0.53125;

// The text model of one with other parts, and the family that reads it.
const HfFamily* EnterTextModel(ConfigFields& fields) {
  const auto outer_type = fields.String("model_type");
  const auto architectures = fields.Strings("architectures").value_or(std::vector<std::string>());
  const HfFamily* outer = outer_type ? FindFamilyByType(*outer_type) : nullptr;
  if (!outer_type && !architectures.empty()) outer = FindFamilyByArchitecture(architectures[0]);
  fields.Enter("text_config");
  const auto type = fields.String("model_type");
  const HfFamily* const inner = type ? FindFamilyByType(*type) : nullptr;
  if (inner != nullptr) return inner;
  if (outer != nullptr || !fields.status().ok()) return outer;
  const std::string hint =
      "describe the model in a catalogue file: its layer pattern, heads and head size are enough";
  if (outer_type || type) {
    fields.Refuse("model_type", '"' + type.value_or(outer_type.value_or("")) + '"',
                  "one of " + KnownModelTypes(), hint);
  } else {
    fields.Refuse("model_type", "nothing",
                  "one of " + KnownModelTypes() + ", or a list \"architectures\" that names one",
                  hint);
  }
  return nullptr;
}

DataType ReadDtype(ConfigFields& fields) {
  for (const char* field : {"torch_dtype", "dtype"}) {
    const auto name = fields.InheritedString(field);
    if (!name) continue;
    const auto dtype = ParseDataType(*name);
    if (dtype.ok()) return *dtype;
    fields.Refuse(field, '"' + *name + '"', "bfloat16, float16 or float32");
  }
  return DataType::kBFloat16;
}

// What all architectures have in common.
void ReadSizes(ConfigFields& fields, const HfFamily& family, ModelFacts& facts) {
  facts.hidden_size = fields.Int("hidden_size", 1, kMaxConfigSize);
  facts.intermediate_size = fields.Int("intermediate_size", 0, kMaxConfigSize, 0);
  facts.num_heads = fields.Int("num_attention_heads", 1, kMaxConfigHeads);
  facts.num_kv_heads = fields.Int("num_key_value_heads", 1, kMaxConfigHeads, facts.num_heads);
  facts.vocab_size = fields.Int("vocab_size", 1, kMaxConfigSize);
  facts.max_position_embeddings = fields.Int("max_position_embeddings", 1, int64_t{1} << 40, 0);
  facts.tied_embeddings = fields.InheritedBool("tie_word_embeddings", family.tied_embeddings);
  if (facts.num_heads % facts.num_kv_heads != 0) {
    fields.Refuse("num_key_value_heads", std::to_string(facts.num_kv_heads),
                  "a divisor of num_attention_heads, which is " + std::to_string(facts.num_heads));
  }
  const auto head_dim = fields.OptionalInt("head_dim", 1, kMaxConfigHeads);
  facts.head_size = head_dim.value_or(family.head_dim);
  if (facts.head_size > 0 || fields.Has("kv_lora_rank")) return;
  if (facts.hidden_size % facts.num_heads != 0) {
    fields.Refuse("hidden_size", std::to_string(facts.hidden_size),
                  "a multiple of num_attention_heads, which is " + std::to_string(facts.num_heads),
                  "or give head_dim");
  }
  facts.head_size = facts.hidden_size / facts.num_heads;
}

// Bytes of the published weights.
void ReadWeights(ConfigFields& fields, HfModel& model) {
  ModelFacts& facts = model.facts;
  facts.bytes_per_param = static_cast<double>(ElementBytes(model.facts.dtype));
  double expert_bytes = 0;
  constexpr const char* kQuantisation = "quantization_config";
  const std::string method = fields.StringIn(kQuantisation, "quant_method").value_or("");
  if (method == "fp8") facts.bytes_per_param = 1;
  if (method == "mxfp4") expert_bytes = kFourBitBytes;
  if (const auto bits = fields.IntIn(kQuantisation, "bits", 1, 16)) {
    facts.bytes_per_param = static_cast<double>(*bits) / 8;
  }
  // Of published models in this form, only the routed experts are.
  constexpr const char* kGroup = "quantization_config/config_groups/group_0/weights";
  const auto group_bits = fields.IntIn(kGroup, "num_bits", 1, 16);
  if (method == "compressed-tensors" && group_bits && facts.experts) {
    const auto group_size = fields.IntIn(kGroup, "group_size", 1, kMaxConfigSize);
    expert_bytes = static_cast<double>(*group_bits) / 8 +
                   (group_size ? 2 / static_cast<double>(*group_size) : 0);  // a scale per group
  }
  for (const auto& dtype :
       {fields.String("expert_dtype"), fields.StringIn(kQuantisation, "expert_dtype")}) {
    if (dtype.value_or("") == "fp4") expert_bytes = kFourBitBytes;
  }
  if (facts.experts) {
    facts.experts->bytes_per_param = expert_bytes > 0 ? expert_bytes : facts.bytes_per_param;
  }
}

}  // namespace

absl::StatusOr<ModelFacts> ModelFromHfConfig(std::string_view json_text,
                                             std::string_view source_name) {
  const std::string source(source_name);
  const auto fail = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
  };
  auto fields = ConfigFields::Parse(json_text);
  if (!fields.ok()) return fail(fields.status());
  const HfFamily* const family = EnterTextModel(*fields);
  if (!fields->status().ok()) return fail(fields->status());

  HfModel model;
  ModelFacts& facts = model.facts;
  facts.name = source.empty() ? "config.json" : source;
  facts.family = std::string(family->family);
  model.facts.dtype = ReadDtype(*fields);
  ReadSizes(*fields, *family, facts);
  // Readers divide by what they read.
  if (!fields->status().ok()) return fail(fields->status());
  family->read(*fields, model);
  if (!fields->status().ok()) return fail(fields->status());
  ReadWeights(*fields, model);
  if (!fields->status().ok()) return fail(fields->status());
  const ParamCount count = CountParams(facts, model.shape);
  facts.params_b = count.total_b;
  facts.active_params_b = count.active_b;
  if (absl::Status status = Validate(facts); !status.ok()) return fail(status);
  return facts;
}

namespace {

void ReadSharedExperts(ConfigFields& fields, ModelFacts& facts) {
  facts.experts->num_shared_experts = fields.Int("n_shared_experts", 0, 10'000, 0);
  facts.experts->shared_intermediate_size =
      facts.experts->num_shared_experts * facts.experts->intermediate_size;
}

}  // namespace

void ReadExperts(ConfigFields& fields, const ExpertFieldNames& names, int64_t num_layers,
                 ModelFacts& facts) {
  ExpertFacts experts;
  experts.num_experts = fields.Int(names.num_experts, 1, 1'000'000);
  experts.experts_per_token =
      fields.Int(names.per_token, 1, std::max<int64_t>(1, experts.num_experts));
  experts.intermediate_size = fields.Int(names.intermediate, 1, kMaxConfigSize);
  experts.num_layers = num_layers;
  facts.experts = experts;
}

void ReadDeepseekExperts(ConfigFields& fields, ModelFacts& facts) {
  const int64_t first = fields.Int("first_k_dense_replace", 0, facts.num_layers(), 0);
  const int64_t step = fields.Int("moe_layer_freq", 1, kMaxLayers, 1);
  int64_t layers = 0;
  for (int64_t i = first; i < facts.num_layers(); ++i) layers += i % step == 0;
  if (!fields.Has("n_routed_experts") || layers == 0) return;
  ReadExperts(fields, {}, layers, facts);
  ReadSharedExperts(fields, facts);
}

void ReadQwenExperts(ConfigFields& fields, ModelFacts& facts) {
  const int64_t step = fields.Int("decoder_sparse_step", 1, kMaxLayers, 1);
  const auto dense =
      fields.Ints("mlp_only_layers", 0, facts.num_layers() - 1).value_or(std::vector<int64_t>());
  int64_t layers = 0;
  for (int64_t i = 0; i < facts.num_layers(); ++i) {
    layers += (i + 1) % step == 0 && std::find(dense.begin(), dense.end(), i) == dense.end();
  }
  if (layers == 0) return;
  // The latter is what transformers 5 writes.
  ReadExperts(fields,
              {.num_experts = fields.Has("num_experts") ? "num_experts" : "num_local_experts"},
              layers, facts);
  facts.experts->shared_intermediate_size =
      fields.Int("shared_expert_intermediate_size", 0, kMaxConfigSize, 0);
  facts.experts->num_shared_experts = facts.experts->shared_intermediate_size > 0 ? 1 : 0;
}

}  // namespace kvblocks
