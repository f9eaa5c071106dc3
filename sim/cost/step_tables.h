// Step tables: the clock of a profile of one's own engine, as LLMServingSim's profiler writes it.
//
// A folder with CSV files, plain or .gz:
//   dense         layer, tokens, time_us: one call over so many tokens
//   attention     prefill_chunk, kv_prefill, n_decode, kv_decode, time_us: one layer over a mixed step
//   per_sequence  layer, sequences, time_us: what runs at sampled positions
//   allreduce     bytes, ranks, time_us: needed with more than one rank unless the profile holds it
//
// A step takes the dense parts at its tokens and the attention at its four coordinates, both for
// every layer of the model, and once embedding, final_layernorm and what runs per sequence. The
// coordinates are: tokens of prompts, the largest context before them, decodes, and their mean
// context. Linear between measured counts, continued along the last part above them, which is
// counted; below the first count its time holds. A corner that was not measured and matters is an
// error that names it.
//
// Whole picoseconds; about 0.3 us per step. Decodes add up by number and sum of contexts.

#ifndef KVBLOCKS_SIM_COST_STEP_TABLES_H_
#define KVBLOCKS_SIM_COST_STEP_TABLES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kvblocks/sim/cost/step_time_model.h"

namespace kvblocks::sim {

struct StepTableOptions {
  int64_t num_layers = 1;
  int64_t hidden_size = 1;  // for the bytes of an all-reduce
  int64_t num_ranks = 1;
  SimTime fixed_time = 0;         // per step
  SimTime time_per_layer = 0;     // per layer and step
  SimTime time_per_sequence = 0;  // per scheduled sequence
  std::string calibration = "";
};

// The texts of the files; `allreduce` may be empty. `source` names the folder in messages.
struct StepTableTexts {
  std::string dense, attention, per_sequence, allreduce;
};

absl::StatusOr<std::unique_ptr<StepTimeModel>> ParseStepTables(const StepTableTexts& texts,
                                                               const std::string& source,
                                                               const StepTableOptions& options);
// Of a folder; or of a file of whole steps (whole_steps.h), which says all but the constants.
absl::StatusOr<std::unique_ptr<StepTimeModel>> LoadStepTables(const std::string& path,
                                                              const StepTableOptions& options);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_STEP_TABLES_H_
