// Decodes by graphs of a few sizes: each is captured once, and every step is padded to the smallest
// that it fits into. A closure over a set's metadata stands for a captured graph here; on a GPU it
// is one, and DeviceMetadata uploads what Update wrote (kvblocks/attention/cuda/device_metadata.h).
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <vector>

#include "kvblocks/attention.h"

using namespace kvblocks::attention;

constexpr int64_t kBlockSize = 4, kNumBlocks = 32, kMostRequests = 8, kMaxLen = 16, kDim = 8;

int main() {
  auto graphs =
      GraphParameters::Create({.groups = {{.manager_block_size = kBlockSize,
                                           .kernel_block_size = kBlockSize,
                                           .num_blocks = kNumBlocks + 1}},
                               .max_num_reqs = kMostRequests,
                               .max_num_tokens = kMostRequests,
                               .max_seq_len = kMaxLen},
                              {.sizes = GraphCaptureSizes(/*most=*/4), .uniform_query_len = 1});
  const auto layer = CpuBackend().MakeImpl(
      {.name = "layer", .num_heads = 1, .num_kv_heads = 1, .head_size = kDim});
  if (!graphs.ok() || !layer.ok()) return 1;

  // What graphs read and write stays where it is: the cache, and rows for the largest size.
  std::vector<float> k_cache((kNumBlocks + 1) * kBlockSize * kDim), v_cache(k_cache);
  const KvCacheView cache(
      KvLayout::kNhd, ViewOf(absl::MakeSpan(k_cache), {kNumBlocks + 1, kBlockSize, 1, kDim}),
      ViewOf(absl::MakeSpan(v_cache), {kNumBlocks + 1, kBlockSize, 1, kDim}));
  std::vector<float> q(kMostRequests * kDim), k(q), v(q), out(q);
  const auto step_of = [&](const CommonAttentionMetadata& metadata) {
    const int64_t rows = metadata.num_actual_tokens;
    LayerTensors tensors;
    tensors.q = ViewOf(absl::MakeConstSpan(q).first(rows * kDim), {rows, 1, kDim});
    tensors.k = ViewOf(absl::MakeConstSpan(k).first(rows * kDim), {rows, 1, kDim});
    tensors.v = ViewOf(absl::MakeConstSpan(v).first(rows * kDim), {rows, 1, kDim});
    tensors.cache = cache;
    tensors.out = ViewOf(absl::MakeSpan(out).first(rows * kDim), {rows, 1, kDim});
    return (*layer)->Forward({}, tensors, &metadata);
  };
  std::map<int64_t, std::function<absl::Status()>> captured;
  for (const GraphParameterSet& set : graphs->sets()) {
    captured[set.num_tokens] = [&step_of, metadata = set.metadata[0]] { return step_of(metadata); };
  }

  // Requests 0 to n - 1 decode; keys are 0, and the value of token p of request r is 100 r + p.
  std::vector<std::vector<int32_t>> blocks;
  for (int32_t r = 0; r < kMostRequests; ++r) blocks.push_back({4 * r + 1, 4 * r + 2, 4 * r + 3});
  const std::vector<absl::Span<const int32_t>> tables(blocks.begin(), blocks.end());
  std::vector<int64_t> computed(kMostRequests);
  for (const size_t n : {3, 1, 4, 2, 5}) {
    std::vector<RequestInput> requests;
    for (size_t r = 0; r < n; ++r) {
      requests.push_back({.num_computed_tokens = computed[r], .num_scheduled_tokens = 1});
      const float value = static_cast<float>(100 * r + computed[r]);
      std::fill_n(v.begin() + static_cast<int64_t>(r) * kDim, kDim, value);
    }
    const BatchInput input = {.requests = requests,
                              .block_ids = absl::MakeConstSpan(tables).first(n)};
    const auto set = graphs->Update(input);
    absl::Status status;
    if (set.ok()) {
      std::printf("%zu decodes by the graph of %d:", n, int((*set)->num_tokens));
      status = captured[(*set)->num_tokens]();
    } else {
      std::printf("%zu decodes without a graph:", n);
      status = graphs->builder().Build(input);
      if (status.ok()) status = step_of(graphs->builder().metadata());
    }
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.ToString().c_str());
      return 1;
    }
    for (size_t r = 0; r < n; ++r) std::printf(" %.1f", out[r * kDim]);
    std::printf("\n");
    for (size_t r = 0; r < n; ++r) ++computed[r];
  }
}
