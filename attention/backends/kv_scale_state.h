// KvScaleState: the scales of one layer's quantised cache, computed once and then frozen.
//
// For models that bring no scales of their own: the first batch that has tokens decides, and codes
// already in the cache stay valid because scales never change afterwards. The buffers belong to the
// embedder and have fixed addresses, so captured graphs may read them. Profiling runs, whose inputs
// mean nothing, must not be passed in. Thread-compatible.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_KV_SCALE_STATE_H_
#define KVBLOCKS_ATTENTION_BACKENDS_KV_SCALE_STATE_H_

#include "absl/status/status.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/params.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

class KvScaleState {
 public:
  // Float32 buffers of one element, or [Hkv] for k and v; q_scale may be absent, and stays as it is
  // where queries come in codes.
  KvScaleState(TensorView q_scale, TensorView k_scale, TensorView v_scale)
      : q_scale_(q_scale), k_scale_(k_scale), v_scale_(v_scale) {}

  // The first call with tokens runs ComputeKvScales of `ops` on args.q, k, v and the divisors, with
  // this state's buffers as outputs; if it fails, the state stays as it was. Later calls do nothing.
  absl::Status ComputeOnce(const AttentionOps& ops, const ExecContext& context,
                           ComputeKvScalesArgs args);

  // The same, and stores args.scales.k and v with these scales: ScaleAndCache.
  absl::Status ComputeAndStoreOnce(const AttentionOps& ops, const ExecContext& context,
                                   ScaleAndCacheArgs args);

  bool frozen() const { return frozen_; }
  // For the operations that read and write the cache. REQUIRES: frozen().
  KvScales scales() const { return {k_scale_, v_scale_, q_scale_}; }
  ConstTensorView q_scale() const { return q_scale_; }

 private:
  // Of a call to this state's buffers.
  void SetOutputs(ComputeKvScalesArgs& args) const;

  TensorView q_scale_, k_scale_, v_scale_;
  bool frozen_ = false;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_KV_SCALE_STATE_H_
