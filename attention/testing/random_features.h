// RandomFeatures: features of scores, each on or off, for batches of a PagedCase. Testonly.

#ifndef KVBLOCKS_ATTENTION_TESTING_RANDOM_FEATURES_H_
#define KVBLOCKS_ATTENTION_TESTING_RANDOM_FEATURES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>

#include "attention/testing/paged_case.h"
#include "attention/testing/random_cache.h"

namespace kvblocks::attention {

// Sets them in paged.params and owns what these point to: must outlive the case's runs.
struct RandomFeatures {
  RandomFeatures(PagedCase& paged, bool causal, DrawNumber draw) {
    const PagedCaseOptions& options = paged.options();
    AttnParams& params = paged.params;
    const auto flip = [&] { return draw(0, 1) == 1; };
    std::mt19937_64 random(options.seed + 1);
    int64_t longest = 1;
    for (const int64_t length : options.lengths) longest = std::max(longest, length);
    params.causal = causal || draw(0, 3) != 0;
    if (flip()) params.window_left = draw(0, longest);
    if (!params.causal && flip()) params.window_right = draw(0, longest);
    if (flip()) params.soft_cap = 2;
    if (flip()) params.chunk = options.block_size * draw(1, 8);
    if (flip()) {
      alibi = FloatTensor(NormalDraws(random, options.num_heads));
      params.alibi_slopes = alibi.view;
    }
    if (flip()) {
      sinks = FloatTensor(NormalDraws(random, options.num_heads));
      params.sinks = sinks.view;
    }
    if (flip()) {
      params.block_sparse.local_blocks = static_cast<int32_t>(draw(0, 3));
      params.block_sparse.vert_stride = static_cast<int32_t>(draw(1, 6));
      params.block_sparse.block_size = options.block_size * draw(1, 4);
      params.block_sparse.head_sliding_step = static_cast<int32_t>(draw(-2, 2));
      params.block_sparse.tp_rank = static_cast<int32_t>(draw(0, 2));
    }
    if (!flip() || paged.num_requests() == 0) return;
    int64_t rows = 1;
    for (const int64_t q_len : options.q_lens) rows = std::max(rows, q_len);
    const int64_t heads = options.num_heads;
    const uint64_t one_in = draw(2, 5);
    mask = Tensor(DType::kU8, {paged.num_requests(), heads, rows, longest});
    for (std::byte& byte : mask.bytes) byte = static_cast<std::byte>(random() % one_in == 0);
    params.mask.tensor = mask.view;
    params.mask.form = MaskForm::kPerHead;
    paged.hide = [=, this](int64_t b, int64_t i, int64_t j, int64_t h) {
      return mask.bytes[((b * heads + h) * rows + i) * longest + j] != std::byte{0};
    };
  }
  RandomFeatures(const RandomFeatures&) = delete;

  Tensor alibi, sinks, mask;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_RANDOM_FEATURES_H_
