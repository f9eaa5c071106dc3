#include "sim/commands/replay_setup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_spec.h"
#include "sim/commands/model_plan.h"
#include "sim/commands/option_table.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

absl::Status SetDuration(std::string_view flag, const std::string& text, SimTime low,
                         SimTime* out) {
  const auto time = ParseDuration(text);
  if (!time.ok()) return BadOption(flag, text, "a time with a unit, like 20ms or 1.5s");
  if (*time < low) return BadOption(flag, text, "more than 0s");
  *out = *time;
  return absl::OkStatus();
}

absl::Status SetRatio(std::string_view flag, const std::string& text, Rational* out) {
  const auto ratio = ParseRational(text);
  if (!ratio.ok() || ratio->numerator <= 0)
    return BadOption(flag, text, "a ratio above 0, like 0.5 or 3/2");
  *out = *ratio;
  return absl::OkStatus();
}

// Traces count nanoseconds.
absl::Status SetTraceTime(std::string_view flag, const std::string& text,
                          std::optional<int64_t>* out) {
  if (text.empty()) return absl::OkStatus();
  SimTime time;
  KVBLOCKS_RETURN_IF_ERROR(SetDuration(flag, text, 0, &time));
  if (time % kNanosecond != 0) return BadOption(flag, text, "whole nanoseconds");
  *out = time / kNanosecond;
  return absl::OkStatus();
}

absl::Status SetAcceptance(const ReplayConfig& config, SchedulerOptions* scheduler) {
  const std::string& text = config.acceptance();
  const auto bad = [&] {
    return BadOption("--acceptance", text,
               "fixed:A with 0 <= A <= drafts, iid:P or table:P1,P2,... with one share from 0 to 1 "
               "per draft");
  };
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (parts.size() != 2) return bad();
  AcceptanceModel model;
  model.seed = config.seed();
  // Without drafts nothing is accepted, but the model must be one.
  int64_t num_drafts = config.num_draft_tokens();
  if (parts[0] == "fixed") {
    model.kind = AcceptanceModel::Kind::kFixed;
    if (!absl::SimpleAtoi(parts[1], &model.fixed)) return bad();
    if (num_drafts == 0) num_drafts = model.fixed;
  } else if (parts[0] == "iid" || parts[0] == "table") {
    model.kind = parts[0] == "iid" ? AcceptanceModel::Kind::kIid : AcceptanceModel::Kind::kTable;
    const std::vector<std::string> values = absl::StrSplit(parts[1], ',');
    for (const std::string& value : values) {
      double probability;
      if (!absl::SimpleAtod(value, &probability)) return bad();
      model.probabilities.push_back(probability);
    }
    if (num_drafts == 0 && parts[0] == "table") num_drafts = static_cast<int64_t>(values.size());
  } else {
    return bad();
  }
  if (!Validate(model, num_drafts).ok()) return bad();
  if (config.num_draft_tokens() > 0) scheduler->acceptance = std::move(model);
  return absl::OkStatus();
}

// What an older version has not learnt yet is refused, never ignored.
absl::Status CheckEngineHas(const ReplayConfig& config) {
  if (*ParseEngineVersion(config.engine()) >= EngineVersion::kVllm033) return absl::OkStatus();
  const struct {
    const char* flag;
    bool is_set;
  } newer[] = {
      {"--max-num-scheduled-tokens", config.max_num_scheduled_tokens() > 0},
      {"--max-num-active-seqs", config.max_num_active_seqs() > 0},
      {"--adaptive-prefill-threshold", config.adaptive_prefill_threshold()},
      {"--prefill-schedule-interval", config.prefill_schedule_interval() > 1},
      {"--lookahead-hashes", config.lookahead_hashes()},
      {"--async with --pipeline-parallel", config.async() && config.pipeline_parallel() > 1}};
  for (const auto& option : newer) {
    if (!option.is_set) continue;
    return InvalidArgument(option.flag, ": set for --engine=", config.engine(),
                           ", expected vllm-0.33 or newer");
  }
  return absl::OkStatus();
}

