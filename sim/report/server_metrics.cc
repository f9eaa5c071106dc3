#include "sim/report/server_metrics.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/report/pool_metrics.h"

namespace kvblocks::sim {
namespace {

// The buckets of vLLM 0.19 to 0.33, in seconds.
constexpr double kFirstTokenBounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                        20,    40,    80,   160,  640,  2560};
constexpr double kTokenBounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                   0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
constexpr double kRequestBounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,  2.5, 5,   10,  15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
constexpr double kStepBounds[] = {1,   8,   16,   32,   64,   128,  256,
                                  512, 1024, 2048, 4096, 8192, 16384};
constexpr double kAnswerBounds[] = {1, 2, 5, 10, 20};
constexpr double kPreemptionBounds[] = {1, 2, 3, 4, 5, 10, 20};

// 1, 2, 5, 10, ... up to the longest sequence.
std::vector<double> LengthBounds(int64_t max_model_len) {
  std::vector<double> bounds;
  const auto most = static_cast<double>(max_model_len);
  for (double power = 1; power <= most; power *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      if (digit * power <= most) bounds.push_back(digit * power);
    }
  }
  return bounds;
}

}  // namespace

// In the order of Histogram.
const std::array<ServerMetrics::HistogramName, ServerMetrics::kNumHistograms>
    ServerMetrics::kHistograms = {{
        {"vllm:time_to_first_token_seconds", "Time to first token.", kFirstTokenBounds},
        {"vllm:inter_token_latency_seconds", "Gaps between a request's tokens.", kTokenBounds},
        {"vllm:request_time_per_output_token_seconds",
         "Mean gap of a finished request; 0 of one token.", kTokenBounds},
        {"vllm:e2e_request_latency_seconds", "Arrival to last token.", kRequestBounds},
        {"vllm:request_queue_time_seconds", "Arrival to first scheduling.", kRequestBounds},
        {"vllm:request_inference_time_seconds", "First scheduling to last token.", kRequestBounds},
        {"vllm:request_prefill_time_seconds", "First scheduling to first token.", kRequestBounds},
        {"vllm:request_decode_time_seconds", "First token to last token.", kRequestBounds},
        {"vllm:request_prefill_kv_computed_tokens",
         "Prompt tokens of a finished request that were computed, not hit.", {}},
        {"vllm:request_prompt_tokens", "Prompt tokens of a finished request.", {}},
        {"vllm:request_generation_tokens", "Output tokens of a finished request.", {}},
        {"vllm:request_max_num_generation_tokens",
         "Output tokens of the longest answer of a finished request.", {}},
        {"vllm:request_params_n", "Answers that a finished request asked for.", kAnswerBounds},
        {"vllm:request_params_max_tokens",
         "The most output tokens that a finished request might have had.", {}},
        {"vllm:request_num_preemptions", "Preemptions of a finished request.", kPreemptionBounds},
        {"vllm:iteration_tokens_total",
         "Per step: what was not hit of the prompts whose first token came, and output tokens.",
         kStepBounds},
        {"kvsim_step_tokens", "Tokens computed per step.", kStepBounds},
    }};

ServerMetrics::ServerMetrics(Options options)
    : options_(std::move(options)), tick_(options_.tick), next_tick_(0) {
  for (size_t h = 0; h < kNumHistograms; ++h) {
    const HistogramName& row = kHistograms[h];
    Buckets& buckets = buckets_[h];
    buckets.bounds = row.bounds.empty() ? LengthBounds(options_.max_model_len)
                                        : std::vector<double>(row.bounds.begin(), row.bounds.end());
    const double scale = row.is_time() ? static_cast<double>(kSecond) : 1;
    for (const double b : buckets.bounds) buckets.limits.push_back(std::llround(b * scale));
    state_.histograms[h].counts.assign(buckets.limits.size() + 1, 0);
  }
  state_.accepted_drafts.assign(static_cast<size_t>(options_.num_draft_tokens), 0);
}

