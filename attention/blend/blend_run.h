// RunBlend: one step of a batch in which some requests prefill prompts of chunks (BlendSession) and
// the others are as ever: decodes, whole prompts, chunks of prompts. One call per layer and operation
// serves all of them, over the paged cache of the block manager.
//
// Per layer: the rows that are still there are projected; K of the reused chunk rows is rotated by
// the difference between where it stands and what it was rotated for, from the chunk's memory into
// the work memory, never in place, so nothing is rotated twice; the cache takes old rows first and new
// ones over them; at a check layer rows are selected and taken along; then all rows attend through
// the block table, each to the keys up to its own position (BlendMask::kByPosition), those of a
// prefix-cache hit among them. Blocks of the hit are read only.
//
// With ratio 1 the result is the full prefill, bit for bit where the model and the operations treat
// rows one by one; with ratio 0 only the suffix is computed behind the check layer. Results of a
// request do not depend on the others. What a blend leaves in the cache is not what a full prefill
// would: no other request may hit blocks with such rows. Make the request with
// skip_writing_prefix_cache, which holds for all of its steps, decodes included; a run is refused if
// the prefix cache has a block that the session writes (BlendStep::num_registered_tokens).
//
// On a device everything stays there: nothing is read back, and one copy of integers goes to it before
// the first layer. The run itself enqueues operations and calls the model; BlendStep says whose the
// memory is. All layers are of one KV group. Bad input is refused before the first call of the model;
// an error of the model or an operation leaves the step's own slots unspecified.

#ifndef KVBLOCKS_ATTENTION_BLEND_BLEND_RUN_H_
#define KVBLOCKS_ATTENTION_BLEND_BLEND_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/attention/blend/blend_session.h"
#include "kvblocks/attention/blend/blend_work.h"
#include "kvblocks/attention/metadata/common_metadata.h"
#include "kvblocks/attention/ops/attention_ops.h"

namespace kvblocks::attention {

// What a run tells who measures it. On a device these are moments of the stream: record an event.
enum class BlendMoment : uint8_t {
  kRunBegins,
  kSelectionBegins,  // of all sessions that check in the layer
  kSelectionEnds,
  kLayerEnds,
  kHiddenRowsAreThere,  // behind the last layer: what remains of the time to first token is the head
};

// The model, a layer at a time. Rows of all requests follow each other.
struct BlendModel {
  // q [rows, H, D], k and v [rows, Hkv, D] of hidden [rows, E], before rotary embedding.
  std::function<absl::Status(int layer, const ConstTensorView& hidden, const TensorView& q,
                             const TensorView& k, const TensorView& v)>
      project;
  // PagedPrefill of rotated queries; args come with scale D^-1/2, causal, the scales of the cache, and
  // the position of every row.
  std::function<absl::Status(int layer, const PagedPrefillArgs& args)> attend;
  // Adds to hidden [rows, E] what the layer makes of attention [rows, H, D].
  std::function<absl::Status(int layer, const ConstTensorView& attention, const TensorView& hidden)>
      finish;
  // Optional; layer is -1 for moments that have none.
  std::function<void(BlendMoment moment, int layer)> at = {};
};

struct BlendLayer {
  KvCacheView cache;
  KvScales scales = {};  // of a quantised cache
};

// Tensors are on the context's device.
struct BlendStep {
  // Of the step, by AttentionMetadataBuilder: causal, without masks; host_seq_lens exact.
  const CommonAttentionMetadata* metadata = nullptr;
  // By row of the metadata; null: a request whose rows are all computed in every layer. A session's
  // request has all tokens behind its computed ones in this step.
  absl::Span<const BlendSession* const> sessions;
  // By row of the metadata, if there is a session: so many first tokens of the request have blocks that
  // others may hit (KvCacheManager::GetNumRegisteredTokens; 0 without a prefix cache). Of a session's
  // request they may not reach behind its computed tokens; other rows are not looked at.
  absl::Span<const int64_t> num_registered_tokens;
  absl::Span<const BlendLayer> layers;
  ConstTensorView hidden;  // [T, E]: embeddings of the step's tokens; not changed
  // u8, BlendWorkBytes of it, aligned to 16 bytes. May be absent on the host: the result then owns what
  // the run allocates.
  TensorView work;
  // Copies to the device in the order of the stream, and returns when `from` may be reused. Needed on
  // devices only.
  std::function<absl::Status(std::byte* to, absl::Span<const std::byte> from)> upload = {};
};

struct BlendLayerReport {
  int64_t projected_rows = 0;
  int64_t attended_rows = 0;      // queries
  int64_t recomputed_rows = 0;    // projected, of tokens whose K and V a chunk has
  int64_t bytes_from_chunks = 0;  // K and V read from chunks, to compare and to store
  int64_t bytes_stored = 0;  // K and V sent to the cache, before its own type: of chunks and new
  // By the host's clock, which on a device sees operations enqueued, not done.
  double selection_microseconds = 0;
  double ended_microseconds = 0;  // since the run began
};

struct BlendResult {
  BlendResult() = default;
  BlendResult(BlendResult&&) = default;  // a copy's views would look into the original
  BlendResult& operator=(BlendResult&&) = default;

  // On the context's device, in the work memory.
  ConstTensorView hidden;     // [rows, E]: final rows of all requests
  ConstTensorView positions;  // i32 [rows]
  // Request b has rows [row_start[b], row_start[b + 1]); the last is the one to sample from.
  std::vector<int32_t> row_start;
  std::vector<BlendLayerReport> layers;
  std::unique_ptr<std::byte[]> memory;  // if the step had no work memory
};

// `config` says what model it is. Sessions agree with it in that and may differ in the rest. `ops`
// select, gather, rotate and store. A batch without tokens gives an empty result.
absl::StatusOr<BlendResult> RunBlend(const AttentionOps& ops, const ExecContext& context,
                                     const BlendConfig& config, const BlendStep& step,
                                     const BlendModel& model);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_BLEND_RUN_H_
