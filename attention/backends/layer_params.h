// What a layer asks of an operation: its configuration and the step's metadata as AttnParams.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_LAYER_PARAMS_H_
#define KVBLOCKS_ATTENTION_BACKENDS_LAYER_PARAMS_H_

#include <cstdint>
#include <optional>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

// InvalidArgument that names the layer.
template <typename... Text>
absl::Status RefusedBy(const LayerConfig& layer, const Text&... text) {
  return InvalidArgument("layer ", layer.name, ": ", text...);
}

// That a backend has the rows that the layer declares (none: whatever). `row_format` and the sizes
// are of one of its caches.
absl::Status CheckDeclaredRows(const LayerConfig& layer, const BackendSupport& support,
                               const std::optional<KvRowFormat>& row_format, int64_t key_dim,
                               int64_t value_dim);
// That a cache has them.
absl::Status CheckCacheRows(const LayerConfig& layer, const char* name,
                            const std::optional<KvRowFormat>& row_format, const KvCacheView& cache);

// Without scales. `layer` is full: no member is left at 0 for a default. InvalidArgument where the
// layer cannot honour a mask of the metadata, or the pieces that its requests are. Views of both
// must outlive the result.
absl::StatusOr<AttnParams> ParamsOf(const LayerConfig& layer,
                                    const CommonAttentionMetadata& metadata, bool has_cache);

// Whether the layer computes this batch as a cascade.
bool IsCascade(const LayerConfig& layer, const CommonAttentionMetadata& metadata,
               const AttnParams& params, int32_t num_multiprocessors);

// The split of `num_requests` single-token decodes.
SplitPolicy DecodeSplit(const LayerConfig& layer, const CommonAttentionMetadata& metadata,
                        int64_t num_requests);

// --- What a layer refuses of a call before it looks at what kind of attention it is.

// That the views may be cut and shaped at all, and counts agree with each other. What they hold is
// for the operations to check.
absl::Status CheckLayerCall(const LayerConfig& layer, const ExecContext& context,
                            const LayerTensors& tensors, const CommonAttentionMetadata& metadata);

// For metadata of one of several ranks: that states of a rank's rows, merged, are the layer's
// attention.
absl::Status CheckRankCall(const LayerConfig& layer, const LayerTensors& tensors,
                           const CommonAttentionMetadata& metadata);

// What the backend refuses of the operations of a call; those that are absent are left out.
template <typename... Args>
absl::Status CheckAll(const AttentionOps& ops, const ExecContext& context,
                      const std::optional<Args>&... args) {
  absl::Status status;
  const auto check = [&](const auto& one) {
    if (status.ok() && one.has_value()) status = ops.Check(context, *one).status();
  };
  (check(args), ...);
  return status;
}

// Runs them in this order, all checked before the first runs.
template <typename... Args>
absl::Status CheckAndRun(const AttentionOps& ops, const ExecContext& context,
                         const std::optional<Args>&... args) {
  absl::Status status;
  const auto check = [&]<typename One>(const std::optional<One>& one) {
    std::optional<Checked<One>> passed;
    if (!status.ok() || !one.has_value()) return passed;
    const absl::StatusOr<Checked<One>> checked = ops.Check(context, *one);
    status = checked.status();
    if (checked.ok()) passed = *checked;
    return passed;
  };
  const auto run = [&](const auto& one) {
    if (status.ok() && one.has_value()) status = ops.Run(*one);
  };
  const std::tuple<std::optional<Checked<Args>>...> checked{check(args)...};
  std::apply([&](const auto&... one) { (run(one), ...); }, checked);
  return status;
}

// The published rule by which vLLM chooses between one pass over the keys and several. O(1).
inline constexpr int64_t kDecodePartitionTokens = 512;
// Scores of a single pass take 4 bytes of shared memory per key.
inline constexpr int64_t kMaxSinglePassTokens = 8192;

enum class DecodeVersion : uint8_t { kV1, kV2 };  // single pass; partitions and a reduction

// vLLM's: one pass iff keys fit its score buffer and there is one partition or enough parallel
// work.
DecodeVersion SelectDecodeVersion(int64_t max_seq_len, int64_t num_reqs, int64_t num_heads);

// --- UseCascade: whether a shared prefix is worth a pass of its own.
//
// Pays off for prefixes of 256 tokens or more and 8 requests or more. Where any request has several
// new tokens, or each KV head serves one query head, always then; for plain decode if the modelled
// time of the prefix pass, in waves of tiles, is below that of reading the prefix once per request.

struct CascadeShape {
  int64_t common_prefix_len = 0;
  int64_t num_reqs = 0;
  int64_t num_heads = 1, num_kv_heads = 1;
  int64_t max_query_len = 1;
  int32_t num_multiprocessors = 1;
  // With any of them the keys of the prefix are not the same for all queries.
  bool has_alibi = false, has_window = false, has_chunk = false;
};

// Tiles in sequence, times their number per prefix: what the heuristic compares.
struct CascadeCost {
  int64_t cascade = 0;
  int64_t per_request = 0;
};

// REQUIRES: positive heads and multiprocessors.
CascadeCost ModelCascade(const CascadeShape& choice);
bool UseCascade(const CascadeShape& choice);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_LAYER_PARAMS_H_
