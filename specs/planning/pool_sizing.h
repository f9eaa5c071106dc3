// SizePool: what one block id costs on each worker, and how many blocks all of them can have.
//
// Every worker holds its own layers of each group. Block ids are common, so the worker with room
// for the fewest blocks decides for all.

#ifndef KVBLOCKS_SPECS_PLANNING_POOL_SIZING_H_
#define KVBLOCKS_SPECS_PLANNING_POOL_SIZING_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvblocks/kv_cache_config.h"
#include "kvblocks/plan.h"
#include "specs/planning/grouping.h"
#include "specs/planning/plan_inputs.h"

namespace kvblocks {

// group_layers[worker][group]: the layers of the group that the worker holds, in the group's order.
using ProjectedGroups = std::vector<std::vector<std::vector<int>>>;
ProjectedGroups ProjectGroups(std::span<const LayerGroup> groups,
                              std::span<const std::vector<int>> workers_of_layer, int num_workers);

struct PoolSize {
  int64_t num_blocks = 0;
  std::vector<WorkerPlan> workers = {};  // sizes only; no tensors, no descriptors
  std::optional<NativeLayout> native = std::nullopt;
  PoolCapacity capacity = {};
};

// The number of units that `worker` could have by itself, for PoolCapacity::LongestLength.
int64_t OwnUnits(const PoolSize& pool, const WorkerPlan& worker, const PlanOptions& options);

// `length`: what native chunk sizes are compared at.
PoolSize SizePool(const Grouping& grouping, const ProjectedGroups& projected,
                  const PlanInputs& inputs, const PlanOptions& options, PoolLayout layout,
                  int64_t length);

// Chunk sizes for the native layout: bytes that hold pages of every class with little left over.
//
// A longer chunk fits several page sizes better, a shorter one leaves less in the one chunk per
// class that is partly used. ChunkSizes gives the sizes between which that is a real choice.

struct ChunkSize {
  int64_t bytes = 0;
  std::vector<int64_t> pages = {};  // that fit, per class; each at least 1
  double largest_remainder = 0;     // of the classes, as a share of the chunk

  friend bool operator==(const ChunkSize&, const ChunkSize&) = default;
};

// In ascending order, each with a smaller remainder than all before it; the first is the largest
// page, the last the best chunk of at most max(max_bytes, largest page) bytes. Of pages so small
// that a chunk holds more than 4,096 of them, only the multiples near the limit are considered.
// REQUIRES: page_bytes is not empty, each at least 1.
std::vector<ChunkSize> ChunkSizes(std::span<const int64_t> page_bytes, int64_t max_bytes);

// PlanBlockSizes: in which steps the scheduler counts computed tokens, and how finely prefixes are
// hashed.
//
// The scheduler's step is a multiple of every group's block; the hash block divides every group's
// block. A group with a coarser block takes the hash at its block's end.

struct PlannedBlockSizes {
  int64_t scheduler = 1;
  int64_t hash = 1;

  friend bool operator==(const PlannedBlockSizes&, const PlannedBlockSizes&) = default;
};

// Tokens that one block of the group covers over all context-parallel ranks. States are not split.
int64_t EffectiveBlockSize(const KvCacheSpec& spec, int64_t decode_context_parallel);

// One spec per group. Errors: E-1 if the common multiple is out of range, E-13 if the match unit
// does not divide a group's block size.
std::optional<PlannedBlockSizes> PlanBlockSizes(std::span<const KvCacheSpec> groups,
                                                int64_t decode_context_parallel, bool hashes_needed,
                                                std::optional<int64_t> match_unit,
                                                std::vector<PlanError>* errors);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_PLANNING_POOL_SIZING_H_
