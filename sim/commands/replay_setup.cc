#include "kvblocks/sim/commands/replay_setup.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kvblocks/sim/commands/kv_cache_groups.h"
#include "kvblocks/sim/commands/model_plan.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/commands/step_time_setup.h"
#include "kvblocks/sim/trace/decimal.h"
#include "kvblocks/specs/data_type.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;

absl::Status Bad(absl::string_view flag, const std::string& got, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": got \"", got, "\", expected ", expected));
}

absl::Status SetDuration(absl::string_view flag, const std::string& text, SimTime low,
                         SimTime* out) {
  const auto time = ParseDuration(text);
  if (!time.ok()) return Bad(flag, text, "a time with a unit, like 20ms or 1.5s");
  if (*time < low) return Bad(flag, text, "more than 0s");
  *out = *time;
  return absl::OkStatus();
}

absl::Status SetRatio(absl::string_view flag, const std::string& text, Rational* out) {
  const auto ratio = ParseRational(text);
  if (!ratio.ok() || ratio->numerator <= 0)
    return Bad(flag, text, "a ratio above 0, like 0.5 or 3/2");
  *out = *ratio;
  return absl::OkStatus();
}

// Traces count nanoseconds.
absl::Status SetTraceTime(absl::string_view flag, const std::string& text,
                          std::optional<int64_t>* out) {
  if (text.empty()) return absl::OkStatus();
  SimTime time;
  if (absl::Status status = SetDuration(flag, text, 0, &time); !status.ok()) return status;
  if (time % kNanosecond != 0) return Bad(flag, text, "whole nanoseconds");
  *out = time / kNanosecond;
  return absl::OkStatus();
}