void ServerMetrics::Observe(Histogram histogram, int64_t value, int64_t count) {
  const std::vector<int64_t>& limits = buckets_[histogram].limits;
  HistogramState& state = state_.histograms[histogram];
  const auto it = std::ranges::lower_bound(limits, value);
  state.counts[static_cast<size_t>(it - limits.begin())] += count;
  state.count += count;
  state.sum += static_cast<__int128>(value) * count;
}

void ServerMetrics::Advance(SimTime now) {
  if (options_.tick > 0) {
    while (next_tick_ <= now) {
      state_.time = next_tick_;
      points_.push_back(state_);
      if (points_.size() >= options_.max_points) {
        for (size_t i = 2; i < points_.size(); i += 2) points_[i / 2] = std::move(points_[i]);
        points_.resize((points_.size() + 1) / 2);
        tick_ = 2 * std::min(tick_, kMaxSimTime / 2);
        next_tick_ = points_.back().time;
      }
      next_tick_ = CheckedAdd(next_tick_, tick_).value_or(INT64_MAX);
    }
  }
  state_.time = std::max(state_.time, now);
}

void ServerMetrics::ReadPool() {
  const PoolBlocks blocks = CountPoolBlocks(manager_->pool());
  state_.gauges[kUsed] = blocks.referenced;
  state_.gauges[kCached] = blocks.resident - blocks.referenced;
  state_.gauges[kFree] = blocks.usable - blocks.resident;
  state_.counters[kEvictions] = manager_->pool().num_evictions();
}

// --- Events ---

void ServerMetrics::OnRunStart(const RunInfo& info) {
  manager_ = info.manager;
  usable_blocks_ = CountPoolBlocks(manager_->pool()).usable;
  ReadPool();
}

void ServerMetrics::OnArrival(const SimRequest&, SimTime now) {
  Advance(now);
  ++state_.gauges[kWaiting];
}

void ServerMetrics::OnAdmissionAttempt(const AdmissionRecord& record, SimTime now) {
  Advance(now);
  if (!options_.count_attempts) return;
  Count(kQueries, record.num_queried_tokens);
  Count(kHits, record.num_hit_tokens);
}

void ServerMetrics::OnAdmission(const AdmissionRecord& record, SimTime now) {
  Advance(now);
  ++state_.gauges[kRunning];
  --state_.gauges[kWaiting];
  if (options_.count_attempts) return;
  Count(record.is_resume ? kResumeQueries : kQueries, record.num_queried_tokens);
  Count(record.is_resume ? kResumeHits : kHits, record.num_hit_tokens);
  if (record.is_resume || !options_.has_connector) return;
  Count(kExternalQueries, record.num_queried_tokens - record.num_hit_tokens);
  Count(kExternalHits, record.num_external_tokens);
}

void ServerMetrics::OnMisses(const AdmissionRecord& record, const AdmissionMisses& misses,
                             const RequestProgress&, SimTime now) {
  Advance(now);
  if (record.is_resume) return;
  for (size_t i = 0; i < kNumMissReasons; ++i) {
    state_.counters[static_cast<size_t>(kFirstMiss) + i] += misses.blocks[i];
  }
}

void ServerMetrics::OnPreemption(const PreemptionRecord&, SimTime now) {
  Advance(now);
  Count(kPreemptions, 1);
  --state_.gauges[kRunning];
  ++state_.gauges[kWaiting];
}

void ServerMetrics::OnStepScheduled(const StepRecord& step) {
  Advance(step.start);
  ReadPool();
}

void ServerMetrics::OnFirstToken(const SimRequest& request, const RequestProgress& progress,
                                 SimTime ttft, SimTime now) {
  Advance(now);
  Observe(kTtft, ttft);
  Count(kPromptTokens, request.num_prompt);
  // What came first was known from the beginning, so hits lie in the prompt.
  const int64_t hits = std::min(progress.num_hit_tokens, request.num_prompt);
  const int64_t external = std::min(progress.num_external_tokens, request.num_prompt - hits);
  Count(kPromptTokensCached, hits + external);
  Count(kPromptTokensExternal, external);
}