absl::Status SetScheduler(const ReplayConfig& config, SimulationConfig* simulation) {
  SchedulerOptions& scheduler = simulation->scheduler;
  scheduler.max_num_batched_tokens = config.max_num_batched_tokens();
  KVBLOCKS_ASSIGN_OR_RETURN(scheduler.retention, AsFlag(ParseRetentionRules(config.retain())));
  scheduler.max_num_scheduled_tokens = config.max_num_scheduled_tokens();
  scheduler.max_num_seqs = config.max_num_seqs();
  scheduler.max_num_active_seqs = config.max_num_active_seqs();
  scheduler.adaptive_prefill_threshold = config.adaptive_prefill_threshold();
  scheduler.prefill_schedule_interval = config.prefill_schedule_interval();
  scheduler.long_prefill_token_threshold = config.long_prefill_threshold();
  scheduler.enable_chunked_prefill = config.chunked_prefill();
  const auto policy = ParseSchedulingPolicy(config.policy());
  if (!policy) return BadOption("--policy", config.policy(), "one of those in --help");
  scheduler.policy = *policy;
  scheduler.policy_seed = config.seed();
  scheduler.reserve_full_isl = config.reserve_full_isl();
  scheduler.async = config.async();
  scheduler.pipeline_stages = config.pipeline_parallel();
  scheduler.too_big = config.too_big() == "run" ? TooBigRequest::kRun : TooBigRequest::kReject;
  if (config.num_draft_tokens() >= config.max_num_batched_tokens()) {
    return BadOption("--num-draft-tokens", absl::StrCat(config.num_draft_tokens()),
               absl::StrCat("less than --max-num-batched-tokens, which is ",
                            config.max_num_batched_tokens()));
  }
  if (absl::Status status = ApplyDrafts(DraftOptionsOf(config), simulation); !status.ok()) {
    return InOptionWords(status);
  }
  if (config.lookahead_tokens() >= 0) scheduler.num_lookahead_tokens = config.lookahead_tokens();
  // Attempts that only fail again are counted only by who asks for them.
  scheduler.exact_steps = config.exact_steps() || config.count() == "vllm-legacy";
  simulation->zero_output = config.zero_output() == "skip"      ? ZeroOutput::kSkip
                            : config.zero_output() == "prefill" ? ZeroOutput::kPrefill
                                                                : ZeroOutput::kOne;
  simulation->concurrency = config.concurrency();
  simulation->check_invariants = config.check_invariants();
  simulation->progress_interval = 1024;
  struct {
    const char* flag;
    const std::string& text;
    SimTime* out;
  } const times[] = {
      {"--max-queue-time", config.max_queue_time(), &simulation->max_queue_time},
      {"--start-jitter", config.start_jitter(), &simulation->start_jitter},
      {"--client-rtt", config.client_rtt(), &simulation->start_delay},
      {"--empty-step-time", config.empty_step_time(), &simulation->empty_step_time},
      {"--host-time-per-step", config.host_time_per_step(), &simulation->host_time_per_step},
      {"--host-time-per-request", config.host_time_per_request(),
       &simulation->host_time_per_request},
  };
  for (const auto& time : times) {
    KVBLOCKS_RETURN_IF_ERROR(SetDuration(time.flag, time.text, 0, time.out));
  }
  return SetAcceptance(config, &scheduler);
}

