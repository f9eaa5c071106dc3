// RunBlend: prefills the prompts of a batch of BlendSessions, layer by layer, through the caller's
// model.
//
// Per layer and session: before the check layer all tokens are projected and attend to each other;
// at the check layer all are projected, those whose values deviate most from their chunks' are
// selected, and only they and the suffix go on as queries, over new K and V; after it only they are
// projected, their K and V replace rows of the chunks', and they attend to all n keys. Keys are
// kept without rotary embedding and rotated into scratch memory, never in place, so nothing is
// rotated twice. A row sees keys up to its own position (BlendMask::kByPosition).
//
// With ratio 1 the result is the full prefill, bit for bit where the model and the operations treat
// rows one by one; with ratio 0 only the suffix is computed after the check layer. Results of a
// session do not depend on the other sessions. Host memory only.

#ifndef KVBLOCKS_ATTENTION_BLEND_BLEND_RUN_H_
#define KVBLOCKS_ATTENTION_BLEND_BLEND_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention/blend/blend_session.h"
#include "kvblocks/attention/ops/attention_ops.h"

namespace kvblocks::attention {

// K and V of a layer and session as decoding will read them.
struct BlendedKv {
  int layer = 0;
  int64_t session = 0;                 // index in the batch
  ConstTensorView k, v;                // [n, Hkv, D], K rotated
  absl::Span<const int32_t> new_rows;  // recomputed in this layer, ascending
};

// The model, a layer at a time. Rows of all sessions follow each other.
struct BlendModel {
  // q [rows, H, D], k and v [rows, Hkv, D] of hidden [rows, E], before rotary embedding.
  std::function<absl::Status(int layer, const ConstTensorView& hidden, const TensorView& q,
                             const TensorView& k, const TensorView& v)>
      project;
  // VarlenSelfAttention of rotated queries and keys; args come with scale D^-1/2, causal, and the
  // position of every row.
  std::function<absl::Status(int layer, const VarlenSelfAttentionArgs& args)> attend;
  // Adds to hidden [rows, E] what the layer makes of attention [rows, H, D].
  std::function<absl::Status(int layer, const ConstTensorView& attention, const TensorView& hidden)>
      finish;
  // Optional: stores K and V, for instance by StoreBlendedKv.
  std::function<absl::Status(const BlendedKv& kv)> store;
};

struct BlendLayerReport {
  int64_t projected_rows = 0;
  int64_t attended_rows = 0;  // queries
  int64_t bytes_moved = 0;    // K and V taken from chunks and replaced in them
  double selection_microseconds = 0;
};

struct BlendResult {
  std::vector<std::byte> bytes;
  ConstTensorView hidden;  // [rows, E]: final rows of all sessions
  // Per session: the positions of its rows, and the index in `hidden` of its last, to sample from.
  std::vector<std::vector<int32_t>> positions;
  std::vector<int64_t> sampling_rows;
  std::vector<BlendLayerReport> layers;
};

// hidden [sum of n, E]: embeddings of all tokens of all sessions. Sessions must agree in all but
// check layer, ratio and mask. `ops` selects, fuses and rotates.
absl::StatusOr<BlendResult> RunBlend(const AttentionOps& ops, const ExecContext& context,
                                     absl::Span<const BlendSession* const> sessions,
                                     const ConstTensorView& hidden, const BlendModel& model);

// Stores K and V in a paged cache at slots i64 [n]: all rows, or only the recomputed ones if the
// cache holds the chunks' rows already, rotated to their positions.
enum class BlendStore : uint8_t { kNewRows, kAllRows };
absl::Status StoreBlendedKv(const AttentionOps& ops, const ExecContext& context,
                            const BlendedKv& kv, absl::Span<const int64_t> slots,
                            const KvCacheView& cache, BlendStore rows);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_BLEND_RUN_H_
