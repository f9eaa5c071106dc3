// SplitFleet: a trace replayed through replicas that compute prompts and replicas that decode, with the
// KV travelling between them (SM-103), all on one simulated clock.
//
//   auto fleet = SplitFleet::Create(options, replicas, reader.get(), &observer);
//   absl::Status status = (*fleet)->Run();
//
// A request first runs on a prefill replica, for its prompt and one token. The blocks stay there when it is
// done. It is then handed to a decode replica, whose scheduler takes blocks for what the prompt lacks in
// its pool and starts the transfer: the request is LOADING there (SM-4) and obeys what holds for
// asynchronous loads (SM-17). When the transfer ends, the prefill replica's blocks are free, and the
// request decodes. The prefill's token can be the client's first one; else the last prompt token is
// computed again and the decode replica makes the first. Requests of which the decode replica lacks
// little can be computed there as a whole.
//
// The clock is a ReplicaSet's, with prefill replicas first. Before the arrivals of an instant transfers
// end, behind them requests are handed over.
//
// Always: deterministic; each request that is not skipped ends once, in the observer; blocks are held in two
// places only during a transfer. Cost: that of the replicas, and per request one more hashing of its
// prompt. Single-threaded.

#ifndef KVBLOCKS_SIM_FLEET_SPLIT_FLEET_H_
#define KVBLOCKS_SIM_FLEET_SPLIT_FLEET_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sim/cost/link.h"
#include "sim/fleet/prompt_contents.h"
#include "sim/fleet/router.h"
#include "sim/replica_set.h"
#include "sim/simulation.h"

namespace kvblocks::sim {

enum class FirstToken { kPrefill, kDecode };
enum class LinkScope { kShared, kPerDecodeReplica };

struct SplitOptions {
  size_t num_prefill = 1;  // of the replicas, the first so many; the others decode
  // What a router of contents knows comes at once: events are neither late nor lost.
  RouterOptions prefill_router = {.kind = RouterKind::kLeastTokens};
  RouterOptions decode_router = {.kind = RouterKind::kLeastTokens};
  LinkOptions link;
  LinkScope scope = LinkScope::kShared;  // one for all transfers, or one into each decode replica
  int64_t bytes_per_token = 0;           // of KV, as a link carries them
  // Also the bytes travel that the decode replica has already.
  bool charges_hits = false;
  FirstToken first_token = FirstToken::kPrefill;
  // A request of whose prompt the decode replica lacks at most so many tokens when it arrives is computed
  // there as a whole; 0: none.
  int64_t max_local_tokens = 0;
};

// What became of a request, and when; -1: it did not come to that.
struct SplitLife {
  int32_t prefill_replica = -1;
  int32_t decode_replica = -1;
  bool is_local = false;
  SimTime prefill_start = -1;  // first step of the prompt scheduled, wherever
  SimTime prefill_end = -1;    // on the prefill replica
  SimTime load_start = -1;     // the decode replica has blocks for it
  SimTime load_end = -1;
  SimTime link_queue = 0;  // of the transfer: what others on the link cost it
  int64_t num_loaded_tokens = 0;
  int64_t num_bytes = 0;
  SimTime first_token = -1;
};

class SplitObserver {
 public:
  virtual ~SplitObserver() = default;
  // finish_reason and abort_cause of the request say how.
  virtual void OnEnded(const SimRequest& request, const SplitLife& life, SimTime now) = 0;
};

struct SplitResult {
  SimTime end_time = 0;
  int64_t num_arrived = 0;  // those given up with their session before they could are among them
  int64_t num_finished = 0;
  int64_t num_aborted = 0;
  int64_t num_rejected = 0;
  int64_t num_skipped = 0;
  int64_t num_local = 0;  // computed where they decode, of all that arrived
  std::vector<SimulationResult> replicas;  // prefill, then decode
  std::vector<LinkTotals> links;

