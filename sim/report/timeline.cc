#include "sim/report/timeline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "checks/json_text.h"
#include "sim/report/text_page.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

constexpr std::string_view kHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
// For what closes the file and says what is missing.
constexpr int64_t kReservedBytes = 2000;
constexpr int64_t kFirstProcess = 1;
// Threads of the process: viewers take 0 for the idle one.
constexpr int64_t kDeviceLane = 1;
constexpr int64_t kFirstRequestLane = 2;
constexpr SimTime kFirstSpacing = kMillisecond;

int64_t Nanoseconds(SimTime time) { return time / kNanosecond; }

void AppendMicroseconds(int64_t nanoseconds, std::string* out) {
  absl::StrAppend(out, nanoseconds / 1000, ".", absl::Dec(nanoseconds % 1000, absl::kZeroPad3));
}

std::string SecondsText(SimTime time) {
  constexpr int kPicosecondsPerSecondExponent = 12;
  return FormatScaledDecimal(time, kPicosecondsPerSecondExponent);
}

// Up to its time, if it has one; `kind` with what stands beside it.
void BeginEvent(const char* kind, int64_t process, int64_t lane, std::optional<SimTime> time,
                std::string* out) {
  absl::StrAppend(out, ",\n{\"ph\":\"", kind, "\",\"pid\":", process, ",\"tid\":", lane);
  if (!time) return;
  *out += ",\"ts\":";
  AppendMicroseconds(Nanoseconds(*time), out);
}

