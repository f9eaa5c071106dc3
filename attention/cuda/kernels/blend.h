// Kernels of CacheBlend: choosing the tokens to recompute, taking their rows along, putting these
// in place, turning keys to other positions.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_BLEND_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_BLEND_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

struct SelectParams {
  ConstRows v_new, v_old;  // [n, heads, dim]
  int64_t num_tokens = 0;  // n - suffix_len: candidates
  int32_t heads = 1, dim = 0;
  int64_t num_selected = 0;
  int64_t suffix_len = 0;
  int32_t* imp = nullptr;
  int64_t imp_stride = 1;
  float* diffs = nullptr;  // or null
  int64_t diffs_stride = 1;
};
// Float64 sums of squares, in the workspace, then a radix selection over their bits by one block,
// and an ordered compaction: the largest, ties to the lower index, NaN as infinity and flagged.
// Differences of 16-bit values are rounded to float32 before they are squared.
int64_t SelectWorkspaceBytes(int64_t num_tokens);
Error LaunchSelect(const LaunchContext& context, const SelectParams& params);

struct FuseParams {
  const int32_t* imp = nullptr;
  int64_t imp_stride = 1;
  int64_t num_rows = 0, num_tokens = 0;
  ConstRows from[2];  // K and V [num_rows, heads, dim]
  Rows to[2];         // [num_tokens, heads, dim] of the same types
  int32_t heads = 1, dim[2] = {0, 0};
};
// Indices outside of [0, num_tokens) are skipped and flagged.
Error LaunchFuse(const LaunchContext& context, const FuseParams& params);

struct GatherRowsParams {
  const int32_t* index = nullptr;
  int64_t index_stride = 1;
  int64_t num_rows = 0, num_sources = 0;
  int64_t row_bytes = 0;
  const void* from = nullptr;  // bytes, as all strides here
  void* to = nullptr;
  int64_t from_stride = 0, to_stride = 0;
};
// Dense rows of any type, by 16 bytes at a time where all is aligned to them, else by 4 or 1.
// Indices outside of [0, num_sources) are skipped and flagged.
Error LaunchGatherRows(const LaunchContext& context, const GatherRowsParams& params);

struct RotateParams {
  ConstRows from;
  Rows to;
  int64_t num_tokens = 0;
  int32_t heads = 1, dim = 0, rotary_dim = 0;
  const void* positions = nullptr;  // i64 or i32
  const void* from_positions = nullptr;
  int64_t positions_stride = 1, from_positions_stride = 1;
  bool positions_are_wide = true, from_positions_are_wide = true;
  double theta = 10000;
  bool interleaved = false;
};
Error LaunchRotate(const LaunchContext& context, const RotateParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_BLEND_H_
