// Comparison: the library beside the oracle. What differs first, in words; "" where nothing does.

#ifndef KVBLOCKS_TESTS_ORACLE_COMPARISON_H_
#define KVBLOCKS_TESTS_ORACLE_COMPARISON_H_

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/kv_cache_manager.h"
#include "tests/oracle/manager.h"

namespace kvblocks::oracle {

// "[1,2,3]".
std::string Show(absl::Span<const BlockId> ids);

// Small numbers for contents, one for each prefix name and its hash.
class ContentNumbers {
 public:
  // INV-29: false if hashes and names are not a bijection, over all contents added.
  bool Add(absl::Span<const BlockHash> hashes, const std::vector<std::string>& names);
  // -1 if unknown.
  int Of(const BlockHash& hash) const;
  int Of(const std::string& name) const;

 private:
  std::unordered_map<uint64_t, int> by_hash_;  // by the first word; Add() finds equal ones
  std::unordered_map<std::string, int> by_name_;
};

// Queue, references, keys with their blocks in order, classes of pages, counters.
std::string PoolDifference(const BlockPool& pool, const Pool& model, const ContentNumbers& numbers);

// The requests that hold blocks, and their tables.
std::string TableDifference(const KvCacheManager& manager, const kvblocks::Request& real,
                            const Request& model);

std::string EventDifference(const std::vector<KvEvent>& events, const std::vector<Event>& expected,
                            const ContentNumbers& numbers);

// Lengths and lists of look-ups.
std::string HitDifference(const ComputedBlocks& hits, const Hits& expected);

std::string StatsDifference(const PrefixCacheStats& stats, const Stats& expected);

}  // namespace kvblocks::oracle

#endif  // KVBLOCKS_TESTS_ORACLE_COMPARISON_H_
