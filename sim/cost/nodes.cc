#include "sim/cost/nodes.h"

#include <algorithm>

namespace kvblocks::sim {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

RanksOnNodes PlaceRanks(int64_t ranks, int64_t stride, const DeviceFacts& device) {
  const int64_t room = std::max<int64_t>(1, device.devices_per_node / stride);
  if (ranks <= room) return {.inside = ranks, .nodes = 1};
  const int64_t nodes = CeilDiv(ranks, room);
  return {.inside = CeilDiv(ranks, nodes), .nodes = nodes};
}

double SecondsBetweenNodes(const RanksOnNodes& ranks, double bytes, const DeviceFacts& device) {
  if (!ranks.are_several()) return 0;
  const auto nodes = static_cast<double>(ranks.nodes);
  return 2 * (nodes - 1) / nodes * (bytes / static_cast<double>(ranks.inside)) /
         (device.node_gb_per_s * 1e9);
}

bool LeavesNode(int64_t stage, int64_t devices_per_stage, const DeviceFacts& device) {
  const int64_t first = stage * devices_per_stage;
  const int64_t last = first + 2 * devices_per_stage - 1;  // of the next stage
  return first / device.devices_per_node != last / device.devices_per_node;
}

}  // namespace kvblocks::sim
