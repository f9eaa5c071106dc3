// EvictedKeys: the keys evicted last, up to a limit, for policies that learn from what they lost;
// each with a number of the policy's own.
//
// Always: at most `capacity` keys, none older than 2 * capacity additions; the oldest is forgotten
// first. Cost: O(1) expected.

#ifndef KVBLOCKS_BLOCK_POOL_EVICTION_EVICTED_KEYS_H_
#define KVBLOCKS_BLOCK_POOL_EVICTION_EVICTED_KEYS_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace kvblocks {

class EvictedKeys {
 public:
  explicit EvictedKeys(int64_t capacity) : capacity_(capacity) {}

  int64_t size() const { return static_cast<int64_t>(number_of_.size()); }
  // As the latest; a key that is there already moves.
  void Add(uint64_t key, int64_t value = 0) {
    number_of_[key] = {.number = ++last_number_, .value = value};
    order_.emplace_back(key, last_number_);
    while (size() > capacity_ || static_cast<int64_t>(order_.size()) > 2 * capacity_ ||
           IsStale(order_.front())) {
      if (!IsStale(order_.front())) number_of_.erase(order_.front().first);
      order_.pop_front();
    }
  }
  // Whether the key was there; it no longer is. Writes its value then.
  bool Take(uint64_t key, int64_t* value = nullptr) {
    const auto it = number_of_.find(key);
    if (it == number_of_.end()) return false;
    if (value != nullptr) *value = it->second.value;
    number_of_.erase(it);
    return true;
  }
  void Clear() {
    number_of_.clear();
    order_.clear();
  }
  // 1/2 of the entries of a hash table may be empty; a taken key stays in the order for a while.
  static int64_t BytesFor(int64_t capacity) { return capacity * 112; }

 private:
  using Entry = std::pair<uint64_t, uint64_t>;  // key, number
  struct Known {
    uint64_t number;
    int64_t value;
  };
  bool IsStale(const Entry& entry) const {
    const auto it = number_of_.find(entry.first);
    return it == number_of_.end() || it->second.number != entry.second;
  }

  int64_t capacity_;
  uint64_t last_number_ = 0;
  absl::flat_hash_map<uint64_t, Known> number_of_;
  std::deque<Entry> order_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EVICTION_EVICTED_KEYS_H_
