#include "kvblocks/tests/conformance/schedule_workload.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/drafting.h"
#include "kvblocks/specs/kv_cache_spec.h"

namespace kvblocks::conformance {
namespace {

constexpr int64_t kFirstOutputDocument = 100000;

absl::StatusOr<KvCacheSpec> MakeGroupSpec(const ScheduleGroup& group) {
  // Only what the block manager looks at; heads are tiny.
  constexpr int64_t kHeads = 1, kHeadSize = 16;
  if ((group.kind == "sliding_window" || group.kind == "chunked_local_attention") &&
      group.window == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a ", group.kind, " group has no window"));
  }
  if (group.kind == "full_attention") {
    return FullAttentionSpec::Create(
        {.block_size = group.block_size, .num_kv_heads = kHeads, .head_size = kHeadSize});
  }
  if (group.kind == "sliding_window") {
    return SlidingWindowSpec::Create({.block_size = group.block_size,
                                      .num_kv_heads = kHeads,
                                      .head_size = kHeadSize,
                                      .sliding_window = group.window});
  }
  if (group.kind == "chunked_local_attention") {
    return ChunkedLocalAttentionSpec::Create({.block_size = group.block_size,
                                              .num_kv_heads = kHeads,
                                              .head_size = kHeadSize,
                                              .attention_chunk_size = group.window});
  }
  if (group.kind == "mamba") {
    return MambaSpec::Create({.block_size = group.block_size,
                              .states = {{{kHeadSize}}},
                              .cache_mode = MambaCacheMode::kAlign});
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown kind of group \"", group.kind, "\""));
}

absl::StatusOr<sim::DraftOptions> MakeDraftOptions(const ScheduleConfig& config) {
  sim::DraftOptions drafts;
  drafts.num_draft_tokens = config.num_drafts;
  if (config.num_drafts == 0) return drafts;
  const auto drafter = sim::ParseDrafter(config.method);
  if (!drafter) {
    return absl::InvalidArgumentError(absl::StrCat("unknown method \"", config.method, "\""));
  }
  drafts.drafter = *drafter;
  drafts.lookahead_hashes = config.lookahead_hashes;
  return drafts;
}

}  // namespace

absl::StatusOr<sim::SimulationConfig> MakeSimulationConfig(const Schedule& schedule) {
  const ScheduleConfig& config = schedule.config;
  sim::SimulationConfig out;
  if (absl::Status status = sim::ApplyEnginePreset("vllm-0.33", &out); !status.ok()) return status;
  out.kv_cache.num_blocks = config.num_blocks;
  bool has_states = false;
  int64_t state_size = 1;
  for (size_t g = 0; g < config.groups.size(); ++g) {
    auto spec = MakeGroupSpec(config.groups[g]);
    if (!spec.ok()) return spec.status();
    out.kv_cache.groups.push_back({.spec = *std::move(spec),
                                   .layer_names = {absl::StrCat("layer.", g)},
                                   .is_draft = config.groups[g].is_draft});
    if (config.groups[g].kind != "mamba") continue;
    has_states = true;
    if (config.block_size % config.groups[g].block_size == 0) {
      state_size = std::lcm(state_size, config.groups[g].block_size);
    }
  }
  if (has_states && state_size != config.block_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("field \"block_size\" is ", config.block_size,
                     ", expected the least common multiple of those of states, at which the "
                     "simulator ends parts of prompts"));
  }
  out.manager.max_model_len = config.max_model_len;
  out.manager.enable_caching = config.prefix_caching;
  out.manager.watermark = config.watermark;
  out.manager.block_count_formula = BlockCountFormula::kUpstream;  // for the gate
  out.manager.semantics = Semantics::Vllm033Exactly();
  out.manager.semantics.retention_interval = config.retention;
  sim::SchedulerOptions& scheduler = out.scheduler;
  scheduler.async = config.async;
  scheduler.max_num_batched_tokens = config.max_num_batched_tokens;
  scheduler.max_num_seqs = config.max_num_seqs;
  scheduler.max_num_active_seqs = config.max_num_active_seqs.value_or(0);
  scheduler.long_prefill_token_threshold = config.long_prefill_threshold;
  scheduler.adaptive_prefill_threshold = config.adaptive_threshold;
  scheduler.prefill_schedule_interval = config.prefill_interval;
  scheduler.enable_chunked_prefill = config.chunked_prefill;
  scheduler.policy =
      config.priority_policy ? sim::SchedulingPolicy::kPriority : sim::SchedulingPolicy::kFcfs;
  scheduler.reserve_full_isl = config.reserve_full_isl;
  // Pools of recordings are smaller than an engine would start with.
  scheduler.too_big = sim::TooBigRequest::kRun;
  const auto drafts = MakeDraftOptions(config);
  if (!drafts.ok()) return drafts.status();
  if (absl::Status status = sim::ApplyDrafts(*drafts, &out); !status.ok()) return status;
  out.manager.partial_hits = SupportsPartialHits(out.kv_cache, out.manager);
  return out;
}

