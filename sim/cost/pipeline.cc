#include "sim/cost/pipeline.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/cost/attention_cost.h"

namespace kvblocks::sim {
namespace {

int64_t NumTokens(absl::Span<const SequenceWork> work, const Decodes& decodes) {
  int64_t tokens = decodes.num_sequences;
  for (const SequenceWork& sequence : work) tokens += sequence.num_new;
  return tokens;
}

absl::Status Overflow() {
  return absl::OutOfRangeError("a step takes longer than the clock's 106 days");
}

class PipelinedSteps : public StepTimeModel {
 public:
  explicit PipelinedSteps(size_t num_stages) : num_stages_(num_stages) {}

  int64_t num_stages() const override { return static_cast<int64_t>(num_stages_); }

  absl::StatusOr<SimTime> StepTime(absl::Span<const SequenceWork> work,
                                   const Decodes& decodes) const override {
    std::vector<SimTime> stages(num_stages_), sends(num_stages_ - 1);
    absl::Status status =
        StageTimes(work, decodes, absl::MakeSpan(stages), absl::MakeSpan(sends));
    if (!status.ok()) return status;
    std::optional<SimTime> sum = 0;
    for (size_t s = 0; s < num_stages_ && sum; ++s) {
      sum = CheckedAdd(*sum, stages[s]);
      if (s > 0 && sum) sum = CheckedAdd(*sum, sends[s - 1]);
    }
    if (!sum) return Overflow();
    return *sum;
  }

 private:
  const size_t num_stages_;
};

class Pipeline final : public PipelinedSteps {
 public:
  Pipeline(std::vector<std::unique_ptr<StepTimeModel>> stages, std::vector<SendTime> sends)
      : PipelinedSteps(stages.size()), stages_(std::move(stages)), sends_(std::move(sends)) {}

  absl::Status StageTimes(absl::Span<const SequenceWork> work, const Decodes& decodes,
                          absl::Span<SimTime> stages, absl::Span<SimTime> sends) const override {
    for (size_t s = 0; s < stages_.size(); ++s) {
      const auto time = stages_[s]->StepTime(work, decodes);
      if (!time.ok()) return time.status();
      stages[s] = *time;
    }
    for (size_t s = 0; s < sends_.size(); ++s) {
      const auto bytes = CheckedMultiply(sends_[s].per_token, NumTokens(work, decodes));
      const auto sum = bytes ? CheckedAdd(*bytes, sends_[s].latency) : std::nullopt;
      if (!sum) return Overflow();
      sends[s] = *sum;
    }
    return absl::OkStatus();
  }
  SimTime CopyTime(int64_t bytes) const override { return stages_[0]->CopyTime(bytes); }
  bool adds_up_decodes() const override {
    return std::all_of(stages_.begin(), stages_.end(),
                       [](const auto& stage) { return stage->adds_up_decodes(); });
  }
  std::string_view source() const override { return stages_[0]->source(); }
  std::vector<TimePart> parts() const override {
    std::vector<TimePart> all;
    for (size_t s = 0; s < stages_.size(); ++s) {
      for (TimePart& part : stages_[s]->parts()) {
        if (part.part == kMeasuredErrorPart) continue;  // no pipeline was measured
        part.part = absl::StrCat("stage ", s, ": ", part.part);
        all.push_back(std::move(part));
      }
    }
    return all;
  }
  void Tally(absl::Span<const SequenceWork> work, const Decodes& decodes, const StepPeers&,
             StepTally* tally) const override {
    const int64_t num_outside = tally->num_outside;
    for (size_t s = stages_.size(); s > 0; --s) {
      tally->num_outside = num_outside;  // the first stage says it for all
      stages_[s - 1]->Tally(work, decodes, StepPeers(), tally);
    }
  }

 private:
  const std::vector<std::unique_ptr<StepTimeModel>> stages_;
  const std::vector<SendTime> sends_;  // behind each stage but the last
};

class DividedClock final : public PipelinedSteps {
 public:
  DividedClock(std::unique_ptr<StepTimeModel> whole, std::vector<int64_t> first)
      : PipelinedSteps(first.size() - 1), whole_(std::move(whole)), first_(std::move(first)) {}

