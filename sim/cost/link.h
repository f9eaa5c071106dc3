// Link: what bytes travel over - between host and device, to a disk, from replica to replica - with
// the transfers that share it.
//
// A transfer takes latency + bytes / bandwidth if it is alone (SM-104). The latency is its own;
// after it, all transfers under way share the bandwidth in equal parts, and whenever one starts or
// ends the parts of the others change (processor sharing). Or they are served one after the other,
// in the order in which they started (FIFO).
//
//   Link link = Link::Create({.bytes_per_second = 64'000'000'000}).value();
//   const int64_t id = link.Start(now, bytes);
//   link.NextEnd()              // if nothing else starts
//   link.Advance(now, &ended)   // who ended until then
//
// Always: integers only, so a link says the same on every machine, however often it is advanced in
// between. Ends are exact to the picosecond, rounded up: with sharing what each transfer got is
// counted to 10^-12 bytes, and rounded up to that when a part changes.
// Cost: Start, each join and each end O(log n) of n transfers under way,
// NextEnd O(transfers in their latency). Times never go back from one call to the next (CHECKed).
// Copies are independent links.

#ifndef KVBLOCKS_SIM_COST_LINK_H_
#define KVBLOCKS_SIM_COST_LINK_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/cost/sim_time.h"

namespace kvblocks::sim {

enum class LinkSharing : uint8_t { kEqualParts, kFifo };

struct LinkOptions {
  int64_t bytes_per_second = 0;  // 1 to 10^15
  SimTime latency = 0;           // at most an hour
  LinkSharing sharing = LinkSharing::kEqualParts;
};

struct LinkTotals {
  int64_t num_started = 0;
  int64_t num_ended = 0;
  int64_t peak_under_way = 0;  // at once, latency included
  int64_t bytes = 0;           // of those that ended
  // Of those that ended, start to end, and what of it is more than they take alone. kMaxSimTime if
  // it is more than that.
  SimTime transfer_time = 0;
  SimTime queue_time = 0;
  SimTime busy_time = 0;  // while bytes moved, up to the last call

  friend bool operator==(const LinkTotals&, const LinkTotals&) = default;
};

class Link {
 public:
  struct Ended {
    int64_t id = 0;
    SimTime time = 0;
    SimTime queue_time = 0;
    friend bool operator==(const Ended&, const Ended&) = default;
  };

  // InvalidArgument names the field, the value and the limits.
  static absl::StatusOr<Link> Create(const LinkOptions& options);

  // Most bytes of one transfer.
  static constexpr int64_t kMaxBytes = int64_t{1} << 60;

  // A transfer's number, counted from 0. REQUIRES: 0 <= bytes <= kMaxBytes.
  int64_t Start(SimTime now, int64_t bytes);

  // When the next one ends if nothing else starts; empty: none is under way, or not within the
  // clock.
  std::optional<SimTime> NextEnd() const;
  // Adds those that ended up to `now` and were not reported yet, by time, then number.
  void Advance(SimTime now, std::vector<Ended>* ended);

  // What a transfer takes alone. REQUIRES: as Start.
  SimTime TimeAlone(int64_t bytes) const;
  // When it would end if it started now and nothing after it. O(transfers under way).
  SimTime EndIfStarted(SimTime now, int64_t bytes) const;

  int64_t num_under_way() const { return static_cast<int64_t>(transfers_.size()); }
  const LinkOptions& options() const { return options_; }
  const LinkTotals& totals() const { return totals_; }

 private:
  // Bytes x 10^12, so that one picosecond of a link alone serves bytes_per_second of them.
  using Service = __int128;
  struct Transfer {
    SimTime start = 0;
    SimTime join = 0;  // when its latency is over
    int64_t bytes = 0;
    bool is_moving = false;
    Service end = 0;  // moving: Progress::service when it has all its bytes
  };
  // What each of the moving transfers has got since nothing moved last; in FIFO order, what they
  // got together.
  struct Progress {
    SimTime time = 0;
    Service service = 0;
    Service part = 0;  // and so many parts of one more, of num_parts
    int64_t num_parts = 1;

    void MoveTo(SimTime to, int64_t bytes_per_second);
    void SetParts(int64_t n);
    // When it reaches `end`; kMaxSimTime if not within the clock.
    SimTime TimeOf(Service end, int64_t bytes_per_second) const;
  };

  explicit Link(const LinkOptions& options) : options_(options) {}
  bool IsShared() const { return options_.sharing == LinkSharing::kEqualParts; }
  SimTime JoinTime(SimTime start) const;
  void Run(SimTime now);
  void Move(SimTime to);
  void Join(int64_t id);
  void EndReached();

  LinkOptions options_;
  std::map<int64_t, Transfer> transfers_;  // under way, by number
  std::deque<int64_t> joining_;            // in their latency, in order of start
  std::set<std::pair<Service, int64_t>> moving_;  // by when they end
  Progress progress_;
  std::vector<Ended> unreported_;
  std::vector<int64_t> reached_;  // scratch
  LinkTotals totals_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_LINK_H_
