// LoadRouter: the routers that look at load, order and sessions alone.

#ifndef KVBLOCKS_SIM_FLEET_LOAD_ROUTER_H_
#define KVBLOCKS_SIM_FLEET_LOAD_ROUTER_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/sim/fleet/router.h"

namespace kvblocks::sim {

class LoadRouter final : public Router {
 public:
  // REQUIRES: !UsesContent(options.kind).
  explicit LoadRouter(const RouterOptions& options) : options_(options) {}

  RouteAnswer Route(const RouteQuestion& question) override;
  void OnGone(int32_t replica) override;

 private:
  int32_t Choose(const RouteQuestion& question);
  int32_t InTurn();
  int32_t OfSession(const RouteQuestion& question);

  const RouterOptions options_;
  int32_t turn_ = 0;           // whose it is, if it has room
  std::vector<int32_t> open_;  // that may have the request, ascending
  absl::flat_hash_map<uint64_t, int32_t> homes_;  // of sessions
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_LOAD_ROUTER_H_