  friend bool operator==(const SplitResult&, const SplitResult&) = default;
};

class SplitFleet final : private ReplicaSet::Owner {
 public:
  static constexpr size_t kMostReplicas = 1024;  // of each role

  // InvalidArgument for bad options or configurations, and for models that do not keep all blocks,
  // whose bytes are no multiple of the tokens. What concerns the trace is the first replica's.
  // Nothing is owned.
  static absl::StatusOr<std::unique_ptr<SplitFleet>> Create(const SplitOptions& options,
                                                            std::vector<ReplicaSetup> replicas,
                                                            TraceReader* reader,
                                                            SplitObserver* observer);
  ~SplitFleet() override;
  SplitFleet(const SplitFleet&) = delete;
  SplitFleet& operator=(const SplitFleet&) = delete;

  // As Simulation::Run. Call it once.
  absl::Status Run();
  void set_progress(std::function<bool(const SimulationProgress&)> progress) {
    set_.set_progress(std::move(progress));
  }

  const SplitResult& result() const { return result_; }
  const Replica& replica(size_t index) const { return set_.replica(index); }

 private:
  class Side;
  struct Client {
    SplitLife life;
    SimRequest* leg = nullptr;  // its part on a prefill replica, while it is there
    int64_t hold = -1;          // of its blocks there; -1: none, or the transfer's
    bool is_ready = false;      // its prompt is computed, and it was not handed over yet
  };
  struct Transfer {
    size_t decode = 0;  // replica
    int64_t load = 0;
    int64_t num_tokens = 0;
    size_t prefill = 0;
    int64_t hold = 0;
    SimRequest* request = nullptr;  // may be gone
    int64_t row = 0;
  };

  SplitFleet(const SplitOptions& options, const SimulationConfig& config, TraceReader* reader,
             SplitObserver* observer);

  absl::Status SendToPrefill(SimRequest* request);
  absl::Status SendToDecode(SimRequest* request);

  // Of a ReplicaSet.
  absl::Status BeforeArrivals() override;
  absl::Status OnArrived(SimRequest* request) override;
  absl::Status AfterArrivals() override;
  SimTime NextTime() override;
  absl::Status OnEnded(SimRequest* request, SimTime now) override;
  absl::Status OnGivenUp(SimRequest* turn, const SimRequest* ended, SimTime now) override;
  std::string NameOf(int32_t replica) const override;

  absl::Status EndLeg(SimRequest* leg, SimTime now);
  absl::Status GiveUp(SimRequest* request, AbortCause cause, SimTime now);
  absl::Status EndClient(SimRequest* request, SimTime now);

  bool GoesOn(const SimRequest& request) const;
  int64_t MissingOn(size_t replica, const SimRequest& request);
  int32_t Choose(bool prefill, const SimRequest& request);
  void ReleaseHold(size_t prefill, int64_t hold);
  Client& ClientOf(const SimRequest& request);
  void StartTransfer(size_t decode, const KvLoad& load, SimTime now);

  const SplitOptions options_;
  TraceReader* const reader_;
  SplitObserver* const observer_;
  int64_t longest_ = 0;  // sequence on a decode replica

  std::vector<std::unique_ptr<Side>> sides_;
  ReplicaSet set_;  // prefill, then decode
  std::unique_ptr<Router> prefill_router_, decode_router_;
  std::vector<Link> links_;

  std::vector<ReplicaLoad> loads_now_;  // scratch
  std::vector<int64_t> held_;           // scratch
  PromptContents contents_;             // of the request that is being sent
  std::vector<Client> clients_;         // by slot
  absl::flat_hash_map<const SimRequest*, SimRequest*> client_of_leg_;
  std::vector<SimRequest*> ready_;
  std::map<std::pair<size_t, int64_t>, Transfer> transfers_;  // by link and number there
  std::vector<Link::Ended> ended_;                            // scratch
  SplitResult result_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_SPLIT_FLEET_H_