absl::Status SetAcceptance(const ReplayConfig& config, SchedulerOptions* scheduler) {
  const std::string& text = config.acceptance();
  const auto bad = [&] {
    return Bad("--acceptance", text,
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

absl::StatusOr<int64_t> NumBlocksThatFit(const ReplayConfig& config, const ModelOnDevice& hardware,
                                         int64_t block_bytes) {
  const auto of_stages = CacheBytes(config, hardware);
  if (!of_stages.ok()) return of_stages.status();
  const int64_t bytes = of_stages->front();  // of one stage: see SetGivenGroups
  // The null block and one more.
  if (bytes / block_bytes < 2) {
    return absl::ResourceExhaustedError(absl::StrCat("a block takes ", block_bytes,
                                                     " bytes and there are ", bytes,
                                                     "; use smaller blocks or more ranks"));
  }
  return std::min<int64_t>(bytes / block_bytes, kMaxNumBlocks);
}

absl::Status SizeError(const absl::Status& status) {
  return absl::InvalidArgumentError(
      absl::StrCat("--num-blocks=0 sizes the pool by the device: ", status.message()));
}

// Groups as the configuration lists them.
absl::Status SetGivenGroups(const ReplayConfig& config, const ModelOnDevice& hardware,
                            ReplaySetup* setup) {
  if (config.block_size() != 0) {
    return Bad("--block-size", absl::StrCat(config.block_size()),
               "none next to --kv-cache-config, whose groups state theirs");
  }
  if (config.pipeline_parallel() > 1) {
    return Bad("--pipeline-parallel", absl::StrCat(config.pipeline_parallel()),
               "1 next to --kv-cache-config, whose groups are of one stage");
  }
  auto groups = MakeKvCacheGroups(config.kv_cache_config(), config.num_blocks());
  if (!groups.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--kv-cache-config: ", groups.status().message()));
  }
  if (config.match_unit() != 0) {
    return Bad("--match-unit", absl::StrCat(config.match_unit()),
               "none next to --kv-cache-config, which has hash_block_size");
  }
  setup->block_bytes = groups->block_bytes;
  setup->chunk_bytes = groups->chunk_bytes;
  setup->plan = "given";
  if (!groups->sized) {
    const auto fitting = NumBlocksThatFit(config, hardware, setup->block_bytes);
    if (!fitting.ok()) return SizeError(fitting.status());
    groups->config.num_blocks = *fitting;
  }
  setup->simulation.kv_cache = std::move(groups->config);
  return absl::OkStatus();
}

// Groups and sizes as planned for the model's layers. A scheduler may have a higher limit than what
// the pool can hold; the plan is made for the longest that it does.
absl::Status SetPlannedGroups(const ReplayConfig& config, const ModelOnDevice& hardware,
                              ReplaySetup* setup) {
  const auto caches = LayerCachesOf(config, hardware.model);
  if (!caches.ok()) return caches.status();
  std::vector<int64_t> bytes(static_cast<size_t>(config.pipeline_parallel()), 0);
  if (config.num_blocks() == 0) {
    const auto available = CacheBytes(config, hardware);
    if (!available.ok()) return SizeError(available.status());
    bytes = *available;
  }
  PlanOptions options = MakePlanOptions(config, PolicyOf(config), bytes);
  options.match_unit = MatchUnitOf(config, *caches);
  options.longest_automatic_len = config.max_model_len();
  options.limits.max_model_len = 0;
  PlanResult result = MakePlan(*caches, options);
  if (!result.ok()) {
    const absl::Status status = ToStatus(result.errors);
    if (config.num_blocks() == 0) return SizeError(status);
    return absl::InvalidArgumentError(
        absl::StrCat("--num-blocks: got ", config.num_blocks(), ": ", status.message()));
  }
  const Plan& plan = *result.plan;
  setup->simulation.kv_cache = plan.config;
  setup->plan = std::string(PolicyName(plan.policy));
  setup->layout = std::string(LayoutName(plan.layout));
  for (const WorkerPlan& worker : plan.workers) {
    setup->block_bytes = std::max(setup->block_bytes, worker.stride_bytes);
    setup->chunk_bytes = std::max(setup->chunk_bytes, worker.chunk_bytes);
  }
  if (plan.policy == PlanPolicy::kUpstream) {
    setup->simulation.manager.block_count_formula = BlockCountFormula::kUpstream;
  }
  return absl::OkStatus();
}

// What the manager refuses, in terms of the options.
absl::Status SetPartialHits(const ReplayConfig& config, const KvCacheConfig& kv_cache,
                            KvCacheManagerOptions* manager) {
  if (!config.partial_hits()) {
    if (config.match_unit() == 0) return absl::OkStatus();
    return Bad("--match-unit", absl::StrCat(config.match_unit()), "none without --partial-hits");
  }
  if (!config.prefix_caching()) return Bad("--partial-hits", "true", "prefix caching with it");
  const bool has_states =
      std::any_of(kv_cache.groups.begin(), kv_cache.groups.end(), [](const KvCacheGroup& group) {
        return group.spec.kind() == KvCacheSpecKind::kMamba;
      });
  if (!has_states) {
    return Bad("--partial-hits", "true",
               "a model with states (Mamba and its kin): of others hits end at the ends of blocks");
  }
  manager->partial_hits = true;
  return absl::OkStatus();
}

// A pool takes this machine's memory and time, whoever sized it.
absl::Status CheckFittedPool(int64_t num_blocks, const ModelOnDevice& hardware) {
  constexpr int64_t kMostFittedBlocks = int64_t{1} << 26;
  if (num_blocks <= kMostFittedBlocks) return absl::OkStatus();
  return SizeError(absl::ResourceExhaustedError(
      absl::StrCat(hardware.device.name, " with ", hardware.device.memory_gb, " GB holds ",
                   num_blocks, " blocks, expected at most ", kMostFittedBlocks,
                   ", which take 4 GB of this machine's memory (set --num-blocks, or a larger "
                   "--block-size)")));
}

// What the manager refuses, in terms of the options.
absl::Status SetRetention(const ReplayConfig& config, const KvCacheConfig& kv_cache,
                          KvCacheManagerOptions* manager) {
  const int64_t interval = config.retention_interval();
  manager->semantics.retention_interval.reset();
  if (interval < 0) return absl::OkStatus();
  if (config.cache_all_blocks()) {
    return Bad("--retention-interval", absl::StrCat(interval),
               "-1 next to --cache-all-blocks: the first keeps few blocks, the second all");
  }
  const bool is_sparse =
      std::any_of(kv_cache.groups.begin(), kv_cache.groups.end(), [](const KvCacheGroup& group) {
        return group.spec.sliding_window() || group.spec.kind() == KvCacheSpecKind::kMamba;
      });
  if (interval > 0 && !is_sparse) {
    return Bad("--retention-interval", absl::StrCat(interval),
               "-1 or 0: the model has neither windows nor states, and keeps every block");
  }
  manager->semantics.retention_interval = interval;
  return absl::OkStatus();
}

// What finished requests may keep. The rules themselves are the scheduler's.
absl::Status SetRetained(const ReplayConfig& config, const KvCacheConfig& kv_cache,
                         KvCacheManagerOptions* manager) {
  constexpr double kDefaultShare = 0.5;  // as in the option's row
  const double share = config.max_retained_share();
  if (config.retain().empty()) {
    if (RanksRetainedBlocks(manager->eviction_policy)) {
      return Bad("--eviction-policy", config.eviction_policy(),
                 "another one, or --retain beside it: it ranks what that keeps");
    }
    if (share != kDefaultShare) {
      return Bad("--max-retained-share", absl::StrCat(share), "--retain beside it, which it limits");
    }
    return absl::OkStatus();
  }
  const char* without = !manager->enable_caching                           ? "--no-prefix-caching"
                        : manager->free_order != FreeOrder::kUnhashedFirst ? "--free-order=append_all"
                        : kv_cache.native                                  ? "a native layout"
                                                                           : nullptr;
  if (without != nullptr) {
    return Bad("--retain", config.retain(), absl::StrCat("nothing with ", without));
  }
  const auto usable = static_cast<double>(kv_cache.num_blocks - 1);
  if (share * usable < 1) {
    return Bad("--max-retained-share", absl::StrCat(share),
               absl::StrCat("at least ", 1 / usable, " with --retain: one block of ", usable));
  }
  manager->max_retained_share = share;
  return absl::OkStatus();
}

absl::Status SetPool(const ReplayConfig& config, const ModelOnDevice& hardware,
                     ReplaySetup* setup) {
  if (config.num_blocks() == 1) {
    return Bad("--num-blocks", "1",
               "2 or more: the null block takes one; 0 sizes the pool by the device's memory");
  }
  const bool given = config.num_blocks() > 0 || config.kv_cache_config().has_num_blocks();
  if (given && config.kv_memory() > 0) {
    return Bad("--kv-memory", absl::StrCat(config.kv_memory()),
               "0 where the number of blocks is given: both set the size of the pool");
  }
  absl::Status status = config.has_kv_cache_config() ? SetGivenGroups(config, hardware, setup)
                                                     : SetPlannedGroups(config, hardware, setup);
  if (status.ok() && !given) {
    status = CheckFittedPool(setup->simulation.kv_cache.num_blocks, hardware);
  }
  if (!status.ok()) return status;
  setup->num_blocks_source = given ? "given" : DescribeCacheBytes(config, hardware);
  if (given || config.kv_memory() > 0) {
    setup->beside_model_bytes = LeastBesideModel(config, hardware).value_or(-1);
  }
  KvCacheManagerOptions& manager = setup->simulation.manager;
  manager.max_model_len = config.max_model_len();
  manager.enable_caching = config.prefix_caching();
  manager.watermark = config.watermark();
  manager.free_order =
      config.free_order() == "append_all" ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  const auto policy = ParseEvictionPolicy(config.eviction_policy());
  if (!policy.ok()) return policy.status();
  manager.eviction_policy = *policy;
  if (status = SetRetained(config, setup->simulation.kv_cache, &manager); !status.ok()) return status;
  manager.register_unreachable_blocks = config.cache_all_blocks();
  // Planned specs cover the tokens of all ranks; those of given groups are of one rank.
  if (config.has_kv_cache_config()) {
    manager.decode_context_parallel = config.decode_context_parallel();
  } else {
    setup->simulation.ranks_per_block = config.decode_context_parallel();
  }
  manager.semantics.caps_need_before_hits = config.upstream_gate();
  status = SetPartialHits(config, setup->simulation.kv_cache, &manager);
  if (!status.ok()) return status;
  return SetRetention(config, setup->simulation.kv_cache, &manager);
}

// What an older version has not learnt yet is refused, never ignored.
absl::Status CheckEngineHas(const ReplayConfig& config) {
  if (config.partial_hits() &&
      *ParseEngineVersion(config.engine()) < EngineVersion::kVllm025) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--partial-hits: set for --engine=", config.engine(), ", expected vllm-0.25 or newer"));
  }
  if (*ParseEngineVersion(config.engine()) >= EngineVersion::kVllm033) return absl::OkStatus();
  const struct {
    const char* flag;
    bool is_set;
  } newer[] = {{"--max-num-scheduled-tokens", config.max_num_scheduled_tokens() > 0},
               {"--max-num-active-seqs", config.max_num_active_seqs() > 0},
               {"--adaptive-prefill-threshold", config.adaptive_prefill_threshold()},
               {"--prefill-schedule-interval", config.prefill_schedule_interval() > 1},
               {"--lookahead-hashes", config.lookahead_hashes()},
               {"--async with --pipeline-parallel", config.async() && config.pipeline_parallel() > 1}};
  for (const auto& option : newer) {
    if (!option.is_set) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        option.flag, ": set for --engine=", config.engine(), ", expected vllm-0.33 or newer"));
  }
  return absl::OkStatus();
}