// Inputs of the encoder, for groups of cross attention.
absl::Status SetEncoder(const ReplayConfig& config, SimulationConfig* simulation) {
  const std::vector<KvCacheGroup>& groups = simulation->kv_cache.groups;
  const bool has_cross = std::ranges::any_of(groups, [](const KvCacheGroup& group) {
    return group.spec.kind() == KvCacheSpecKind::kCrossAttention;
  });
  const int64_t most = config.max_encoder_tokens(), tokens = config.encoder_tokens();
  if (!has_cross) {
    constexpr const char* kNone = ": no KV-cache group is of cross attention";
    return CheckRules(
        {{most != 0, "--max-encoder-tokens", absl::StrCat(most), absl::StrCat("0", kNone)},
         {tokens != -1, "--encoder-tokens", absl::StrCat(tokens), absl::StrCat("none", kNone)}});
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckRules(
      {{config.prefix_caching(), "--prefix-caching", "true",
        "--no-prefix-caching with cross attention: what is cached of a decoder depends on the "
        "encoder's input, which traces do not name"},
       {config.chunked_prefill(), "--chunked-prefill", "true",
        "--no-chunked-prefill with cross attention: engines compute such prompts whole"},
       {config.long_prefill_threshold() > 0, "--long-prefill-threshold",
        absl::StrCat(config.long_prefill_threshold()),
        "0 with cross attention: engines compute such prompts whole"},
       {!config.tier().empty(), "--tier", config.tier(),
        "nothing with cross attention: what encoders made is not loaded from elsewhere"},
       {most == 0, "--max-encoder-tokens", "0",
        "the longest input of the encoder, as groups are of cross attention (Whisper's is 1500)"},
       {tokens > most, "--encoder-tokens", absl::StrCat(tokens),
        absl::StrCat("at most --max-encoder-tokens, which is ", most)}}));
  simulation->manager.max_encoder_tokens = most;
  simulation->scheduler.num_encoder_tokens = tokens < 0 ? most : tokens;
  return absl::OkStatus();
}

absl::Status SetTiers(const ReplayConfig& config, ReplaySetup* setup) {
  const int64_t num_devices = config.tensor_parallel();
  KVBLOCKS_ASSIGN_OR_RETURN(auto tiers, AsFlag(ParseTiers(config.tier(), num_devices)));
  if (tiers.empty()) return absl::OkStatus();
  for (const SimTier& tier : tiers) {
    if (num_devices == 1 || tier.options.capacity_bytes == 0) continue;
    const double gib = static_cast<double>(tier.options.capacity_bytes) / (1 << 30);
    absl::StrAppendFormat(&setup->note,
                          "%stier %s: %.4g GiB of each of %d devices, %.4g GiB in all",
                          setup->note.empty() ? "" : "; ", tier.options.name, gib, num_devices,
                          gib * static_cast<double>(num_devices));
  }
  if (!config.prefix_caching()) {
    return BadOption("--tier", config.tier(), "nothing with --no-prefix-caching");
  }
  if (config.pipeline_parallel() > 1) {
    return BadOption("--tier", config.tier(), "nothing with --pipeline-parallel");
  }
  const SimulationConfig& simulation = setup->simulation;
  TierConnector::Options options;
  options.tiers = std::move(tiers);
  options.mode = config.load() == "sync"        ? LoadMode::kSync
                 : config.load() == "layerwise" ? LoadMode::kLayerwise
                                                : LoadMode::kAsync;
  options.load_if_faster = config.load_if() == "faster";
  options.load_failures = config.load_failures();
  options.seed = config.seed();
  if (options.load_failures > 0 && options.mode != LoadMode::kAsync) {
    return BadOption("--load-failures", absl::StrCat(config.load_failures()),
               absl::StrCat("0 with --load=", config.load(),
                            ": only asynchronous loads can fail here"));
  }
  if (options.load_failures > 0 && config.load_failure_policy() == "fail") {
    setup->simulation.scheduler.load_failure_policy = LoadFailurePolicy::kFail;
  }
  // Recorded steps do not say what another step would take, and each question uses one up.
  if (config.time() != "recorded") options.step_time = setup->step_time.get();
  if (options.step_time == nullptr && options.load_if_faster) {
    return BadOption("--load-if", "faster",
                     "always with --time=recorded, which does not know what computing would take");
  }
  options.group_block_bytes = GroupBlockBytes(simulation);
  if (options.tiers.front().options.write_policy == offload::WritePolicy::kOnEvict) {
    setup->simulation.manager.enable_events = true;
  }
  setup->tiers = std::move(options);
  return absl::OkStatus();
}

