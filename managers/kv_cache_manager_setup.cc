#include "managers/kv_cache_manager_setup.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"
#include "kvblocks/request_footprint.h"
#include "kvblocks/single_type_manager.h"

namespace kvblocks {
namespace {

std::string GroupName(size_t g, const KvCacheSpec& spec) {
  const std::string_view kind = spec.kind_name();
  return absl::StrCat("groups[", g, "] (", absl::string_view(kind.data(), kind.size()), ")");
}

// States at block boundaries only can be reused where they are not kept per hash block.
bool NeedsWholeBlocks(const KvCacheSpec& spec) {
  const auto* mamba = spec.get_if<MambaSpec>();
  return mamba != nullptr && mamba->options().cache_mode != MambaCacheMode::kAlign;
}

bool IsAttention(KvCacheSpecKind kind) {
  return kind != KvCacheSpecKind::kMamba && kind != KvCacheSpecKind::kRing;
}

// Tokens of a block. REQUIRES: CheckContextParallel.
int64_t TokensPerBlock(const KvCacheSpec& spec, const KvCacheManagerOptions& options) {
  return spec.block_size() * NumRanksPerBlock(spec, options);
}

absl::Status CheckContextParallel(const KvCacheConfig& config,
                                  const KvCacheManagerOptions& options) {
  constexpr int64_t kMostRanks = 4096;
  const std::pair<absl::string_view, int64_t> fields[] = {
      {"decode_context_parallel", options.decode_context_parallel},
      {"prefill_context_parallel", options.prefill_context_parallel}};
  for (const auto& [field, ranks] : fields) {
    if (ranks < 1 || ranks > kMostRanks) {
      return InvalidArgument(field, " is ", ranks, ", expected 1 (off) to ", kMostRanks);
    }
    for (size_t g = 0; g < config.groups.size() && ranks > 1; ++g) {
      const KvCacheSpec& spec = config.groups[g].spec;
      if (spec.sliding_window() || spec.attention_chunk_size() || spec.sink_length() > 0) {
        return InvalidArgument(field, " is ", ranks, ", expected 1 with ", GroupName(g, spec),
                               ": windows, chunks and sinks cannot be spread over ranks");
      }
      if (spec.block_size() > kMaxTokens / NumRanksPerBlock(spec, options)) {
        return InvalidArgument(field, " is ", ranks, ", with which a block of ",
                               GroupName(g, spec), " covers more than ", kMaxTokens, " tokens");
      }
    }
  }
  if (options.prefill_context_parallel > 1 &&
      (config.groups.size() != 1 ||
       (config.groups[0].spec.kind() != KvCacheSpecKind::kFullAttention &&
        config.groups[0].spec.kind() != KvCacheSpecKind::kMlaAttention))) {
    return InvalidArgument("prefill_context_parallel is ", options.prefill_context_parallel,
                           ", expected 1 unless the only group is of full attention or MLA");
  }
  return absl::OkStatus();
}

absl::Status CheckRetention(const KvCacheConfig& config, const KvCacheManagerOptions& options,
                            const BlockSizes& sizes) {
  if (!options.semantics.retention_interval) return absl::OkStatus();
  const int64_t interval = *options.semantics.retention_interval;
  if (interval < 0 || interval > kMaxTokens || interval % sizes.scheduler_block_size != 0) {
    return InvalidArgument("retention_interval is ", interval,
                           " tokens, expected a multiple of the scheduler block size ",
                           sizes.scheduler_block_size, " from 0 to ", kMaxTokens);
  }
  if (options.register_unreachable_blocks) {
    return InvalidArgument(
        "register_unreachable_blocks is set next to retention_interval, expected one of them: the "
        "first registers every block, the second few");
  }
  const bool has_sparse_groups =
      std::any_of(config.groups.begin(), config.groups.end(), [](const KvCacheGroup& group) {
        return group.spec.sliding_window() || group.spec.kind() == KvCacheSpecKind::kMamba;
      });
  if (interval > 0 && !has_sparse_groups) {
    return InvalidArgument("retention_interval is ", interval,
                           " tokens, expected 0 or none without a window or Mamba group");
  }
  return absl::OkStatus();
}

absl::Status CheckPartialHits(const KvCacheConfig& config, const KvCacheManagerOptions& options,
                              const BlockSizes& sizes) {
  if (!options.partial_hits || !options.enable_caching) return absl::OkStatus();
  const auto refuse = [](const std::string& what) {
    return InvalidArgument("partial_hits is set ", what);
  };
  const int64_t unit = sizes.hash_block_size;
  bool has_inner_states = false;
  for (size_t g = 0; g < config.groups.size(); ++g) {
    const KvCacheSpec& spec = config.groups[g].spec;
    const auto* mamba = spec.get_if<MambaSpec>();
    // Where blocks are spread over ranks, blocks of rows are larger than those of states.
    has_inner_states |= mamba != nullptr && !NeedsWholeBlocks(spec) &&
                        (spec.block_size() > unit || options.decode_context_parallel > 1);
    if (mamba == nullptr && (spec.sliding_window() || spec.attention_chunk_size()) &&
        spec.block_size() != unit) {
      return refuse(absl::StrCat("and ", GroupName(g, spec), " has block size ", spec.block_size(),
                                 ", expected the hash block size ", unit));
    }
  }
  if (!has_inner_states) {
    return refuse(absl::StrCat(
        "without a Mamba group in align mode with a block size above the hash block size ", unit,
        " (set hash_block_size, or unset partial_hits)"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t NumRanksPerBlock(const KvCacheSpec& spec, const KvCacheManagerOptions& options) {
  const bool is_replicated =
      spec.kind() == KvCacheSpecKind::kMamba || spec.kind() == KvCacheSpecKind::kRing;
  return is_replicated ? 1 : options.decode_context_parallel * options.prefill_context_parallel;
}

absl::StatusOr<BlockSizes> ResolveBlockSizes(const KvCacheConfig& config,
                                             const KvCacheManagerOptions& options) {
  const bool enable_caching = options.enable_caching;
  BlockSizes sizes;
  if (absl::Status status = CheckContextParallel(config, options); !status.ok()) return status;
  if (config.groups.empty()) return sizes;
  int64_t lcm = 1;
  int64_t gcd = 0;
  for (size_t g = 0; g < config.groups.size(); ++g) {
    if (enable_caching && !config.groups[g].spec.is_prefix_cacheable()) continue;
    const int64_t size = TokensPerBlock(config.groups[g].spec, options);
    gcd = std::gcd(gcd, size);
    const int64_t factor = size / std::gcd(lcm, size);
    if (lcm > kMaxTokens / factor) {
      return InvalidArgument("block sizes: their least common multiple exceeds ", kMaxTokens,
                             " at ", GroupName(g, config.groups[g].spec), " with block size ",
                             size);
    }
    lcm *= factor;
  }
  sizes.scheduler_block_size = config.scheduler_block_size.value_or(lcm);
  // Without caching nothing is hashed, so the finest unit is the scheduler's.
  const bool whole_blocks =
      !enable_caching ||
      std::any_of(config.groups.begin(), config.groups.end(),
                  [](const KvCacheGroup& group) { return NeedsWholeBlocks(group.spec); });
  sizes.hash_block_size = whole_blocks ? sizes.scheduler_block_size
                                       : config.hash_block_size.value_or(std::max<int64_t>(gcd, 1));
  const auto [scheduler, hash] = sizes;
  if (scheduler < 1 || scheduler > kMaxTokens || hash < 1 || hash > kMaxTokens) {
    return InvalidArgument("scheduler_block_size is ", scheduler, " and hash_block_size ", hash,
                           ", expected 1 to ", kMaxTokens);
  }
  if (scheduler % hash != 0) {
    return InvalidArgument("scheduler_block_size is ", scheduler,
                           ", expected a multiple of hash_block_size, which is ", hash);
  }
  for (size_t g = 0; g < config.groups.size(); ++g) {
    const int64_t size = TokensPerBlock(config.groups[g].spec, options);
    if (!enable_caching || !config.groups[g].spec.is_prefix_cacheable()) continue;
    if (size % hash != 0) {
      return InvalidArgument("hash_block_size is ", hash, ", expected a divisor of ",
                             GroupName(g, config.groups[g].spec), "'s block size ", size);
    }
    if (scheduler % size != 0) {
      return InvalidArgument("scheduler_block_size is ", scheduler, ", expected a multiple of ",
                             GroupName(g, config.groups[g].spec), "'s block size ", size);
    }
  }
  return sizes;
}

bool SupportsPartialHits(const KvCacheConfig& config, const KvCacheManagerOptions& options) {
  const auto sizes = ResolveBlockSizes(config, options);
  if (!sizes.ok() || !options.enable_caching || config.groups.size() < 2) return false;
  KvCacheManagerOptions with = options;
  with.partial_hits = true;
  return CheckPartialHits(config, with, *sizes).ok();
}

int64_t NumReplayedTokens(const KvCacheManagerOptions& options) {
  return std::max<int64_t>(0, options.prefill_lookahead_tokens - 1);
}

std::vector<bool> EffectiveDraftFlags(const KvCacheConfig& config,
                                      const KvCacheManagerOptions& options) {
  const auto& groups = config.groups;
  const bool use_eagle = options.use_eagle;
  if (options.num_hash_lookahead_tokens > 0 ||
      (!use_eagle && !options.semantics.is_025)) {
    return std::vector<bool>(groups.size(), false);
  }
  const bool any_flagged =
      std::any_of(groups.begin(), groups.end(), [](const KvCacheGroup& g) { return g.is_draft; });
  std::vector<bool> flags(groups.size(), use_eagle && !any_flagged);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const KvCacheGroup& other : groups) {
      if (other.is_draft && other.spec == groups[g].spec) flags[g] = true;
    }
  }
  return flags;
}

absl::Status ValidateSetup(const KvCacheConfig& config, const KvCacheManagerOptions& options,
                           const BlockSizes& sizes) {
  const struct {
    absl::string_view field;
    std::optional<int64_t> value;
    int64_t least, most;
  } ranges[] = {{"max_model_len", options.max_model_len, 1, kMaxTokens},
                {"max_in_flight_tokens", options.max_in_flight_tokens, 1, kMaxTokens},
                {"max_encoder_tokens", options.max_encoder_tokens, 1, kMaxTokens},
                {"prefill_lookahead_tokens", options.prefill_lookahead_tokens, 0, kMaxTokens},
                {"checkpoint_alignment", options.checkpoint_alignment, 1, kMaxTokens},
                {"lookup_history_blocks", options.lookup_history_blocks, 0, kMaxNumBlocks}};
  for (const auto& [field, value, least, most] : ranges) {
    if (!value || (*value >= least && *value <= most)) continue;
    return InvalidArgument(field, " is ", *value, ", expected ", least, least == 0 ? " (off)" : "",
                           " to ", most);
  }
  if (!(options.max_retained_share >= 0.0 && options.max_retained_share <= 1.0)) {
    return InvalidArgument("max_retained_share is ", options.max_retained_share,
                           ", expected 0 to 1: the share of the pool");
  }
  if (!(options.watermark >= 0.0 && options.watermark <= 1.0)) {  // also refuses NaN
    return InvalidArgument("watermark is ", options.watermark,
                           ", expected a share of the pool between 0 and 1");
  }
  if (absl::Status status = CheckRetention(config, options, sizes); !status.ok()) return status;
  if (absl::Status status = CheckPartialHits(config, options, sizes); !status.ok()) return status;
  if (config.groups.empty() && options.enable_caching) {
    return InvalidArgument(
        "groups is empty, expected at least one KV-cache group for prefix caching "
        "(set enable_caching to false for a model without KV cache)");
  }
  if (options.enable_caching &&
      std::none_of(config.groups.begin(), config.groups.end(), [](const KvCacheGroup& group) {
        return group.spec.is_prefix_cacheable();
      })) {
    return InvalidArgument(
        "groups has none whose blocks another request can use, expected at least one for prefix "
        "caching (set enable_caching to false)");
  }
  if (config.groups.size() > static_cast<size_t>(kMaxGroupId) + 1) {
    return InvalidArgument("groups has ", config.groups.size(), " entries, expected at most ",
                           kMaxGroupId + 1);
  }
  if (options.enable_caching && config.groups.size() == 1 &&
      sizes.hash_block_size != TokensPerBlock(config.groups[0].spec, options)) {
    return InvalidArgument("hash_block_size is ", sizes.hash_block_size,
                           ", expected the only group's block size ",
                           TokensPerBlock(config.groups[0].spec, options));
  }
  const std::vector<bool> draft = EffectiveDraftFlags(config, options);
  const bool any_flagged =
      options.use_eagle ||
      std::any_of(config.groups.begin(), config.groups.end(),
                  [](const KvCacheGroup& group) { return group.is_draft; });
  if (options.enable_caching && any_flagged &&
      options.prefill_lookahead_tokens > sizes.scheduler_block_size) {
    return InvalidArgument("prefill_lookahead_tokens is ", options.prefill_lookahead_tokens,
                           ", expected at most the scheduler block size ",
                           sizes.scheduler_block_size, " next to prefix caching and draft groups");
  }
  int64_t num_sink_blocks = 0;
  for (size_t g = 0; g < config.groups.size(); ++g) {
    const KvCacheSpec& spec = config.groups[g].spec;
    num_sink_blocks += spec.sink_length() / spec.block_size();
    if (num_sink_blocks >= config.num_blocks) {
      return InvalidArgument("num_blocks is ", config.num_blocks, ", expected more than the ",
                             num_sink_blocks, " blocks that attention sinks take for good, up to ",
                             GroupName(g, spec));
    }
    if (const auto* mamba = spec.get_if<MambaSpec>();
        mamba != nullptr && mamba->options().num_speculative_blocks > kMaxNumBlocks) {
      return InvalidArgument(GroupName(g, spec), " has ", mamba->options().num_speculative_blocks,
                             " speculative blocks, expected 0 to ", kMaxNumBlocks);
    }
    if (spec.kind() != KvCacheSpecKind::kChunkedLocalAttention) continue;
    if (draft[g] && options.enable_caching) {
      return InvalidArgument(
          GroupName(g, spec),
          " is a draft group, but speculative drafting is not supported with chunked "
          "local attention (unset use_eagle, or flag other groups as draft)");
    }
    const int64_t alignment =
        options.partial_hits ? sizes.hash_block_size : sizes.scheduler_block_size;
    if (options.enable_caching && config.groups.size() > 1 && spec.block_size() != alignment) {
      return InvalidArgument(GroupName(g, spec), " has block size ", spec.block_size(),
                             ", expected the ",
                             options.partial_hits ? "hash" : "scheduler", " block size ", alignment,
                             " next to other groups with prefix caching on");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<KvCacheManager>> KvCacheManager::Create(
    const KvCacheConfig& config, const KvCacheManagerOptions& options) {
  if (absl::Status status = Validate(config); !status.ok()) return status;
  const auto sizes = ResolveBlockSizes(config, options);
  if (!sizes.ok()) return sizes.status();
  if (absl::Status status = ValidateSetup(config, options, *sizes); !status.ok()) return status;
  if (absl::Status status =
          ValidateHashSizes(sizes->hash_block_size, options.num_hash_lookahead_tokens);
      !status.ok()) {
    return status;
  }
  int64_t compared_block_size = 0;
  if (options.compare_tokens_on_hit && options.enable_caching) {
    for (const KvCacheGroup& group : config.groups) {
      compared_block_size = std::max(compared_block_size,
                                     group.spec.block_size() *
                                             NumRanksPerBlock(group.spec, options) +
                                         options.num_hash_lookahead_tokens);
    }
  }
  ChunkLayout chunks;
  if (config.native) {
    chunks = {.num_chunks = config.native->num_chunks,
              .pages_per_chunk = config.native->pages_per_chunk,
              .class_of_group = config.native->class_of_group};
  }
  // Hits of other kinds (windows, states) need not begin at the first block.
  std::vector<uint8_t> is_chained;
  for (const KvCacheGroup& group : config.groups) {
    is_chained.push_back(group.spec.kind() == KvCacheSpecKind::kFullAttention ||
                         group.spec.kind() == KvCacheSpecKind::kMlaAttention ||
                         group.spec.kind() == KvCacheSpecKind::kSinkFullAttention ||
                         group.spec.kind() == KvCacheSpecKind::kHiddenState);
  }
  auto pool = BlockPool::Create({.num_blocks = config.num_blocks,
                                 .enable_caching = options.enable_caching,
                                 .enable_events = options.enable_events,
                                 .free_order = options.free_order,
                                 .one_event_per_registration =
                                     options.semantics.one_event_per_registration,
                                 .compared_block_size = compared_block_size,
                                 .history_keys = options.lookup_history_blocks,
                                 .eviction_policy = options.eviction_policy,
                                 .is_chained_group = std::move(is_chained),
                                 .max_retained_blocks = static_cast<int64_t>(
                                     options.max_retained_share *
                                     static_cast<double>(config.num_blocks - 1)),
                                 .chunks = std::move(chunks)});
  if (!pool.ok()) return pool.status();

  std::unique_ptr<KvCacheManager> manager(new KvCacheManager(config, options));
  manager->pool_ = *std::move(pool);
  if (options.enable_caching) {
    std::optional<std::string_view> seed;
    if (options.hash_seed) seed = *options.hash_seed;
    manager->hashing_ = std::make_shared<const PrefixHashing>(
        PrefixHashing{.hasher = BlockHasher(options.hash_algorithm, seed),
                      .hash_block_size = sizes->hash_block_size,
                      .num_lookahead_tokens = options.num_hash_lookahead_tokens,
                      .keep_plain_hashes = options.lookup_history_blocks > 0});
  }
  manager->num_watermark_blocks_ = static_cast<int64_t>(
      options.watermark *
      static_cast<double>(config.native ? config.native->num_chunks : config.num_blocks));
  manager->page_needs_.resize(config.groups.size());
  manager->has_partial_hits_ = options.partial_hits && options.enable_caching;
  const int64_t hit_alignment =
      manager->has_partial_hits_ ? sizes->hash_block_size : sizes->scheduler_block_size;

  const RequestLimits limits{
      .max_model_len = options.max_model_len,
      .max_in_flight_tokens = options.max_in_flight_tokens.value_or(options.max_model_len),
      .decode_context_parallel =
          options.decode_context_parallel * options.prefill_context_parallel,
      .max_encoder_tokens = options.max_encoder_tokens.value_or(options.max_model_len),
      .num_retained_tokens = NumReplayedTokens(options)};
  const std::vector<bool> draft = EffectiveDraftFlags(config, options);
  const bool any_drops = std::find(draft.begin(), draft.end(), true) != draft.end();
  const bool has_several_groups = config.groups.size() > 1;
  for (size_t g = 0; g < config.groups.size(); ++g) {
    const KvCacheSpec& spec = config.groups[g].spec;
    const auto cap = AdmissionCap(spec, limits, options.block_count_formula);
    if (!cap.ok()) return cap.status();
    const auto output_cap = OutputCap(spec, limits, options.block_count_formula);
    if (!output_cap.ok()) return output_cap.status();
    const bool keeps_all = !has_several_groups || options.register_unreachable_blocks;
    auto group = SingleTypeManager::Create(
        spec,
        {.group = static_cast<GroupId>(g),
         .is_draft = draft[g],
         .num_ranks_per_block = NumRanksPerBlock(spec, options),
         .enable_caching = options.enable_caching,
         .hash_block_size =
             options.enable_caching && spec.is_prefix_cacheable() ? sizes->hash_block_size : 0,
         .admission_cap = *cap,
         .output_cap = *output_cap,
         .reachable_alignment = keeps_all ? 0 : hit_alignment,
         .semantics = options.semantics,
         .hit_alignment = has_several_groups ? hit_alignment
                                             : spec.block_size() * NumRanksPerBlock(spec, options),
         .scheduler_block_size = sizes->scheduler_block_size,
         .any_drops = any_drops,
         .num_replayed_tokens = NumReplayedTokens(options),
         .num_hash_lookahead_tokens = options.num_hash_lookahead_tokens,
         .partial_hits = manager->has_partial_hits_,
         .checkpoint_alignment = options.checkpoint_alignment,
         .new_block_ids = options.report_new_blocks && IsAttention(spec.kind())
                              ? &manager->new_block_ids_
                              : nullptr},
        manager->pool_.get());
    if (!group.ok()) return group.status();
    manager->num_replay_tokens_ = std::max(manager->num_replay_tokens_, spec.replay_tokens());
    manager->keeps_all_blocks_ = manager->keeps_all_blocks_ && (*group)->keeps_all_blocks();
    manager->registers_tails_ = manager->registers_tails_ || (*group)->registers_tails();
    manager->has_states_ = manager->has_states_ || spec.kind() == KvCacheSpecKind::kMamba;
    manager->has_encoder_ =
        manager->has_encoder_ || spec.kind() == KvCacheSpecKind::kCrossAttention;
    manager->groups_.push_back(*std::move(group));
  }
  manager->only_grows_ = manager->keeps_all_blocks_ && !config.native && !config.groups.empty();
  manager->scheduler_block_size_ = sizes->scheduler_block_size;
  manager->hash_block_size_ = sizes->hash_block_size;
  manager->hit_alignment_ = hit_alignment;
  if (options.enable_caching) {
    manager->lookup_.emplace(
        manager->groups_, has_several_groups ? hit_alignment : manager->groups_[0]->block_size(),
        !options.semantics.is_025);
  }
  return manager;
}

}  // namespace kvblocks
