// BlockIndex: which cache holds which block, built from KV events: what a router asks before it
// sends a prompt somewhere.
//
//   BlockIndex index;
//   const HolderId replica = index.AddHolder("replica-3");
//   index.Apply(replica, batch.events);
//   for (const auto& match : index.FindLongestPrefix(hashes, /*group=*/0)) ...
//
// A key is a block hash and a group. Several blocks of a cache may have the same key, so it is
// counted up for each stored hash and down for each removed one, and held while the count is above
// zero (BM-50). What is not known to be stored cannot be removed: such removals are counted and
// otherwise passed over, as they follow a loss of messages.
//
// Cost: 75 to 150 bytes per key held by one holder; Apply about 100 ns per hash; a prefix of n blocks
// n look-ups. Dropping a holder walks all keys. Single-threaded.

#ifndef KVBLOCKS_EVENTS_BLOCK_INDEX_H_
#define KVBLOCKS_EVENTS_BLOCK_INDEX_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "kvblocks/block_pool/kv_event.h"

namespace kvblocks::events {

using HolderId = int32_t;

class BlockIndex {
 public:
  struct Options {
    // Events of other media are counted and passed over. Empty: all count, as if they were one.
    std::string medium = std::string(kGpuMedium);
  };
  struct Key {
    BlockHash hash = {};
    GroupId group = 0;

    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Key& key) {
      // All words: a hash that travelled as an integer has only the last one.
      return H::combine(std::move(state), key.hash.words[0], key.hash.words[1], key.hash.words[2],
                        key.hash.words[3], key.group);
    }
  };
  struct Holding {
    HolderId holder = 0;
    int32_t num_blocks = 0;  // at least 1

    friend bool operator==(const Holding&, const Holding&) = default;
  };
  struct PrefixMatch {
    HolderId holder = 0;
    int64_t num_blocks = 0;  // leading blocks, at least 1

    friend bool operator==(const PrefixMatch&, const PrefixMatch&) = default;
  };
  struct Holder {
    std::string name = {};
    int64_t num_keys = 0;
    int64_t num_blocks = 0;
    // Since it was added.
    int64_t num_stored = 0;
    int64_t num_removed = 0;
    int64_t num_cleared = 0;
    int64_t num_unknown_removals = 0;
    int64_t num_other_media = 0;  // stored and removed
  };

  BlockIndex() = default;
  explicit BlockIndex(Options options) : options_(std::move(options)) {}

  // Ids count from 0. Names need not differ.
  HolderId AddHolder(std::string name);
  // REQUIRES for all that follow: holder is one that AddHolder gave.
  void Apply(HolderId holder, absl::Span<const KvEvent> events);
  // Nothing is known of this cache any more: it was restarted, or messages were lost.
  void Forget(HolderId holder);

  absl::Span<const Holding> Holders(const Key& key) const;
  // For each holder of the first block how many leading blocks it holds, the longest first, then by
  // id. Right for groups that need every block of a prefix, as full attention does.
  std::vector<PrefixMatch> FindLongestPrefix(absl::Span<const BlockHash> hashes,
                                             GroupId group = 0) const;

  int64_t num_holders() const { return static_cast<int64_t>(holders_.size()); }
  const Holder& holder(HolderId id) const { return holders_[static_cast<size_t>(id)]; }
  // Distinct, over all holders.
  int64_t num_keys() const { return static_cast<int64_t>(table_.size()); }

 private:
  using Holdings = absl::InlinedVector<Holding, 1>;

  void Add(HolderId id, const Key& key);
  void Remove(HolderId id, const Key& key);

  const Options options_ = {};
  std::vector<Holder> holders_;
  absl::flat_hash_map<Key, Holdings> table_;  // sorted by holder, never empty
};

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_BLOCK_INDEX_H_
