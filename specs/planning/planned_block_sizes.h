// PlanBlockSizes: in which steps the scheduler counts computed tokens, and how finely prefixes are
// hashed.
//
// The scheduler's step is a multiple of every group's block; the hash block divides every group's
// block. A group with a coarser block takes the hash at its block's end.

#ifndef KVBLOCKS_SPECS_PLANNING_PLANNED_BLOCK_SIZES_H_
#define KVBLOCKS_SPECS_PLANNING_PLANNED_BLOCK_SIZES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvblocks/specs/kv_cache_spec.h"
#include "kvblocks/specs/planning/plan_error.h"

namespace kvblocks {

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

#endif  // KVBLOCKS_SPECS_PLANNING_PLANNED_BLOCK_SIZES_H_
