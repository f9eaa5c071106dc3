// StreamCheck: whether a stream of KV events is one that a cache can have sent, and what its reader
// could hit.
//
//   StreamCheck check;
//   const HolderId stream = check.AddStream("tcp://a:5557");
//   check.Apply(stream, batch);
//   check.totals(stream).num_unknown_removals ...
//
// What a cache cannot have sent are problems: a removal of what was not stored, a hash with two
// parents, lists of unequal length. After messages were lost (or before the first one that was
// seen) removals of what is not known prove nothing, and are counted apart. Parents are compared
// where an event has the tokens of all its hashes and no others.
//
// The hit potential splits what was stored by what would have saved the work: a hash that this very
// cache had held and lost (a larger cache), one that another cache held at that moment (another
// routing), one that this cache holds already (stored twice: computed side by side, or reported as
// reused), or none of these: seen for the first time.
//
// Only one medium is looked at. Cost: about 150 ns per hash, and 40 bytes per hash ever seen beside
// the index. Single-threaded.

#ifndef KVBLOCKS_EVENTS_STREAM_CHECK_H_
#define KVBLOCKS_EVENTS_STREAM_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/events/block_index.h"
#include "kvblocks/events/event_batch.h"

namespace kvblocks::events {

class StreamCheck {
 public:
  struct Totals {
    int64_t num_batches = 0;
    int64_t num_events = 0;
    int64_t num_stored_events = 0;
    int64_t num_removed = 0;  // hashes
    int64_t num_cleared = 0;
    int64_t num_tokens = 0;  // with token ids, of stored events
    int64_t num_other_media = 0;
    int64_t num_unknown_extra_keys = 0;

    // Hashes by what they were when they were stored; num_stored is the sum.
    int64_t num_stored = 0;
    int64_t num_first_seen = 0;
    int64_t num_lost_before = 0;     // and now held by no cache
    int64_t num_held_elsewhere = 0;  // by another cache, whether lost here before or not
    int64_t num_held_here = 0;

    // Problems.
    int64_t num_unknown_removals = 0;
    int64_t num_two_parents = 0;
    int64_t num_unequal_lists = 0;
    std::string first_problem = {};  // in words; empty: none
    // No problems by themselves.
    int64_t num_unknown_parents = 0;  // what precedes a masked block is never stored
    int64_t num_removals_after_loss = 0;
    int64_t num_times_backwards = 0;

    double first_time = 0;
    double last_time = 0;

    int64_t num_problems() const {
      return num_unknown_removals + num_two_parents + num_unequal_lists;
    }
  };

  explicit StreamCheck(std::string medium = std::string(kGpuMedium))
      : medium_(medium), index_({.medium = medium}) {}

  HolderId AddStream(std::string name);
  // REQUIRES for all that follow: stream is one that AddStream gave.
  void Apply(HolderId stream, const EventBatch& batch);
  // Messages are missing, from the first one on or from here on.
  void OnLoss(HolderId stream);
  // The cache started anew, and is empty.
  void OnRestart(HolderId stream);

  const Totals& totals(HolderId stream) const { return streams_[Place(stream)].totals; }
  const BlockIndex& index() const { return index_; }
  // Distinct hashes and groups, over all streams.
  int64_t num_ever_seen() const { return static_cast<int64_t>(seen_.size()); }

 private:
  struct Stream {
    Totals totals;
    bool lost = false;  // removals of what is not known are to be expected
  };
  // Of a key: 64 bits of its parent, and whether each of the first 64 streams had it.
  struct Seen {
    static constexpr uint64_t kUnknownParent = ~uint64_t{0};
    uint64_t parent = kUnknownParent;
    uint64_t streams = 0;
  };

  static size_t Place(HolderId stream) { return static_cast<size_t>(stream); }
  void Stored(HolderId id, const BlockStored& stored);
  void Removed(HolderId id, const BlockRemoved& removed);
  static void Problem(Stream& stream, int64_t& count, const std::string& what);

  const std::string medium_;
  BlockIndex index_;
  std::vector<Stream> streams_;
  absl::flat_hash_map<BlockIndex::Key, Seen> seen_;
};

}  // namespace kvblocks::events

#endif  // KVBLOCKS_EVENTS_STREAM_CHECK_H_