absl::string_view TextView(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

// --- The file ---

TimelineFile::TimelineFile(std::unique_ptr<ByteSink> sink, int64_t max_bytes)
    : file_(std::move(sink), std::string(kHead)),
      max_bytes_(max_bytes),
      num_bytes_(static_cast<int64_t>(kHead.size())) {}

bool TimelineFile::Keep(std::string_view event, Kind kind, SimTime now) {
  if (!has_events_) event.remove_prefix(1);  // its comma
  const auto size = static_cast<int64_t>(event.size());
  const bool is_kept = cut_at_ == kNever && num_bytes_ + size <= max_bytes_ - kReservedBytes;
  if (kind == Kind::kSlice) ++(is_kept ? num_slices_ : slices_left_out_);
  if (kind == Kind::kCounters) ++(is_kept ? num_counter_values_ : counter_values_left_out_);
  if (!is_kept) {
    if (cut_at_ == kNever) cut_at_ = now;
    return false;
  }
  has_events_ = true;
  num_bytes_ += size;
  file_.Append(event);
  return true;
}

absl::Status TimelineFile::Close() {
  std::string end;
  if (cut_at_ != kNever) {
    BeginEvent("i\",\"s\":\"g", kFirstProcess, kDeviceLane, cut_at_, &end);
    end += ",\"name\":\"end of this file, not of the run\",\"args\":{\"left_out\":";
    AppendJsonString(DescribeLeftOut(), &end);
    end += "}}";
  }
  absl::StrAppend(
      &end, "\n],\n\"otherData\":{\"complete\":", cut_at_ == kNever ? "true" : "false",
      ",\"end_s\":", SecondsText(cut_at_ == kNever ? last_event_ : cut_at_),
      ",\"run_end_s\":", SecondsText(last_event_), ",\"slices\":", num_slices_,
      ",\"counter_values\":", num_counter_values_, ",\"slices_left_out\":", slices_left_out_,
      ",\"counter_values_left_out\":", counter_values_left_out_, "}}\n");
  file_.Append(end);
  return file_.Close();
}

std::string TimelineFile::DescribeLeftOut() const {
  if (cut_at_ == kNever) return "";
  return absl::StrCat("the limit of ", WithThousands(max_bytes_), " bytes was reached at ",
                      SecondsText(cut_at_), " s of ", SecondsText(last_event_),
                      " s: ", WithThousands(slices_left_out_), " slices that end later and ",
                      WithThousands(counter_values_left_out_), " counter values are left out");
}

// --- Events as text ---

Timeline::Timeline(TimelineFile* file, int64_t replica, std::string_view name)
    : file_(*file), process_(kFirstProcess + replica), counter_spacing_(kFirstSpacing) {
  BeginEvent("M", process_, kDeviceLane, std::nullopt, &event_);
  absl::StrAppend(&event_, ",\"name\":\"process_name\",\"args\":{\"name\":\"", TextView(name),
                  "\"}}");
  file_.Keep(event_, TimelineFile::Kind::kName, 0);
  NameLane(kDeviceLane, "device");
}

void Timeline::NameLane(int64_t lane, std::string_view name) {
  event_.clear();
  BeginEvent("M", process_, lane, std::nullopt, &event_);
  absl::StrAppend(&event_, ",\"name\":\"thread_name\",\"args\":{\"name\":\"", TextView(name),
                  "\"}}");
  BeginEvent("M", process_, lane, std::nullopt, &event_);
  absl::StrAppend(&event_, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":", lane, "}}");
  file_.Keep(event_, TimelineFile::Kind::kName, last_event_);
}

void Timeline::BeginSlice(int64_t lane, std::string_view name, SimTime from, SimTime to) {
  event_.clear();
  BeginEvent("X", process_, lane, from, &event_);
  event_ += ",\"dur\":";
  AppendMicroseconds(Nanoseconds(to) - Nanoseconds(from), &event_);
  absl::StrAppend(&event_, ",\"name\":\"", TextView(name), "\",\"args\":{");
  has_arguments_ = false;
}

void Timeline::BeginRequestSlice(const SimRequest& request, const Life& life, std::string_view name,
                                 SimTime from, SimTime to) {
  BeginSlice(kFirstRequestLane + life.lane, name, from, to);
  event_ += "\"request\":";
  AppendJsonString(request.spec.id, &event_);
  has_arguments_ = true;
  AddArgument("row", request.spec.row);
}

void Timeline::AddArgument(std::string_view name, int64_t value) {
  absl::StrAppend(&event_, has_arguments_ ? ",\"" : "\"", TextView(name), "\":", value);
  has_arguments_ = true;
}

void Timeline::EndSlice(SimTime now) {
  event_ += "}}";
  file_.Keep(event_, TimelineFile::Kind::kSlice, now);
}

void Timeline::WriteInstant(std::string_view name, const SimRequest& request, SimTime now) {
  event_.clear();
  BeginEvent("i\",\"s\":\"p", process_, kDeviceLane, now, &event_);
  absl::StrAppend(&event_, ",\"name\":\"", TextView(name), "\",\"args\":{\"request\":");
  AppendJsonString(request.spec.id, &event_);
  absl::StrAppend(&event_, ",\"row\":", request.spec.row, "}}");
  file_.Keep(event_, TimelineFile::Kind::kSlice, now);
}

void Timeline::WriteCounters(SimTime now, bool is_forced) {
  if (now < next_counters_ && !is_forced) return;
  const CounterValues values = {CountPoolBlocks(manager_->pool()), num_running_, num_waiting_};
  if (values == written_) return;
  written_ = values;
  next_counters_ = now + counter_spacing_;
  const PoolBlocks& blocks = values.blocks;
  event_.clear();
  const auto begin = [&](const char* name) {
    BeginEvent("C", process_, kDeviceLane, now, &event_);
    absl::StrAppend(&event_, ",\"name\":\"", name, "\",\"args\":{");
  };
  begin("blocks");
  absl::StrAppend(&event_, "\"used\":", blocks.referenced,
                  ",\"cached\":", blocks.resident - blocks.referenced,
                  ",\"free\":", blocks.usable - blocks.resident, "}}");
  begin("requests");
  absl::StrAppend(&event_, "\"running\":", num_running_, ",\"waiting\":", num_waiting_, "}}");
  if (!file_.Keep(event_, TimelineFile::Kind::kCounters, now)) return;
  if (++values_at_spacing_ == kValuesPerSpacing) {
    values_at_spacing_ = 0;
    counter_spacing_ = std::min(2 * counter_spacing_, kMaxSimTime / 4);
  }
}

// --- Requests ---

Timeline::Life* Timeline::Find(const SimRequest& request) {
  const auto slot = static_cast<size_t>(request.slot);
  if (request.slot < 0 || slot >= lives_.size()) return nullptr;
  return lives_[slot].row == request.spec.row ? &lives_[slot] : nullptr;
}

void Timeline::OnArrival(const SimRequest& request, SimTime now) {
  At(now);
  const auto slot = static_cast<size_t>(request.slot);
  if (slot >= lives_.size()) lives_.resize(slot + 1);
  Life& life = lives_[slot] = {.row = request.spec.row, .waits_since = now};
  if (free_lanes_.empty()) {
    life.lane = num_lanes_++;
    NameLane(kFirstRequestLane + life.lane, absl::StrCat("slot ", life.lane));
  } else {
    life.lane = free_lanes_.top();
    free_lanes_.pop();
  }
  ++num_waiting_;
}

void Timeline::OnRejection(const SimRequest& request, SimTime now) {
  At(now);
  WriteInstant("rejected", request, now);
  --num_waiting_;
  if (Life* life = Find(request)) {
    free_lanes_.push(life->lane);
    life->row = -1;
  }
}

void Timeline::OnAdmission(const AdmissionRecord& record, SimTime now) {
  At(now);
  const SimRequest& request = *record.request;
  Life& life = *Find(request);
  if (record.is_resume) EndDecode(request, life);
  BeginRequestSlice(request, life, record.is_resume ? "preempted" : "queued", life.waits_since,
                    now);
  EndSlice(now);
  life.preempted_at = kNever;
  life.is_running = life.is_prefilling = true;
  life.num_hit_tokens = record.num_hit_tokens;
  ++num_running_;
  --num_waiting_;
}

void Timeline::OnPreemption(const PreemptionRecord& record, SimTime now) {
  At(now);
  Life& life = *Find(*record.request);
  life.waits_since = life.preempted_at = now;
  life.is_running = false;
  --num_running_;
  ++num_waiting_;
}

void Timeline::EndDecode(const SimRequest& request, Life& life) {
  if (life.num_decode_steps == 0) return;
  const SimTime latest = life.preempted_at == kNever ? life.last_token : life.preempted_at;
  BeginRequestSlice(request, life, "decode", std::min(life.decodes_since, latest),
                    std::min(life.last_token, latest));
  AddArgument("steps", life.num_decode_steps);
  AddArgument("output_tokens", life.num_decode_tokens);
  EndSlice(last_event_);
  life.num_decode_steps = life.num_decode_tokens = 0;
}

void Timeline::OnFinish(const SimRequest& request, SimTime now) {
  At(now);
  const bool is_aborted = request.was_cut_short();
  if (is_aborted) {
    const bool failed = request.finish_reason == FinishReason::kError;
    WriteInstant(failed ? "load failed" : "aborted", request, now);
  }
  Life* life = Find(request);
  if (life == nullptr) return;
  EndDecode(request, *life);
  if (!life->is_running) {
    BeginRequestSlice(request, *life, life->preempted_at == kNever ? "queued" : "preempted",
                      life->waits_since, now);
    EndSlice(now);
  }
  --(life->is_running ? num_running_ : num_waiting_);
  free_lanes_.push(life->lane);
  life->row = -1;
  // Nothing may be scheduled for long.
  if (num_running_ == 0) WriteCounters(now, true);
}

// --- Steps ---

void Timeline::OnStepScheduled(const StepRecord& step) {
  At(step.start);
  WriteCounters(step.start, false);
}

void Timeline::OnSkippedDecodes(const SimRequest& request, int64_t num_steps) {
  Life& life = *Find(request);
  life.num_decode_steps += num_steps;
  life.num_decode_tokens += num_steps;
  life.last_token = last_step_end_;
}

void Timeline::OnStepFinished(const StepRecord& step) {
  // In a pipeline it began while the step before was in a later stage.
  const SimTime begin = std::max(step.device_start, last_step_end_);
  last_step_end_ = step.end;
  At(step.end);
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const ScheduledRecord& record = step.scheduled[i];
    const OutputRecord& output = step.outputs[i];
    if (output.request == nullptr) continue;
    Life& life = *Find(*output.request);
    if (!life.is_prefilling) {
      ++life.num_decode_steps;
      life.num_decode_tokens += output.num_emitted;
      life.last_token = step.end;
      continue;
    }
    const SimTime latest = life.preempted_at == kNever ? step.end : life.preempted_at;
    BeginRequestSlice(*output.request, life, "prefill", std::min(begin, latest),
                      std::min(step.end, latest));
    AddArgument("tokens", record.num_tokens);
    AddArgument("context", record.num_context);
    if (life.num_hit_tokens >= 0) AddArgument("hit_tokens", life.num_hit_tokens);
    life.num_hit_tokens = -1;
    AddArgument("output_tokens", output.num_emitted);
    EndSlice(step.end);
    if (record.is_chunk) continue;
    life.is_prefilling = false;
    life.decodes_since = step.end;
  }

  const bool is_decode = step.num_prefill_tokens == 0;
  const SimTime busy = step.end - begin;
  // Pauses of the host between decode steps do not part them, a device that waits for work does.
  if (steps_.count > 0 &&
      !(is_decode && steps_.prefill_tokens == 0 && begin - steps_.end <= busy)) {
    WriteSteps();
  }
  if (steps_.count == 0) steps_.start = begin;
  steps_.end = step.end;
  steps_.busy += busy;
  ++steps_.count;
  steps_.prefill_tokens += step.num_prefill_tokens;
  steps_.decode_tokens += step.num_decode_tokens;
  steps_.most_requests = std::max(steps_.most_requests, step.num_requests());
}

void Timeline::WriteSteps() {
  if (steps_.count == 0) return;
  const char* name = steps_.prefill_tokens == 0  ? "decode"
                     : steps_.decode_tokens == 0 ? "prefill"
                                                 : "prefill and decode";
  BeginSlice(kDeviceLane, name, steps_.start, steps_.end);
  AddArgument("steps", steps_.count);
  AddArgument("busy_ns", Nanoseconds(steps_.busy));
  AddArgument("prefill_tokens", steps_.prefill_tokens);
  AddArgument("decode_tokens", steps_.decode_tokens);
  AddArgument("most_requests", steps_.most_requests);
  EndSlice(last_event_);
  steps_ = {};
}

void Timeline::OnRunEnd(SimTime now) {
  At(std::max(last_event_, now));
  WriteSteps();
  WriteCounters(last_event_, true);
}

}  // namespace kvblocks::sim
