// Routing: which experts a token takes, and with what weights.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_ROUTING_H_
#define KVBLOCKS_EXAMPLES_ENGINE_ROUTING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace kvblocks::engine {

struct Routing {
  enum class Scores {
    kSoftmax,          // of all logits; the chosen ones keep theirs
    kSoftmaxOfChosen,  // gpt-oss
    kSigmoid,          // DeepSeek V3: of each logit; a bias plays a part in the choice alone
    kRootOfSoftplus,   // DeepSeek V4: likewise
  };
  Scores scores = Scores::kSoftmax;
  int64_t per_token = 1;
  // Experts are chosen in the best groups only, by the sum of a group's two largest scores.
  int64_t num_groups = 1, top_groups = 1;
  bool sums_to_one = false;  // the chosen ones' weights, before `scale`
  float scale = 1;
};

struct ExpertShare {
  int32_t expert = 0;
  float weight = 0;
};

// `logits` of all experts; `bias` as many, or none. `fixed`: the experts, if scores do not choose
// them. REQUIRES: groups of equal size, and per_token experts in the top groups.
std::vector<ExpertShare> Route(const Routing& routing, absl::Span<const float> bias,
                               absl::Span<const float> logits,
                               absl::Span<const int32_t> fixed = {});

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_ROUTING_H_