absl::Status SetMetrics(const ReplayConfig& config, ReplayMetricsOptions* metrics) {
  KVBLOCKS_RETURN_IF_ERROR(SetDuration("--tick", config.tick(), 1, &metrics->series_tick));
  KVBLOCKS_RETURN_IF_ERROR(
      SetDuration("--client-rtt", config.client_rtt(), 0, &metrics->latency.client_rtt));
  if (metrics->latency.client_rtt > 3600 * kSecond) {
    return BadOption("--client-rtt", config.client_rtt(), "at most 1h");
  }
  metrics->latency.stall_factor = config.stall();
  metrics->top_prefixes = static_cast<size_t>(config.top_prefixes());
  metrics->hit_rates.legacy_counters = config.count() == "vllm-legacy";
  KVBLOCKS_ASSIGN_OR_RETURN(metrics->hit_rates.warmup, AsFlag(ParseWarmup(config.warmup())));
  KVBLOCKS_ASSIGN_OR_RETURN(metrics->cooldown, AsFlag(ParseWarmup(config.cooldown(), "cooldown")));
  KVBLOCKS_ASSIGN_OR_RETURN(metrics->objectives, AsFlag(ParseObjectives(config.slo())));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TraceReaderOptions> MakeReaderOptions(const ReplayConfig& config) {
  TraceReaderOptions reader;
  reader.format = config.trace_format();
  reader.trace_block_size = config.trace_block_size();
  reader.fields = config.fields();
  reader.closed_loop = config.closed_loop();
  reader.sharegpt = config.sharegpt();
  reader.bytes_per_token = config.bytes_per_token();
  reader.rag_order = config.rag_order();
  reader.rag_lengths = config.rag_lengths();
  reader.model_filter = config.model_filter();
  reader.log_type = config.log_type();
  reader.reorder_window = config.reorder();
  reader.require_sorted = config.require_sorted();
  reader.skip_bad_rows = config.on_bad_row() == "skip";
  reader.max_errors = static_cast<int>(config.max_errors());
  reader.ids_are_unique = config.ids_are_unique();
  reader.zstd_window_log = static_cast<int>(config.zstd_window_log());
  reader.spread = config.spread();
  reader.link_turns = config.link_turns();
  reader.rebase = config.rebase();
  if (config.limit() > 0) reader.limit = config.limit();
  KVBLOCKS_RETURN_IF_ERROR(SetTraceTime("--start", config.start(), &reader.start_ns));
  KVBLOCKS_RETURN_IF_ERROR(SetTraceTime("--end", config.end(), &reader.end_ns));
  if (reader.start_ns && reader.end_ns && *reader.start_ns >= *reader.end_ns) {
    return BadOption("--end", config.end(),
                     absl::StrCat("more than --start, which is ", config.start()));
  }
  KVBLOCKS_RETURN_IF_ERROR(SetRatio("--sample", config.sample(), &reader.sample));
  if (reader.sample.numerator > reader.sample.denominator) {
    return BadOption("--sample", config.sample(), "at most 1");
  }
  KVBLOCKS_RETURN_IF_ERROR(SetRatio("--speedup", config.speedup(), &reader.speedup));
  return reader;
}

std::vector<int64_t> GroupBlockBytes(const SimulationConfig& simulation) {
  std::vector<int64_t> bytes;
  for (const KvCacheGroup& group : simulation.kv_cache.groups) {
    const auto num_layers = static_cast<int64_t>(std::max<size_t>(group.layer_names.size(), 1));
    const bool is_shared = group.spec.kind() != KvCacheSpecKind::kMamba;
    const int64_t ranks = is_shared ? std::max<int64_t>(simulation.ranks_per_block, 1) : 1;
    bytes.push_back(std::max<int64_t>(1, num_layers * group.spec.page_bytes() / ranks));
  }
  return bytes;
}

SimulationConfig ConfigFor(const ReplaySetup& setup, const TraceReader& reader) {
  SimulationConfig config = setup.simulation;
  if (setup.config.zero_output() == "auto") {
    const auto& notes = reader.info().notes;
    const auto note = notes.find("zero_output");
    if (note != notes.end() && note->second == "skip") config.zero_output = ZeroOutput::kSkip;
  }
  return config;
}

absl::Status RefuseTiers(const ReplaySetup& setup) {
  if (!setup.tiers) return absl::OkStatus();
  return BadOption("--tier", setup.config.tier(),
             "nothing: only kvsim replay, explain, verify, serve and searches have tiers");
}

absl::StatusOr<std::unique_ptr<TierConnector>> MakeTiers(const ReplaySetup& setup, int64_t replica,
                                                         const TierConnector* with) {
  if (!setup.tiers) return nullptr;
  TierConnector::Options options = *setup.tiers;
  options.seed += static_cast<uint64_t>(replica);  // each draws failures of its own
  return AsFlag(TierConnector::Create(std::move(options), with));
}

absl::Status AttachTiers(const KvCacheManager& manager, TierConnector* tiers) {
  const absl::Status status = tiers->Attach(manager);
  if (status.ok()) return status;
  return InvalidArgument("--tier: ", status.message());
}

absl::StatusOr<std::unique_ptr<Simulation>> MakeSimulation(
    const ReplaySetup& setup, TraceReader* reader, const std::vector<EngineObserver*>& observers,
    TierConnector* tiers) {
  if (tiers == nullptr) {
    KVBLOCKS_RETURN_IF_ERROR(RefuseTiers(setup));
  }
  ReplicaSetup replica = {ConfigFor(setup, *reader), setup.step_time.get(), observers};
  // First, so that the others can ask it what it found.
  if (tiers != nullptr) replica.observers.insert(replica.observers.begin(), tiers);
  return MakeSimulation(replica, reader, tiers);
}

absl::StatusOr<std::unique_ptr<Simulation>> MakeSimulation(const ReplicaSetup& replica,
                                                           TraceReader* reader,
                                                           TierConnector* tiers) {
  auto simulation =
      Simulation::Create(replica.config, reader, replica.step_time, replica.observers);
  if (!simulation.ok()) return InOptionWords(simulation.status());
  if (tiers != nullptr) {
    KVBLOCKS_RETURN_IF_ERROR(AttachTiers((*simulation)->manager(), tiers));
    (*simulation)->set_connector(tiers);
  }
  return simulation;
}

absl::StatusOr<ReplaySetup> MakeReplaySetup(const ReplayConfig& asked, SeveralRanks ranks) {
  ReplaySetup setup;
  ReplayConfig& config = setup.config = asked;
  if (ranks == SeveralRanks::kRefused && config.data_parallel() > 1) {
    return BadOption("--data-parallel", absl::StrCat(config.data_parallel()),
                     "1: this command runs one engine; kvsim replay and explain take ranks");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(setup.reader, MakeReaderOptions(config));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto hardware, FindModelOnDevice(config));
  setup.model = hardware.model.name;
  setup.device = hardware.device.name;
  setup.node_gb_per_s = hardware.device.node_gb_per_s;
  setup.is_lockstep = IsInLockstep(config, hardware.model);
  KVBLOCKS_RETURN_IF_ERROR(ApplyEnginePreset(config.engine(), &setup.simulation));
  KVBLOCKS_RETURN_IF_ERROR(CheckEngineHas(config));
  if (setup.is_lockstep && !config.tier().empty()) {
    return BadOption(
        "--tier", config.tier(),
        "nothing with --data-parallel of a model with experts: ranks in lockstep do not "
        "load from tiers");
  }
  KVBLOCKS_RETURN_IF_ERROR(ChooseLimits(hardware.device, &config));
  KVBLOCKS_RETURN_IF_ERROR(SetPool(config, hardware, &setup));
  KVBLOCKS_RETURN_IF_ERROR(SetScheduler(config, &setup.simulation));
  KVBLOCKS_RETURN_IF_ERROR(SetEncoder(config, &setup.simulation));
  KVBLOCKS_ASSIGN_OR_RETURN(auto clock, MakeStepTime(config, hardware));
  setup.step_time = std::move(clock.model);
  setup.latency_is_meaningful = clock.latency_is_meaningful;
  setup.note = std::move(clock.note);
  KVBLOCKS_RETURN_IF_ERROR(SetTiers(config, &setup));
  KVBLOCKS_RETURN_IF_ERROR(SetMetrics(config, &setup.metrics));
  if (absl::Status status = Validate(setup.simulation); !status.ok()) return InOptionWords(status);
  return setup;
}

}  // namespace kvblocks::sim
