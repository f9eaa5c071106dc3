// Multi-head latent attention on tensor cores: decode through block tables, and lists of slots.
//
// Takes what AttendRows takes, where TakesMla() says so: queries of 512 or 576 16-bit values, of
// which 512 are the value's; rows of the same type (kMlaLatent, kMlaSplit), or fp8 rows with
// bfloat16 queries; plain scoring, causal and windowed. Rows (token, head) of a request share each
// tile of keys. Rows of keys that are hidden from all are not loaded; a value that is not finite
// reaches only rows that see it.
//
// Two kernels: tiles of 16 rows by mma.sync, which run on every GPU and do with few heads; tiles of
// 64 rows by wgmma, on compute capability 9.0.
//
// Scores and sums are float32, probabilities of the queries' type, fp8 rows are rounded to bfloat16
// after they were scaled.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ATTEND_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ATTEND_H_

#include <cstdint>

#include "attention/cuda/kernels/attend_rows.h"
#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

inline constexpr int kMlaKeyDim = 576, kMlaValueDim = 512;

// Keys of a tile, and blocks that a multiprocessor holds at a time.
inline constexpr int kMlaRows16Keys = 32, kMlaRows16PerMultiprocessor = 2;
inline constexpr int kMlaRows64Keys = 64, kMlaRows64PerMultiprocessor = 1;

// An upper bound of the tiles of so many rows that the packed rows of all requests make.
inline int64_t MlaTilesOf(const AttendRowsParams& params, int tile_rows) {
  const int64_t rows = params.num_rows, heads = params.num_heads;
  if (params.query_start_loc == nullptr) return rows * ((heads + tile_rows - 1) / tile_rows);
  return params.num_requests + 1 + rows * heads / tile_rows;
}

// REQUIRES TakesMla(). Grids are sized by bounds: surplus blocks end at once.
Error LaunchMlaRows16(const LaunchContext& context, const AttendRowsParams& params);
// REQUIRES compute capability 9.0.
Error LaunchMlaRows64(const LaunchContext& context, const AttendRowsParams& params);

// What merges their pieces: as LaunchMergeStates without offsets, maxima or scales.
inline constexpr int kMlaMaxPieces = 128;
Error LaunchMlaMerge(const LaunchContext& context, const MergeStatesParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_MLA_ATTEND_H_
