// The generator of workloads that reuse prefixes as a trace did (Fit of workload.proto).
//
// Each request draws, from the tables of its phase, how deep it is found, how long ago the deepest
// block it finds was used (in distinct blocks), and how much of that path others used since. It
// then begins with the path of the block made so far that comes next to this, and goes on with new
// blocks. What could not be had exactly is carried over to the requests after it, so that the sums
// agree. Rows are drawn without replacement: after a phase each was drawn as often as it counts.
//
// A fit that is asked for more requests than it has begins its last phase again.

#ifndef KVBLOCKS_SIM_GEN_FITTED_GENERATOR_H_
#define KVBLOCKS_SIM_GEN_FITTED_GENERATOR_H_

#include <memory>

#include "sim/gen/generator.h"

namespace kvblocks::sim {

// REQUIRES: CheckWorkload accepts it, and it has a fit.
std::unique_ptr<Generator> MakeFittedGenerator(const workload::v1::Workload& workload);

// Eighths of `depth` blocks in which `shared` of them lie: 0 for none, at most 8.
int SharedEighths(int64_t shared, int64_t depth);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_FITTED_GENERATOR_H_