  absl::Status StageTimes(absl::Span<const SequenceWork> work, const Decodes& decodes,
                          absl::Span<SimTime> stages, absl::Span<SimTime> sends) const override {
    const auto time = whole_->StepTime(work, decodes);
    if (!time.ok()) return time.status();
    SimTime before = 0;
    for (size_t s = 0; s + 1 < first_.size(); ++s) {
      const auto until = static_cast<SimTime>(Wide{*time} * first_[s + 1] / first_.back());
      stages[s] = until - before;
      before = until;
    }
    std::fill(sends.begin(), sends.end(), 0);
    return absl::OkStatus();
  }
  SimTime CopyTime(int64_t bytes) const override { return whole_->CopyTime(bytes); }
  bool adds_up_decodes() const override { return whole_->adds_up_decodes(); }
  std::string_view source() const override { return whole_->source(); }
  std::vector<TimePart> parts() const override { return whole_->parts(); }
  void Tally(absl::Span<const SequenceWork> work, const Decodes& decodes, const StepPeers&,
             StepTally* tally) const override {
    whole_->Tally(work, decodes, StepPeers(), tally);
  }

 private:
  const std::unique_ptr<StepTimeModel> whole_;
  const std::vector<int64_t> first_;
};

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
    std::erase_if(parts, [](const TimePart& part) { return part.part == kMeasuredErrorPart; });
    parts.push_back(
        {"drafts", absl::StrCat(description_, ", ", std::string(drafter_->source()), ", ",
                                num_passes_, num_passes_ == 1 ? " pass" : " passes", " per step")});
    return parts;
  }
  void Tally(absl::Span<const SequenceWork> work, const Decodes& decodes, const StepPeers& peers,
             StepTally* tally) const override {
    target_->Tally(work, decodes, peers, tally);
  }

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

absl::StatusOr<SendTime> MakeSendTime(int64_t hidden_size, int64_t tensor_parallel,
                                      double link_gb_per_s, SimTime latency) {
  if (!(link_gb_per_s > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "link_gb_per_s is ", link_gb_per_s, ", expected more than 0 with pipeline stages"));
  }
  constexpr double kTensors = 2, kValueBytes = 2;
  const double bytes = kTensors * kValueBytes * static_cast<double>(hidden_size) /
                       static_cast<double>(tensor_parallel);
  return SendTime{.latency = latency,
                  .per_token = RoundToPicoseconds(bytes / (link_gb_per_s * 1e9))};
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> MakePipeline(
    std::vector<std::unique_ptr<StepTimeModel>> stages, std::vector<SendTime> sends) {
  if (stages.size() < 2 || sends.size() + 1 != stages.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stages has ", stages.size(), " clocks and ", sends.size(),
                     " sends, expected at least 2, and one send less"));
  }
  for (const auto& stage : stages) {
    if (stage == nullptr || stage->num_stages() != 1) {
      return absl::InvalidArgumentError("stages: expected clocks of one stage each");
    }
  }
  return std::unique_ptr<StepTimeModel>(
      std::make_unique<Pipeline>(std::move(stages), std::move(sends)));
}

absl::StatusOr<std::unique_ptr<StepTimeModel>> MakeDividedClock(
    std::unique_ptr<StepTimeModel> whole, std::vector<int64_t> first) {
  if (whole == nullptr || whole->num_stages() != 1 || first.size() < 3) {
    return absl::InvalidArgumentError("expected a clock of whole steps and at least 2 stages");
  }
  return std::unique_ptr<StepTimeModel>(
      std::make_unique<DividedClock>(std::move(whole), std::move(first)));
}

std::unique_ptr<StepTimeModel> MakeDraftedStepTime(std::unique_ptr<StepTimeModel> target,
                                                   std::unique_ptr<StepTimeModel> drafter,
                                                   int64_t num_passes, std::string description) {
  return std::make_unique<DraftedStepTime>(std::move(target), std::move(drafter), num_passes,
                                           std::move(description));
}

}  // namespace kvblocks::sim
