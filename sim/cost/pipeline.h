// Pipeline: a step's time stage by stage, where each stage has a part of the model's layers
// (SM-28).
//
// Each stage has a clock of its own. Between two stages the activations of all tokens travel over
// the link of each rank, which sends its part; a stage computes meanwhile.

#ifndef KVBLOCKS_SIM_COST_PIPELINE_H_
#define KVBLOCKS_SIM_COST_PIPELINE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/cost/step_time_model.h"

namespace kvblocks::sim {

// What activations take from one stage to the next.
struct SendTime {
  SimTime latency = 0;
  SimTime per_token = 0;
};

// Activations of 16 bit, two tensors of the hidden size per token: the sum so far and what the last
// layer adds. InvalidArgument without a link.
absl::StatusOr<SendTime> MakeSendTime(int64_t hidden_size, int64_t tensor_parallel,
                                      double link_gb_per_s, SimTime latency);

// InvalidArgument unless there are at least two stages, none of them null or a pipeline, and a send
// behind each but the last.
absl::StatusOr<std::unique_ptr<StepTimeModel>> MakePipeline(
    std::vector<std::unique_ptr<StepTimeModel>> stages, std::vector<SendTime> sends);

// A clock that knows whole steps only: stages take parts of it by their layers, from first[s] to
// first[s + 1], and what they send takes no time. REQUIRES: ascending, from 0.
absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeDividedClock(
    std::unique_ptr<StepTimeModel> whole, std::vector<int64_t> first);

// Steps of an engine that drafts: after each step the drafter runs, too.
//
// The drafter's first pass sees all tokens of the step, to fill its cache; each further one a token
// of every sequence that drew one. A drafter that proposes all drafts at once has one pass.
//
// `description` says what the drafter is, for the parts of the time. REQUIRES: num_passes >= 1.
std::unique_ptr<StepTimeModel> MakeDraftedStepTime(std::unique_ptr<StepTimeModel> target,
                                                   std::unique_ptr<StepTimeModel> drafter,
                                                   int64_t num_passes, std::string description);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_PIPELINE_H_
