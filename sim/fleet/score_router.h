// ScoreRouter: the routers that weigh what a replica holds of a prompt against its load.

#ifndef KVBLOCKS_SIM_FLEET_SCORE_ROUTER_H_
#define KVBLOCKS_SIM_FLEET_SCORE_ROUTER_H_

#include <vector>

#include "kvblocks/events/block_index.h"
#include "kvblocks/sim/fleet/router.h"
#include "kvblocks/sim/fleet/sent_blocks.h"

namespace kvblocks::sim {

class ScoreRouter final : public Router {
 public:
  // REQUIRES: UsesContent(options.kind).
  ScoreRouter(const RouterOptions& options, int32_t num_replicas, GroupId group);

  RouteAnswer Route(const RouteQuestion& question) override;
  void OnKvEvents(int32_t replica, absl::Span<const KvEvent> events) override;
  void OnGone(int32_t replica) override;

 private:
  void Claim(const RouteQuestion& question);
  int32_t Best(const RouteQuestion& question) const;
  int32_t Drawn(const RouteQuestion& question);

  const RouterOptions options_;
  const GroupId group_;
  events::BlockIndex index_;        // of prefix; holders are replicas
  std::vector<SentBlocks> sent_;    // of prefix-approximate
  std::vector<int64_t> claimed_, scores_;
  // Scratch.
  std::vector<double> odds_;
  std::vector<int32_t> open_;  // whose they are
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_SCORE_ROUTER_H_
