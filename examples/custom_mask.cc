// A custom attention mask: a prefix language model, in which the first tokens see each other whole
// and the rest see what came before. One registration adds it; the rest of this file uses it.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "kvblocks/attention.h"

int main() {
  using namespace kvblocks::attention;
  AttentionMaskBuilder builder;

  // Whether key j is hidden from query i. `params` is whatever the registration gives, here the
  // length of the prefix.
  const auto prefix_lm = [](int64_t i, int64_t j, std::string_view params) {
    const int64_t prefix = std::atoll(std::string(params).c_str());
    return j > i && !(i < prefix && j < prefix);
  };
  if (!builder.Register("prefix_lm", prefix_lm, /*params=*/"3").ok()) return 1;

  constexpr int64_t kTokens = 6, kDim = 4;
  const auto mask = builder.Custom({.name = "prefix_lm", .rows = kTokens, .columns = kTokens});
  if (!mask.ok()) return 1;

  // Queries of zero give all visible keys the same weight, and value j is j in all columns: the
  // output is the mean of the positions that a token sees.
  const std::vector<float> q(kTokens * kDim), k(kTokens * kDim);
  std::vector<float> v(kTokens * kDim), out(kTokens * kDim);
  for (int64_t t = 0; t < kTokens * kDim; ++t) v[t] = static_cast<float>(t / kDim);
  const std::vector<int32_t> query_start_loc = {0, kTokens};

  VarlenSelfAttentionArgs args;
  args.q = ViewOf(absl::MakeConstSpan(q), {kTokens, 1, kDim});
  args.k = ViewOf(absl::MakeConstSpan(k), {kTokens, 1, kDim});
  args.v = ViewOf(absl::MakeConstSpan(v), {kTokens, 1, kDim});
  args.query_start_loc = ViewOf(absl::MakeConstSpan(query_start_loc));
  args.params.causal = false;  // the mask says it all
  args.params.mask = mask->ToExplicit(/*sparse_mode=*/1);
  args.out = ViewOf(absl::MakeSpan(out), {kTokens, 1, kDim});
  const absl::Status status = Cpu().MaskedAttention({}, args);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  for (int64_t i = 0; i < kTokens; ++i) {
    std::printf("token %d sees ", static_cast<int>(i));
    for (int64_t j = 0; j < kTokens; ++j) {
      std::printf("%c", *mask->view.At(i, j) == std::byte{0} ? '#' : '.');
    }
    std::printf("  output %.2f\n", out[i * kDim]);
  }
}