absl::Status CheckDerived(const ScheduleDerived& recorded, const sim::SimulationConfig& config,
                          const KvCacheManager& manager) {
  const auto blocks = static_cast<double>(config.kv_cache.num_blocks);
  const struct {
    const char* name;
    std::optional<int64_t> recorded;
    int64_t here;
  } values[] = {
      {"lookahead_slots", recorded.lookahead_slots, config.scheduler.num_lookahead_tokens},
      {"hash_lookahead_tokens", recorded.hash_lookahead_tokens,
       config.manager.num_hash_lookahead_tokens},
      {"drop_last_hit_block", recorded.drop_last_hit_block, config.manager.use_eagle},
      {"draft_slots", recorded.draft_slots, config.scheduler.num_draft_slots},
      {"max_in_flight_tokens", recorded.max_in_flight_tokens, sim::MaxInFlightTokens(config)},
      {"steps_in_flight", recorded.steps_in_flight, config.scheduler.async ? 2 : 1},
      {"prefill_lookahead_tokens", recorded.prefill_lookahead_tokens,
       config.manager.prefill_lookahead_tokens},
      {"watermark_blocks", recorded.watermark_blocks,
       static_cast<int64_t>(config.manager.watermark * blocks)},
      {"scheduler_block_size", recorded.scheduler_block_size, manager.scheduler_block_size()},
      {"hash_block_size", recorded.hash_block_size, manager.hash_block_size()},
  };
  for (const auto& value : values) {
    if (!value.recorded || *value.recorded == value.here) continue;
    return absl::InvalidArgumentError(absl::StrCat("field \"derived\": ", value.name, " is ",
                                                   *value.recorded, ", but the simulator derives ",
                                                   value.here));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<sim::TraceRequest>> MakeTraceRequests(const Schedule& schedule) {
  std::map<int64_t, int64_t> length_of;  // of each document
  for (size_t row = 0; row < schedule.requests.size(); ++row) {
    const ScheduleRequest& request = schedule.requests[row];
    for (const TokenSegment& segment : request.prompt) {
      int64_t& length = length_of[segment.document];
      length = std::max(length, segment.start + segment.count);
    }
    int64_t& length = length_of[kFirstOutputDocument + static_cast<int64_t>(row)];
    length = std::max(length, request.num_outputs);
  }
  std::map<int64_t, int64_t> first_number_of;
  int64_t num_numbers = 0;
  for (const auto& [document, length] : length_of) {
    first_number_of[document] = num_numbers;
    num_numbers += length;
    if (num_numbers > std::numeric_limits<uint32_t>::max()) {
      return absl::InvalidArgumentError("the documents have more than 2^32 tokens in all");
    }
  }

  std::vector<sim::TraceRequest> out;
  for (size_t row = 0; row < schedule.requests.size(); ++row) {
    const ScheduleRequest& request = schedule.requests[row];
    sim::TraceRequest trace;
    trace.row = static_cast<int64_t>(row);
    trace.line = trace.row + 1;
    trace.id = absl::StrCat(row);
    trace.arrival_ns = request.arrival * 1000000;
    trace.input_length = request.num_prompt_tokens();
    trace.output_length = request.num_outputs;
    trace.priority = static_cast<int32_t>(request.priority);
    trace.abort_after_ns = request.abort_after * 1000000;
    for (const TokenSegment& segment : request.prompt) {
      const int64_t first = first_number_of[segment.document] + segment.start;
      for (int64_t i = 0; i < segment.count; ++i) trace.content_ids.push_back(first + i);
    }
    const int64_t first_output = first_number_of[kFirstOutputDocument + trace.row];
    for (int64_t i = 0; i < request.num_outputs; ++i) {
      trace.output_ids.push_back(static_cast<uint32_t>(first_output + i));
    }
    // Each verification yields a token, so more entries than output tokens are never used.
    const size_t num_accepted = request.accepted_drafts.size();
    for (size_t i = 0; num_accepted > 0 && i < static_cast<size_t>(request.num_outputs); ++i) {
      trace.accepted_drafts.push_back(
          static_cast<uint32_t>(request.accepted_drafts[i % num_accepted]));
    }
    out.push_back(std::move(trace));
  }
  return out;
}

}  // namespace kvblocks::conformance
