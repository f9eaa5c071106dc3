// Handover: the part of a Fleet whose replicas compute prompts or decode, with the KV travelling
// between them (SM-103).
//
// A request first runs on a prefill replica, for its prompt and one token. The blocks stay there
// when it is done. It is then handed to a decode replica, whose scheduler takes blocks for what the
// prompt lacks in its pool and starts the transfer: the request is LOADING there (SM-4) and obeys
// what holds for asynchronous loads (SM-17). When the transfer ends, the prefill replica's blocks
// are free, and the request decodes. The prefill's token can be the client's first one; else the
// last prompt token is computed again and the decode replica makes the first. Requests of which the
// decode replica lacks little can be computed there as a whole.
//
// Prefill replicas come first in the set. Before the arrivals of an instant transfers end, behind
// them requests are handed over.
//
// Always: each request that is not skipped ends once, in FleetObserver::OnEnded; blocks are held in
// two places only during a transfer. Cost: per request one more hashing of its prompt.

#ifndef KVBLOCKS_SIM_FLEET_HANDOVER_H_
#define KVBLOCKS_SIM_FLEET_HANDOVER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "sim/cost/link.h"
#include "sim/fleet/fleet.h"

namespace kvblocks::sim {

class Fleet::Handover {
 public:
  // REQUIRES: options that Check takes.
  explicit Handover(Fleet* fleet);
  ~Handover();

  static absl::Status Check(const HandoverOptions& options, size_t num_replicas);
  // Puts itself behind the replica, which is added to the set next.
  void Join(size_t replica, ReplicaSetup* setup);
  // InvalidArgument for one whose groups are not those of the options, or that keeps states.
  absl::Status CheckReplica(size_t replica) const;

  // As of the fleet.
  void EndTransfers();
  absl::Status OnArrived(SimRequest* request);
  absl::Status AfterArrivals();
  SimTime NextTime() const;
  absl::Status OnEnded(SimRequest* request, SimTime now);
  absl::Status OnGivenUp(SimRequest* turn, SimTime now);
  // After the run.
  void Close(HandoverResult* result);

 private:
  class Side;
  struct Client {
    HandoverLife life;
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

  absl::Status SendToPrefill(SimRequest* request);
  absl::Status SendToDecode(SimRequest* request);
  absl::Status EndLeg(SimRequest* leg, SimTime now);
  absl::Status GiveUp(SimRequest* request, AbortCause cause, SimTime now);
  absl::Status EndClient(SimRequest* request, SimTime now);

  bool GoesOn(const SimRequest& request) const;
  int64_t MissingOn(size_t replica, const SimRequest& request);
  int32_t ChooseDecode(const SimRequest& request);
  void ReleaseHold(size_t prefill, int64_t hold);
  Client& ClientOf(const SimRequest& request);
  int64_t BytesOf(const KvLoad& load, const KvCacheManager& manager) const;
  void StartTransfer(size_t decode, const KvLoad& load, const KvCacheManager& manager,
                     SimTime now);

  Fleet* const fleet_;
  const HandoverOptions& options_;
  std::vector<std::unique_ptr<Side>> sides_;  // by replica
  std::vector<Link> links_;
  std::vector<Client> clients_;  // by slot
  absl::flat_hash_map<const SimRequest*, SimRequest*> client_of_leg_;
  std::vector<SimRequest*> ready_;
  std::map<std::pair<size_t, int64_t>, Transfer> transfers_;  // by link and number there
  std::vector<Link::Ended> ended_;                            // scratch
  HandoverResult result_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_HANDOVER_H_
