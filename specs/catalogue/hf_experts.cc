#include "kvblocks/specs/catalogue/hf_experts.h"

#include <algorithm>
#include <vector>

namespace kvblocks {
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
  ReadExperts(fields, {.num_experts = "num_experts"}, layers, facts);
  facts.experts->shared_intermediate_size =
      fields.Int("shared_expert_intermediate_size", 0, kMaxConfigSize, 0);
  facts.experts->num_shared_experts = facts.experts->shared_intermediate_size > 0 ? 1 : 0;
}

}  // namespace kvblocks
