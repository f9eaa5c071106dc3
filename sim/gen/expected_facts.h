// What a workload comes to on average, by sums instead of by making it: for its header and for
// tests of the generator.
//
// Only what has a closed form is stated. With forks, a context limit or sub-agents nothing has; with
// examples, documents or duplicates the hit rate has none; of a fit nothing is.

#ifndef KVBLOCKS_SIM_GEN_EXPECTED_FACTS_H_
#define KVBLOCKS_SIM_GEN_EXPECTED_FACTS_H_

#include <optional>

#include "kvblocks/sim/gen/workload.pb.h"

namespace kvblocks::sim {

struct ExpectedFacts {
  double requests = 0;
  double input_tokens = 0;
  double output_tokens = 0;
  // Of the prompts' tokens those that an infinite cache holds, prompts and outputs of all earlier
  // requests being in it; whole blocks and the last token, which is always computed, left aside.
  std::optional<double> hit_rate;
};

// Of whole sessions; where a number of requests ends the workload, as many as make that number on
// average. The system prompts' lengths are those of the seed. Milliseconds.
std::optional<ExpectedFacts> ExpectedFactsOf(const workload::v1::Workload& workload);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_GEN_EXPECTED_FACTS_H_
