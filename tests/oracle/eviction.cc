#include "tests/oracle/eviction.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvblocks::oracle {

EvictingPool::EvictingPool(std::string policy, int32_t num_blocks, int64_t most_retained)
    : policy_(std::move(policy)),
      blocks_(static_cast<size_t>(num_blocks)),
      most_retained_(most_retained) {
  for (BlockId id = 1; id < num_blocks; ++id) free_.push_back(id);
}

BlockId EvictingPool::Find(const std::string& name) const {
  BlockId found = kNullBlockId;
  for (BlockId id = 1; id < num_blocks(); ++id) {
    if (!At(id).is_cached || At(id).name != name) continue;
    if (found == kNullBlockId || At(id).registered < At(found).registered) found = id;
  }
  return found;
}

int32_t EvictingPool::num_free() const { return static_cast<int32_t>(free_.size()); }

bool EvictingPool::HasCachedChild(BlockId id) const {
  return std::any_of(blocks_.begin(), blocks_.end(),
                     [id](const Block& block) { return block.is_cached && block.parent == id; });
}

bool EvictingPool::IsCandidate(BlockId id) const {
  return At(id).is_cached && At(id).refs == 0 && !HasCachedChild(id);
}

template <typename Value>
BlockId EvictingPool::Least(int list, Value value) const {
  BlockId least = kNullBlockId;
  for (BlockId id = 1; id < num_blocks(); ++id) {
    if (!IsLeft(id) || (list >= 0 && At(id).list != list)) continue;
    if (least == kNullBlockId || value(At(id)) < value(At(least))) least = id;
  }
  return least;
}

int64_t EvictingPool::CountCached(int list) const {
  return std::count_if(blocks_.begin(), blocks_.end(), [list](const Block& block) {
    return block.is_cached && block.list == list;
  });
}

void EvictingPool::Touch(const std::vector<BlockId>& ids) {
  for (const BlockId id : ids) {
    Block& block = At(id);
    if (block.refs++ == 0) std::erase(free_, id);
    if (block.is_cached && policy_ == "arc") block.list = 1;
  }
}

std::optional<std::vector<BlockId>> EvictingPool::Take(int64_t k) {
  if (k > num_free()) return std::nullopt;
  std::vector<BlockId> taken;
  for (int64_t i = 0; i < k; ++i) {
    BlockId id = free_.front();
    if (At(id).is_cached) {
      if (const BlockId victim = Victim(); victim != kNullBlockId) id = victim;
    }
    TakeThis(id);
    taken.push_back(id);
  }
  return taken;
}

void EvictingPool::TakeThis(BlockId id) {
  if (At(id).is_cached) Forget(id, /*was_evicted=*/true);
  std::erase(free_, id);
  At(id).refs = 1;
}

bool EvictingPool::TakeKey(std::vector<Key>& keys, const std::string& name) {
  return std::erase_if(keys, [&](const Key& key) { return key.name == name; }) > 0;
}

void EvictingPool::AddKey(std::vector<Key>& keys, int64_t& additions, const std::string& name,
                          int64_t capacity) {
  TakeKey(keys, name);
  keys.push_back({name, ++additions});
  while (static_cast<int64_t>(keys.size()) > capacity) keys.erase(keys.begin());
  std::erase_if(keys, [&](const Key& key) { return key.number <= additions - 2 * capacity; });
}

void EvictingPool::Register(BlockId id, const std::string& name, BlockId parent) {
  Block& block = At(id);
  block = {.refs = block.refs,
           .is_cached = true,
           .name = name,
           .parent = At(parent).is_cached ? parent : kNullBlockId,
           .registered = ++clock_};
  block.released = block.registered;
  block.released_at = now_;
  if (policy_ != "arc") return;
  const auto recent = static_cast<int64_t>(keys_[0].size());
  const auto frequent = static_cast<int64_t>(keys_[1].size());
  if (TakeKey(keys_[0], name)) {
    target_ = std::min(num_blocks() - 1, target_ + std::max<int64_t>(1, frequent / recent));
    block.list = 1;
  } else if (TakeKey(keys_[1], name)) {
    target_ = std::max<int64_t>(0, target_ - std::max<int64_t>(1, recent / frequent));
    block.list = 1;
  }
}

void EvictingPool::Free(const std::vector<BlockId>& ids) {
  size_t in_front = 0;
  for (const BlockId id : ids) {
    Block& block = At(id);
    --block.refs;
    if (block.is_cached) block.released = ++clock_;
    if (block.is_cached) block.released_at = now_;
    if (block.refs > 0) continue;
    if (block.is_cached) {
      free_.push_back(id);
    } else {
      free_.insert(free_.begin() + static_cast<std::ptrdiff_t>(in_front++), id);
    }
  }
}

