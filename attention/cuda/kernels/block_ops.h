// The kernel that copies or fills whole blocks of caches in device memory, or pinned memory that
// the device reaches.
//
// Pairs of blocks are part of the parameters, so that nothing is allocated or uploaded, and a graph
// keeps those it was captured with.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_BLOCK_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_BLOCK_OPS_H_

#include <cstdint>

#include "attention/cuda/kernels/params.h"
#include "attention/cuda/kernels/runtime.h"

namespace kvblocks::attention::cuda {

inline constexpr int kMostBlockDims = 6;

// Blocks as bytes: loops over `rank` dimensions, outermost first, around runs of dense units.
struct BlockBytes {
  const unsigned char* from = nullptr;  // null: `fill`
  unsigned char* to = nullptr;
  int64_t from_block_stride = 0, to_block_stride = 0;
  int32_t unit = 1;  // bytes: 1, 2, 4, 8 or 16; divides strides, runs and addresses
  int64_t run_units = 0;
  int32_t rank = 0;
  int64_t extent[kMostBlockDims] = {};
  int64_t from_stride[kMostBlockDims] = {}, to_stride[kMostBlockDims] = {};
};

struct BlockPairs {
  static constexpr int kMost = 416;
  int32_t from[kMost];
  int32_t to[kMost];
};

struct BlockParams {
  BlockBytes tensors[2];  // K and V
  int32_t num_tensors = 1;
  int32_t num_pairs = 0;
  uint8_t fill = 0;
  BlockPairs pairs;
};
// What devices take at most by value.
static_assert(sizeof(BlockParams) <= 4096);

Error LaunchBlocks(const LaunchContext& context, const BlockParams& params);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_BLOCK_OPS_H_
