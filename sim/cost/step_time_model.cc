#include "sim/cost/step_time_model.h"

#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {
namespace {

class FixedStepTime final : public StepTimeModel {
 public:
  explicit FixedStepTime(SimTime step_time) : step_time_(step_time) {}

  absl::StatusOr<SimTime> StepTimeAmong(absl::Span<const SequenceWork>, const Decodes&,
                                        const StepPeers&) const override {
    return step_time_;
  }
  bool adds_up_decodes() const override { return true; }
  std::string_view source() const override { return "fixed"; }

 private:
  SimTime step_time_;
};

}  // namespace

absl::Status StepTimeModel::StageTimes(absl::Span<const SequenceWork> work, const Decodes& decodes,
                                       absl::Span<SimTime> stages, absl::Span<SimTime>) const {
  KVBLOCKS_ASSIGN_OR_RETURN(stages[0], StepTime(work, decodes));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeFixedStepTime(SimTime step_time) {
  if (step_time < 1) {
    return InvalidArgument("step_time is ", step_time, " ps, expected at least 1 ps");
  }
  return std::unique_ptr<StepTimeModel>(std::make_unique<FixedStepTime>(step_time));
}

}  // namespace kvblocks::sim
