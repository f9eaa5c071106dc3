#include "sim/commands/model_plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/field_error.h"
#include "checks/status_macros.h"
#include "kvblocks/eviction.h"
#include "sim/commands/option_table.h"
#include "sim/commands/replay_setup.h"
#include "specs/config/kv_cache_config_proto.h"

namespace kvblocks::sim {

namespace {

using ::kvblocks::config::v1::ReplayConfig;

absl::StatusOr<int64_t> NumBlocksThatFit(const ReplayConfig& config, const ModelOnDevice& hardware,
                                         int64_t block_bytes) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto of_stages, CacheBytes(config, hardware));
  const int64_t bytes = of_stages.front();  // of one stage: see SetGivenGroups
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
    return BadOption("--block-size", absl::StrCat(config.block_size()),
               "none next to --kv-cache-config, whose groups state theirs");
  }
  if (config.pipeline_parallel() > 1) {
    return BadOption("--pipeline-parallel", absl::StrCat(config.pipeline_parallel()),
               "1 next to --kv-cache-config, whose groups are of one stage");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(
      auto groups, OfOption("--kv-cache-config",
                            MakeKvCacheGroups(config.kv_cache_config(), config.num_blocks())));
  if (config.match_unit() != 0) {
    return BadOption("--match-unit", absl::StrCat(config.match_unit()),
               "none next to --kv-cache-config, which has hash_block_size");
  }
  setup->block_bytes = groups.block_bytes;
  setup->chunk_bytes = groups.chunk_bytes;
  setup->plan = "given";
  if (!groups.sized) {
    const auto fitting = NumBlocksThatFit(config, hardware, setup->block_bytes);
    if (!fitting.ok()) return SizeError(fitting.status());
    groups.config.num_blocks = *fitting;
  }
  setup->simulation.kv_cache = std::move(groups.config);
  return absl::OkStatus();
}

// Groups and sizes as planned for the model's layers.
absl::Status SetPlannedGroups(const ReplayConfig& config, const ModelOnDevice& hardware,
                              ReplaySetup* setup) {
  KVBLOCKS_ASSIGN_OR_RETURN(const Plan plan, PlanPool(config, hardware));
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
    return absl::OkStatus();
  }
  if (!config.prefix_caching())
    return BadOption("--partial-hits", "true", "prefix caching with it");
  const bool has_states =
      std::any_of(kv_cache.groups.begin(), kv_cache.groups.end(), [](const KvCacheGroup& group) {
        return group.spec.kind() == KvCacheSpecKind::kMamba;
      });
  if (!has_states) {
    return BadOption("--partial-hits", "true",
               "a model with states (Mamba and its kin): of others hits end at the ends of blocks");
  }
  manager->partial_hits = true;
  return absl::OkStatus();
}

// A pool takes this machine's memory and time, however it was sized.
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
    return BadOption("--retention-interval", absl::StrCat(interval),
               "-1 next to --cache-all-blocks: the first keeps few blocks, the second all");
  }
  const bool is_sparse =
      std::any_of(kv_cache.groups.begin(), kv_cache.groups.end(), [](const KvCacheGroup& group) {
        return group.spec.sliding_window() || group.spec.kind() == KvCacheSpecKind::kMamba;
      });
  if (interval > 0 && !is_sparse) {
    return BadOption("--retention-interval", absl::StrCat(interval),
               "-1 or 0: the model has neither windows nor states, and keeps every block");
  }
  manager->semantics.retention_interval = interval;
  return absl::OkStatus();
}

// What finished requests may keep. The rules themselves are the scheduler's.
absl::Status SetRetained(const ReplayConfig& config, const KvCacheConfig& kv_cache,
                         KvCacheManagerOptions* manager) {
  const double share = config.max_retained_share();
  if (config.retain().empty()) {
    if (manager->eviction_policy.ranks_retained) {
      return BadOption("--eviction-policy", config.eviction_policy(),
                 "another one, or --retain beside it: it ranks what that keeps");
    }
    return absl::OkStatus();
  }
  const char* without = !manager->enable_caching ? "--no-prefix-caching"
                        : manager->free_order != FreeOrder::kUnhashedFirst
                            ? "--free-order=append_all"
                        : kv_cache.native ? "a native layout"
                                          : nullptr;
  if (without != nullptr) {
    return BadOption("--retain", config.retain(), absl::StrCat("nothing with ", without));
  }
  const auto usable = static_cast<double>(kv_cache.num_blocks - 1);
  if (share * usable < 1) {
    return BadOption("--max-retained-share", absl::StrCat(share),
               absl::StrCat("at least ", 1 / usable, " with --retain: one block of ", usable));
  }
  manager->max_retained_share = share;
  return absl::OkStatus();
}

}  // namespace

