// kvblocks/planning.h: how much KV cache a model needs, and how its layers share the memory.
//
// This header is what a sizing tool includes, or an engine at start-up. It offers:
//   catalogue   Catalogue: facts about common models and devices, by name
//   models      ModelFromHfConfig: the same facts from a Hugging Face config.json
//   memory      CacheBytesInMemory: what weights and reserves leave of a device
//   limits      DefaultSchedulerLimits: the tokens per step and requests that a server takes for it
//   layers      LayerCaches: what each layer of a model stores
//   planner     MakePlan: groups, memory layout and capacity; every error at once if it cannot
//   plan        Plan: block counts, concurrency, addresses, waste, and the KvCacheConfig that
//               KvCacheManager::Create takes
//   shapes      ShapeOf: the tensor that an attention backend asks for
//   files       ReadKvCacheManagerConfig: a manager's config and options from text or JSON
//
//   #include "kvblocks/planning.h"
//   using namespace kvblocks;
//
//   auto model = Catalogue::BuiltIn().FindModel("gemma-3-27b");
//   auto layers = LayerCaches(*model, {.tensor_parallel = 2});
//   PlanResult result = MakePlan(*layers, {.limits = {.max_model_len = 131072,
//                                                     .max_in_flight_tokens = 8192},
//                                          .available_bytes = {int64_t{64} << 30}});
//   if (result.ok()) std::printf("%.1f requests at once\n", result.plan->Concurrency(131072));
//
// examples/plan_model.cc is a whole program.
//
// Errors: an unknown name lists the names that there are; a bad config.json names the field; a plan
// that is impossible says which requirement fails and by how much. Nothing throws.
// Cost: half a millisecond for the largest model of the catalogue; planning is for start-up.
// Threads: pure functions of their arguments; call them from any thread.

#ifndef KVBLOCKS_PLANNING_H_
#define KVBLOCKS_PLANNING_H_

#include "kvblocks/kv_cache_config.h"
#include "kvblocks/kv_cache_manager_config.h"
#include "kvblocks/kv_cache_spec.h"
#include "kvblocks/model_facts.h"
#include "kvblocks/plan.h"

#endif  // KVBLOCKS_PLANNING_H_
