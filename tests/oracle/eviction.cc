#include "kvblocks/tests/oracle/eviction.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvblocks::oracle {

EvictingPool::EvictingPool(EvictionPolicyKind kind, int32_t num_blocks, int64_t most_retained)
    : kind_(kind),
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
    if (!block.is_cached) continue;
    block.hit = ++clock_;
    block.uses += kind_ == EvictionPolicyKind::kS3Fifo && block.uses == 3 ? 0 : 1;
    if (kind_ == EvictionPolicyKind::kArc) block.list = 1;
    if (kind_ == EvictionPolicyKind::kSlru) Protect(id, /*probation=*/0);
    Use(id);
  }
}

// List probation + 1 is the protected one.
void EvictingPool::Protect(BlockId id, int probation) {
  At(id).list = probation + 1;
  At(id).released = ++clock_;
  while (CountCached(probation + 1) > num_blocks() / 5 * 4) {
    BlockId oldest = kNullBlockId;
    for (BlockId other = 1; other < num_blocks(); ++other) {
      if (!At(other).is_cached || At(other).list != probation + 1) continue;
      if (oldest == kNullBlockId || At(other).hit < At(oldest).hit) oldest = other;
    }
    At(oldest).list = probation;
    At(oldest).released = ++clock_;
  }
}

// A hit, as the policies see it that were not dealt with.
void EvictingPool::Use(BlockId id) {
  Block& block = At(id);
  if (kind_ == EvictionPolicyKind::kLirs) {
    UseForLirs(id, block.list == 1 || IsInLirsStack(block.queued));
  } else if (kind_ == EvictionPolicyKind::kWTinyLfu) {
    CountUse(block.name);
    if (block.list > 0) Protect(id, /*probation=*/1);
  } else if (kind_ == EvictionPolicyKind::kGdsf) {
    // A block of 512 tokens, as deep as its name is long.
    const int64_t before = 512 * (static_cast<int64_t>(block.name.size()) - 1);
    block.value = floor_ + (block.uses + 1) * 512 * (32768 + before);
  }
}

bool EvictingPool::IsInLirsStack(int64_t used) const {
  for (const Block& block : blocks_) {
    if (block.is_cached && block.list == 1) {
      const bool is_older_than_all =
          std::none_of(blocks_.begin(), blocks_.end(), [used](const Block& other) {
            return other.is_cached && other.list == 1 && other.queued < used;
          });
      return !is_older_than_all;
    }
  }
  return true;
}

// `queued` is the time of the last use, `released` when the block became HIR or was used as such.
void EvictingPool::UseForLirs(BlockId id, bool was_in_stack) {
  Block& block = At(id);
  block.queued = block.released = ++clock_;
  block.list = 0;
  const int64_t most = num_blocks() - 1 - std::max<int64_t>(1, num_blocks() / 20);
  if (!was_in_stack) return;
  block.list = 1;
  if (CountCached(1) <= most) return;
  BlockId last = id;
  for (BlockId other = 1; other < num_blocks(); ++other) {
    if (At(other).is_cached && At(other).list == 1 && At(other).queued < At(last).queued) {
      last = other;
    }
  }
  At(last).list = 0;
  At(last).released = ++clock_;
}

void EvictingPool::CountUse(const std::string& name) {
  int& count = counts_[name];
  count = std::min(count + 1, 15);
  if (++num_counted_ < 10 * num_blocks()) return;
  num_counted_ = 0;
  for (auto& [other, uses] : counts_) uses /= 2;
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
  block.queued = block.released = block.registered;
  if (kind_ == EvictionPolicyKind::kLfu) block.uses = 1;
  block.released_at = now_;
  if (kind_ == EvictionPolicyKind::kGdsf) Use(id);
  if (kind_ == EvictionPolicyKind::kWTinyLfu) {
    CountUse(name);
    const int64_t most = std::max<int64_t>(1, num_blocks() / 100);
    while (CountCached(0) > most && CountCached(1) + CountCached(2) < num_blocks() - 1 - most) {
      BlockId oldest = id;
      for (BlockId other = 1; other < num_blocks(); ++other) {
        if (At(other).is_cached && At(other).list == 0 &&
            At(other).released < At(oldest).released) {
          oldest = other;
        }
      }
      At(oldest).list = 1;
      At(oldest).released = ++clock_;
    }
  }
  if (kind_ == EvictionPolicyKind::kLirs) {
    int64_t used = -1;
    for (const Key& key : keys_[0]) {
      if (key.name == name) used = key.used;
    }
    TakeKey(keys_[0], name);
    const int64_t most = num_blocks() - 1 - std::max<int64_t>(1, num_blocks() / 20);
    UseForLirs(id, (used >= 0 && IsInLirsStack(used)) || CountCached(1) < most);
  }
  if (kind_ == EvictionPolicyKind::kS3Fifo && TakeKey(keys_[0], name)) block.list = 1;
  if (kind_ != EvictionPolicyKind::kArc) return;
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
    if (block.is_cached && kind_ != EvictionPolicyKind::kLirs) block.released = ++clock_;
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
  counts_.clear();
  num_counted_ = 0;
  floor_ = 0;
  return true;
}

