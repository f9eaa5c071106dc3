// Comparison: the library's hashes translated to the oracle's prefix names, and differences between
// the two in words.

#ifndef KVBLOCKS_TESTS_PROPERTY_COMPARISON_H_
#define KVBLOCKS_TESTS_PROPERTY_COMPARISON_H_

#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/tests/property/live_request.h"

namespace kvblocks::property {

// "[1,2,3]", for the log of a run.
inline std::string Show(const std::vector<BlockId>& ids) {
  return absl::StrCat("[", absl::StrJoin(ids, ","), "]");
}

// INV-29 across all requests of a run: hashes and prefix names are a bijection.
class HashNames {
 public:
  // "" or what is wrong with the request's hashes.
  std::string Add(const LiveRequest& request);
  // "?" for a hash that no request has.
  std::string NameOf(const BlockHash& hash) const;
  // REQUIRES: some request has it.
  BlockHash HashOf(const std::string& name) const { return {hashes_.at(name)}; }

 private:
  std::map<std::array<uint64_t, 4>, std::string> names_;
  std::map<std::string, std::array<uint64_t, 4>> hashes_;
};

// "" or the first difference: queue, references, keys and their blocks, tables, counters.
std::string Difference(const KvCacheManager& manager, const oracle::Manager& model,
                       const std::vector<LiveRequest>& requests, const HashNames& names);

std::vector<oracle::Event> Translate(const std::vector<KvEvent>& events, const HashNames& names);

// A mirror of the hash table as an event consumer keeps it: blocks per key.
class EventMirror {
 public:
  // "" or what no consumer could accept.
  std::string Apply(const std::vector<KvEvent>& events, bool one_per_registration);
  // INV-25: "" if the mirror agrees with the table.
  std::string Difference(const BlockPool& pool) const;

 private:
  using Key = std::pair<std::array<uint64_t, 4>, GroupId>;
  std::map<Key, int> counts_;
};

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_COMPARISON_H_
