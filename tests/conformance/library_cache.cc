// ReplayedCache over KvCacheManager.

#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/kv_cache_manager.h"
#include "tests/conformance/transcript.h"
#include "tests/group_specs.h"

namespace kvblocks::conformance {
namespace {

// Block lists of all groups, out of anything that has blocks(group).
template <typename Lists>
BlockLists ListsOf(const Lists& lists) {
  BlockLists result;
  for (size_t g = 0; g < lists.num_groups(); ++g) {
    const auto blocks = lists.blocks(static_cast<GroupId>(g));
    result.emplace_back(blocks.begin(), blocks.end());
  }
  return result;
}

class LibrarySequence final : public ReplayedCache::Sequence {
 public:
  LibrarySequence(KvCacheManager* manager, std::unique_ptr<Request> request)
      : manager_(manager), request_(std::move(request)) {}

  absl::Status SetNumComputed(int64_t num_tokens) override {
    request_->set_num_computed_tokens(num_tokens);
    return absl::OkStatus();
  }
  absl::Status Append(const std::vector<TokenId>& tokens) override {
    return request_->AppendOutputTokens(tokens);
  }
  absl::StatusOr<int64_t> LookUp() override {
    const absl::Status status = manager_->GetComputedBlocks(*request_, hits_);
    if (!status.ok()) return status;
    return hits_.num_tokens();
  }
  BlockLists Hits() const override { return ListsOf(hits_); }
  int64_t num_hit_tokens() const override { return hits_.num_tokens(); }
  int64_t hit_boundary() const override { return hits_.shared_prefix_boundary(); }
  absl::Status SetBoundary(int64_t num_tokens) override {
    request_->set_shared_prefix_boundary(num_tokens);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<BlockLists>> Allocate(const Operation& operation) override {
    const auto slots = manager_->AllocateSlots(
        *request_, {.num_new_tokens = operation.num_new,
                    .computed_blocks = operation.use_hits ? &hits_ : nullptr,
                    .num_lookahead_tokens = operation.num_lookahead,
                    .num_external_computed_tokens = operation.num_external,
                    .delay_cache_blocks = operation.delay,
                    .full_sequence_must_fit = operation.gate,
                    .has_scheduled_requests = true});
    if (!slots.ok()) return slots.status();
    if (!slots->has_value()) return std::optional<BlockLists>();
    request_->set_status(RequestStatus::kRunning);
    return std::optional<BlockLists>(ListsOf(**slots));
  }
  absl::Status Free() override { return manager_->Free(*request_); }
  absl::Status Preempt() override {
    const absl::Status status = manager_->Free(*request_);
    request_->MarkPreempted();
    return status;
  }
  absl::Status CacheBlocks(int64_t num_tokens) override {
    return manager_->CacheBlocks(*request_, num_tokens);
  }
  absl::Status RemoveSkippedBlocks(int64_t num_tokens) override {
    return manager_->RemoveSkippedBlocks(*request_, num_tokens);
  }
  BlockLists Tables() const override { return manager_->GetBlockIds(*request_); }
  absl::StatusOr<std::vector<int64_t>> NumCommonPrefixBlocks() const override {
    return manager_->GetNumCommonPrefixBlocks(*request_);
  }
  std::optional<BlockHash> HashOfBlock(GroupId group, int64_t position) const override {
    const auto hash =
        request_->content().HashOfBlockAt(position, manager_->group(group).block_size());
    if (!hash.ok()) return std::nullopt;
    return *hash;
  }
  std::optional<BlockHash> HashOfPrefix(int64_t num_tokens) const override {
    const int64_t unit = manager_->hash_block_size();
    const auto hash = request_->content().HashOfBlockAt(num_tokens / unit - 1, unit);
    if (!hash.ok()) return std::nullopt;
    return *hash;
  }

 private:
  KvCacheManager* manager_;
  std::unique_ptr<Request> request_;
  ComputedBlocks hits_;
};

class LibraryCache final : public ReplayedCache {
 public:
  explicit LibraryCache(std::unique_ptr<KvCacheManager> manager) : manager_(std::move(manager)) {
    facts_ = {.num_blocks = manager_->pool().num_blocks(),
              .scheduler_block_size = manager_->scheduler_block_size(),
              .hash_block_size = manager_->hash_block_size()};
    for (GroupId g = 0; g < manager_->num_groups(); ++g) {
      const SingleTypeManager& group = manager_->group(g);
      facts_.groups.push_back({.block_size = group.block_size(),
                               .kind = std::string(group.spec().kind_name()),
                               .sliding_window = group.spec().sliding_window()});
    }
  }

  const Facts& facts() const override { return facts_; }
  absl::StatusOr<std::unique_ptr<Sequence>> New(const Operation& operation) override {
    auto request = manager_->NewRequest({.id = operation.id,
                                         .content = {.token_ids = operation.prompt,
                                                     .lora_name = operation.lora,
                                                     .cache_salt = operation.salt},
                                         .skip_reading_prefix_cache = operation.skip_reading});
    if (!request.ok()) return request.status();
    return std::make_unique<LibrarySequence>(manager_.get(), *std::move(request));
  }
  absl::Status EvictBlocks(const std::vector<BlockId>& ids) override {
    return manager_->EvictBlocks(ids);
  }
  bool ResetPrefixCache() override { return manager_->ResetPrefixCache(); }
  absl::Status StartStep() override {
    manager_->NewStepStarts();
    return absl::OkStatus();
  }
  std::vector<BlockCopy> TakeCopies() override { return manager_->TakeBlockCopies(); }
  absl::Status ReleaseCopies(const std::vector<BlockCopy>& copies) override {
    return manager_->ReleaseBlockCopies(copies);
  }
  std::vector<KvEvent> TakeEvents() override { return manager_->TakeEvents(); }
  Block BlockAt(BlockId id) const override {
    const KvCacheBlock& block = manager_->pool().block(id);
    return {.ref_count = block.ref_count, .cached_group = block.has_key() ? block.key_group : -1};
  }
  std::vector<BlockId> FreeList() override { return manager_->pool().WalkFree(); }
  Counts GetCounts() const override {
    return {.num_free = manager_->num_free_blocks(),
            .num_keys = manager_->pool().num_keys(),
            .usage = manager_->usage()};
  }
  absl::Status CheckInvariants() const override { return manager_->CheckInvariants(); }

 private:
  std::unique_ptr<KvCacheManager> manager_;
  Facts facts_;
};

}  // namespace

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

absl::StatusOr<std::unique_ptr<ReplayedCache>> MakeLibraryCache(const TranscriptConfig& config,
                                                                Recorder recorder) {
  const auto made_from = ManagerConfigOf(config, recorder);
  if (!made_from.ok()) return made_from.status();
  auto manager = KvCacheManager::Create(made_from->cache, made_from->options);
  if (!manager.ok()) return manager.status();
  return std::make_unique<LibraryCache>(*std::move(manager));
}

}  // namespace kvblocks::conformance
