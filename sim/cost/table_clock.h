// TableClock: a step's time from measured kernel times, summed over the layers of a model, with what
// lies between the kernels added as a few constants.
//
//   step = linear(decode tokens) + head(samples) + attention(decodes, their mean context)
//        + F x [linear(all tokens) - linear(decode tokens) + prompts' attention], experts with their own F
//        + per layer + per layer if there are prompts + per sequence
//
// A sequence all of whose new tokens are sampled is a decode, drafts included. The attention of a
// chunk of a prompt is that of the whole prompt up to its end less that up to its beginning.
//
// The constants were fitted on measured serving runs of vLLM 0.11 to 0.19 (docs/time.md): they belong
// to the engine more than to device or model. Tables are evaluated once, when the clock is made; a
// step then costs about 20 ns, whole numbers only. Decodes add up by number and sum of contexts.

#ifndef KVBLOCKS_SIM_COST_TABLE_CLOCK_H_
#define KVBLOCKS_SIM_COST_TABLE_CLOCK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/sim/cost/kernel_tables.h"
#include "kvblocks/sim/cost/layer_times.h"
#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/cost/step_time_model.h"

namespace kvblocks::sim {

// Per scheduled sequence and step, in an engine that schedules a step when the one before it has
// ended: the host's work for each sequence then lies between the steps.
inline constexpr SimTime kSequenceOverheadSync = 50 * kMicrosecond;

struct TableClockOptions {
  LayerTimesOptions layers;
  // Per layer and step: of layers summed from kernels, of whole measured blocks, of estimated ones.
  SimTime layer_overhead = 8 * kMicrosecond;
  SimTime block_layer_overhead = 0;
  SimTime estimated_layer_overhead = 25 * kMicrosecond;
  // The same for each doubling of the ranks that meet in a layer, blocks aside: they wait for each
  // other.
  SimTime rank_overhead = 7 * kMicrosecond;
  // Per layer and step with tokens of prompts, which no captured graph covers as a whole.
  SimTime mixed_layer_overhead = 100 * kMicrosecond;
  // Per scheduled sequence and step, in an engine that schedules a step while another one runs.
  SimTime sequence_overhead = 4 * kMicrosecond;
  double prefill_factor = 1.15;                  // on what prompts add, experts aside
  double expert_prefill_factor = 1.5;            // on what they add to routed experts
  SimTime fixed_time = 0;                        // per step
  std::string calibration = "";  // what the constants were fitted on; empty: as above
  // What the curves are made for; beyond, their last line goes on.
  int64_t max_num_tokens = 16384;
  int64_t max_num_seqs = 1024;
  int64_t max_sequence_len = 1 << 20;
};

absl::Status Validate(const TableClockOptions& options);

// FailedPrecondition if the tables have nothing for the model. The tables are not needed afterwards.
absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeTableClock(const KernelTables& tables,
                                                              const TableClockOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_TABLE_CLOCK_H_
