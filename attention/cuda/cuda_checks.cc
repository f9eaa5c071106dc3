#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/cuda/enqueue_ops.h"
#include "kvblocks/attention/cuda/kernels/attend_rows.h"
#include "kvblocks/attention/cuda/paged_decode_ops.h"
#include "kvblocks/attention/ops/checks.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr int64_t kMaxRows = std::numeric_limits<int32_t>::max();

// Keeps the first finding and looks at nothing more: InvalidArgument for views that no kernel addresses and for contexts of
// the host, Unimplemented for what is not built.
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
  CudaChecker& Values(const char* name, const ConstTensorView& view) {
    if (view.absent() || !status_.ok()) return *this;
    if (view.dtype == DType::kF64) {
      Invalid(name, " is f64; CUDA computes in f32, f16 and bf16");
    }
    Dense(name, view);
    for (int i = 0; i < view.rank; ++i) {
      if (view.extent[i] > kMaxRows) {
        Invalid(name, " has extent ", view.extent[i], " in dimension ", i, "; below 2^31 on CUDA");
      }
    }
    return *this;
  }

  // Index arrays, sinks, slopes: the innermost stride is 1.
  CudaChecker& Dense(const char* name, const ConstTensorView& view) {
    if (!view.absent() && status_.ok() && view.rank > 0) Stride(name, view, view.rank - 1, 1);
    return *this;
  }

  CudaChecker& KvCache(const char* name, const ConstKvCacheView& cache) {
    if (cache.absent() || !status_.ok()) return *this;
    Values(name, cache.k);
    Values(name, cache.v);
    if (cache.num_blocks() > kMaxRows || cache.block_size() > kMaxRows) {
      Invalid(name, " has ", cache.num_blocks(), " blocks of ", cache.block_size(),
              " tokens; below 2^31 on CUDA");
    }
    if (cache.layout == KvLayout::kPagedX) {
      Stride(name, cache.k, 3, cache.k.extent[4]);
      Stride(name, cache.k, 2, cache.k.extent[3] * cache.k.extent[4]);
      Stride(name, cache.v, 2, cache.v.extent[3]);
    }
    return HeadDims(cache.key_dim(), cache.value_dim());
  }

  // What attends through block tables.
  template <typename Args>
  CudaChecker& Paged(const Args& args) {
    return KvCache("cache", args.cache)
        .Dense("block_table", args.block_table)
        .Dense("seq_lens", args.seq_lens)
        .Params(args.params);
  }

  CudaChecker& Params(const AttnParams& params) {
    Dense("params.alibi_slopes", params.alibi_slopes);
    Dense("params.sinks", params.sinks);
    const ConstTensorView& mask = params.mask.tensor;
    if (!mask.absent() && mask.dtype == DType::kF64) {
      Invalid("params.mask is f64; CUDA takes f32, f16, bf16 and bytes");
    }
    return *this;
  }

  CudaChecker& HeadDims(int64_t key_dim, int64_t value_dim) {
    if (std::max(key_dim, value_dim) > kMaxHeadDim) {
      NotBuilt("heads of ", key_dim, " and ", value_dim, " values; CUDA is built for at most ",
               kMaxHeadDim);
    }
    return *this;
  }

  // Rows that are moved, quantised or turned, in float32 and narrower.
  CudaChecker& Moved(const char* name, const ConstTensorView& view) {
    if (!view.absent() && view.dtype == DType::kF64) {
      NotBuilt(name, " is f64; the CUDA backend has f32, f16 and bf16");
    }
    return *this;
  }

  CudaChecker& Take(const absl::Status& status) {
    if (status_.ok()) status_ = status;
    return *this;
  }

 private:
  template <typename... Text>
  void Invalid(const Text&... text) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(op_, ": ", text...));
  }
  template <typename... Text>
  void NotBuilt(const Text&... text) {
    if (status_.ok()) status_ = absl::UnimplementedError(absl::StrCat(op_, ": ", text...));
  }
  void Stride(const char* name, const ConstTensorView& view, int dim, int64_t wanted) {
    if (view.empty() || view.extent[dim] <= 1 || view.stride[dim] == wanted) return;
    Invalid(name, " has stride ", view.stride[dim], " in dimension ", dim, "; on CUDA ", wanted);
  }

  const char* op_;
  absl::Status status_;
};

CudaChecker& CheckQueries(CudaChecker& check, const PagedPrefillArgs& args) {
  return check.Values("q", args.q)
      .Values("out", args.out)
      .Paged(args)
      .Dense("query_start_loc", args.query_start_loc)
      .Dense("query_positions", args.query_positions);
}

}  // namespace

// --- Attention ---

absl::Status CheckOnCuda(const ExecContext& context, const PagedDecodeArgs& args) {
  CudaChecker check("PagedDecode", context, args);
  check.Values("q", args.q).Values("out", args.out).Paged(args);
  if (check.status().ok()) check.Take(CheckPlans(args));
  return check.status();
}

