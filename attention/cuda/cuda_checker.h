// CudaChecker: what CUDA's operations refuse beyond the checks of all backends.
//
// Keeps the first finding and looks at nothing more: InvalidArgument for views that no kernel
// addresses and for contexts of the host, Unimplemented for what is not built.

#ifndef KVBLOCKS_ATTENTION_CUDA_CUDA_CHECKER_H_
#define KVBLOCKS_ATTENTION_CUDA_CUDA_CHECKER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/cuda/cuda_call.h"
#include "kvblocks/attention/ops/checks.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/params.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention::cuda {

class CudaChecker {
 public:
  // With the checks of all backends.
  template <typename Args>
  CudaChecker(const char* op, const ExecContext& context, const Args& args)
      : op_(op), status_(Check(context, args)) {
    Take(RefuseHost(op, context));
  }
  const absl::Status& status() const { return status_; }

  // Rows of values: not float64, innermost stride 1, fewer than 2^31 rows.
  CudaChecker& Values(const char* name, const ConstTensorView& view);
  // Index arrays, sinks, slopes: the innermost stride is 1.
  CudaChecker& Dense(const char* name, const ConstTensorView& view);
  CudaChecker& KvCache(const char* name, const ConstKvCacheView& cache);
  CudaChecker& Params(const AttnParams& params);
  CudaChecker& HeadDims(int64_t key_dim, int64_t value_dim);
  // What attends through block tables.
  template <typename Args>
  CudaChecker& Paged(const Args& args) {
    return KvCache("cache", args.cache)
        .Dense("block_table", args.block_table)
        .Dense("seq_lens", args.seq_lens)
        .Params(args.params);
  }
  // Rows that are moved, quantised or turned: not float64.
  CudaChecker& Moved(const char* name, const ConstTensorView& view);
  // The finding of another check.
  CudaChecker& Take(const absl::Status& status) {
    if (status_.ok()) status_ = status;
    return *this;
  }

 private:
  template <typename... Text>
  void Invalid(const Text&... text);
  template <typename... Text>
  void NotBuilt(const Text&... text);
  void Stride(const char* name, const ConstTensorView& view, int dim, int64_t wanted);

  const char* op_;
  absl::Status status_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_CUDA_CHECKER_H_
