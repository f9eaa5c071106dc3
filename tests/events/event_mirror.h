// EventMirror: a consumer that knows nothing but the event stream and keeps what a router would -
// how many blocks hold each key, and which content each hash continues.
//
// Apply refuses what no stream may contain: a removal of what was never stored, a hash with two
// parents, a child before its parent (where the caller says that the parent is due).

#ifndef KVBLOCKS_TESTS_EVENTS_EVENT_MIRROR_H_
#define KVBLOCKS_TESTS_EVENTS_EVENT_MIRROR_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/kv_event.h"

namespace kvblocks::testing {

class EventMirror {
 public:
  using Words = std::array<uint64_t, 4>;
  using Key = std::pair<Words, GroupId>;

  // May a child be stored although its parent never was: the parent's position held no block or was
  // masked. Default: never.
  using ParentMayBeMissing = std::function<bool(const BlockStored& child)>;

  absl::Status Apply(std::span<const KvEvent> events,
                     const ParentMayBeMissing& may_be_missing = nullptr);

  // OK, or the first key whose number of blocks differs from the pool's table.
  absl::Status CompareWith(const BlockPool& pool) const;

 private:
  absl::Status ApplyStored(const BlockStored& stored, const ParentMayBeMissing& may_be_missing);

  std::map<Key, int64_t> counts_;
  std::map<Key, std::optional<Words>> parents_;
  std::set<Key> stored_;  // ever, since the last reset
};

}  // namespace kvblocks::testing

#endif  // KVBLOCKS_TESTS_EVENTS_EVENT_MIRROR_H_