// A scheduler may have a higher limit than what the pool can hold; the plan is made for the longest
// that it does.
absl::StatusOr<Plan> PlanPool(const ReplayConfig& config, const ModelOnDevice& hardware) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto caches, LayerCachesOf(config, hardware.model));
  std::vector<int64_t> bytes(static_cast<size_t>(config.pipeline_parallel()), 0);
  if (config.num_blocks() == 0) {
    const auto available = CacheBytes(config, hardware);
    if (!available.ok()) return SizeError(available.status());
    bytes = *available;
  }
  PlanOptions options = MakePlanOptions(config, PolicyOf(config), bytes);
  options.match_unit = MatchUnitOf(config, caches);
  options.longest_automatic_len = config.max_model_len();
  options.limits.max_model_len = 0;
  PlanResult result = MakePlan(caches, options);
  if (!result.ok()) {
    const absl::Status status = ToStatus(result.errors);
    if (config.num_blocks() == 0) return SizeError(status);
    return absl::InvalidArgumentError(
        absl::StrCat("--num-blocks: got ", config.num_blocks(), ": ", status.message()));
  }
  return *std::move(result.plan);
}

absl::Status SetPool(const ReplayConfig& config, const ModelOnDevice& hardware,
                     ReplaySetup* setup) {
  if (config.num_blocks() == 1) {
    return BadOption("--num-blocks", "1",
               "2 or more: the null block takes one; 0 sizes the pool by the device's memory");
  }
  const bool given = config.num_blocks() > 0 || config.kv_cache_config().has_num_blocks();
  if (given && config.kv_memory() > 0) {
    return BadOption("--kv-memory", absl::StrCat(config.kv_memory()),
               "0 where the number of blocks is given: both set the size of the pool");
  }
  KVBLOCKS_RETURN_IF_ERROR(config.has_kv_cache_config()
                               ? SetGivenGroups(config, hardware, setup)
                               : SetPlannedGroups(config, hardware, setup));
  if (!given) {
    KVBLOCKS_RETURN_IF_ERROR(CheckFittedPool(setup->simulation.kv_cache.num_blocks, hardware));
  }
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
  KVBLOCKS_ASSIGN_OR_RETURN(manager.eviction_policy, ParseEvictionPolicy(config.eviction_policy()));
  KVBLOCKS_RETURN_IF_ERROR(SetRetained(config, setup->simulation.kv_cache, &manager));
  manager.register_unreachable_blocks = config.cache_all_blocks();
  // Planned specs cover the tokens of all ranks; those of given groups are of one rank.
  if (config.has_kv_cache_config()) {
    manager.decode_context_parallel = config.decode_context_parallel();
  } else {
    setup->simulation.ranks_per_block = config.decode_context_parallel();
  }
  KVBLOCKS_RETURN_IF_ERROR(SetPartialHits(config, setup->simulation.kv_cache, &manager));
  return SetRetention(config, setup->simulation.kv_cache, &manager);
}

absl::StatusOr<ReplayGroups> MakeKvCacheGroups(const ::kvblocks::config::v1::KvCacheConfig& message,
                                               int64_t num_blocks) {
  if (message.groups().empty()) return FieldError("groups", "nothing", "at least one group");
  ReplayGroups result;
  ::kvblocks::config::v1::KvCacheConfig sized = message;
  result.sized = num_blocks > 0 || message.has_num_blocks() || message.has_native();
  if (num_blocks > 0 || !result.sized) {
    sized.set_num_blocks(num_blocks > 0 ? num_blocks : kMaxNumBlocks);
  }
  KVBLOCKS_ASSIGN_OR_RETURN(result.config, FromProto(sized));
  for (size_t g = 0; g < result.config.groups.size(); ++g) {
    const KvCacheGroup& group = result.config.groups[g];
    const auto num_layers = static_cast<int64_t>(group.layer_names.size());
    const std::optional<NativeLayout>& native = result.config.native;
    const int64_t pages =
        native ? native->pages_per_chunk[static_cast<size_t>(native->class_of_group[g])] : 1;
    int64_t bytes;
    if (__builtin_mul_overflow(group.spec.page_bytes(), num_layers, &bytes) ||
        __builtin_mul_overflow(bytes, pages, &bytes)) {
      return FieldError("groups[" + std::to_string(g) + "]",
                        std::to_string(num_layers) + " layers of " +
                            std::to_string(group.spec.page_bytes()) + " bytes per block",
                        "bytes that fit 63 bits", "use a smaller block size");
    }
    int64_t& most = native ? result.chunk_bytes : result.block_bytes;
    most = std::max(most, bytes);
  }
  return result;
}

}  // namespace kvblocks::sim
