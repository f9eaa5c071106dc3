// Router: which replica a request goes to; and RouterQueue, where requests wait until one has room.
//
// A router is asked once per request and may look at what RouteQuestion holds and at what it
// learned before: KV events that reached it, and its own decisions. It draws at random only by seed
// and submission index, so a request's luck depends on no other request.
//
// Kinds (see docs/fleet.md):
//   round-robin         one after another; replicas without room are skipped
//   random
//   least-requests      fewest requests sent there and not over
//   least-tokens        fewest known tokens of these
//   two-choices         of two replicas drawn at random the one with fewer requests
//   session             where the session's last turn went, unless that replica has too much to do
//                       or no room
//   prefix              highest score; an index of blocks is fed by the replicas' KV events
//   prefix-approximate  highest score; a tree of what was sent where takes the index' place
//   data-parallel       replicas in rotation, and of a replica's ranks the one with the lowest
//                       score, as vLLM's own balancer counts it (see score_router.cc)
//   oracle              highest score; what the replicas' pools hold now takes the index' place
//
// The score of a replica, in blocks: w_hit x leading blocks of the prompt that it holds
// - w_load x known tokens of its requests / block size - w_queue x prompt tokens not admitted yet /
// block size. Ties go to the replica with fewer tokens, then to the lower number. With a
// temperature the replica is drawn, with odds e^(score / temperature).
//
// Only live replicas are chosen; those that start, drain or are off count for nothing.
//
// Scores are integers, in millionths of a block; exponentials are FixedExp's: the same everywhere.

#ifndef KVBLOCKS_SIM_FLEET_ROUTER_H_
#define KVBLOCKS_SIM_FLEET_ROUTER_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"
#include "kvblocks/kv_event.h"
#include "sim/cost/sim_time.h"
#include "sim/engine/sim_request.h"
#include "sim/replica.h"

namespace kvblocks::sim {

enum class RouterKind {
  kRoundRobin,
  kRandom,
  kLeastRequests,
  kLeastTokens,
  kTwoChoices,
  kSession,
  kPrefix,
  kPrefixApproximate,
  kOracle,
  kDataParallel,
};

std::string_view RouterName(RouterKind kind);
// "prefix" and so on; InvalidArgument lists the names.
absl::StatusOr<RouterKind> ParseRouter(std::string_view name);

// Of weights and shares: 1,000,000 is 1.
inline constexpr int64_t kMillion = 1'000'000;

// Data-parallel ranks of one replica: numbers that follow each other.
struct RankGroup {
  int32_t first = 0;
  int32_t count = 0;
  bool is_lockstep = false;  // they share experts and step together
};

struct RouterOptions {
  RouterKind kind = RouterKind::kRoundRobin;
  uint64_t seed = 0;
  // Of the score, in millionths.
  int64_t hit_weight = kMillion;
  int64_t load_weight = kMillion;
  int64_t queue_weight = 0;
  int64_t temperature = 0;  // in millionths of a block; 0: the best one
  // A session leaves a replica that would have more than so many times the mean number of requests,
  // in millionths; 0: never.
  int64_t session_factor = 1'250'000;
  // Between two reports of what the ranks have to do, of data-parallel.
  SimTime stats_interval = 100 * kMillisecond;
  int64_t tree_blocks = 100'000;  // per replica, of prefix-approximate
};

// InvalidArgument names field, value and limit.
absl::Status Validate(const RouterOptions& options);

// Whether the router uses what ranks report of their engines.
inline bool WantsCounts(RouterKind kind) { return kind == RouterKind::kDataParallel; }
// Whether the router compares what a prompt consists of.
inline bool UsesContent(RouterKind kind) {
  return kind == RouterKind::kPrefix || kind == RouterKind::kPrefixApproximate ||
         kind == RouterKind::kOracle;
}

struct RouteQuestion {
  const SimRequest& request;
  absl::Span<const ReplicaLoad> loads;  // by replica
  SimTime now = 0;
  // By replica: whether it may be sent the request; empty: all may. At least one may.
  absl::Span<const uint8_t> has_room = {};
  absl::Span<const int32_t> live = {};  // those that take requests at all, ascending; empty: all
  // The rest is empty unless the router UsesContent.
  int64_t block_tokens = 1;
  absl::Span<const BlockHash> blocks = {};   // of the prompt that a hit can consist of
  absl::Span<const int64_t> tokens_held =
      {};  // by replica: what a look-up finds now; of oracle only
};

inline bool MayHave(const RouteQuestion& question, size_t replica) {
  return question.has_room.empty() || question.has_room[replica] != 0;
}

// What an engine reports to its balancer.
struct RankCounts {
  int64_t num_waiting = 0;
  int64_t num_running = 0;
  int64_t num_blocks_used = 0;  // of so many
  int64_t num_blocks = 0;

