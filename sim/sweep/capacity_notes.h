// What a planner must know beside the rates that were found.

#ifndef KVBLOCKS_SIM_SWEEP_CAPACITY_NOTES_H_
#define KVBLOCKS_SIM_SWEEP_CAPACITY_NOTES_H_

#include <cstdint>

#include "kvblocks/sim/sweep/sweep.pb.h"

namespace kvblocks::sim {

// Of the trace.
struct CapacityNoteFacts {
  double arrival_seconds = 0;  // from the first to the last
  int64_t num_arrivals = 0;    // of requests that wait for none
  int64_t num_arrival_times = 0;
};

// Adds to the notes of a report that has everything else.
void AddCapacityNotes(const CapacityNoteFacts& facts,
                      ::kvblocks::sweep::v1::CapacityReport* report);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_CAPACITY_NOTES_H_
