// StepTimeModel: how long a step takes on the device, from what was scheduled.
//
// Integer picoseconds. Every coefficient is rounded once, when a model is made; from then on all
// sums are exact, so a run of steps can be added up in any order or in closed form. Deterministic:
// the same work gives the same time on every machine. Cost: O(scheduled requests) additions.

#ifndef KVBLOCKS_SIM_COST_STEP_TIME_MODEL_H_
#define KVBLOCKS_SIM_COST_STEP_TIME_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sim/cost/sim_time.h"

namespace kvblocks::sim {

// One request's part of a step.
struct SequenceWork {
  int64_t num_context = 0;  // tokens computed before
  int64_t num_new = 0;      // tokens computed now, drafts included; at least 1
  int64_t num_sampled = 0;  // positions whose next token is drawn
};

// Sequences that compute one token each and draw its successor.
struct Decodes {
  int64_t num_sequences = 0;
  int64_t sum_context = 0;
};

// A step that data-parallel ranks compute together: each has attention and requests of its own, and
// all share the experts, so that the experts' time follows from the tokens of all of them.
struct StepPeers {
  int64_t num_tokens = 0;         // of all ranks, padding included; 0: a step of one rank alone
  int64_t num_decode_tokens = 0;  // of these, what is not of prompts
  int64_t padded_tokens = 0;      // a rank with fewer computes so many; 0: as many as it has
};

// The part that says how far a clock was from measured servers.
inline constexpr std::string_view kMeasuredErrorPart = "error on measured servers";

// Where one part of a step's time comes from.
struct TimePart {
  std::string part;
  std::string source;

  friend bool operator==(const TimePart&, const TimePart&) = default;
};

// What steps took, by where it comes from, and in how many a count lay beyond what was measured.
struct StepTally {
  Wide measured = 0, estimated = 0, constants = 0;  // picoseconds
  int64_t num_outside = 0;

  void operator+=(const StepTally& other) {
    measured += other.measured;
    estimated += other.estimated;
    constants += other.constants;
    num_outside += other.num_outside;
  }
  friend bool operator==(const StepTally&, const StepTally&) = default;
};

class StepTimeModel {
 public:
  virtual ~StepTimeModel() = default;

  // OutOfRange if the time does not fit the clock. `decodes` come on top of `work`; the time is the
  // same as if each of them were in it. REQUIRES: not both empty; no decodes unless
  // adds_up_decodes.
  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork> work,
                                   const Decodes& decodes = {}) const {
    return StepTimeAmong(work, decodes, {});
  }

  // One rank's part of a step that it computes together with others. The same as StepTime where a
  // clock knows of no experts. REQUIRES: as StepTime; the step is counted in `peers`, unless alone.
  virtual absl::StatusOr<SimTime> StepTimeAmong(absl::Span<const SequenceWork> work,
                                                const Decodes& decodes,
                                                const StepPeers& peers) const = 0;

  // Pipeline stages that a step passes through one after the other, each on devices of its own.
  virtual int64_t num_stages() const { return 1; }

  // What each of them computes, and what it takes to send activations to the next. StepTime is then
  // the sum, for a step that finds all stages free. REQUIRES: one entry per stage, and a send less.
  virtual absl::Status StageTimes(absl::Span<const SequenceWork> work, const Decodes& decodes,
                                  absl::Span<SimTime> stages, absl::Span<SimTime> sends) const;

  // How long copying so many bytes of one device's memory takes, before a step's layers run. 0
  // where steps take the same time whatever they do.
  virtual SimTime CopyTime(int64_t bytes) const {
    (void)bytes;
    return 0;
  }

  // Whether the number of decodes and the sum of their contexts say all.
  virtual bool adds_up_decodes() const = 0;

  // Where the times come from, for reports: no latency travels without it.
  virtual std::string_view source() const = 0;

  // The same part by part, where parts differ.
  virtual std::vector<TimePart> parts() const { return {}; }

  // Adds what StepTimeAmong says of a step, drafts aside; without peers, what StepTime says.
  // Nothing where a clock has no such parts. REQUIRES: as StepTimeAmong.
  virtual void Tally(absl::Span<const SequenceWork> work, const Decodes& decodes,
                     const StepPeers& peers, StepTally* tally) const {
    (void)work, (void)decodes, (void)peers, (void)tally;
  }
};

// Every step takes `step_time`. InvalidArgument unless it is at least 1 ps.
absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeFixedStepTime(SimTime step_time);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_STEP_TIME_MODEL_H_
