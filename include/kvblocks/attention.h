// kvblocks/attention.h: attention that reads keys and values through block tables.
//
// This header is what a model runner or a kernel author includes. It needs no block manager: block
// tables are spans of int32 from any block manager. It offers:
//   views      TensorView, KvCacheView: memory with shape and type, owned by the caller
//   operations AttentionOps: store, decode, prefill, cascade, MLA, merge; Cpu() runs them on the
//              host, CpuReference() in float64
//   metadata   AttentionMetadataBuilder: lengths, slots and tables of a batch; VirtualBatches cuts
//              it into pieces for chunked local attention; GatherInputTokens; GraphParameters for
//              captured graphs; ContextParallel and PrefillShard for caches spread over ranks
//   masks      AttentionMaskBuilder: explicit and custom masks
//   backends   SelectBackend: the best backend for a layer, or all reasons why there is none
//   layers     AttentionImpl, UnifiedAttention: one call per layer and step, with hooks;
//              SparseTensors: DeepSeek V3.2 and V4
//   blending   RunBlend: steps with prompts of chunks that were prefilled alone
//   verifier   KvCacheVerifier: replays an engine's steps with real numbers and names the first
//              wrong one
//
//   #include "kvblocks/attention.h"
//   using namespace kvblocks::attention;
//
//   KvCacheView cache(KvLayout::kNhd, ViewOf(absl::MakeSpan(keys), {blocks, 16, kv_heads, dim}),
//                     ViewOf(absl::MakeSpan(values), {blocks, 16, kv_heads, dim}));
//   PagedDecodeArgs decode;
//   decode.q = ViewOf(absl::MakeSpan(queries), {requests, heads, dim});
//   decode.cache = cache;
//   decode.block_table = ViewOf(absl::MakeSpan(tables), {requests, blocks_per_request});
//   decode.seq_lens = ViewOf(absl::MakeSpan(lengths));
//   decode.max_seq_len = longest;
//   decode.out = ViewOf(absl::MakeSpan(outputs), {requests, heads, dim});
//   absl::Status status = Cpu().PagedDecode({}, decode);
//
// examples/paged_attention.cc calls the operations; examples/attention_embed.cc runs layers over
// the tables of a KvCacheManager.
//
// The CUDA backend has a header of its own, kvblocks/attention_cuda.h, because only
// programs that use it link its kernels.
//
// Errors: a call with a bad argument is refused with an absl::Status that names the operation, the
// argument, the value and the limit, before anything is written. Nothing throws.
// Cost: an operation checks its arguments in O(requests + tokens); metadata is built without
// allocation in steady state. docs/kernels.md has measured speeds.
// Threads: operations and backends are stateless and may be shared; builders, layers with changing
// scales and verifiers are used by one thread at a time.

#ifndef KVBLOCKS_ATTENTION_H_
#define KVBLOCKS_ATTENTION_H_

#include "kvblocks/attention_args.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/attention_masks.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/cache_blend.h"
#include "kvblocks/device_types.h"
#include "kvblocks/kv_cache_verifier.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/split_planner.h"
#include "kvblocks/tensor_view.h"

#endif  // KVBLOCKS_ATTENTION_H_
