// kvblocks/offload.h: tiers of memory behind the device - host, disks, remote stores - as an index
// of what lies where.
//
// This header offers:
//   manager  OffloadManager: look-up, loads and stores in the manner of vLLM's connectors
//   tiers    TierOptions: capacity, layout of slots, eviction and write policy of one tier
//
//   auto offload = OffloadManager::Create(
//       *manager, {.tiers = {{.name = "host", .capacity_bytes = 64LL << 30},
//                            {.name = "disk", .capacity_bytes = 1LL << 40,
//                             .write_policy = WritePolicy::kOnEvict}}});
//   auto hits = manager->GetComputedBlocks(*request);
//   auto match = (*offload)->Lookup(request->content(), hits->num_tokens(), num_tokens - 1);
//   // AllocateSlots with num_external_computed_tokens = match.num_tokens - hits->num_tokens() and
//   // delay_cache_blocks; then:
//   auto load = (*offload)->PrepareLoad(id, request->content(), hits->num_tokens(),
//                                       match.num_tokens);
//   ... copy what load->reads names into the request's blocks ...
//   (*offload)->CompleteLoad(load->ticket);
//
// It moves no bytes and needs no device. docs/tiers.md has the whole of it.

#ifndef KVBLOCKS_OFFLOAD_H_
#define KVBLOCKS_OFFLOAD_H_

#include "kvblocks/kv_cache.h"
#include "kvblocks/offload/offload_manager.h"
#include "kvblocks/offload/tier.h"
#include "kvblocks/offload/tier_options.h"

#endif  // KVBLOCKS_OFFLOAD_H_
