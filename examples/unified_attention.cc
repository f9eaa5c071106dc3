// The model's side of attention: layers by name, a KV connector's hooks around each, and a layer of
// chunked local attention whose requests are cut into pieces, so that plain causal kernels serve
// it.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "kvblocks/attention.h"

using namespace kvblocks::attention;

constexpr int64_t kBlockSize = 4, kNumBlocks = 16, kChunk = 8, kDim = 4;

// Stands for a connector that loads and saves blocks: it says when it is asked to.
class PrintingHooks : public LayerHooks {
 public:
  absl::Status WaitForLayer(const std::string& layer, const ExecContext&) override {
    std::printf("%s: wait for its blocks\n", layer.c_str());
    return absl::OkStatus();
  }
  absl::Status SaveLayer(const std::string& layer, const ConstKvCacheView&,
                         const CommonAttentionMetadata& metadata, const ExecContext&) override {
    std::printf("%s: save %d new rows\n", layer.c_str(), metadata.num_actual_tokens);
    return absl::OkStatus();
  }
};

// The caches of both layers: K and V of each.
struct Cache {
  std::vector<float> k = std::vector<float>(kNumBlocks * kBlockSize * kDim), v = k;

  KvCacheView view() {
    return {KvLayout::kNhd, ViewOf(absl::MakeSpan(k), {kNumBlocks, kBlockSize, 1, kDim}),
            ViewOf(absl::MakeSpan(v), {kNumBlocks, kBlockSize, 1, kDim})};
  }
};

int main() {
  const AttentionBackend& backend = CpuBackend();
  PrintingHooks hooks;
  Cache caches[2];
  ForwardContext forward;
  LayerConfig layer = {.name = "full", .num_heads = 1, .num_kv_heads = 1, .head_size = kDim};
  if (!forward.AddLayer(*backend.MakeImpl(layer), caches[0].view()).ok()) return 1;
  layer.name = "local", layer.chunk = kChunk;
  if (!forward.AddLayer(*backend.MakeImpl(layer), caches[1].view()).ok()) return 1;
  forward.SetHooks(&hooks, /*has_connector_metadata=*/true);

  auto builder = backend.MakeMetadataBuilder({.groups = {{.manager_block_size = kBlockSize,
                                                          .kernel_block_size = kBlockSize,
                                                          .num_blocks = kNumBlocks}},
                                              .max_num_reqs = 1,
                                              .max_num_tokens = 32,
                                              .max_seq_len = 32});
  if (!builder.ok()) return 1;
  const std::vector<int32_t> blocks = {3, 7, 1, 12, 5, 9};
  VirtualBatches pieces;

  // A prompt of 19 tokens, then two decodes.
  for (int64_t computed = 0, tokens = 19; computed < 21; computed += tokens, tokens = 1) {
    const RequestInput request = {.num_computed_tokens = computed, .num_scheduled_tokens = tokens};
    const absl::Span<const int32_t> table = blocks;
    if (!builder->Build({.requests = {&request, 1}, .block_ids = {&table, 1}}).ok()) return 1;
    // Once per step, for all layers of that chunk.
    if (!pieces.Build(builder->metadata(), kChunk).ok()) return 1;
    const CommonAttentionMetadata local = pieces.metadata();
    forward.SetMetadata(
        ForwardContext::MetadataByLayer{{"full", &builder->metadata()}, {"local", &local}});
    std::printf("step of %d: %d request, %d pieces\n", int(tokens), builder->metadata().num_reqs,
                local.num_reqs);

    // Queries and keys of zero give all visible keys the same weight, and value j is j: the output
    // is the mean of the positions that a token sees.
    const std::vector<float> zeros(tokens * kDim);
    std::vector<float> v(tokens * kDim), out(tokens * kDim);
    for (int64_t i = 0; i < tokens * kDim; ++i) v[i] = static_cast<float>(computed + i / kDim);
    for (const char* name : {"full", "local"}) {
      const ConstTensorView q = ViewOf(absl::MakeConstSpan(zeros), {tokens, kDim});
      const absl::Status status =
          UnifiedAttention({}, forward, name, q, q, ViewOf(absl::MakeConstSpan(v), {tokens, kDim}),
                           ViewOf(absl::MakeSpan(out), {tokens, kDim}));
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return 1;
      }
      const int64_t last = computed + tokens - 1;
      const int64_t first = std::string(name) == "local" ? last / kChunk * kChunk : 0;
      const float mean = static_cast<float>(first + last) / 2;
      const bool same = std::abs(out[(tokens - 1) * kDim] - mean) < 1e-4f;
      std::printf("  token %d sees %d to %d: %s\n", int(last), int(first), int(last),
                  same ? "yes" : "no");
      if (!same) return 1;
    }
  }
}
