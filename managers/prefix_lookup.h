// PrefixLookup: the longest prefix that all groups of a model can serve together.
//
// One group (vLLM's unitary coordinator): its own look-up. Several (the hybrid one): groups with
// equal specs are looked up together, and the hit is a fixed point: each kind is asked in turn for
// its longest hit within the shortest so far, and the round is repeated until nobody shortens it.
// Lengths never grow, so this ends; kinds of full type, of whose hits every prefix is a hit, are
// asked once. Without prefix caching nobody asks.

#ifndef KVBLOCKS_MANAGERS_PREFIX_LOOKUP_H_
#define KVBLOCKS_MANAGERS_PREFIX_LOOKUP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kvblocks/managers/single_type_manager.h"

namespace kvblocks {

class PrefixLookup {
 public:
  struct Hit {
    int64_t num_tokens = 0;
    int64_t longest_lookup = 0;  // largest length any group's look-up returned
  };

  // Hits end at multiples of `alignment`. The groups must outlive it. The block that draft groups
  // drop may be any that is hashed, or with drops_last_full_block unset, as with a single group, it
  // ends within the tokens that may be hit.
  PrefixLookup(absl::Span<const std::unique_ptr<SingleTypeManager>> groups, int64_t alignment,
               bool drops_last_full_block);

  // The longest hit of at most max_tokens; fills one list per group, which all cover the hit.
  Hit FindLongestCacheHit(const PrefixContent& content, int64_t max_tokens, HitLists& lists) const;

 private:
  // Groups with one spec.
  struct LookupGroup {
    std::vector<GroupId> groups;
    const SingleTypeManager* manager;  // of the first of them
  };

  const int64_t alignment_;
  const bool drops_last_full_block_;
  std::vector<LookupGroup> lookup_groups_;     // full types first, else by first occurrence
  bool has_several_groups_ = false;
  bool is_full_and_other_ = false;
  mutable std::vector<int64_t> full_lengths_;  // scratch of one look-up
  mutable std::vector<uint8_t> verified_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_PREFIX_LOOKUP_H_
