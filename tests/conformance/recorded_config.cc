// Recorded configurations as the library takes them.

#include "absl/strings/str_cat.h"
#include "kvblocks/kv_cache_manager.h"
#include "tests/conformance/transcript.h"
#include "tests/group_specs.h"

namespace kvblocks::conformance {
absl::StatusOr<KvCacheSpec> SpecOf(const RecordedGroup& group) {
  const int64_t size = group.block_size;
  if (group.kind == "full_attention") return testing::Full(size);
  if (group.kind == "mla_attention") return testing::Mla(size);
  if (group.kind == "sliding_window" && group.sliding_window) {
    return testing::Window(size, *group.sliding_window, group.num_retained_tokens);
  }
  if (group.kind == "sliding_window_mla" && group.sliding_window) {
    return testing::WindowMla(size, *group.sliding_window, group.num_retained_tokens);
  }
  if (group.kind == "chunked_local_attention" && group.attention_chunk_size) {
    return testing::Chunked(size, *group.attention_chunk_size);
  }
  if (group.kind == "mamba") {
    const auto mode = ParseMambaCacheMode(group.mamba_mode);
    if (!mode.ok()) return mode.status();
    return testing::Mamba(size, *mode, group.num_speculative_blocks);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("group of kind \"", group.kind, "\" is unknown or lacks its window or chunk"));
}

absl::StatusOr<ManagerConfig> ManagerConfigOf(const TranscriptConfig& config, Recorder recorder) {
  ManagerConfig out;
  out.cache = {.num_blocks = config.num_blocks,
               .hash_block_size = config.enable_caching
                                      ? std::optional<int64_t>(config.hash_block_size)
                                      : std::nullopt};
  for (const RecordedGroup& group : config.groups) {
    auto spec = SpecOf(group);
    if (!spec.ok()) return spec.status();
    out.cache.groups.push_back({.spec = *spec,
                                .layer_names = {absl::StrCat("layer.", out.cache.groups.size())},
                                .is_draft = group.is_draft});
  }
  KvCacheManagerOptions& options = out.options;
  options.max_model_len = config.max_model_len;
  options.max_in_flight_tokens = config.max_in_flight_tokens;
  options.enable_caching = config.enable_caching;
  options.use_eagle = config.use_eagle;
  options.semantics =
      recorder == Recorder::kVllm033 ? Semantics::Vllm033Exactly() : Semantics::Vllm025();
  options.semantics.retention_interval = config.retention_interval;
  if (config.has_no_partial_keys) options.semantics.registers_unusable_tails = false;
  options.num_hash_lookahead_tokens = config.hash_lookahead;
  options.prefill_lookahead_tokens = config.prefill_lookahead;
  options.enable_events = config.enable_events;
  options.watermark = config.watermark;
  options.free_order = config.append_all ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  options.block_count_formula = BlockCountFormula::kUpstream;
  options.decode_context_parallel = config.decode_context_parallel;
  options.partial_hits = SupportsPartialHits(out.cache, options);
  return out;
}

}  // namespace kvblocks::conformance
