// Prefix look-up over all groups of a model whose blocks others can use (BM-79 to BM-84).

#ifndef KVBLOCKS_TESTS_ORACLE_LOOKUP_H_
#define KVBLOCKS_TESTS_ORACLE_LOOKUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/oracle/group_rules.h"
#include "tests/oracle/pool.h"

namespace kvblocks::oracle {

// What is looked up: a request's prefix names, one per hash block.
struct LookupQuery {
  const std::vector<std::string>* prefix_names = nullptr;
  int64_t hash_block_size = 0;
  int64_t max_tokens = 0;
  int64_t max_with_drop = 0;  // where the block that is dropped may end (V-12)
  int64_t alignment = 1;      // A of BM-79
};

struct Hits {
  // One per group, 0 where no block is needed; empty for groups that are not looked up.
  std::vector<std::vector<BlockId>> lists;
  int64_t tokens = 0;
  int64_t boundary = 0;  // BM-84
  int64_t replayed = 0;  // V-46: tokens behind the hit that were found, and are computed again

  bool has_blocks() const {
    for (const std::vector<BlockId>& list : lists) {
      if (!list.empty()) return true;
    }
    return false;
  }
};

// One group: a single look-up. Several: repeated with shrinking lengths until all agree.
Hits FindHits(const Pool& pool, const std::vector<GroupRules>& groups, const LookupQuery& query);

// Without draft groups the fixed point has a declarative form: the longest length that every group
// can serve.
int64_t LongestCommonHit(const Pool& pool, const std::vector<GroupRules>& groups,
                         const LookupQuery& query);

}  // namespace kvblocks::oracle

#endif  // KVBLOCKS_TESTS_ORACLE_LOOKUP_H_
