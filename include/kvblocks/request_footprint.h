// How many blocks requests need of a spec, and how specs merge.

#ifndef KVBLOCKS_REQUEST_FOOTPRINT_H_
#define KVBLOCKS_REQUEST_FOOTPRINT_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/kv_cache_spec.h"

// How much of the pool one request can hold at once, for every kind of spec.
//
// The same functions size the pool at start-up and bound a request at admission. Using one function
// for both makes sure that a request which start-up promised to serve never waits forever.
//
// The number of blocks that a request holds is a staircase in its length (DemandOf). All other
// answers, those of the planner too, follow from this one formula. All are closed forms, O(1), and
// refuse limits for which a result would not fit 63 bits.

namespace kvblocks {

struct RequestLimits {
  int64_t max_model_len = 0;         // tokens of the longest request
  int64_t max_in_flight_tokens = 0;  // most tokens scheduled but not yet settled
  int64_t decode_context_parallel = 1;
  int64_t max_encoder_tokens = 0;  // must be set for cross attention; others ignore it
  // Further tokens below a window of the output that are kept, because a drafter may compute them
  // again. Windows of attention name theirs: KvCacheSpecOptions::extra_retained_tokens.
  int64_t num_retained_tokens = 0;
};

inline constexpr int64_t kNoCap = std::numeric_limits<int64_t>::max();

// Never decreases. step >= 1, added >= 0, cap >= 0.
struct BlockStaircase {
  int64_t step = 1;  // tokens
  int64_t cap = kNoCap;
  int64_t added = 0;

  int64_t At(int64_t length) const;

  friend bool operator==(const BlockStaircase&, const BlockStaircase&) = default;
};

struct GroupDemand {
  // The most that one request holds when all tokens in flight are its own.
  BlockStaircase alone = {};
  BlockStaircase steady = {};    // the most of one of several requests, in-flight tokens aside
  int64_t transient_blocks = 0;  // all in-flight tokens of all requests, once per pool
  int64_t permanent_blocks = 0;  // attention sinks, taken for good
  int32_t page_class = 0;

  friend bool operator==(const GroupDemand&, const GroupDemand&) = default;
};

// What one request asks of one group, as staircases in its length. limits.max_model_len is not
// used. A `billed_window` bills a spec that keeps every token as if it kept this window. The
// upstream formula knows neither shared in-flight tokens nor sinks. REQUIRES:
// limits.max_in_flight_tokens >= 1, limits.decode_context_parallel >= 1.
GroupDemand DemandOf(const KvCacheSpec& spec, const RequestLimits& limits,
                     BlockCountFormula formula,
                     std::optional<int64_t> billed_window = std::nullopt);

// The most blocks that a request of a windowed or chunked kind holds at once; empty for kinds that
// keep every token.
absl::StatusOr<std::optional<int64_t>> AdmissionCap(
    const KvCacheSpec& spec, const RequestLimits& limits,
    BlockCountFormula formula = BlockCountFormula::kExact);

// The most blocks that a request holds at once behind those of its prompt, where the spec keeps a
// window of its output; empty for other specs.
absl::StatusOr<std::optional<int64_t>> OutputCap(
    const KvCacheSpec& spec, const RequestLimits& limits,
    BlockCountFormula formula = BlockCountFormula::kExact);

// The most blocks that a request of the longest length holds at once. Cross attention holds the
// encoder's tokens; Mamba 1 state without caching, 2 and its checkpoint blocks in align mode and
// one per block in mode all, and its speculative blocks in each; a ring 1 block whatever the
// length; encoder-only attention nothing.
absl::StatusOr<int64_t> MaxBlocksPerRequest(const KvCacheSpec& spec, const RequestLimits& limits,
                                            BlockCountFormula formula = BlockCountFormula::kExact);

// MaxBlocksPerRequest times the page.
absl::StatusOr<int64_t> MaxBytesPerRequest(const KvCacheSpec& spec, const RequestLimits& limits,
                                           BlockCountFormula formula = BlockCountFormula::kExact);

// Entries of one row of the block table. A windowed kind, and Mamba in align mode, has entries for
// what it no longer stores, too.
absl::StatusOr<int64_t> BlockTableWidth(const KvCacheSpec& spec, const RequestLimits& limits);

// May several layer caches share one block table, and what spec stands for all of them?
//
//   Merge          one spec for layers that are alike in every byte; the group then is that spec.
//   IsUniformType  layers that always need the same number of token slots though their pages may
//                  differ; one block id then stands for one page in each of them.
//
// Merging does not depend on the order of its input, and merging a result with any member of its
// input gives the result again. Cost: one pass over the specs.

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

#endif  // KVBLOCKS_REQUEST_FOOTPRINT_H_
