#include "block_pool/recent_keys.h"

#include <openssl/rand.h>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/check.h"

namespace kvblocks {
namespace {
constexpr size_t kPrefetchDistance = 8;

class RecentHistory final : public LookupHistory {
 public:
  explicit RecentHistory(int64_t num_keys) : removals_(num_keys), variants_(num_keys) {}

  void OnRemoved(const BlockHash& hash, GroupId group, const Removal& removal) override {
    removals_.Remember(hash, group, removal.num_blocks_taken, removal.was_reused);
  }
  void OnVariantStored(const BlockHash& plain, const BlockHash& hash) override {
    if (plain == hash) return;
    variants_.Remember(plain, kAnyGroup, static_cast<int64_t>(hash.words[0]), false);
  }
  std::optional<Removal> FindRemoval(const BlockHash& hash, GroupId group) const override {
    const RecentKeys::Record* record = removals_.Find(hash, group);
    if (record == nullptr) return std::nullopt;
    return Removal{.num_blocks_taken = record->number, .was_reused = record->flag};
  }
  bool HasOtherVariant(const BlockHash& plain, const BlockHash& hash) const override {
    const RecentKeys::Record* record = variants_.Find(plain, kAnyGroup);
    return record != nullptr && record->number != static_cast<int64_t>(hash.words[0]);
  }
  int64_t num_keys() const override { return removals_.capacity(); }
  int64_t num_removals() const override { return removals_.num_remembered(); }

 private:
  static constexpr GroupId kAnyGroup = 0;  // contents are the same for all groups

  RecentKeys removals_;
  RecentKeys variants_;
};

}  // namespace

std::unique_ptr<LookupHistory> LookupHistory::Create(int64_t num_keys) {
  return std::make_unique<RecentHistory>(num_keys);
}

int64_t LookupHistory::BytesFor(int64_t num_keys) { return 2 * RecentKeys::BytesFor(num_keys); }

RecentKeys::RecentKeys(int64_t capacity) {
  KVBLOCKS_CHECK(capacity >= 1 && capacity < (int64_t{1} << 31),
                 absl::StrCat("a memory of ", capacity, " keys"));
  ring_.resize(static_cast<size_t>(capacity));
  slots_.resize(NumSlots(capacity));
  const int ok = RAND_bytes(reinterpret_cast<unsigned char*>(secret_), sizeof(secret_));
  KVBLOCKS_CHECK(ok == 1, "the system gives no random bytes for a memory of keys");
}

uint32_t RecentKeys::Tag(const uint64_t (&words)[2], GroupId group) const {
  const auto product =
      absl::uint128(words[0] ^ secret_[0] ^ (static_cast<uint64_t>(group) * 0x9e3779b97f4a7c15u)) *
      (words[1] ^ secret_[1]);
  return static_cast<uint32_t>((absl::Uint128High64(product) ^ absl::Uint128Low64(product)) >> 32);
}

size_t RecentKeys::FindSlot(const uint64_t (&words)[2], GroupId group, uint32_t tag) const {
  size_t slot = Home(tag);
  for (; slots_[slot].place != 0; slot = Next(slot)) {
    if (slots_[slot].tag != tag) continue;
    const Record& record = ring_[slots_[slot].place - 1];
    if (record.words[0] == words[0] && record.words[1] == words[1] && record.group == group) break;
  }
  return slot;
}

void RecentKeys::Remember(const BlockHash& hash, GroupId group, int64_t number, bool flag) {
  const uint64_t words[2] = {hash.words[0], hash.words[1]};
  const uint32_t tag = Tag(words, group);
  __builtin_prefetch(&slots_[Home(tag)]);
  if (num_remembered_ >= capacity()) {
    // The oldest go in the order of the ring, so whose slot is read soon is known.
    const size_t soon_at = next_ + kPrefetchDistance;
    const Record& soon = ring_[soon_at < ring_.size() ? soon_at : 0];
    __builtin_prefetch(&slots_[Home(Tag(soon.words, soon.group))]);
    ForgetPlace(next_);
  }
  Record& record = ring_[next_];
  record = {{words[0], words[1]}, number, group, flag};
  slots_[FindSlot(record.words, group, tag)] = {tag, static_cast<uint32_t>(next_ + 1)};
  next_ = next_ + 1 == ring_.size() ? 0 : next_ + 1;
  ++num_remembered_;
}

const RecentKeys::Record* RecentKeys::Find(const BlockHash& hash, GroupId group) const {
  const uint64_t words[2] = {hash.words[0], hash.words[1]};
  const Slot& slot = slots_[FindSlot(words, group, Tag(words, group))];
  return slot.place == 0 ? nullptr : &ring_[slot.place - 1];
}

void RecentKeys::ForgetPlace(size_t place) {
  const Record& record = ring_[place];
  const size_t slot = FindSlot(record.words, record.group, Tag(record.words, record.group));
  // A key that was remembered again since has its slot for the later record.
  if (slots_[slot].place == place + 1) EraseSlot(slot);
}

void RecentKeys::EraseSlot(size_t hole) {
  for (size_t slot = Next(hole); slots_[slot].place != 0; slot = Next(slot)) {
    // A slot may move into the hole unless its home lies behind the hole, on the circle from hole
    // to slot.
    const size_t home = Home(slots_[slot].tag);
    const size_t from_home = slot >= home ? slot - home : slot + slots_.size() - home;
    const size_t from_hole = slot >= hole ? slot - hole : slot + slots_.size() - hole;
    if (from_home >= from_hole) {
      slots_[hole] = slots_[slot];
      hole = slot;
    }
  }
  slots_[hole] = Slot{};
}

}  // namespace kvblocks
