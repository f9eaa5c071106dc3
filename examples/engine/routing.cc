#include "examples/engine/routing.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "examples/engine/math.h"

namespace kvblocks::engine {
namespace {

// Hides all experts but those of the best groups.
void KeepTopGroups(const Routing& routing, std::vector<float>& scores) {
  const size_t size = scores.size() / static_cast<size_t>(routing.num_groups);
  std::vector<float> groups;
  for (size_t first = 0; first < scores.size(); first += size) {
    const auto group = absl::MakeConstSpan(scores).subspan(first, size);
    float sum = 0;
    for (const int32_t i : TopK(group, std::min<int64_t>(2, static_cast<int64_t>(size)))) {
      sum += group[static_cast<size_t>(i)];
    }
    groups.push_back(sum);
  }
  std::vector<float> kept(scores.size(), -std::numeric_limits<float>::infinity());
  for (const int32_t group : TopK(groups, routing.top_groups)) {
    for (size_t i = 0; i < size; ++i) {
      kept[static_cast<size_t>(group) * size + i] = scores[static_cast<size_t>(group) * size + i];
    }
  }
  scores = kept;
}

}  // namespace

std::vector<ExpertShare> Route(const Routing& routing, absl::Span<const float> bias,
                               absl::Span<const float> logits, absl::Span<const int32_t> fixed) {
  std::vector<float> weights(logits.begin(), logits.end());
  if (routing.scores == Routing::Scores::kSoftmax) Softmax(absl::MakeSpan(weights));
  if (routing.scores == Routing::Scores::kSigmoid) {
    for (float& weight : weights) weight = 1 / (1 + std::exp(-weight));
  }
  if (routing.scores == Routing::Scores::kRootOfSoftplus) {
    for (float& weight : weights)
      weight = std::sqrt(weight > 20 ? weight : std::log1p(std::exp(weight)));
  }
  std::vector<float> scores = weights;
  for (size_t i = 0; i < bias.size(); ++i) scores[i] += bias[i];
  if (routing.num_groups > 1) KeepTopGroups(routing, scores);
  const std::vector<int32_t> chosen = fixed.empty()
                                          ? TopK(scores, routing.per_token)
                                          : std::vector<int32_t>(fixed.begin(), fixed.end());
  std::vector<float> shares;
  float sum = 0;
  for (const int32_t expert : chosen)
    sum += shares.emplace_back(weights[static_cast<size_t>(expert)]);
  if (routing.scores == Routing::Scores::kSoftmaxOfChosen) Softmax(absl::MakeSpan(shares));
  std::vector<ExpertShare> result;
  for (size_t i = 0; i < chosen.size(); ++i) {
    const float share = routing.sums_to_one ? shares[i] / (sum + 1e-20f) : shares[i];
    result.push_back({chosen[i], share * routing.scale});
  }
  return result;
}

}  // namespace kvblocks::engine
