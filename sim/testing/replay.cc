#include "sim/testing/replay.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_spec.h"

namespace kvblocks::sim {
namespace {

int64_t Nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

double Seconds(SimTime time) { return static_cast<double>(time) / static_cast<double>(kSecond); }

}  // namespace

KvCacheGroup FullGroup(int64_t block_size) {
  const auto spec =
      FullAttentionSpec::Create({.block_size = block_size, .num_kv_heads = 1, .head_size = 8});
  KVBLOCKS_CHECK(spec.ok(), spec.status().ToString());
  return {.spec = *spec, .layer_names = {"full"}};
}

KvCacheGroup WindowGroup(int64_t block_size, int64_t window) {
  const auto spec = SlidingWindowSpec::Create(
      {.block_size = block_size, .num_kv_heads = 1, .head_size = 8, .sliding_window = window});
  KVBLOCKS_CHECK(spec.ok(), spec.status().ToString());
  return {.spec = *spec, .layer_names = {"window"}};
}

KvCacheGroup CrossGroup(int64_t block_size) {
  const auto spec =
      CrossAttentionSpec::Create({.block_size = block_size, .num_kv_heads = 1, .head_size = 8});
  KVBLOCKS_CHECK(spec.ok(), spec.status().ToString());
  return {.spec = *spec, .layer_names = {"cross"}};
}

KvCacheGroup StateGroup(int64_t block_size, int64_t num_checkpoint_blocks, MambaCacheMode mode) {
  const auto spec = MambaSpec::Create({.block_size = block_size,
                                       .states = {{.shape = {8}, .dtype = DataType::kFloat32}},
                                       .cache_mode = mode,
                                       .num_checkpoint_blocks = num_checkpoint_blocks});
  KVBLOCKS_CHECK(spec.ok(), spec.status().ToString());
  return {.spec = *spec, .layer_names = {"state"}};
}

void InChunks(int64_t num_chunks, std::vector<int64_t> pages_per_chunk, KvCacheConfig* config) {
  const size_t last = pages_per_chunk.size() - 1;
  NativeLayout native{.num_chunks = num_chunks, .pages_per_chunk = std::move(pages_per_chunk)};
  for (size_t g = 0; g < config->groups.size(); ++g) {
    native.class_of_group.push_back(static_cast<int32_t>(std::min(g, last)));
  }
  config->num_blocks = 1 + num_chunks * native.ids_per_chunk();
  config->native = native;
}

std::vector<int64_t> Document(int64_t length, int64_t first) {
  std::vector<int64_t> ids(static_cast<size_t>(length));
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

absl::StatusOr<bool> VectorTraceReader::Next(TraceRequest& out) {
  if (next_ >= fail_after_) return absl::InvalidArgumentError("trace:7: error: bad row");
  if (next_ >= requests_.size()) return false;
  out = requests_[next_++];
  return true;
}

absl::Status VectorTraceReader::Restart() {
  next_ = 0;
  return absl::OkStatus();
}

Replay::Replay() {
  config.kv_cache.num_blocks = 1000;
  config.kv_cache.groups = {FullGroup(4)};
  config.manager.max_model_len = 100000;
  config.scheduler.max_num_batched_tokens = 100000;
  config.scheduler.async = false;
  config.check_invariants = true;
}

void Replay::Add(const ReplayRequest& r) {
  TraceRequest request;
  request.row = static_cast<int64_t>(requests_.size());
  request.line = request.row + 1;
  request.id = r.id;
  request.arrival_ns = Nanoseconds(r.at);
  request.has_arrival = r.has_arrival;
  request.input_length = r.prompt;
  request.output_length = r.output;
  request.content_ids = r.content;
  request.output_ids = r.output_ids;
  request.priority = r.priority;
  request.session = r.session;
  request.waits_for = r.waits_for;
  request.think_ns = Nanoseconds(r.think);
  request.abort_after_ns = Nanoseconds(r.abort_after);
  request.accepted_drafts = r.accepted;
  request.encoder_tokens = r.encoder;
  requests_.push_back(std::move(request));
}

std::unique_ptr<VectorTraceReader> Replay::MakeReader() {
  std::stable_sort(
      requests_.begin(), requests_.end(),
      [](const TraceRequest& a, const TraceRequest& b) { return a.arrival_ns < b.arrival_ns; });
  TraceInfo info;
  info.format = "test";
  info.block_tokens = 1;
  return std::make_unique<VectorTraceReader>(info, requests_);
}

absl::Status Replay::Run() {
  reader_ = MakeReader();
  const auto one_second = MakeFixedStepTime(kSecond);
  KVBLOCKS_CHECK(one_second.ok(), one_second.status().ToString());
  const StepTimeModel* model = step_time == nullptr ? one_second->get() : step_time;
  line_of_step_.clear();
  std::vector<EngineObserver*> observers = further_observers;
  if (is_watching) observers.insert(observers.begin(), this);
  const auto simulation = Simulation::Create(config, reader_.get(), model, observers);
  if (!simulation.ok()) return simulation.status();
  if (connector != nullptr) (*simulation)->set_connector(connector);
  absl::Status status = (*simulation)->Run();
  result = (*simulation)->result();
  const BlockPool& pool = (*simulation)->manager().pool();
  free_queue = pool.free_queue().Walk();
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    if (pool.block(id).has_key()) keyed_blocks.push_back(id);
  }
  evictions = pool.num_evictions();
  if (pool.retention() != nullptr) retention = TotalsOf(*pool.retention());
  return status;
}

const std::vector<std::string>& Replay::RunAll(const std::vector<ReplayRequest>& requests) {
  for (const ReplayRequest& request : requests) Add(request);
  const absl::Status status = Run();
  EXPECT_TRUE(status.ok()) << status;
  return lines;
}

void Replay::OnArrival(const SimRequest&, SimTime) {
  ++num_arrived_;
  if (reader_ == nullptr) return;
  peak_read_ahead = std::max(peak_read_ahead, reader_->num_read() - num_arrived_);
}

void Replay::OnRejection(const SimRequest& request, SimTime) {
  rejections[request.spec.id] = request.finish_text;
}

void Replay::OnAdmissionAttempt(const AdmissionRecord&, SimTime) { ++admission_attempts; }

void Replay::OnAdmission(const AdmissionRecord& record, SimTime) {
  std::string& text = hits_[record.request];
  if (record.num_hit_tokens > 0) text = absl::StrCat("h", record.num_hit_tokens);
  if (record.num_external_tokens > 0) absl::StrAppend(&text, "+", record.num_external_tokens);
  if (record.is_load) loads_.push_back(absl::StrCat(record.request->spec.id, " ", text));
}

void Replay::OnReadmission(const AdmissionRecord& record, SimTime now) {
  OnAdmission(record, now);
}

void Replay::OnPreemption(const PreemptionRecord& record, SimTime) {
  preempted_.push_back(record.request->spec.id);
}

void Replay::OnStepScheduled(const StepRecord& step) {
  if (step.scheduled.empty() && step.num_preempted == 0 && loads_.empty()) return;
  std::vector<std::string> parts;
  for (const ScheduledRecord& record : step.scheduled) {
    std::string part = absl::StrCat(record.request->spec.id, ":", record.num_tokens);
    if (record.is_admission) absl::StrAppend(&part, hits_[record.request]);
    std::vector<BlockId> blocks;
    for (size_t g = 0; record.num_new_blocks > 0 && g < record.new_blocks.num_groups(); ++g) {
      const auto taken = record.new_blocks.blocks(static_cast<GroupId>(g));
      blocks.insert(blocks.end(), taken.begin(), taken.end());
    }
    absl::StrAppend(&part, " [", absl::StrJoin(blocks, ","), "]");
    parts.push_back(part);
    first_scheduled.try_emplace(record.request->spec.id, Seconds(step.start));
  }
  lines.push_back(
      absl::StrCat(Seconds(step.start), ":", parts.empty() ? "" : " ", absl::StrJoin(parts, ", ")));
  for (const std::string& id : preempted_) absl::StrAppend(&lines.back(), " preempt ", id);
  if (!step.scheduled.empty()) line_of_step_.push_back(lines.size() - 1);
  for (const std::string& load : loads_) absl::StrAppend(&lines.back(), " load ", load);
  loads_.clear();
  hits_.clear();
  preempted_.clear();
}

void Replay::OnStepFinished(const StepRecord& step) {
  device.push_back(absl::StrCat(Seconds(step.device_start), "-", Seconds(step.end)));
  finished_line_ = line_of_step_[static_cast<size_t>(step.step)];
  for (const OutputRecord& output : step.outputs) {
    for (int32_t i = 0; i < output.num_emitted; ++i) {
      token_times[output.request->spec.id].push_back(Seconds(step.end));
    }
  }
}

void Replay::OnFinish(const SimRequest& request, SimTime) {
  const std::string_view reason = FinishReasonName(request.finish_reason);
  ends[request.spec.id] = std::string(reason);
  if (request.finish_reason == FinishReason::kLength) {
    absl::StrAppend(&lines[finished_line_], " fin ", request.spec.id);
  }
}

void AddRandomRequests(uint64_t seed, Replay& replay) {
  std::mt19937_64 random(seed);
  const auto draw = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  for (int i = 0; i < 25; ++i) {
    const int64_t prompt = 1 + draw(30);
    const int64_t shared = draw(static_cast<uint64_t>(prompt) + 1);
    const int64_t stem = 10'000 * draw(3);
    std::vector<int64_t> content;
    for (int64_t t = 0; t < prompt; ++t) {
      content.push_back(t < shared ? stem + t : 100'000 + 1000 * i + t);
    }
    replay.Add({.id = std::to_string(i),
                .prompt = prompt,
                .output = 1 + draw(12),
                .at = static_cast<double>(draw(40)) / 2,
                .content = content,
                .abort_after = draw(5) == 0 ? 0.5 + static_cast<double>(draw(8)) : 0.0});
  }
}

void TightenPool(uint64_t seed, Replay& replay) {
  replay.config.scheduler.max_num_batched_tokens = 8 + static_cast<int64_t>(seed % 20);
  // Long prompts leave room in a step for others, which then miss what is under way.
  if (seed % 2 == 0) replay.config.scheduler.long_prefill_token_threshold = 4;
  replay.config.kv_cache.num_blocks = seed % 3 == 2 ? 40 : 14 + static_cast<int64_t>(seed % 7);
  if (seed % 3 == 1) replay.config.manager.use_eagle = true;
  if (seed % 3 == 2) replay.config.kv_cache.groups = {FullGroup(4), WindowGroup(4, 6)};
}

}  // namespace kvblocks::sim
