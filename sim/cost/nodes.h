// Nodes: how ranks that exchange data lie on nodes, whose devices have faster links to each other
// than to those of other nodes.
//
// A collective over several nodes is hierarchical: a reduce-scatter inside of each node, an
// all-reduce of each device's part with its peers on the other nodes, and an all-gather inside.
// An all-gather and a reduce-scatter together move as much.

#ifndef KVBLOCKS_SIM_COST_NODES_H_
#define KVBLOCKS_SIM_COST_NODES_H_

#include <cstdint>

#include "kvblocks/model_facts.h"

namespace kvblocks::sim {

struct RanksOnNodes {
  int64_t inside = 1;  // ranks on one node, at most
  int64_t nodes = 1;

  bool are_several() const { return nodes > 1; }
};

// So many ranks, each `stride` devices behind the one before it.
RanksOnNodes PlaceRanks(int64_t ranks, int64_t stride, const DeviceFacts& device);

// What an all-reduce of a message takes between the nodes, latency aside.
double SecondsBetweenNodes(const RanksOnNodes& ranks, double bytes, const DeviceFacts& device);

// Whether ranks of a pipeline stage of so many devices send over the links between nodes to those
// of the next stage; stages count from 0.
bool LeavesNode(int64_t stage, int64_t devices_per_stage, const DeviceFacts& device);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_NODES_H_