void ServerMetrics::OnGaps(SimTime gap, int64_t count, SimTime now) {
  Advance(now);
  Observe(kItl, gap, count);
}

void ServerMetrics::OnStepFinished(const StepRecord& step) {
  Advance(step.end);
  int64_t emitted = step.num_skipped;
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    const ScheduledRecord& record = step.scheduled[i];
    const OutputRecord& output = step.outputs[i];
    emitted += output.num_emitted;
    if (record.num_verified_drafts == 0) continue;
    Count(kDrafts, record.is_padded ? 0 : 1);
    Count(kDraftTokens, record.num_verified_drafts);
    Count(kAcceptedTokens, output.num_accepted_drafts);
    const auto accepted = static_cast<size_t>(output.num_accepted_drafts);
    for (size_t d = 0; d < std::min(accepted, state_.accepted_drafts.size()); ++d) {
      ++state_.accepted_drafts[d];
    }
  }
  Count(kGenerationTokens, emitted);
  Count(kSteps, 1);
  // In a pipeline steps run side by side.
  Count(kBusyPicoseconds, step.end - std::max(step.device_start, device_until_));
  device_until_ = step.end;
  Count(kPrefillTokens, step.num_prefill_tokens);
  Count(kDecodeTokens, step.num_decode_tokens);
  const int64_t prompts = state_.counters[kPromptTokens] - state_.counters[kPromptTokensCached] -
                          computed_prompts_at_last_step_;
  computed_prompts_at_last_step_ += prompts;
  Observe(kIterationTokens, prompts + emitted);
  Observe(kStepTokens, step.num_tokens);
  ReadPool();
}

void ServerMetrics::OnRow(const RequestRow& row) {
  if (row.progress == nullptr) return;  // never reached the server
  Advance(row.end);
  const SimRequest& request = *row.request;
  --state_.gauges[row.progress->is_running ? kRunning : kWaiting];
  switch (request.finish_reason) {
    case FinishReason::kRejected:
      Count(kRejections, 1);
      return;
    case FinishReason::kAbort:
      Count(kAborts, 1);
      ReadPool();
      return;
    case FinishReason::kStop:
      Count(kStops, 1);
      break;
    case FinishReason::kLength:
      Count(kLengths, 1);
      break;
    default:
      Count(kErrors, 1);
      ReadPool();
      return;
  }
  if (!row.latency) return;
  const RequestProgress& progress = *row.progress;
  Observe(kTpot, row.latency->tpot.value_or(0));
  Observe(kE2e, row.latency->e2e);
  Observe(kQueue, row.latency->queueing);
  Observe(kInference, progress.last_output - progress.first_scheduled);
  Observe(kPrefill, row.latency->prefill);
  Observe(kDecode, progress.last_output - progress.first_output);
  Observe(kPrefillKvTokens,
          request.num_prompt - std::min(progress.num_hit_tokens + progress.num_external_tokens,
                                        request.num_prompt));
  Observe(kPromptLength, request.num_prompt);
  Observe(kOutputLength, progress.num_outputs);
  Observe(kRequestPreemptions, request.num_preemptions);
  if (options_.is_told_parameters) return;
  OnMaxTokens(request.max_output, row.end);
  OnAnswers(1, progress.num_outputs, row.end);
}

void ServerMetrics::OnMaxTokens(int64_t max_tokens, SimTime now) {
  Advance(now);
  Observe(kMaxTokens, max_tokens);
}

void ServerMetrics::OnAnswers(int64_t count, int64_t most_tokens, SimTime now) {
  Advance(now);
  Observe(kAnswers, count);
  Observe(kMostOutput, most_tokens);
}

void ServerMetrics::OnRunEnd(SimTime now) { Advance(now); }

}  // namespace kvblocks::sim