absl::Status CheckOnCuda(const ExecContext& context, const PagedDecodePartialArgs& args) {
  CudaChecker check("PagedDecodePartial", context, args);
  return check.Values("q", args.q).Values("tmp_out", args.tmp_out).Paged(args).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const ReduceSplitsArgs& args) {
  CudaChecker check("ReduceSplits", context, args);
  check.Values("max_logits", args.max_logits).Values("tmp_out", args.tmp_out);
  return check.Values("out", args.out).Dense("sinks", args.sinks).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const PagedPrefillArgs& args) {
  CudaChecker check("PagedPrefill", context, args);
  return CheckQueries(check, args).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const CascadeArgs& args) {
  CudaChecker check("Cascade", context, args);
  return CheckQueries(check, args.prefill).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const VarlenSelfAttentionArgs& args) {
  CudaChecker check("VarlenSelfAttention", context, args);
  check.Values("q", args.q).Values("k", args.k).Values("v", args.v).Values("out", args.out);
  check.Dense("query_start_loc", args.query_start_loc).Dense("kv_start_loc", args.kv_start_loc);
  check.Dense("kv_seq_lens", args.kv_seq_lens).Dense("query_positions", args.query_positions);
  return check.Params(args.params).HeadDims(args.k.extent[2], args.v.extent[2]).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const MlaDecodeArgs& args) {
  CudaChecker check("MlaDecode", context, args);
  check.Values("q_lat", args.q_lat).Values("q_pe", args.q_pe).Values("out", args.out);
  return check.Paged(args).Dense("query_start_loc", args.query_start_loc).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const SparseMlaDecodeArgs& args) {
  CudaChecker check("SparseMlaDecode", context, args);
  check.Values("q", args.q).Values("out", args.out).Dense("sinks", args.sinks);
  check.KvCache("main.cache", args.main.cache).Dense("main.indices", args.main.indices);
  check.Dense("main.topk_len", args.main.topk_len).KvCache("extra.cache", args.extra.cache);
  check.Dense("extra.indices", args.extra.indices).Dense("extra.topk_len", args.extra.topk_len);
  return check.status();
}

absl::Status CheckOnCuda(const ExecContext& context, const SparseMlaPrefillArgs& args) {
  CudaChecker check("SparseMlaPrefill", context, args);
  check.Values("q", args.q).Values("kv", args.kv).Values("out", args.out);
  check.Dense("indices", args.indices).Dense("topk_len", args.topk_len);
  check.Dense("sinks", args.sinks).HeadDims(args.kv.extent[2], args.out.extent[2]);
  return check.status();
}

absl::Status CheckOnCuda(const ExecContext& context, const MergeStatesArgs& args) {
  CudaChecker check("MergeStates", context, args);
  check.Values("outs", args.outs).Values("out", args.out).Dense("sinks", args.sinks);
  return check.status();
}

// --- Rows of the cache ---

absl::Status CheckOnCuda(const ExecContext& context, const ReshapeAndCacheArgs& args) {
  CudaChecker check("ReshapeAndCache", context, args);
  return check.Moved("k", args.k).Moved("v", args.v).Moved("the cache", args.cache.k).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const ConcatAndCacheMlaArgs& args) {
  CudaChecker check("ConcatAndCacheMla", context, args);
  check.Moved("kv_c", args.kv_c).Moved("k_pe", args.k_pe).Moved("the cache", args.cache.k);
  return check.status();
}

absl::Status CheckOnCuda(const ExecContext& context, const ComputeKvScalesArgs& args) {
  CudaChecker check("ComputeKvScales", context, args);
  // What has no scale to go to is not looked at.
  if (!args.q_scale.absent() && !args.q.empty()) check.Moved("q", args.q);
  if (!args.k_scale.absent() && !args.k.empty()) check.Moved("k", args.k);
  if (!args.v_scale.absent() && !args.v.empty()) check.Moved("v", args.v);
  return check.status();
}

absl::Status CheckOnCuda(const ExecContext& context, const GatherCacheArgs& args) {
  CudaChecker check("GatherCache", context, args);
  check.Moved("the cache", args.cache.k).Moved("out", args.out).Moved("out_v", args.out_v);
  return check.status();
}

absl::Status CheckOnCuda(const ExecContext& context, const SelectHkvdArgs& args) {
  CudaChecker check("SelectHkvd", context, args);
  return check.Moved("v_new", args.v_new).Moved("v_old", args.v_old).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const FuseKvArgs& args) {
  CudaChecker check("FuseKv", context, args);
  return check.Moved("k_old", args.k_old).Moved("v_old", args.v_old).status();
}

absl::Status CheckOnCuda(const ExecContext& context, const RotateKeysArgs& args) {
  CudaChecker check("RotateKeys", context, args);
  return check.Moved("in", args.in).Moved("out", args.out).status();
}

}  // namespace kvblocks::attention::cuda