void EvictingPool::Forget(BlockId id, bool was_evicted) {
  Block& block = At(id);
  if (was_evicted && kind_ == EvictionPolicyKind::kS3Fifo && block.list == 0) {
    AddKey(keys_[0], additions_[0], block.name,
           num_blocks() - std::max<int64_t>(1, num_blocks() / 10));
  }
  if (was_evicted && kind_ == EvictionPolicyKind::kArc) {
    AddKey(keys_[block.list], additions_[block.list], block.name,
           std::max<int64_t>(1, num_blocks() - 1));
  }
  if (was_evicted && kind_ == EvictionPolicyKind::kLirs) {
    AddKey(keys_[0], additions_[0], block.name, num_blocks());
    keys_[0].back().used = block.queued;
  }
  if (was_evicted) floor_ = std::max(floor_, block.value);
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
  switch (kind_) {
    case EvictionPolicyKind::kFifo:
      return Least(-1, [](const Block& block) { return block.registered; });
    case EvictionPolicyKind::kLfu:
      return Least(-1, [](const Block& block) { return Pair(block.uses, block.released); });
    case EvictionPolicyKind::kSlru:
      return Least(-1, [](const Block& block) { return Pair(block.list, block.released); });
    case EvictionPolicyKind::kS3Fifo:
      return S3FifoVictim();
    case EvictionPolicyKind::kSieve:
      return SieveVictim();
    case EvictionPolicyKind::kArc: {
      const int wanted = CountCached(0) > target_ ? 0 : 1;
      const auto released = [](const Block& block) { return block.released; };
      const BlockId victim = Least(wanted, released);
      return victim != kNullBlockId ? victim : Least(1 - wanted, released);
    }
    case EvictionPolicyKind::kLirs: {
      const BlockId victim = Least(0, [](const Block& block) { return block.released; });
      if (victim != kNullBlockId) return victim;
      return Least(1, [](const Block& block) { return block.queued; });
    }
    case EvictionPolicyKind::kWTinyLfu:
      return TinyLfuVictim();
    case EvictionPolicyKind::kGdsf:
      return Least(-1, [](const Block& block) { return Pair(block.value, block.released); });
    case EvictionPolicyKind::kPriority:
      return Least(-1, [](const Block& block) {
        return Pair(block.priority > 0 ? block.priority : 35, block.released);
      });
    case EvictionPolicyKind::kTtl:
      return Least(-1, [](const Block& block) {
        const bool is_retained = block.priority > 0;
        return Pair(is_retained ? std::max(block.expires_at, block.released_at)
                                : block.released_at,
                    block.released);
      });
    case EvictionPolicyKind::kLru:
      return Least(-1, [](const Block& block) { return block.released; });
    case EvictionPolicyKind::kHazard:
      break;  // not modelled
  }
  return kNullBlockId;
}

BlockId EvictingPool::TinyLfuVictim() {
  const auto released = [](const Block& block) { return block.released; };
  const BlockId newcomer = Least(0, released);
  BlockId resident = Least(1, released);
  if (resident == kNullBlockId) resident = Least(2, released);
  if (newcomer == kNullBlockId || resident == kNullBlockId) {
    return newcomer == kNullBlockId ? resident : newcomer;
  }
  if (CountCached(0) < std::max<int64_t>(1, num_blocks() / 100)) return resident;
  if (counts_[At(newcomer).name] <= counts_[At(resident).name]) return newcomer;
  At(newcomer).list = 1;
  At(newcomer).released = ++clock_;
  return resident;
}

BlockId EvictingPool::S3FifoVictim() {
  const auto queued = [](const Block& block) { return block.queued; };
  while (true) {
    const BlockId newcomer = Least(0, queued);
    const BlockId resident = Least(1, queued);
    if (newcomer == kNullBlockId && resident == kNullBlockId) return kNullBlockId;
    const bool takes_newcomer =
        newcomer != kNullBlockId &&
        (CountCached(0) >= std::max<int64_t>(1, num_blocks() / 10) || resident == kNullBlockId);
    Block& block = At(takes_newcomer ? newcomer : resident);
    if (block.uses <= (takes_newcomer ? 1 : 0)) return takes_newcomer ? newcomer : resident;
    block.queued = ++clock_;
    block.uses = takes_newcomer ? 0 : block.uses - 1;
    block.list = 1;
  }
}

// From the hand on to the newest, then from the oldest on.
BlockId EvictingPool::SieveVictim() {
  while (true) {
    BlockId next = kNullBlockId;
    for (const bool from_hand : {true, false}) {
      for (BlockId id = 1; id < num_blocks() && next == kNullBlockId; ++id) {
        if (!IsLeft(id) || (from_hand && At(id).registered < hand_)) continue;
        bool is_first = true;
        for (BlockId other = 1; other < num_blocks(); ++other) {
          is_first = is_first && !(IsLeft(other) &&
                                   At(other).registered < At(id).registered &&
                                   (!from_hand || At(other).registered >= hand_));
        }
        if (is_first) next = id;
      }
    }
    if (next == kNullBlockId) return kNullBlockId;
    hand_ = At(next).registered + 1;
    if (At(next).uses == 0) return next;
    At(next).uses = 0;
  }
}

}  // namespace kvblocks::oracle
