// How configurations write down their experts. For the families of this folder only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_HF_EXPERTS_H_
#define KVBLOCKS_SPECS_CATALOGUE_HF_EXPERTS_H_

#include <cstdint>

#include "kvblocks/specs/catalogue/config_fields.h"
#include "kvblocks/specs/catalogue/model_facts.h"

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

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_HF_EXPERTS_H_
