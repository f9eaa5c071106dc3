#include "kvblocks/sim/report/step_rows.h"

#include <xxhash.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

constexpr int kPicosecondsPerMillisecondExponent = 9;
constexpr size_t kBufferBytes = 64 << 10;

std::string Ms(SimTime time) {
  return FormatScaledDecimal(time, kPicosecondsPerMillisecondExponent);
}

}  // namespace

StepFile::StepFile(std::unique_ptr<ByteSink> sink, bool with_requests, bool has_replicas)
    : sink_(std::move(sink)),
      with_requests_(with_requests),
      has_replicas_(has_replicas),
      buffer_(Header(with_requests, has_replicas)) {}

std::string StepFile::Header(bool with_requests, bool has_replicas) {
  return absl::StrCat(
      "step,start_ms,end_ms,tokens,prefill_tokens,decode_tokens,scheduled,running,waiting,"
      "free_blocks,preempted,new_blocks,hit_tokens,",
      has_replicas ? "replica," : "", with_requests ? "requests," : "", "digest\r\n");
}

void StepFile::Append(std::string_view row) {
  buffer_ += row;
  if (buffer_.size() >= kBufferBytes) Flush();
}

void StepFile::Flush() {
  if (status_.ok()) status_ = sink_->Write(buffer_);
  buffer_.clear();
}

absl::Status StepFile::Close() {
  Flush();
  return status_.ok() ? sink_->Close() : status_;
}

void StepRows::OnPreemption(const PreemptionRecord& record, SimTime) {
  preempted_.push_back(record.request->spec.row);
}

void StepRows::OnStepScheduled(const StepRecord& step) {
  if (step.scheduled.empty()) return;
  Row row;
  row.step = step.step;
  row.num_running = step.num_running;
  row.num_waiting = step.num_waiting;
  row.num_free = step.pool.num_free;
  row.num_preempted = static_cast<int64_t>(preempted_.size());

  // Every list begins with its length, so that no two schedules give the same words.
  words_.assign({step.step, row.num_preempted});
  words_.insert(words_.end(), preempted_.begin(), preempted_.end());
  for (const ScheduledRecord& record : step.scheduled) {
    row.num_new_blocks += record.num_new_blocks;
    if (record.is_admission) row.num_hit_tokens += record.num_context;
    words_.insert(words_.end(),
                  {record.request->spec.row, record.num_tokens, record.num_new_blocks});
    if (record.num_new_blocks == 0) continue;
    for (size_t group = 0; group < record.new_blocks.num_groups(); ++group) {
      const auto blocks = record.new_blocks.blocks(static_cast<GroupId>(group));
      words_.push_back(static_cast<int64_t>(blocks.size()));
      words_.insert(words_.end(), blocks.begin(), blocks.end());
    }
  }
  digest_ = XXH64(words_.data(), words_.size() * sizeof(words_[0]), digest_);
  row.digest = digest_;
  if (file_.with_requests()) {
    for (const int64_t preempted : preempted_) {
      absl::StrAppend(&row.requests, row.requests.empty() ? "-" : " -", preempted);
    }
    for (const ScheduledRecord& record : step.scheduled) Describe(record, &row.requests);
  }
  preempted_.clear();
  in_flight_.push_back(std::move(row));
}

void StepRows::Describe(const ScheduledRecord& record, std::string* out) const {
  absl::StrAppend(out, out->empty() ? "" : " ", record.request->spec.row, ":", record.num_tokens);
  if (record.num_new_blocks == 0) return;
  for (size_t group = 0; group < record.new_blocks.num_groups(); ++group) {
    for (const BlockId block : record.new_blocks.blocks(static_cast<GroupId>(group))) {
      absl::StrAppend(out, "+", block);
      if (group > 0) absl::StrAppend(out, "@", group);
    }
  }
}

void StepRows::OnStepFinished(const StepRecord& step) {
  // Steps end in the order in which they were scheduled; those that never end have no row.
  while (!in_flight_.empty() && in_flight_.front().step < step.step) in_flight_.pop_front();
  if (in_flight_.empty() || in_flight_.front().step != step.step) return;
  const Row row = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::string line = absl::StrCat(
      row.step, ",", Ms(step.start), ",", Ms(step.end), ",", step.num_tokens, ",",
      step.num_prefill_tokens, ",", step.num_decode_tokens, ",", step.scheduled.size(), ",",
      row.num_running, ",", row.num_waiting, ",", row.num_free, ",", row.num_preempted, ",",
      row.num_new_blocks, ",", row.num_hit_tokens, ",");
  if (file_.has_replicas()) absl::StrAppend(&line, replica_, ",");
  if (file_.with_requests()) absl::StrAppend(&line, row.requests, ",");
  absl::StrAppend(&line, absl::Hex(row.digest, absl::kZeroPad16), "\r\n");
  file_.Append(line);
}

}  // namespace kvblocks::sim