absl::Status SetScheduler(const ReplayConfig& config, SimulationConfig* simulation) {
  SchedulerOptions& scheduler = simulation->scheduler;
  scheduler.max_num_batched_tokens = config.max_num_batched_tokens();
  auto retention = ParseRetentionRules(config.retain());
  if (!retention.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", retention.status().message()));
  }
  scheduler.retention = *std::move(retention);
  scheduler.max_num_scheduled_tokens = config.max_num_scheduled_tokens();
  scheduler.max_num_seqs = config.max_num_seqs();
  scheduler.max_num_active_seqs = config.max_num_active_seqs();
  scheduler.adaptive_prefill_threshold = config.adaptive_prefill_threshold();
  scheduler.prefill_schedule_interval = config.prefill_schedule_interval();
  scheduler.long_prefill_token_threshold = config.long_prefill_threshold();
  scheduler.enable_chunked_prefill = config.chunked_prefill();
  const auto policy = ParseSchedulingPolicy(config.policy());
  if (!policy) return Bad("--policy", config.policy(), "one of those in --help");
  scheduler.policy = *policy;
  scheduler.policy_seed = config.seed();
  scheduler.reserve_full_isl = config.reserve_full_isl();
  scheduler.async = config.async();
  scheduler.pipeline_stages = config.pipeline_parallel();
  scheduler.too_big = config.too_big() == "run" ? TooBigRequest::kRun : TooBigRequest::kReject;
  if (config.num_draft_tokens() >= config.max_num_batched_tokens()) {
    return Bad("--num-draft-tokens", absl::StrCat(config.num_draft_tokens()),
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
    if (absl::Status status = SetDuration(time.flag, time.text, 0, time.out); !status.ok()) {
      return status;
    }
  }
  return SetAcceptance(config, &scheduler);
}

// Tokens that the pool holds if every block is full.
int64_t PoolTokens(const KvCacheConfig& config) {
  int64_t block_tokens = 1;
  for (const KvCacheGroup& group : config.groups) {
    block_tokens = std::max(block_tokens, group.spec.block_size());
  }
  return std::max<int64_t>(1, config.num_blocks - 1) * block_tokens;
}

absl::Status SetStepTime(const ReplayConfig& config, const ModelOnDevice& hardware,
                         ReplaySetup* setup) {
  const int64_t pool_tokens = PoolTokens(setup->simulation.kv_cache);
  auto clock = MakeStepTime(config, hardware, pool_tokens);
  if (!clock.ok()) return clock.status();
  setup->step_time = std::move(clock->model);
  setup->latency_is_meaningful = clock->latency_is_meaningful;
  setup->time_note = std::move(clock->note);
  return absl::OkStatus();
}

absl::Status SetTiers(const ReplayConfig& config, ReplaySetup* setup) {
  auto tiers = ParseTiers(config.tier());
  if (!tiers.ok()) return absl::InvalidArgumentError(absl::StrCat("--", tiers.status().message()));
  if (tiers->empty()) {
    for (const auto& [flag, value, is_default] :
         {std::tuple("--load", config.load(), config.load() == "async"),
          std::tuple("--load-if", config.load_if(), config.load_if() == "always"),
          std::tuple("--load-failures", absl::StrCat(config.load_failures()),
                     config.load_failures() == 0),
          std::tuple("--load-failure-policy", config.load_failure_policy(),
                     config.load_failure_policy() == "fail")}) {
      if (!is_default) return Bad(flag, value, "--tier beside it, which it is about");
    }
    return absl::OkStatus();
  }
  if (!config.prefix_caching()) {
    return Bad("--tier", config.tier(), "nothing with --no-prefix-caching");
  }
  if (config.pipeline_parallel() > 1) {
    return Bad("--tier", config.tier(), "nothing with --pipeline-parallel");
  }
  const SimulationConfig& simulation = setup->simulation;
  TierConnector::Options options;
  options.tiers = *std::move(tiers);
  options.mode = config.load() == "sync"        ? LoadMode::kSync
                 : config.load() == "layerwise" ? LoadMode::kLayerwise
                                                : LoadMode::kAsync;
  options.load_if_faster = config.load_if() == "faster";
  options.load_failures = config.load_failures();
  options.seed = config.seed();
  if (options.load_failures > 0 && options.mode != LoadMode::kAsync) {
    return Bad("--load-failures", absl::StrCat(config.load_failures()),
               absl::StrCat("0 with --load=", config.load(),
                            ": only asynchronous loads can fail here"));
  }
  if (options.load_failures == 0 && config.load_failure_policy() != "fail") {
    return Bad("--load-failure-policy", config.load_failure_policy(),
               "--load-failures=SHARE beside it, which it is about");
  }
  if (options.load_failures > 0 && config.load_failure_policy() == "fail") {
    setup->simulation.scheduler.load_failure_policy = LoadFailurePolicy::kFail;
  }
  options.step_time = setup->step_time.get();
  for (const KvCacheGroup& group : simulation.kv_cache.groups) {
    const auto num_layers = static_cast<int64_t>(std::max<size_t>(group.layer_names.size(), 1));
    const bool is_shared = group.spec.kind() != KvCacheSpecKind::kMamba;
    const int64_t ranks = is_shared ? std::max<int64_t>(simulation.ranks_per_block, 1) : 1;
    options.group_block_bytes.push_back(
        std::max<int64_t>(1, num_layers * group.spec.page_bytes() / ranks));
  }
  if (options.tiers.front().options.write_policy == offload::WritePolicy::kOnEvict) {
    setup->simulation.manager.enable_events = true;
  }
  setup->tiers = std::move(options);
  return absl::OkStatus();
}

absl::Status SetMetrics(const ReplayConfig& config, ReplayMetricsOptions* metrics) {
  if (absl::Status status = SetDuration("--tick", config.tick(), 1, &metrics->series_tick);
      !status.ok()) {
    return status;
  }
  if (absl::Status status =
          SetDuration("--client-rtt", config.client_rtt(), 0, &metrics->latency.client_rtt);
      !status.ok()) {
    return status;
  }
  if (metrics->latency.client_rtt > 3600 * kSecond) {
    return Bad("--client-rtt", config.client_rtt(), "at most 1h");
  }
  metrics->latency.stall_factor = config.stall();
  metrics->top_prefixes = static_cast<size_t>(config.top_prefixes());
  metrics->hit_rates.legacy_counters = config.count() == "vllm-legacy";
  auto warmup = ParseWarmup(config.warmup());
  if (!warmup.ok())
    return absl::InvalidArgumentError(absl::StrCat("--", warmup.status().message()));
  metrics->hit_rates.warmup = *warmup;
  auto cooldown = ParseWarmup(config.cooldown(), "cooldown");
  if (!cooldown.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", cooldown.status().message()));
  }
  metrics->cooldown = *cooldown;
  auto objectives = ParseObjectives(config.slo());
  if (!objectives.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--", objectives.status().message()));
  }
  metrics->objectives = *std::move(objectives);
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
  if (absl::Status status = SetTraceTime("--start", config.start(), &reader.start_ns);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = SetTraceTime("--end", config.end(), &reader.end_ns); !status.ok()) {
    return status;
  }
  if (reader.start_ns && reader.end_ns && *reader.start_ns >= *reader.end_ns) {
    return Bad("--end", config.end(), absl::StrCat("more than --start, which is ", config.start()));
  }
  if (absl::Status status = SetRatio("--sample", config.sample(), &reader.sample); !status.ok()) {
    return status;
  }
  if (reader.sample.numerator > reader.sample.denominator) {
    return Bad("--sample", config.sample(), "at most 1");
  }
  if (absl::Status status = SetRatio("--speedup", config.speedup(), &reader.speedup);
      !status.ok()) {
    return status;
  }
  return reader;
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
  return Bad("--tier", setup.config.tier(),
             "nothing: only kvsim replay, explain, verify, break-even, serve and sweeps have tiers");
}

absl::StatusOr<std::unique_ptr<TierConnector>> MakeTiers(const ReplaySetup& setup, int64_t replica,
                                                         const TierConnector* with) {
  if (!setup.tiers) return nullptr;
  TierConnector::Options options = *setup.tiers;
  options.seed += static_cast<uint64_t>(replica);  // each draws failures of its own
  auto tiers = TierConnector::Create(std::move(options), with);
  if (!tiers.ok()) return absl::InvalidArgumentError(absl::StrCat("--", tiers.status().message()));
  return tiers;
}

absl::StatusOr<std::unique_ptr<Simulation>> MakeSimulation(
    const ReplaySetup& setup, TraceReader* reader, const std::vector<EngineObserver*>& given,
    TierConnector* tiers) {
  if (tiers == nullptr) {
    if (absl::Status status = RefuseTiers(setup); !status.ok()) return status;
  }
  std::vector<EngineObserver*> observers = given;
  // First, so that the others can ask it what it found.
  if (tiers != nullptr) observers.insert(observers.begin(), tiers);
  const SimulationConfig config = ConfigFor(setup, *reader);
  auto simulation = Simulation::Create(config, reader, setup.step_time.get(), observers);
  if (!simulation.ok()) return InOptionWords(simulation.status());
  if (tiers != nullptr) {
    if (absl::Status status = tiers->Attach((*simulation)->manager()); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--tier: ", status.message()));
    }
    (*simulation)->set_connector(tiers);
  }
  return simulation;
}

absl::StatusOr<ReplaySetup> MakeReplaySetup(const ReplayConfig& asked) {
  ReplaySetup setup;
  ReplayConfig& config = setup.config = asked;
  auto reader = MakeReaderOptions(config);
  if (!reader.ok()) return reader.status();
  setup.reader = *std::move(reader);
  const auto hardware = FindModelOnDevice(config);
  if (!hardware.ok()) return hardware.status();
  setup.model = hardware->model.name;
  setup.device = hardware->device.name;
  if (absl::Status status = ApplyEnginePreset(config.engine(), &setup.simulation); !status.ok()) {
    return status;
  }
  if (absl::Status status = CheckEngineHas(config); !status.ok()) return status;
  if (absl::Status status = ChooseLimits(hardware->device, &config); !status.ok()) return status;
  if (absl::Status status = SetPool(config, *hardware, &setup); !status.ok()) return status;
  if (absl::Status status = SetScheduler(config, &setup.simulation); !status.ok()) return status;
  if (absl::Status status = SetStepTime(config, *hardware, &setup); !status.ok()) return status;
  if (absl::Status status = SetTiers(config, &setup); !status.ok()) return status;
  if (absl::Status status = SetMetrics(config, &setup.metrics); !status.ok()) return status;
  if (absl::Status status = Validate(setup.simulation); !status.ok()) return InOptionWords(status);
  return setup;
}

}  // namespace kvblocks::sim