  friend bool operator==(const RankCounts&, const RankCounts&) = default;
};

struct RouteAnswer {
  int32_t replica = 0;
  // By replica; empty for routers without; good until the next question.
  absl::Span<const int64_t> claimed_tokens = {};
  absl::Span<const int64_t> scores = {};  // in millionths of a block
};

class Router {
 public:
  virtual ~Router() = default;
  // REQUIRES: at least one replica, the same number each time.
  virtual RouteAnswer Route(const RouteQuestion& question) = 0;
  // What a replica published, as it reaches the router.
  virtual void OnKvEvents(int32_t replica, absl::Span<const KvEvent> events) {
    (void)replica, (void)events;
  }
  // What a replica has in its engine; only where WantsCounts.
  virtual void OnCounts(int32_t replica, const RankCounts& counts, SimTime now) {
    (void)replica, (void)counts, (void)now;
  }
  // A replica takes no more requests; if it comes back it is a new one. The router forgets what it
  // held, and which sessions were at home there.
  virtual void OnGone(int32_t replica) { (void)replica; }
};

// `group` is the one whose blocks are counted. REQUIRES: valid options, num_replicas >= 1.
// `ranks`: of replicas that consist of several, ascending.
std::unique_ptr<Router> MakeRouter(const RouterOptions& options, int32_t num_replicas,
                                   GroupId group, const std::vector<RankGroup>& ranks = {});

// What MakeRouter chooses from: by load, order and session; by score; of data-parallel ranks.
std::unique_ptr<Router> MakeLoadRouter(const RouterOptions& options);
std::unique_ptr<Router> MakeScoreRouter(const RouterOptions& options, int32_t num_replicas,
                                        GroupId group);
std::unique_ptr<Router> MakeRankRouter(const RouterOptions& options, int32_t num_replicas,
                                       const std::vector<RankGroup>& groups);

struct RouterQueueOptions {
  // Of the requests that were sent to a replica and are not over; 0: no limit. Without any limit no
  // request ever waits.
  int64_t max_requests = 0;
  int64_t max_tokens = 0;  // their prompts and the output so far
  // Requests that may wait; of more the last is rejected.
  int64_t max_waiting = std::numeric_limits<int64_t>::max();
  bool by_priority = false;

  bool is_on() const { return max_requests > 0 || max_tokens > 0; }
};

// InvalidArgument names field, value and limit.
absl::Status Validate(const RouterQueueOptions& options);

// Whether a replica may be sent such a prompt. One without requests has room for any.
bool HasRoom(const RouterQueueOptions& options, const ReplicaLoad& load, int64_t num_prompt);

// RouterQueue: the requests that wait at a router because no replica has room for the first of
// them.
//
//   RouterQueue queue(options);
//   queue.Push(request, deadline);             // by arrival
//   while (SimRequest* expired = queue.FirstExpired(now)) { queue.Remove(*expired); ... }
//   while (!queue.empty() && some replica HasRoom(options, load, queue.first()->num_prompt)) ...
//   if (queue.is_too_long()) { reject queue.last(); queue.Remove(*queue.last()); }
//
// Order: as they came, or by the trace's priority and then as they came, smaller numbers first.
// Nobody overtakes: while the first does not fit anywhere, all wait, so that a long prompt comes to
// its turn.
//
// Always: a request is in it once. Cost: O(log n) for each operation. Nothing is owned.
class RouterQueue {
 public:
  explicit RouterQueue(const RouterQueueOptions& options) : options_(options) {}

  // `deadline`: when it is aborted if it still waits. REQUIRES: not in the queue.
  void Push(SimRequest* request, std::optional<SimTime> deadline);
  void Remove(const SimRequest& request);  // REQUIRES: Has
  bool Has(const SimRequest& request) const { return places_.contains(request.spec.row); }

  bool empty() const { return order_.empty(); }
  int64_t size() const { return static_cast<int64_t>(order_.size()); }
  bool is_too_long() const { return size() > options_.max_waiting; }
  // REQUIRES: not empty.
  SimRequest* first() const { return order_.begin()->second; }
  SimRequest* last() const { return order_.rbegin()->second; }

  std::optional<SimTime> NextDeadline() const;
  // Whose deadline has come, the earliest first; null: nobody's.
  SimRequest* FirstExpired(SimTime now) const;

 private:
  using Place = std::pair<int32_t, int64_t>;  // class, and place among all that ever came
  struct Known {
    Place place;
    std::optional<SimTime> deadline;
  };

  const RouterQueueOptions options_;
  int64_t num_pushed_ = 0;
  std::set<std::pair<Place, SimRequest*>> order_;
  std::set<std::tuple<SimTime, Place, SimRequest*>> deadlines_;
  absl::flat_hash_map<int64_t, Known> places_;  // by row
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_ROUTER_H_
