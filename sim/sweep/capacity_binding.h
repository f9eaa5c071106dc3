// Why a rate is not met: which limit, and what was short when it was missed.

#ifndef KVBLOCKS_SIM_SWEEP_CAPACITY_BINDING_H_
#define KVBLOCKS_SIM_SWEEP_CAPACITY_BINDING_H_

#include <string>

#include "kvblocks/sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

// Of the objectives that are missed, the most times that a limit was observed; 0: none is missed.
double WorstUse(const ::kvblocks::sweep::v1::CapacityReport::Probe& probe);

// In a sentence. `worst`: of the probe's replicas the one farthest beyond its limits; `goodput`: the
// share of good requests that was asked for.
std::string DescribeBinding(const ::kvblocks::sweep::v1::CapacityReport::Probe& probe,
                            const ::kvblocks::sweep::v1::PointResult& worst, double goodput);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_CAPACITY_BINDING_H_
