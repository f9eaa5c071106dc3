// kvblocks/attention.h: attention that reads keys and values through block tables.
//
// This header is what a model runner or a kernel author includes. It needs no block manager: block
// tables are spans of int32, whoever made them. It offers:
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
//   blending   RunBlend: steps with prompts of chunks that were prefilled apart
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
// The CUDA backend has a header of its own, kvblocks/attention/cuda/cuda_backend.h, because only
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

#include "kvblocks/attention/backends/attention_backend.h"
#include "kvblocks/attention/backends/attention_layer.h"
#include "kvblocks/attention/backends/backend_registry.h"
#include "kvblocks/attention/backends/backend_selection.h"
#include "kvblocks/attention/backends/cpu_backends.h"
#include "kvblocks/attention/backends/sparse_mla_layer.h"
#include "kvblocks/attention/backends/unified_attention.h"
#include "kvblocks/attention/blend/blend_quality.h"
#include "kvblocks/attention/blend/blend_run.h"
#include "kvblocks/attention/blend/blend_session.h"
#include "kvblocks/attention/blend/blend_work.h"
#include "kvblocks/attention/blend/small_transformer.h"
#include "kvblocks/attention/cache/kv_cache_layout.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/cpu/cpu_ops.h"
#include "kvblocks/attention/cpu/reference_ops.h"
#include "kvblocks/attention/cpu/thread_pool.h"
#include "kvblocks/attention/masks/mask_builder.h"
#include "kvblocks/attention/masks/mask_wiring.h"
#include "kvblocks/attention/metadata/common_metadata.h"
#include "kvblocks/attention/metadata/context_parallel.h"
#include "kvblocks/attention/metadata/graph_parameters.h"
#include "kvblocks/attention/metadata/input_tokens.h"
#include "kvblocks/attention/metadata/metadata_builder.h"
#include "kvblocks/attention/metadata/virtual_batches.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/ops/hkvd_count.h"
#include "kvblocks/attention/ops/params.h"
#include "kvblocks/attention/ops/split_planner.h"
#include "kvblocks/attention/tensor/dtype.h"
#include "kvblocks/attention/tensor/tensor_view.h"
#include "kvblocks/attention/verify/kv_cache_verifier.h"

#endif  // KVBLOCKS_ATTENTION_H_
