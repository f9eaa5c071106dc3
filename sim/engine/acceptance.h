// Acceptance: how many of a request's draft tokens the model accepts in a step.
//
// The request's own list from the trace comes first, entry i for its i-th verification. Beyond its
// end a model draws. The draw is a hash of (seed, request, verification, draft position), so
// schedules of different configurations see the same luck and no generator carries state. The
// request counts by its id, not by its row: the same requests in another order draw the same.
// Probabilities are turned into integer thresholds once; no floating point decides anything later.

#ifndef KVBLOCKS_SIM_ENGINE_ACCEPTANCE_H_
#define KVBLOCKS_SIM_ENGINE_ACCEPTANCE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "sim/engine/sim_request.h"

namespace kvblocks::sim {

struct AcceptanceModel {
  enum class Kind {
    kFixed,  // `fixed` drafts of every step
    kIid,    // each with probabilities[0], given all before it
    kTable,  // draft j with probabilities[j], given all before it
  };
  Kind kind = Kind::kFixed;
  int64_t fixed = 0;
  std::vector<double> probabilities = {};
  uint64_t seed = 0;
};

absl::Status Validate(const AcceptanceModel& model, int64_t num_draft_tokens);

class AcceptanceSampler {
 public:
  // REQUIRES: a valid model.
  AcceptanceSampler(const AcceptanceModel& model, int64_t num_draft_tokens);

  // Accepted of `num_verified` drafts in this request's current verification.
  int64_t NumAccepted(const SimRequest& request, int64_t num_verified) const;

 private:
  int64_t fixed_;
  uint64_t seed_;
  // Of 2^53, per draft position; empty for kFixed.
  std::vector<uint64_t> thresholds_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_ACCEPTANCE_H_
