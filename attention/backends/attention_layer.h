// AttentionLayer: one attention layer over the operations of any backend.
//
// Forward, in order: the KV connector's wait; scales of a quantised cache from the first batch, if
// asked for; the step's keys and values into the cache; decode rows and prefill rows from the cache
// to out; the KV connector's save. Stores come before every read of the step. Arguments of all
// operations are checked before the first runs, so that a refused call changes nothing (but a
// frozen scale, which is settled first).
//
// Masks of the metadata reach the operations, whatever the backend; where they cannot, the call is
// refused. A custom mask says all that a query sees: it replaces causality and the layer's window,
// so for a group with a window it must hide what has left the cache. Templates narrow them.
//
// Metadata of a rank of context parallelism: with a cache the layer attends to the context that the
// rank had before the step, without one to the step's own keys. out and lse of both are states that
// MergeStates merges with those of the other ranks (metadata/context_parallel.h).
//
// Without cache or block table it is self-attention over the new keys alone, and nothing is stored;
// without metadata (profiling) out is zeros. Output rows of padding are zeros.
//
// Cost: the operations, their checks included, which read O(R + T) lengths and slots; no
// allocation of its own.
// Thread-compatible: layers with a KvScaleState are used by one thread at a time.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_ATTENTION_LAYER_H_
#define KVBLOCKS_ATTENTION_BACKENDS_ATTENTION_LAYER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/backends/attention_backend.h"
#include "kvblocks/attention/backends/layer_config.h"

namespace kvblocks::attention {

class AttentionLayer : public AttentionImpl {
 public:
  // `backend` must outlive the layer.
  static absl::StatusOr<std::unique_ptr<AttentionImpl>> Create(const LayerConfig& config,
                                                               const AttentionBackend* backend);

  const LayerConfig& config() const override { return config_; }
  absl::Status Forward(const ExecContext& context, const LayerTensors& tensors,
                       const CommonAttentionMetadata* metadata) const override;

 private:
  struct Call;

  AttentionLayer(const LayerConfig& config, const AttentionBackend* backend)
      : config_(config), backend_(backend) {}
  absl::StatusOr<Call> MakeCall(const LayerTensors& tensors,
                                const CommonAttentionMetadata* metadata) const;
  absl::Status Attend(const ExecContext& context, const LayerTensors& tensors,
                      const CommonAttentionMetadata& metadata) const;
  absl::Status SelfAttention(const ExecContext& context, const Call& call) const;
  absl::Status MlaSelfAttention(const ExecContext& context, const Call& call) const;
  absl::Status DenseAttention(const ExecContext& context, Call& call) const;
  absl::Status MlaAttention(const ExecContext& context, Call& call) const;
  absl::Status SettleScales(const ExecContext& context, Call& call) const;
  bool QuantizesQueries(const LayerTensors& tensors) const;
  absl::Status ZeroPadding(const ExecContext& context, const Call& call) const;

  LayerConfig config_;
  const AttentionBackend* backend_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_ATTENTION_LAYER_H_
