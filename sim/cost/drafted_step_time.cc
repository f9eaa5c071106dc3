#include "kvblocks/sim/cost/drafted_step_time.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

class DraftedStepTime final : public StepTimeModel {
 public:
  DraftedStepTime(std::unique_ptr<StepTimeModel> target, std::unique_ptr<StepTimeModel> drafter,
                  int64_t num_passes, std::string description)
      : target_(std::move(target)),
        drafter_(std::move(drafter)),
        num_passes_(num_passes),
        description_(std::move(description)) {}

  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork> work,
                                   const Decodes& decodes) const override {
    return WithDrafts(target_->StepTime(work, decodes), work, decodes);
  }
  absl::StatusOr<SimTime> StepTimeAmong(absl::Span<const SequenceWork> work, const Decodes& decodes,
                                        const StepPeers& peers) const override {
    return WithDrafts(target_->StepTimeAmong(work, decodes, peers), work, decodes);
  }
  SimTime CopyTime(int64_t bytes) const override { return target_->CopyTime(bytes); }
  bool adds_up_decodes() const override {
    return target_->adds_up_decodes() && drafter_->adds_up_decodes();
  }
  std::string_view source() const override { return target_->source(); }
  std::vector<TimePart> parts() const override {
    std::vector<TimePart> parts = target_->parts();
    parts.push_back(
        {"drafts", absl::StrCat(description_, ", ", std::string(drafter_->source()), ", ",
                                num_passes_, num_passes_ == 1 ? " pass" : " passes", " per step")});
    return parts;
  }
  int64_t num_outside() const override { return target_->num_outside(); }

 private:
  absl::StatusOr<SimTime> WithDrafts(absl::StatusOr<SimTime> verified,
                                     absl::Span<const SequenceWork> work,
                                     const Decodes& decodes) const {
    if (!verified.ok()) return verified.status();
    const auto first = drafter_->StepTime(work, decodes);
    if (!first.ok()) return first.status();
    Wide total = Wide{*verified} + *first;
    if (num_passes_ > 1) {
      const auto further = FurtherPass(work, decodes);
      if (!further.ok()) return further.status();
      total += Wide{*further} * (num_passes_ - 1);
    }
    if (total > kMaxSimTime) {
      return absl::OutOfRangeError("a step with drafts takes longer than the clock's 106 days");
    }
    return static_cast<SimTime>(total);
  }

  // One token of every sequence that drew one.
  absl::StatusOr<SimTime> FurtherPass(absl::Span<const SequenceWork> work,
                                      const Decodes& decodes) const {
    if (drafter_->adds_up_decodes()) {
      Decodes all = decodes;
      for (const SequenceWork& sequence : work) {
        if (sequence.num_sampled == 0) continue;
        ++all.num_sequences;
        all.sum_context += sequence.num_context + sequence.num_new;
      }
      if (all.num_sequences == 0) return 0;
      return drafter_->StepTime({}, all);
    }
    absl::InlinedVector<SequenceWork, 256> all;
    for (const SequenceWork& sequence : work) {
      if (sequence.num_sampled == 0) continue;
      all.push_back(
          {.num_context = sequence.num_context + sequence.num_new, .num_new = 1, .num_sampled = 1});
    }
    if (all.empty()) return 0;
    return drafter_->StepTime(all, Decodes());
  }

  const std::unique_ptr<StepTimeModel> target_, drafter_;
  const int64_t num_passes_;
  const std::string description_;
};

}  // namespace

std::unique_ptr<StepTimeModel> MakeDraftedStepTime(std::unique_ptr<StepTimeModel> target,
                                                   std::unique_ptr<StepTimeModel> drafter,
                                                   int64_t num_passes, std::string description) {
  return std::make_unique<DraftedStepTime>(std::move(target), std::move(drafter), num_passes,
                                           std::move(description));
}

}  // namespace kvblocks::sim
