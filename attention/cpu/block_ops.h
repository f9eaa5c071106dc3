// Moving and filling whole cache blocks on the host: copy-on-write, offloading, change of layout,
// poison.
//
// Bits are moved, never converted. Everything is checked before anything is moved: block ids out of
// range are OutOfRange; caches of other shapes or types, pairs that overlap (a destination given
// twice, or also a source, so that the order would matter) and caches that share memory are
// InvalidArgument; layers interleaved in one allocation share none. Pairs may be spread over the
// context's threads.

#ifndef KVBLOCKS_ATTENTION_CPU_BLOCK_OPS_H_
#define KVBLOCKS_ATTENTION_CPU_BLOCK_OPS_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

// Within each cache (one per layer), block pair.first over pair.second.
absl::Status CopyBlocks(const ExecContext& context, absl::Span<const KvCacheView> caches,
                        absl::Span<const BlockPair> pairs);

// Block pair.first of src over pair.second of dst, another cache of the same layout, type and block
// shape: how blocks are swapped out to host memory and back in. Strides may differ.
absl::Status SwapBlocks(const ExecContext& context, const ConstKvCacheView& src,
                        const KvCacheView& dst, absl::Span<const BlockPair> pairs);

// All slots of src into dst, which has as many blocks of the same size, heads, dims and type, but
// maybe another layout or other strides. kPagedX, kNhd and kHnd convert into each other, kMlaLatent
// and kMlaSplit do, the FP8 MLA layouts into themselves.
absl::Status ConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                           const KvCacheView& dst);
// The same of block pair.first of src into pair.second of dst, which may have another number of
// blocks: for caches in use, and the only way for views whose blocks may share memory (native
// layouts), of which no two destinations may.
absl::Status ConvertLayout(const ExecContext& context, const ConstKvCacheView& src,
                           const KvCacheView& dst, absl::Span<const BlockPair> pairs);

// Every byte of the given blocks, and no other, becomes `byte`.
absl::Status FillBlocks(const ExecContext& context, const KvCacheView& cache,
                        absl::Span<const int32_t> ids, std::byte byte);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_CPU_BLOCK_OPS_H_
