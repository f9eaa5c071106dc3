// The architectures that ModelFromHfConfig knows, and how each writes down its layers.
//
// A family reads what is its own: which layers attend how, experts, latent rows, states. What all
// of them share (sizes, heads, embeddings) is read before. For the readers of this folder only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_HF_FAMILIES_H_
#define KVBLOCKS_SPECS_CATALOGUE_HF_FAMILIES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kvblocks/model_facts.h"
#include "specs/catalogue/config_fields.h"
#include "specs/catalogue/pipeline_stages.h"

namespace kvblocks {

// Limits of what is read; far above any model, far below what could overflow.
inline constexpr int64_t kMaxConfigSize = int64_t{1} << 30;
inline constexpr int64_t kMaxConfigHeads = 100'000;

struct ExpertFieldNames {
  const char* num_experts = "n_routed_experts";
  const char* per_token = "num_experts_per_tok";
  const char* intermediate = "moe_intermediate_size";
};

// Sets facts.experts, in `num_layers` layers.
void ReadExperts(ConfigFields& fields, const ExpertFieldNames& names, int64_t num_layers,
                 ModelFacts& facts);
// Experts after the first dense layers, in every `moe_layer_freq`th; none without their number.
void ReadDeepseekExperts(ConfigFields& fields, ModelFacts& facts);
// Experts in every `decoder_sparse_step`th layer but those of a list.
void ReadQwenExperts(ConfigFields& fields, ModelFacts& facts);

// What is known of a model while its configuration is read.
struct HfModel {
  ModelFacts facts;
  ParamShape shape;
};

// Models with latent or compressed rows.
void ReadDeepseek(ConfigFields& fields, HfModel& model);    // V2, V3, Kimi K2
void ReadDeepseek32(ConfigFields& fields, HfModel& model);  // and an indexer
void ReadDeepseek4(ConfigFields& fields, HfModel& model);   // compressed rows
void ReadDeepseek41(ConfigFields& fields, HfModel& model);  // of few layers, read by the others

struct HfFamily {
  std::string_view model_type;    // of the whole or of its text_config
  std::string_view architecture;  // where model_type is missing
  std::string_view family;        // the catalogue's name
  bool tied_embeddings = false;   // by default
  int64_t head_dim = 0;           // by default; 0: hidden_size / num_attention_heads
  void (*read)(ConfigFields& fields, HfModel& model) = nullptr;
};

// Null if there is none.
const HfFamily* FindFamilyByType(std::string_view model_type);
const HfFamily* FindFamilyByArchitecture(std::string_view architecture);

// "deepseek_v2, deepseek_v3, ...".
std::string KnownModelTypes();

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_HF_FAMILIES_H_