void EvictingPool::Evict(BlockId id) {
  if (!At(id).is_cached) return;
  Forget(id, /*was_evicted=*/false);
  if (At(id).refs > 0) return;
  std::erase(free_, id);
  free_.insert(free_.begin(), id);
}

bool EvictingPool::Reset() {
  if (num_free() < num_blocks() - 1) return false;
  for (Block& block : blocks_) block = {};
  for (auto& keys : keys_) keys.clear();
  additions_[0] = additions_[1] = 0;
  target_ = 0;
  return true;
}

void EvictingPool::Forget(BlockId id, bool was_evicted) {
  Block& block = At(id);
  if (was_evicted && policy_ == "arc") {
    AddKey(keys_[block.list], additions_[block.list], block.name,
           std::max<int64_t>(1, num_blocks() - 1));
  }
  for (Block& other : blocks_) {
    if (other.parent == id) other.parent = kNullBlockId;
  }
  const int refs = block.refs;
  block = {};
  block.refs = refs;
}

BlockId EvictingPool::Victim() {
  const BlockId victim = PolicyVictim();
  if (victim != kNullBlockId) return victim;
  BlockId lowest = kNullBlockId;
  for (BlockId id = 1; id < num_blocks(); ++id) {
    if (!IsCandidate(id) || !is_retained(id)) continue;
    if (lowest == kNullBlockId || IsLower(id, lowest)) lowest = id;
  }
  return lowest;
}

bool EvictingPool::IsLower(BlockId a, BlockId b) const {
  return std::pair(At(a).priority, At(a).retained) < std::pair(At(b).priority, At(b).retained);
}

int64_t EvictingPool::num_retained() const {
  return std::count_if(blocks_.begin(), blocks_.end(),
                       [](const Block& block) { return block.priority > 0; });
}

bool EvictingPool::HasUnretainedCandidate() const {
  for (BlockId id = 1; id < num_blocks(); ++id) {
    if (IsCandidate(id) && !is_retained(id)) return true;
  }
  return false;
}

int64_t EvictingPool::Retain(const std::vector<BlockId>& ids, int64_t priority,
                             int64_t expires_at) {
  const int64_t before = clock_;
  clock_ += static_cast<int64_t>(ids.size());
  int64_t number = clock_;
  int64_t refused = 0;
  for (const BlockId id : ids) {
    Block& block = At(id);
    if (!block.is_cached) continue;
    if (block.priority == 0 && refused > 0) {
      ++refused;
      continue;
    }
    if (block.priority == 0 && num_retained() >= most_retained_) {
      BlockId lowest = kNullBlockId;
      for (BlockId other = 1; other < num_blocks(); ++other) {
        if (is_retained(other) && (lowest == kNullBlockId || IsLower(other, lowest))) {
          lowest = other;
        }
      }
      if (lowest == kNullBlockId || At(lowest).priority > priority ||
          At(lowest).retained > before) {
        ++refused;
        continue;
      }
      At(lowest).priority = At(lowest).expires_at = 0;
    }
    block.priority = std::max(block.priority, priority);
    block.expires_at = std::max(block.expires_at, expires_at);
    block.retained = number--;
  }
  return refused;
}

void EvictingPool::AdvanceTime(int64_t now) {
  now_ = now;
  for (Block& block : blocks_) {
    if (block.priority > 0 && block.expires_at <= now) block.priority = block.expires_at = 0;
  }
}

BlockId EvictingPool::PolicyVictim() {
  using Pair = std::pair<int64_t, int64_t>;
  const auto released = [](const Block& block) { return block.released; };
  if (policy_ == "lru") return Least(-1, released);
  if (policy_ == "fifo") return Least(-1, [](const Block& block) { return block.registered; });
  if (policy_ == "arc") {
    const int wanted = CountCached(0) > target_ ? 0 : 1;
    const BlockId victim = Least(wanted, released);
    return victim != kNullBlockId ? victim : Least(1 - wanted, released);
  }
  if (policy_ == "priority") {
    return Least(-1, [](const Block& block) {
      return Pair(block.priority > 0 ? block.priority : 35, block.released);
    });
  }
  if (policy_ == "ttl") {
    return Least(-1, [](const Block& block) {
      const bool is_retained = block.priority > 0;
      return Pair(is_retained ? std::max(block.expires_at, block.released_at) : block.released_at,
                  block.released);
    });
  }
  return kNullBlockId;  // not modelled
}

}  // namespace kvblocks::oracle
