#include "specs/catalogue/hf_families.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

namespace kvblocks {
namespace {

size_t Size(int64_t n) { return static_cast<size_t>(n); }

// --- Layers ---

// Every `period`th layer is of one kind, the others of another.
std::string Periodic(int64_t num_layers, int64_t period, char others, char every) {
  std::string pattern(Size(num_layers), others);
  for (int64_t i = period - 1; i < num_layers; i += period) pattern[Size(i)] = every;
  return pattern;
}

constexpr std::pair<char, std::string_view> kLayerTypes[] = {{'F', "full_attention"},
                                                             {'S', "sliding_attention"},
                                                             {'C', "chunked_attention"},
                                                             {'L', "linear_attention"}};

// The list `layer_types`, one name per layer, if it is there. `letters`: those the family has.
std::optional<std::string> ReadLayerTypes(ConfigFields& fields, int64_t num_layers,
                                          std::string_view letters) {
  const auto types = fields.Strings("layer_types");
  if (!types) return std::nullopt;
  if (static_cast<int64_t>(types->size()) != num_layers) {
    fields.Refuse("layer_types", std::to_string(types->size()) + " entries",
                  "num_hidden_layers, which is " + std::to_string(num_layers));
    return std::string(Size(num_layers), 'F');
  }
  std::string pattern, known;
  for (const auto& [letter, name] : kLayerTypes) {
    if (letters.find(letter) == std::string_view::npos) continue;
    known.append(known.empty() ? "" : " or ").append(name);
  }
  for (const std::string& type : *types) {
    const auto* const entry =
        std::find_if(std::begin(kLayerTypes), std::end(kLayerTypes), [&](const auto& layer_type) {
          return layer_type.second == type &&
                 letters.find(layer_type.first) != std::string_view::npos;
        });
    if (entry == std::end(kLayerTypes)) {
      fields.Refuse("layer_types", '"' + type + '"', known);
      return std::string(Size(num_layers), 'F');
    }
    pattern.push_back(entry->first);
  }
  return pattern;
}

// The window, where the pattern has layers that slide.
void ReadWindow(ConfigFields& fields, std::optional<int64_t> default_window, ModelFacts& facts) {
  if (!facts.has(LayerKind::kSliding)) return;
  facts.window = default_window ? fields.Int("sliding_window", 1, kMaxConfigSize, *default_window)
                                : fields.Int("sliding_window", 1, kMaxConfigSize);
}

void RefuseLatentFields(ConfigFields& fields) {
  for (const char* field : {"kv_lora_rank", "index_topk", "compress_ratios"}) {
    fields.RefuseIfPresent(field, "no such field with this model_type");
  }
}

// --- Families ---

void ReadLlama(ConfigFields& fields, HfModel& model) {
  RefuseLatentFields(fields);
  model.facts.layer_pattern.assign(Size(ReadNumLayers(fields)), 'F');
}

void ReadLlama4(ConfigFields& fields, HfModel& model) {
  RefuseLatentFields(fields);
  ModelFacts& facts = model.facts;
  const int64_t n = ReadNumLayers(fields);
  const auto chunk = fields.OptionalInt("attention_chunk_size", 1, kMaxConfigSize);
  auto pattern = ReadLayerTypes(fields, n, "FC");
  // 1: with rotary positions, and then local; 0: without, and then over everything.
  const auto rotary = fields.Ints("no_rope_layers", 0, 1);
  if (!pattern && rotary && !rotary->empty()) {
    if (static_cast<int64_t>(rotary->size()) != n) {
      fields.Refuse("no_rope_layers", std::to_string(rotary->size()) + " entries",
                    "num_hidden_layers, which is " + std::to_string(n));
    }
    pattern.emplace();
    for (const int64_t is_local : *rotary) pattern->push_back(is_local == 1 ? 'C' : 'F');
  }
  if (!pattern) {
    pattern = Periodic(n, fields.Int("no_rope_layer_interval", 1, kMaxLayers, 4), 'C', 'F');
  }
  if (!chunk) std::replace(pattern->begin(), pattern->end(), 'C', 'F');
  facts.layer_pattern = *pattern;
  if (facts.has(LayerKind::kChunked)) facts.chunk = *chunk;
  const auto listed = fields.Ints("moe_layers", 0, n - 1);
  const int64_t step = fields.Int("interleave_moe_layer_step", 1, kMaxLayers, 1);
  const int64_t num_moe = listed ? static_cast<int64_t>(listed->size()) : n / step;
  if (num_moe > 0) {
    ReadExperts(fields, {.num_experts = "num_local_experts", .intermediate = "intermediate_size"},
                num_moe, facts);
    facts.experts->num_shared_experts = 1;
    facts.experts->shared_intermediate_size = facts.experts->intermediate_size;
  }
  facts.intermediate_size = fields.Int("intermediate_size_mlp", 0, kMaxConfigSize, 0);
}

// A window, if there is one, holds for every layer.
void ReadMistral(ConfigFields& fields, HfModel& model) {
  RefuseLatentFields(fields);
  const int64_t n = ReadNumLayers(fields);
  model.facts.layer_pattern =
      ReadLayerTypes(fields, n, "FS")
          .value_or(std::string(Size(n), fields.Has("sliding_window") ? 'S' : 'F'));
  ReadWindow(fields, std::nullopt, model.facts);
}

void ReadMixtral(ConfigFields& fields, HfModel& model) {
  ReadMistral(fields, model);
  ReadExperts(fields, {.num_experts = "num_local_experts", .intermediate = "intermediate_size"},
              model.facts.num_layers(), model.facts);
}

// A window only where use_sliding_window says so, and then from layer max_window_layers on.
void ReadQwen(ConfigFields& fields, HfModel& model) {
  RefuseLatentFields(fields);
  const int64_t n = ReadNumLayers(fields);
  const bool slides = fields.Bool("use_sliding_window", false);
  std::string pattern(Size(n), 'F');
  if (slides) {
    const int64_t first = fields.Int("max_window_layers", 0, kMaxConfigSize, 28);
    for (int64_t i = first; i < n; ++i) pattern[Size(i)] = 'S';
  }
  const auto listed = ReadLayerTypes(fields, n, "FS");
  if (listed && !slides && listed->find('S') != std::string::npos) {
    fields.Refuse("layer_types", "sliding_attention",
                  "no such layer next to use_sliding_window: false");
  }
  model.facts.layer_pattern = listed.value_or(pattern);
  ReadWindow(fields, std::nullopt, model.facts);
}

void ReadQwenMoe(ConfigFields& fields, HfModel& model) {
  ReadQwen(fields, model);
  ReadQwenExperts(fields, model.facts);
}

// Gated delta nets, every few layers full attention.
void ReadQwenLinear(ConfigFields& fields, HfModel& model) {
  RefuseLatentFields(fields);
  ModelFacts& facts = model.facts;
  const int64_t n = ReadNumLayers(fields);
  const int64_t interval = fields.Int("full_attention_interval", 1, kMaxLayers, 4);
  facts.layer_pattern = ReadLayerTypes(fields, n, "FL").value_or(Periodic(n, interval, 'L', 'F'));
  model.shape.gated_attention = true;
  const int64_t kernel = fields.Int("linear_conv_kernel_dim", 2, 1'000, 4);
  const int64_t keys = fields.Int("linear_num_key_heads", 1, kMaxConfigHeads, 16);
  const int64_t values = fields.Int("linear_num_value_heads", 1, kMaxConfigHeads, 32);
  const int64_t key_dim = fields.Int("linear_key_head_dim", 1, kMaxConfigHeads, 128);
  const int64_t value_dim = fields.Int("linear_value_head_dim", 1, kMaxConfigHeads, 128);
  if (values % keys != 0) {
    fields.Refuse("linear_num_value_heads", std::to_string(values),
                  "a multiple of linear_num_key_heads, which is " + std::to_string(keys));
  }
  DataType state_dtype = facts.dtype;
  if (const auto name = fields.String("mamba_ssm_dtype")) {
    const auto dtype = ParseDataType(*name);
    if (!dtype.ok()) fields.Refuse("mamba_ssm_dtype", '"' + *name + '"', "float32 or bfloat16");
    state_dtype = dtype.value_or(state_dtype);
  }
  if (facts.has(LayerKind::kLinear)) {
    facts.states = {{"conv", {2 * keys * key_dim + values * value_dim, kernel - 1}, facts.dtype},
                    {"ssm", {values, key_dim, value_dim}, state_dtype}};
  }
  if (fields.Has("num_experts")) ReadQwenExperts(fields, facts);
}

// Local and global layers alternate.
void ReadGemma(ConfigFields& fields, int64_t period, int64_t default_window, ModelFacts& facts) {
  RefuseLatentFields(fields);
  const int64_t n = ReadNumLayers(fields);
  facts.layer_pattern = ReadLayerTypes(fields, n, "FS").value_or(Periodic(n, period, 'S', 'F'));
  ReadWindow(fields, default_window, facts);
}

void ReadGemma2(ConfigFields& fields, HfModel& model) { ReadGemma(fields, 2, 4096, model.facts); }

void ReadGemma3(ConfigFields& fields, HfModel& model) {
  const char* const name =
      fields.Has("_sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
  ReadGemma(fields, fields.Int(name, 1, kMaxLayers, 6), 4096, model.facts);
}

void ReadGemma4(ConfigFields& fields, HfModel& model) {
  ModelFacts& facts = model.facts;
  ReadGemma(fields, 6, 512, facts);
  facts.global_head_size = fields.Int("global_head_dim", 1, kMaxConfigHeads, 512);
  facts.num_global_kv_heads =
      fields.Int("num_global_key_value_heads", 1, kMaxConfigHeads, facts.num_kv_heads);
  facts.num_kv_shared_layers = fields.Int("num_kv_shared_layers", 0, facts.num_layers() - 1, 0);
  if (fields.Bool("enable_moe_block", fields.Has("num_experts"))) {
    ReadExperts(fields, {.num_experts = "num_experts", .per_token = "top_k_experts"},
                facts.num_layers(), facts);
    model.shape.dense_beside_experts = true;
  }
}

void ReadGptOss(ConfigFields& fields, HfModel& model) {
  ReadGemma(fields, 2, 128, model.facts);
  model.facts.sink_bias = true;
  ReadExperts(fields, {.num_experts = "num_local_experts", .intermediate = "intermediate_size"},
              model.facts.num_layers(), model.facts);
}

// Experts in every layer, and nothing beside them.
void ReadMiniMax(ConfigFields& fields, HfModel& model) {
  ReadLlama(fields, model);
  ReadExperts(fields, {.num_experts = "num_local_experts", .intermediate = "intermediate_size"},
              model.facts.num_layers(), model.facts);
  model.facts.intermediate_size = 0;
}

void ReadGlm4Moe(ConfigFields& fields, HfModel& model) {
  ReadLlama(fields, model);
  ReadDeepseekExperts(fields, model.facts);
}

constexpr HfFamily kFamilies[] = {
    {"llama", "LlamaForCausalLM", "llama", false, 0, ReadLlama},
    {"llama4", "Llama4ForConditionalGeneration", "llama4", false, 0, ReadLlama4},
    {"llama4_text", "Llama4ForCausalLM", "llama4", false, 0, ReadLlama4},
    {"mistral", "MistralForCausalLM", "mistral", false, 0, ReadMistral},
    {"mixtral", "MixtralForCausalLM", "mixtral", false, 0, ReadMixtral},
    {"phi3", "Phi3ForCausalLM", "phi3", false, 0, ReadMistral},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", false, 0, ReadQwen},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", false, 128, ReadQwen},
    {"qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe", false, 0, ReadQwenMoe},
    {"qwen3_next", "Qwen3NextForCausalLM", "qwen3_next", false, 256, ReadQwenLinear},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5", false, 256, ReadQwenLinear},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", "qwen3_5", false, 256, ReadQwenLinear},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", false, 256,
     ReadQwenLinear},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", "qwen3_5_moe", false, 256, ReadQwenLinear},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", true, 256, ReadGemma2},
    {"gemma3", "Gemma3ForConditionalGeneration", "gemma3", true, 256, ReadGemma3},
    {"gemma3_text", "Gemma3ForCausalLM", "gemma3", true, 256, ReadGemma3},
    {"gemma4", "Gemma4ForConditionalGeneration", "gemma4", true, 256, ReadGemma4},
    {"gemma4_text", "Gemma4ForCausalLM", "gemma4", true, 256, ReadGemma4},
    {"gpt_oss", "GptOssForCausalLM", "gpt_oss", false, 64, ReadGptOss},
    {"glm4_moe", "Glm4MoeForCausalLM", "glm4_moe", false, 0, ReadGlm4Moe},
    {"deepseek_v2", "DeepseekV2ForCausalLM", "deepseek_v2", false, 0, ReadDeepseek},
    {"deepseek_v3", "DeepseekV3ForCausalLM", "deepseek_v3", false, 0, ReadDeepseek},
    {"kimi_k2", "KimiK2ForCausalLM", "kimi_k2", false, 0, ReadDeepseek},
    {"kimi_k25", "KimiK25ForConditionalGeneration", "kimi_k2", false, 0, ReadDeepseek},
    {"minimax_m2", "MiniMaxM2ForCausalLM", "minimax_m2", false, 0, ReadMiniMax},
    {"deepseek_v32", "DeepseekV32ForCausalLM", "deepseek_v32", false, 0, ReadDeepseek32},
    {"deepseek_v4", "DeepseekV4ForCausalLM", "deepseek_v4", false, 512, ReadDeepseek4},
    {"deepseek_v41", "DeepseekV41ForCausalLM", "deepseek_v41", false, 512, ReadDeepseek41},
};

}  // namespace

const HfFamily* FindFamilyByType(std::string_view model_type) {
  for (const HfFamily& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

const HfFamily* FindFamilyByArchitecture(std::string_view architecture) {
  for (const HfFamily& family : kFamilies) {
    if (family.architecture == architecture) return &family;
  }
  return nullptr;
}

std::string KnownModelTypes() {
  std::string names;
  for (const HfFamily& family : kFamilies) {
    names.append(names.empty() ? "" : ", ").append(family.model_type);
  }
  return names;
}

}  // namespace kvblocks
