#include "kvblocks/kv_cache_manager_config.h"

#include <string>
#include <utility>

#include "checks/field_error.h"
#include "kvblocks/eviction.h"
#include "specs/config/kv_cache_config.pb.h"
#include "specs/config/kv_cache_config_proto.h"

namespace kvblocks {
namespace {

absl::Status ReadSemantics(const config::v1::KvCacheManagerOptions& m, Semantics& s) {
  if (m.has_semantics()) {
    const auto known = Semantics::ByName(m.semantics());
    if (!known) {
      return FieldError("semantics", '"' + m.semantics() + '"',
                        "vllm-0.25, vllm-0.33 or vllm-0.33-exactly");
    }
    s = *known;
  }
  if (m.has_retention_interval()) {
    s.retention_interval = m.retention_interval() == -1
                               ? std::nullopt
                               : std::optional<int64_t>(m.retention_interval());
  }
  // Fields and switches have the same names.
  const config::v1::SemanticsSwitches& switches = m.semantics_switches();
  for (const auto& [name, member] : kSemanticsSwitches) {
    const auto* const field = switches.GetDescriptor()->FindFieldByName(name);
    if (switches.GetReflection()->HasField(switches, field)) {
      s.*member = switches.GetReflection()->GetBool(switches, field);
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Take(absl::StatusOr<T> value, T& out) {
  if (value.ok()) out = *value;
  return value.status();
}

absl::Status ReadOptions(const config::v1::KvCacheManagerOptions& m, KvCacheManagerOptions& o) {
  if (!m.has_max_model_len()) return FieldError("max_model_len", "nothing", "at least 1");
  o.max_model_len = m.max_model_len();
  if (m.has_max_in_flight_tokens()) o.max_in_flight_tokens = m.max_in_flight_tokens();
  if (m.has_enable_caching()) o.enable_caching = m.enable_caching();
  if (m.has_use_eagle()) o.use_eagle = m.use_eagle();
  if (m.has_enable_events()) o.enable_events = m.enable_events();
  if (m.has_log_stats()) o.log_stats = m.log_stats();
  if (m.has_watermark()) o.watermark = m.watermark();
  if (m.has_max_retained_share()) o.max_retained_share = m.max_retained_share();
  if (m.has_hash_seed()) o.hash_seed = m.hash_seed();
  if (m.has_compare_tokens_on_hit()) o.compare_tokens_on_hit = m.compare_tokens_on_hit();
  if (m.has_max_encoder_tokens()) o.max_encoder_tokens = m.max_encoder_tokens();
  if (m.has_num_hash_lookahead_tokens()) {
    o.num_hash_lookahead_tokens = m.num_hash_lookahead_tokens();
  }
  if (m.has_prefill_lookahead_tokens()) o.prefill_lookahead_tokens = m.prefill_lookahead_tokens();
  if (m.has_register_unreachable_blocks()) {
    o.register_unreachable_blocks = m.register_unreachable_blocks();
  }
  if (m.has_partial_hits()) o.partial_hits = m.partial_hits();
  if (m.has_decode_context_parallel()) o.decode_context_parallel = m.decode_context_parallel();
  if (m.has_prefill_context_parallel()) o.prefill_context_parallel = m.prefill_context_parallel();
  if (m.has_checkpoint_alignment()) o.checkpoint_alignment = m.checkpoint_alignment();
  if (m.has_report_new_blocks()) o.report_new_blocks = m.report_new_blocks();
  if (m.has_lookup_history_blocks()) o.lookup_history_blocks = m.lookup_history_blocks();
  absl::Status status = ReadSemantics(m, o.semantics);
  if (m.has_free_order()) {
    status.Update(Take(ParseWord("free_order", m.free_order(), "unhashed_first",
                                 FreeOrder::kUnhashedFirst, "append_all", FreeOrder::kAppendAll),
                       o.free_order));
  }
  const std::string policy_name = m.has_eviction_policy() ? m.eviction_policy() : "lru";
  if (const auto policy = ParseEvictionPolicy(policy_name); policy.ok()) {
    o.eviction_policy = *policy;
  } else {
    status.Update(FieldError("eviction_policy", '"' + policy_name + '"', EvictionPolicyNames()));
  }
  if (m.has_hash_algorithm()) {
    status.Update(Take(ParseHashAlgorithm(m.hash_algorithm()), o.hash_algorithm));
  }
  if (m.has_block_count_formula()) {
    status.Update(
        Take(ParseWord("block_count_formula", m.block_count_formula(), "exact",
                       BlockCountFormula::kExact, "upstream", BlockCountFormula::kUpstream),
             o.block_count_formula));
  }
  return status;
}

}  // namespace

absl::StatusOr<KvCacheManagerConfig> FromProto(const config::v1::KvCacheManagerConfig& message) {
  if (!message.has_cache()) return FieldError("cache", "nothing", "a KvCacheConfig");
  auto cache = FromProto(message.cache());
  if (!cache.ok()) return WithFieldPrefix(cache.status(), "cache");
  KvCacheManagerConfig config{*std::move(cache), {}};
  const absl::Status status = ReadOptions(message.options(), config.options);
  if (!status.ok()) return WithFieldPrefix(status, "options");
  return config;
}

absl::StatusOr<KvCacheManagerConfig> ReadKvCacheManagerConfig(std::string_view text,
                                                              std::string_view source_name,
                                                              ConfigSyntax syntax) {
  config::v1::KvCacheManagerConfig message;
  const auto source = ConfigSource::Parse(text, source_name, syntax, message);
  if (!source.ok()) return source.status();
  auto config = FromProto(message);
  if (!config.ok()) return source->Locate(config.status());
  return config;
}

}  // namespace kvblocks
