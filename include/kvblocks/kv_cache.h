// kvblocks/kv_cache.h: the KV cache of a serving engine - which blocks a request holds, what it
// can reuse, what must go when memory is short.
//
// This header is what an engine includes. It offers:
//   specs      KvCacheSpec, made by one factory per attention type: what a layer stores
//   kinds      RegisterKvCacheKind and SingleTypeManager: attention types of your own
//   config     KvCacheConfig: groups of layers and the pool that they share
//   manager    KvCacheManager: prefix look-up, allocation, freeing, statistics, invariants
//   request    Request: a sequence of tokens and its block tables
//   events     KvEvent: what entered and left the prefix cache, for routers
//   pool       BlockPool: the blocks alone, for programs with rules of their own
//   eviction   EvictionPolicy: which cached block goes next; some by name, or one of your own
//
//   #include "kvblocks/kv_cache.h"
//   using namespace kvblocks;
//
//   auto spec = FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
//   auto manager = KvCacheManager::Create({.num_blocks = 1000, .groups = {{.spec = *spec}}},
//                                         {.max_model_len = 8192});
//   auto request = (*manager)->NewRequest({.id = "r1", .content = {.token_ids = prompt}});
//   auto hits = (*manager)->GetComputedBlocks(**request);
//   auto slots = (*manager)->AllocateSlots(
//       **request, {.num_new_tokens = (*request)->num_tokens() - hits->num_tokens(),
//                   .computed_blocks = &*hits});       // an empty answer: it does not fit now
//   absl::Span<const BlockId> table = (*manager)->GetBlocks(**request, /*group=*/0);
//
// examples/embed.cc is this as a program; examples/engine_loop.cc adds admission, preemption,
// external KV and events; examples/custom_attention_kind.cc adds attention types.
//
// Errors: shortage is an empty optional; a wrong argument is an absl::Status that names the value
// and the limit, and changes nothing. Nothing throws.
// Cost: a decode step that stays inside its block takes a few nanoseconds per request and
// allocates nothing. Each class states its own costs.
// Threads: one thread at a time per manager and its requests. Events and statistics are taken in
// batches and may then go to any thread.

#ifndef KVBLOCKS_KV_CACHE_H_
#define KVBLOCKS_KV_CACHE_H_

#include "kvblocks/block.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/eviction.h"
#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/kv_event.h"
#include "kvblocks/lookup_explanation.h"
#include "kvblocks/prefix_content.h"
#include "kvblocks/request.h"
#include "kvblocks/request_footprint.h"
#include "kvblocks/single_type_manager.h"

#endif  // KVBLOCKS_KV_CACHE_H_
