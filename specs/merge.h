// May several layer caches share one block table, and what spec stands for all of them?
//
//   Merge          one spec for layers that are alike in every byte; the group then is that spec.
//   IsUniformType  layers that always need the same number of token slots though their pages may
//                  differ; one block id then stands for one page in each of them.
//
// Merging does not depend on the order of its input, and merging a result with any member of its
// input gives the result again. Cost: one pass over the specs.

#ifndef KVBLOCKS_SPECS_MERGE_H_
#define KVBLOCKS_SPECS_MERGE_H_

#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/specs/kv_cache_spec.h"

namespace kvblocks {

enum class MergeFailure {
  kWrongKind,           // two kinds
  kConflictingFields,   // one kind, but pages or rows differ
  kConflictingWindows,  // two windows, two chunk sizes, or a window and a chunk size
};

// Full specs whose labels differ merge if all labels that are set agree; the merged spec is
// non-causal, or a draft, if any member is. MLA kinds may state different alignments as long as
// these give the same page. REQUIRES: specs is not empty (InvalidArgument otherwise).
absl::StatusOr<KvCacheSpec> Merge(std::span<const KvCacheSpec> specs);

// Why Merge refused; empty for any other status.
std::optional<MergeFailure> MergeFailureOf(const absl::Status& status);

// Whether Merge succeeds on the whole set. True for the empty set.
bool IsMergeable(std::span<const KvCacheSpec> specs);

// Whether all specs have one block size and one way of managing blocks: full, MLA, sink
// and hidden states count as one; window kinds need the same window and the same way to reuse it,
// plain and MLA windows being different; chunked kinds need the same chunk, Mamba kinds the same
// cache mode, speculative and checkpoint blocks. True for the empty set.
bool IsUniformType(std::span<const KvCacheSpec> specs);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_MERGE_H_
