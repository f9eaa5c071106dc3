#include "sim/simulation_config.h"

#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kMaxConcurrency = int64_t{1} << 31;
// The longest sequence and the longest single delay, far from where sums would leave 64 bits.
constexpr int64_t kMaxModelLen = int64_t{1} << 32;
constexpr SimTime kMaxDelay = 24 * 3600 * kSecond;

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return InvalidArgument(field, " is ", value, ", expected ", low, " to ", high);
}

absl::Status CheckDelay(absl::string_view field, SimTime value) {
  if (value >= 0 && value <= kMaxDelay) return absl::OkStatus();
  return InvalidArgument(field, " is ", FormatDuration(value), ", expected 0s to ",
                         FormatDuration(kMaxDelay));
}

// Of a request's encoder (BM-112). What of a decoder is cached depends on the encoder's input, and
// the contents of traces do not name it.
absl::Status CheckEncoderOf(const SimulationConfig& config) {
  bool has_cross = false;
  for (const KvCacheGroup& group : config.kv_cache.groups) {
    has_cross = has_cross || group.spec.kind() == KvCacheSpecKind::kCrossAttention;
  }
  const int64_t tokens = config.scheduler.num_encoder_tokens;
  if (!has_cross) {
    if (tokens == 0) return absl::OkStatus();
    return InvalidArgument("scheduler.num_encoder_tokens is ", tokens,
                           ", expected 0: no KV-cache group is of cross attention");
  }
  if (config.manager.enable_caching) {
    return absl::InvalidArgumentError(
        "manager.enable_caching is true, expected false with cross attention: what is cached of a "
        "decoder depends on the encoder's input, which traces do not name");
  }
  return CheckRange("scheduler.num_encoder_tokens", tokens, 0,
                    config.manager.max_encoder_tokens.value_or(config.manager.max_model_len));
}

}  // namespace

absl::Status Validate(const SimulationConfig& config) {
  KVBLOCKS_RETURN_IF_ERROR(Validate(config.kv_cache));
  // The null block takes one.
  KVBLOCKS_RETURN_IF_ERROR(
      CheckRange("kv_cache.num_blocks", config.kv_cache.num_blocks, 2, kMaxNumBlocks));
  const auto usable = static_cast<double>(config.kv_cache.num_blocks - 1);
  if (!config.scheduler.retention.empty() && !(config.manager.max_retained_share * usable >= 1)) {
    return InvalidArgument(
        "manager.max_retained_share is ", config.manager.max_retained_share, ", expected at least ",
        1 / usable, " with scheduler.retention: one block of ", config.kv_cache.num_blocks - 1);
  }
  if (config.kv_cache.groups.empty()) {
    return absl::InvalidArgumentError(
        "kv_cache.groups is empty, expected at least one KV-cache group");
  }
  KVBLOCKS_RETURN_IF_ERROR(
      CheckRange("manager.max_model_len", config.manager.max_model_len, 2, kMaxModelLen));
  if (!(config.manager.watermark >= 0.0 && config.manager.watermark <= 1.0)) {
    return InvalidArgument("manager.watermark is ", config.manager.watermark,
                           ", expected a share of the pool from 0 to 1");
  }
  KVBLOCKS_RETURN_IF_ERROR(CheckRange("ranks_per_block", config.ranks_per_block, 1, 1 << 16));
  KVBLOCKS_RETURN_IF_ERROR(Validate(config.scheduler));
  KVBLOCKS_RETURN_IF_ERROR(CheckEncoderOf(config));
  KVBLOCKS_RETURN_IF_ERROR(CheckRange("concurrency", config.concurrency, 0, kMaxConcurrency));
  struct {
    absl::string_view field;
    SimTime value;
  } const delays[] = {{"start_jitter", config.start_jitter},
                      {"start_delay", config.start_delay},
                      {"max_queue_time", config.max_queue_time},
                      {"empty_step_time", config.empty_step_time},
                      {"host_time_per_step", config.host_time_per_step},
                      {"host_time_per_request", config.host_time_per_request}};
  for (const auto& delay : delays) {
    KVBLOCKS_RETURN_IF_ERROR(CheckDelay(delay.field, delay.value));
  }
  return CheckRange("progress_interval", config.progress_interval, 1, kMaxSimTime);
}

int64_t MaxInFlightTokens(const SimulationConfig& config) {
  const int64_t most = config.scheduler.pipeline_stages + (config.scheduler.async ? 1 : 0);
  return most * config.scheduler.max_num_batched_tokens;
}

absl::Status ApplyEnginePreset(std::string_view name, SimulationConfig* config) {
  const std::optional<EngineVersion> version = ParseEngineVersion(name);
  if (!version) {
    return InvalidArgument("engine is \"", absl::string_view(name.data(), name.size()),
                           "\", expected one of vllm-0.25, vllm-0.33, vllm-main");
  }
  config->engine = *version;
  config->scheduler.rules = SchedulerRules::Of(*version);
  config->manager.semantics =
      *version < EngineVersion::kVllm033 ? Semantics::Vllm025() : Semantics::Vllm033();
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
