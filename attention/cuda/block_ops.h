// Moving and filling whole cache blocks on a GPU: copy-on-write, swapping with pinned host memory,
// change of layout, poison. Blocks may be dense or strided; bits are moved, never converted.
//
// attention/cpu/block_ops.h says what is refused; all ids are in host memory and checked. Work is
// enqueued on the context's stream; pairs travel in the parameters of kernels, so that no memory of
// the device is allocated and a graph can be captured, which then keeps the pairs. Checks allocate
// on the host.

#ifndef KVBLOCKS_ATTENTION_CUDA_BLOCK_OPS_H_
#define KVBLOCKS_ATTENTION_CUDA_BLOCK_OPS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention::cuda {

// Launches: one per cache and 416 pairs.
absl::Status CudaCopyBlocks(const ExecContext& context, absl::Span<const KvCacheView> caches,
                            absl::Span<const BlockPair> pairs);

// src and dst on the context's device, or one of them in pinned memory, labelled so: a copy engine
// moves dense blocks, neighbours on both sides together, and a kernel strided ones, over the bus.
// Other host memory is InvalidArgument, because copies of it would wait.
absl::Status CudaSwapBlocks(const ExecContext& context, const ConstKvCacheView& src,
                            const KvCacheView& dst, absl::Span<const BlockPair> pairs);

// As ConvertLayout of the host, both caches on the context's device. One launch.
absl::Status CudaConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                               const KvCacheView& dst);
// Launches: one per 416 pairs and so many tensors as fit.
absl::Status CudaConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                               const KvCacheView& dst, absl::Span<const BlockPair> pairs);

absl::Status CudaFillBlocks(const ExecContext& context, const KvCacheView& cache,
                            absl::Span<const int32_t> ids, std::byte byte);

// Every byte of a tensor of any strides, and no other, becomes `byte`.
absl::Status CudaFillTensor(const ExecContext& context, const TensorView& out, std::byte byte);

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_BLOCK_OPS_H_
