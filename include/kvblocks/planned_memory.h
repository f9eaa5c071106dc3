// kvblocks/planned_memory.h: from a plan of the cache's memory to the tensors that layers read.
//
// This header is what a model runner includes that plans with kvblocks/planning.h and attends with
// kvblocks/attention.h. It offers:
//   memory     PlannedMemory: for each layer of a worker its KvCacheView, latent rows or states in
//              the caller's allocations or in its own, in the uniform, slab and native layouts
//   metadata   PlannedMemory::KvGroupOf: what AttentionMetadataBuilder needs to turn the manager's
//              block ids into numbers of those views
//
// examples/planned_attention.cc goes from a plan to outputs.
//
// Errors: a plan, an option or an allocation that does not fit is an absl::Status with what, value
// and limit; nothing throws.
// Cost: O(layers) once, at start-up.
// Threads: values; whoever uses the views keeps the memory alive.

#ifndef KVBLOCKS_PLANNED_MEMORY_H_
#define KVBLOCKS_PLANNED_MEMORY_H_

#include "kvblocks/attention.h"
#include "kvblocks/memory/planned_memory.h"
#include "kvblocks/planning.h"

#endif  // KVBLOCKS_PLANNED_MEMORY_H_
