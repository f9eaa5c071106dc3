// kvblocks/kv_events.h: KV events outside of the process that they come from - the bytes in which
// vLLM sends them, and what a router makes of them.
//
// This header offers:
//   codec   EncodeEvents, DecodeEvents: KvEvents as MessagePack, byte for byte as vLLM 0.33 has
//           them
//   index   BlockIndex: which cache holds which block, and how much of a prompt each could reuse
//   check   StreamCheck: whether a stream is one that a cache can have sent, and what it could hit
//   log     EventLogReader, AppendToLog: recorded streams
//
//   std::string payload;
//   EncodeEvents(manager->TakeEvents(), {.timestamp = now}, &payload);
//   ...
//   auto batch = DecodeEvents(payload);
//   if (batch.ok()) index.Apply(replica, batch->events);
//
// It needs no network library. kvblocks/kv_events_zmq.h has the sockets: a publisher that engines
// hand their events to, and a subscriber. docs/events.md describes all of it.

#ifndef KVBLOCKS_KV_EVENTS_H_
#define KVBLOCKS_KV_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/huge_page_allocator.h"
#include "kvblocks/kv_event.h"

// EventBatch: the KV events of one engine step as they travel, and the forms that they can take.

namespace kvblocks::events {

// How a stream writes block hashes (BM-29). One form per stream.
struct HashForm {
  // Bytes of a digest: BlockHasher::digest_size(), 1 to 32.
  size_t digest_size = 32;
  // Instead of the bytes the unsigned integer that the last 8 of them are, read big-endian. A
  // decoded integer stands in the last 8 of 32 bytes, all others zero.
  bool as_integers = false;

  friend bool operator==(const HashForm&, const HashForm&) = default;
};

struct EventBatch {
  double timestamp = 0;  // seconds; engines send Unix time
  std::vector<KvEvent> events = {};
  std::optional<int64_t> data_parallel_rank = std::nullopt;

  // Of a decoded batch.
  HashForm hash_form = {};
  int64_t num_unknown_extra_keys = 0;  // of kinds that ExtraKey does not have; left out
  // What string_views in `events` point to beside constants; makes a batch movable only.
  std::vector<std::unique_ptr<const std::string>> texts = {};
};

// KV events as vLLM 0.33 puts them on the wire (V-60, V-64): MessagePack, byte for byte.
//
//   std::string payload;
//   EncodeEvents(manager->TakeEvents(), {.timestamp = now}, &payload);
//   absl::StatusOr<EventBatch> batch = DecodeEvents(payload);
//
// A batch is an array of time, events and rank; an event is a map whose first key is its type. The
// reason of a removal does not travel: upstream has no field for it.
//
// Encoding: 10 to 20 ns per hash or token. Decoding is for bytes from anywhere: it either gives a
// batch or says at which byte what is wrong; it refuses what would take more memory than
// kFreeDecodedBytes and kDecodedBytesPerByte times its size. Both may be called from any thread.

struct EncodeOptions {
  double timestamp = 0;
  std::optional<int64_t> data_parallel_rank = std::nullopt;
  HashForm hash_form = {};
  // Consecutive removals that differ in their hash only travel as one event with several hashes,
  // which upstream's consumers read as well; upstream's own publisher writes one event per hash.
  bool join_removals = false;
};

// Appends the batch to `out`. REQUIRES: hash_form.digest_size from 1 to 32 (with integers from 8).
void EncodeEvents(absl::Span<const KvEvent> events, const EncodeOptions& options, std::string* out);

// Most events of a batch, removals of several hashes counted per hash.
inline constexpr size_t kMaxEventsPerBatch = size_t{1} << 20;

// Memory that a decoded batch may take: so much for any, and so much more for each byte of the
// payload. What engines send takes 2 to 5 bytes per byte; removals joined into one event take 42
// as integers and 11 as digests, so the free part is for 170,000 of those.
inline constexpr size_t kFreeDecodedBytes = size_t{64} << 20;
inline constexpr size_t kDecodedBytesPerByte = 8;

// InvalidArgument: "KV event batch: event 2: token_ids[4]: got a text, expected ... (byte 118)".
// A removal of several hashes becomes that many events. Keys that are not known are passed over
// (V-64); an array in the place of an event's map is refused, as upstream refuses it. Texts are not
// checked to be UTF-8.
absl::StatusOr<EventBatch> DecodeEvents(std::string_view payload);

// A recorded stream of KV events: messages as they came from the wire, in one file that any
// MessagePack library reads.
//
//   "kvblocks-events-1"                        first value
//   [source, topic, sequence, payload]         each message: text, text, integer, bytes
//
// A sequence of -1 with an empty payload says that the source was found to have restarted; -2,
// that messages before the next one were lost for good.

struct LoggedMessage {
  static constexpr int64_t kRestart = -1;
  static constexpr int64_t kLoss = -2;

  std::string source = {};
  std::string topic = {};
  int64_t sequence = 0;
  std::string payload = {};

  friend bool operator==(const LoggedMessage&, const LoggedMessage&) = default;
};

// The bytes that a log begins with, and those of one message.
void AppendLogHead(std::string* out);
void AppendToLog(const LoggedMessage& message, std::string* out);

// Takes a log in pieces of any size. Memory: the largest message, twice.
class EventLogReader {
 public:
  static constexpr size_t kMaxMessageBytes = size_t{1} << 28;

  void Feed(std::string_view bytes);
  // The next message; none until more bytes come. InvalidArgument: what is wrong, and at which
  // byte.
  absl::StatusOr<std::optional<LoggedMessage>> Next();
  // Whether every byte belonged to a message; else the log is cut off.
  bool is_complete() const { return has_head_ && begin_ == bytes_.size(); }

 private:
  absl::Status Wrong(std::string_view what) const;

  std::string bytes_;
  size_t begin_ = 0;     // of what is not read yet
  int64_t dropped_ = 0;  // bytes before bytes_
  bool has_head_ = false;
};

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
// Cost: 75 to 150 bytes per key held by one holder; Apply about 100 ns per hash; a prefix of n
// blocks n look-ups. Dropping a holder walks all keys. Single-threaded.

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
  // Sorted by holder, never empty.
  using Table = absl::flat_hash_map<Key, Holdings>;
  absl::flat_hash_map<Key, Holdings, Table::hasher, Table::key_equal,
                      HugePageAllocator<Table::value_type>> table_;
};

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
// seen) removals of unknown blocks prove nothing, and are counted separately. Parents are compared
// where an event has the tokens of all its hashes and no others.
//
// The hit potential splits what was stored by what would have saved the work: a hash that this very
// cache had held and lost (a larger cache), one that another cache held at that moment (another
// routing), one that this cache holds already (stored twice: computed side by side, or reported as
// reused), or none of these: seen for the first time.
//
// Only one medium is looked at. Cost: about 150 ns per hash, and 40 bytes per hash ever seen beside
// the index. Single-threaded.

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
  // The cache restarted, and is empty.
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

#endif  // KVBLOCKS_KV_EVENTS_H_
