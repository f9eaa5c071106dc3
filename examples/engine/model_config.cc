#include "examples/engine/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <numbers>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "specs/catalogue/config_fields.h"

namespace kvblocks::engine {
namespace {

constexpr std::array kFamilies = {"llama",       "mistral",     "qwen2",        "qwen3",
                                  "gemma2",      "gemma3",      "qwen3_moe",    "gpt_oss",
                                  "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4"};

// Positions that were trained, stretched by `factor`: all of them (linear), by their wavelength
// (llama3), or by how often a pair turns (yarn).
void Stretch(const std::string& type, ConfigFields& fields, double theta, Rotary& rotary) {
  rotary.theta = 0;
  const double factor = fields.Number("factor", 1, 1e6, 1);
  const double trained = fields.Number("original_max_position_embeddings", 1, 1e9, 8192);
  const auto size = static_cast<double>(2 * rotary.frequencies.size());
  if (type == "llama3") {
    const double low = fields.Number("low_freq_factor", 1e-3, 1e3, 1);
    const double high = fields.Number("high_freq_factor", 1e-3, 1e3, 4);
    for (float& frequency : rotary.frequencies) {
      const double turns = trained * frequency / (2 * std::numbers::pi);
      const double smooth =
          high > low ? std::clamp((turns - low) / (high - low), 0.0, 1.0) : turns >= low;
      frequency = static_cast<float>((1 - smooth) * frequency / factor + smooth * frequency);
    }
  } else if (type == "yarn") {
    const auto pair_with = [&](double turns) {
      return size * std::log(trained / (turns * 2 * std::numbers::pi)) / (2 * std::log(theta));
    };
    double first = pair_with(fields.Number("beta_fast", 1e-3, 1e6, 32));
    double last = pair_with(fields.Number("beta_slow", 1e-3, 1e6, 1));
    if (fields.Bool("truncate", true)) first = std::floor(first), last = std::ceil(last);
    first = std::max(first, 0.0);
    last = std::min(last, size - 1);
    if (first == last) last += 0.001;
    for (size_t i = 0; i < rotary.frequencies.size(); ++i) {
      const double stretched =
          std::clamp((static_cast<double>(i) - first) / (last - first), 0., 1.);
      rotary.frequencies[i] *= static_cast<float>(stretched / factor + 1 - stretched);
    }
    const auto magnitude = [&](double share) { return 0.1 * share * std::log(factor) + 1; };
    const double of_scores = fields.Number("mscale", 0, 1e3, 0);
    const double of_all = fields.Number("mscale_all_dim", 0, 1e3, 0);
    const double scale =
        of_scores > 0 && of_all > 0 ? magnitude(of_scores) / magnitude(of_all) : magnitude(1);
    rotary.scale = static_cast<float>(fields.Number("attention_factor", 0, 1e3, scale));
  } else {
    for (float& frequency : rotary.frequencies) frequency /= static_cast<float>(factor);
  }
}

// The object that says how far positions turn: `rope_parameters`, which may have one per kind of
// layer, or `rope_scaling` beside the base. Without it: one without fields.
ConfigFields RotaryFields(const ConfigFields& fields, const char* kind) {
  std::optional<ConfigFields> own = fields.Object("rope_parameters");
  if (!own) {
    own = fields.Object("rope_scaling");
  } else if (std::optional<ConfigFields> of_kind = own->Object(kind)) {
    own = std::move(of_kind);
  }
  return own ? *std::move(own) : ConfigFields::Parse("{}").value();
}

Rotary MakeRotary(int64_t size, double theta) {
  Rotary rotary{.theta = theta};
  for (int64_t i = 0; i < size / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(size);
    rotary.frequencies.push_back(1 / std::pow(static_cast<float>(theta), exponent));
  }
  return rotary;
}

Rotary ReadRotary(ConfigFields& fields, const char* kind, int64_t size, double base) {
  ConfigFields own = RotaryFields(fields, kind);
  const double theta = own.Number("rope_theta", 1.001, 1e12, base);
  const bool is_old = own.Has("type") && !own.Has("rope_type");
  const std::string type =
      own.Word(is_old ? "type" : "rope_type", {"default", "linear", "llama3", "yarn"});
  Rotary rotary = MakeRotary(size, theta);
  if (type != "default") Stretch(type, own, theta, rotary);
  fields.Refuse(own.status());
  return rotary;
}

// DeepSeek's scores grow with the stretch.
double LatentScale(ConfigFields& fields, const LatentFacts& latent) {
  const auto size = static_cast<double>(latent.qk_nope_head_dim + latent.qk_rope_head_dim);
  ConfigFields own = RotaryFields(fields, "full_attention");
  const double factor = own.Number("factor", 1, 1e6, 1);
  const double share = own.Number("mscale_all_dim", 0, 1e3, 0);
  const double magnitude = 0.1 * share * std::log(factor) + 1;
  return magnitude * magnitude / std::sqrt(size);
}

void ReadRouting(ConfigFields& fields, ModelConfig& config) {
  const ExpertFacts& experts = *config.facts.experts;
  Routing& routing = config.routing;
  routing.per_token = experts.experts_per_token;
  if (config.facts.family == "gpt_oss") {
    routing.scores = Routing::Scores::kSoftmaxOfChosen;
    return;
  }
  if (config.facts.family == "qwen3_moe") {
    routing.sums_to_one = fields.Bool("norm_topk_prob", false);
    if (experts.num_layers == config.facts.num_layers()) return;
    return fields.Refuse(absl::InvalidArgumentError(
        absl::StrCat("decoder_sparse_step, mlp_only_layers: got experts in ", experts.num_layers,
                     " of ", config.facts.num_layers(), " layers, expected them in all")));
  }
  const auto whole = [&](const char* field, int64_t low, int64_t high, int64_t fallback) {
    return static_cast<int64_t>(fields.Number(
        field, static_cast<double>(low), static_cast<double>(high), static_cast<double>(fallback)));
  };
  config.first_expert_layer = whole("first_k_dense_replace", 0, kMaxLayers, 0);
  config.expert_layer_step = whole("moe_layer_freq", 1, kMaxLayers, 1);
  routing.scale = static_cast<float>(fields.Number("routed_scaling_factor", 0, 1e6, 1));
  if (config.facts.compressed) {
    fields.Word("scoring_func", {"sqrtsoftplus"});
    routing.scores = Routing::Scores::kRootOfSoftplus;
    routing.sums_to_one = true;
    config.num_fixed_layers = whole("num_hash_layers", 0, kMaxLayers, 3);
    config.num_streams = whole("hc_mult", 2, 64, 4);
    config.mix_rounds = whole("hc_sinkhorn_iters", 1, 1000, 20);
    config.mix_eps = static_cast<float>(fields.Number("hc_eps", 0, 1, 1e-6));
    return;
  }
  if (config.facts.family == "deepseek_v2") {
    fields.Word("topk_method", {"greedy"});
    return;
  }
  fields.Word("scoring_func", {"sigmoid"});
  fields.Word("topk_method", {"noaux_tc"});
  routing.scores = Routing::Scores::kSigmoid;
  routing.sums_to_one = fields.Bool("norm_topk_prob", true);
  routing.num_groups = whole("n_group", 1, experts.num_experts, 1);
  routing.top_groups = whole("topk_group", 1, routing.num_groups, 1);
  if (experts.num_experts % routing.num_groups != 0 ||
      routing.per_token > experts.num_experts / routing.num_groups * routing.top_groups) {
    fields.Refuse(absl::InvalidArgumentError(absl::StrCat(
        "n_group: got ", routing.num_groups, ", expected a divisor of ", experts.num_experts,
        " experts, and ", routing.per_token, " of them in ", routing.top_groups, " groups")));
  }
}

void ReadArchitecture(ConfigFields& fields, ModelConfig& config) {
  const ModelFacts& facts = config.facts;
  const bool is_oss = facts.family == "gpt_oss";
  config.is_gemma = facts.family == "gemma2" || facts.family == "gemma3";
  config.norm_eps = static_cast<float>(fields.Number("rms_norm_eps", 0, 1, is_oss ? 1e-5 : 1e-6));
  if (is_oss) {
    config.activation = {.kind = Activation::Kind::kClampedSwiglu,
                         .limit = static_cast<float>(fields.Number("swiglu_limit", 0, 1e6, 7)),
                         .alpha = static_cast<float>(fields.Number("swiglu_alpha", 0, 1e6, 1.702))};
  } else {
    const char* const field = fields.Has("hidden_activation") ? "hidden_activation" : "hidden_act";
    const std::string word =
        fields.Word(field, config.is_gemma ? std::vector<std::string>{"gelu_pytorch_tanh"}
                                           : std::vector<std::string>{"silu", "gelu_pytorch_tanh"});
    if (word != "silu") config.activation.kind = Activation::Kind::kGeluTanh;
  }
  if (config.is_gemma) {
    const double scalar = fields.Number("query_pre_attn_scalar", 1e-6, 1e9, 256);
    config.attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  }
  const bool caps = facts.family == "gemma2";
  config.attention_soft_cap =
      static_cast<float>(fields.Number("attn_logit_softcapping", 0, 1e6, caps ? 50 : 0));
  config.logit_soft_cap =
      static_cast<float>(fields.Number("final_logit_softcapping", 0, 1e6, caps ? 30 : 0));

  const int64_t rotary_size = facts.latent       ? facts.latent->qk_rope_head_dim
                              : facts.compressed ? facts.compressed->qk_rope_head_dim
                                                 : facts.head_size;
  const bool is_gemma3 = facts.family == "gemma3";
  const double base = fields.Number("rope_theta", 1.001, 1e12,
                                    is_gemma3 ? 1e6
                                    : is_oss  ? 150'000
                                              : 10'000);
  if (facts.compressed) {
    const CompressedFacts& c = *facts.compressed;
    if (!facts.experts || c.q_lora_rank == 0 || c.o_lora_rank == 0 || c.o_groups == 0 ||
        facts.num_heads * facts.head_size % c.o_groups != 0 || rotary_size == 0 ||
        rotary_size % 2 != 0 || (facts.indexer && facts.indexer->head_dim < rotary_size)) {
      return fields.Refuse(absl::InvalidArgumentError(
          "n_routed_experts, q_lora_rank, o_lora_rank, o_groups, qk_rope_head_dim: got none of "
          "one, or what does not divide heads, expected those of DeepSeek V4"));
    }
    config.activation = {.kind = Activation::Kind::kClampedSilu,
                         .limit = static_cast<float>(fields.Number("swiglu_limit", 0, 1e6, 10))};
    config.window_rotary = MakeRotary(rotary_size, base);
    config.rotary = ReadRotary(fields, "compress", rotary_size,
                               fields.Number("compress_rope_theta", 1.001, 1e12, 160'000));
    config.rotary.interleaved = config.window_rotary.interleaved = true;
    return ReadRouting(fields, config);
  }
  config.rotary = ReadRotary(fields, "full_attention", rotary_size, base);
  if (is_gemma3 && !fields.Has("rope_parameters")) {
    config.window_rotary =
        MakeRotary(rotary_size, fields.Number("rope_local_base_freq", 1.001, 1e12, 10'000));
  } else {
    config.window_rotary = ReadRotary(fields, "sliding_attention", rotary_size, base);
  }
  if (facts.latent) {
    config.rotary.interleaved = true;
    config.attention_scale = static_cast<float>(LatentScale(fields, *facts.latent));
  }
  if (facts.experts) ReadRouting(fields, config);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  std::string text(static_cast<size_t>(4 << 20) + 1, '\0');  // one byte more than is taken
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  ModelConfig config;
  KVBLOCKS_ASSIGN_OR_RETURN(config.facts, ModelFromHfConfig(text, path));
  if (std::find(kFamilies.begin(), kFamilies.end(), config.facts.family) == kFamilies.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": model_type: got the family ", config.facts.family,
                     ", expected one that the engine runs: ", absl::StrJoin(kFamilies, ", ")));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(ConfigFields fields, ConfigFields::Parse(text));
  fields.Enter("text_config");
  ReadArchitecture(fields, config);
  if (!fields.status().ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", fields.status().message()));
  }
  return config;
}

}  // namespace kvblocks::engine
