// ReplayedCache: a KV-cache manager as the replayer calls it, through the C interface, so that a
// replay runs through all of it and the library.
//
// Only what transcripts record. Answers are values; a refused call is a status.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_REPLAYED_CACHE_H_
#define KVBLOCKS_TESTS_CONFORMANCE_REPLAYED_CACHE_H_

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "kvblocks/c/kvblocks.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_event.h"
#include "specs/config/kv_cache_config.pb.h"
#include "specs/config/kv_cache_config_proto.h"
#include "tests/conformance/transcript.h"

namespace kvblocks::conformance {

inline absl::Status StatusOf(kvb_status status) {
  if (status == KVB_OK) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(kvb_status_name(status), ": ", kvb_last_error()));
}

// A call that the replay has no answer for.
inline void Require(kvb_status status) {
  KVBLOCKS_CHECK(status == KVB_OK, StatusOf(status).ToString());
}

inline BlockHash HashOf(const kvb_hash& hash) {
  BlockHash result;
  std::memcpy(result.words.data(), hash.bytes, sizeof(hash));
  return result;
}

// The configuration in protobuf text format.
inline std::string ConfigText(const TranscriptConfig& config, const ManagerConfig& made_from) {
  config::v1::KvCacheManagerConfig message;
  *message.mutable_cache() = ToProto(made_from.cache);
  config::v1::KvCacheManagerOptions& options = *message.mutable_options();
  options.set_max_model_len(config.max_model_len);
  options.set_max_in_flight_tokens(config.max_in_flight_tokens);
  options.set_enable_caching(config.enable_caching);
  options.set_use_eagle(config.use_eagle);
  options.set_enable_events(config.enable_events);
  options.set_watermark(config.watermark);
  options.set_free_order(config.append_all ? "append_all" : "unhashed_first");
  options.set_block_count_formula("upstream");
  options.set_semantics(std::string(made_from.options.semantics.name));
  options.set_retention_interval(config.retention_interval.value_or(-1));
  options.set_num_hash_lookahead_tokens(config.hash_lookahead);
  options.set_prefill_lookahead_tokens(config.prefill_lookahead);
  options.set_decode_context_parallel(config.decode_context_parallel);
  options.set_partial_hits(made_from.options.partial_hits);
  if (config.has_no_partial_keys) {
    options.mutable_semantics_switches()->set_registers_unusable_tails(false);
  }
  std::string text;
  google::protobuf::TextFormat::PrintToString(message, &text);
  return text;
}

using GetList = kvb_status (*)(const kvb_request*, int32_t, const int32_t**, size_t*);

// One request. Destroyed before its cache.
class ReplayedSequence {
 public:
  ReplayedSequence(kvb_request* request, size_t num_groups, int64_t hash_block_size)
      : request_(request), num_groups_(num_groups), unit_(hash_block_size) {}
  ~ReplayedSequence() { kvb_request_destroy(request_); }

  absl::Status SetNumComputed(int64_t num_tokens) {
    return StatusOf(kvb_request_set_num_computed_tokens(request_, num_tokens));
  }
  absl::Status Append(const std::vector<TokenId>& tokens) {
    return StatusOf(kvb_request_append_tokens(request_, tokens.data(), tokens.size()));
  }
  absl::StatusOr<int64_t> LookUp() {
    int64_t num_hit_tokens = 0;
    const kvb_status status = kvb_request_lookup(request_, &num_hit_tokens);
    if (status != KVB_OK) return StatusOf(status);
    was_looked_up_ = true;
    return num_hit_tokens;
  }
  BlockLists Hits() const { return was_looked_up_ ? Lists(kvb_request_get_hits) : BlockLists(); }
  int64_t num_hit_tokens() const { return Info().num_hit_tokens; }
  int64_t hit_boundary() const { return Info().hit_shared_prefix_boundary; }
  absl::Status SetBoundary(int64_t num_tokens) {
    return StatusOf(kvb_request_set_shared_prefix_boundary(request_, num_tokens));
  }
  absl::StatusOr<std::optional<BlockLists>> Allocate(const Operation& operation) {
    kvb_allocation allocation = KVB_INIT(kvb_allocation);
    allocation.num_new_tokens = operation.num_new;
    allocation.num_lookahead_tokens = operation.num_lookahead;
    allocation.num_external_tokens = operation.num_external;
    allocation.use_hits = operation.use_hits;
    allocation.delay_cache_blocks = operation.delay;
    allocation.full_sequence_must_fit = operation.gate;
    allocation.has_scheduled_requests = 1;
    const kvb_status status = kvb_request_allocate(request_, &allocation);
    if (status == KVB_NO_SPACE) return std::optional<BlockLists>();
    if (status != KVB_OK) return StatusOf(status);
    Require(kvb_request_set_status(request_, KVB_REQUEST_RUNNING));
    return std::optional<BlockLists>(Lists(kvb_request_get_new_blocks));
  }
  absl::Status Free() { return StatusOf(kvb_request_free(request_)); }
  absl::Status Preempt() { return StatusOf(kvb_request_preempt(request_)); }
  absl::Status CacheBlocks(int64_t num_tokens) {
    return StatusOf(kvb_request_cache_blocks(request_, num_tokens));
  }
  absl::Status RemoveSkippedBlocks(int64_t num_tokens) {
    return StatusOf(kvb_request_remove_skipped_blocks(request_, num_tokens));
  }
  BlockLists Tables() const { return Lists(kvb_request_get_blocks); }
  absl::StatusOr<std::vector<int64_t>> NumCommonPrefixBlocks() const {
    std::vector<int64_t> counts(num_groups_);
    const kvb_status status =
        kvb_request_get_num_common_prefix_blocks(request_, counts.data(), counts.size());
    if (status != KVB_OK) return StatusOf(status);
    return counts;
  }
  std::optional<BlockHash> HashOfBlock(GroupId group, int64_t position) const {
    kvb_hash hash;
    if (kvb_request_get_block_hash(request_, group, position, &hash) != KVB_OK) return std::nullopt;
    return HashOf(hash);
  }
  std::optional<BlockHash> HashOfPrefix(int64_t num_tokens) const {
    return HashOfBlock(/*group=*/-1, num_tokens / unit_ - 1);
  }

 private:
  kvb_request_info Info() const {
    kvb_request_info info = KVB_INIT(kvb_request_info);
    Require(kvb_request_get_info(request_, &info));
    return info;
  }
  BlockLists Lists(GetList get) const {
    BlockLists lists;
    for (size_t g = 0; g < num_groups_; ++g) {
      const int32_t* blocks = nullptr;
      size_t num_blocks = 0;
      Require(get(request_, static_cast<int32_t>(g), &blocks, &num_blocks));
      lists.emplace_back(blocks, blocks + num_blocks);
    }
    return lists;
  }

  kvb_request* request_;
  size_t num_groups_;
  int64_t unit_;
  bool was_looked_up_ = false;
};

inline KvEvent EventAt(const kvb_events* events, size_t index) {
  kvb_event event = KVB_INIT(kvb_event);
  Require(kvb_events_get(events, index, &event));
  if (event.kind == KVB_EVENT_CLEARED) return AllBlocksCleared();
  if (event.kind == KVB_EVENT_REMOVED) {
    return BlockRemoved{.block_hash = HashOf(*event.block_hashes),
                        .medium = event.medium,
                        .group_idx = event.group,
                        .reason = static_cast<RemovalReason>(event.removal_reason)};
  }
  BlockStored stored{.token_ids = {event.token_ids, event.token_ids + event.num_tokens},
                     .block_size = event.block_size,
                     .lora_name = event.lora_name,
                     .medium = event.medium,
                     .group_idx = event.group,
                     .kv_cache_spec_kind = event.spec_kind};
  if (event.parent_hash != nullptr) stored.parent_block_hash = HashOf(*event.parent_hash);
  if (event.has_lora_id != 0) stored.lora_id = event.lora_id;
  if (event.sliding_window > 0) stored.kv_cache_spec_sliding_window = event.sliding_window;
  for (size_t block = 0; block < event.num_block_hashes; ++block) {
    stored.block_hashes.push_back(HashOf(event.block_hashes[block]));
    auto& keys = stored.extra_keys.emplace_back();
    kvb_extra_key key = KVB_INIT(kvb_extra_key);
    for (size_t k = 0; kvb_events_get_extra_key(events, index, block, k, &key) == KVB_OK; ++k) {
      if (!keys) keys.emplace();
      keys->push_back({.kind = static_cast<ExtraKey::Kind>(key.kind),
                       .value = {key.value, key.value_size},
                       .offset = key.offset});
    }
    const int32_t* tokens = nullptr;
    size_t num_tokens = 0;
    if (kvb_events_get_lookahead_tokens(events, index, block, &tokens, &num_tokens) == KVB_OK) {
      if (!stored.lookahead_token_ids) stored.lookahead_token_ids.emplace();
      stored.lookahead_token_ids->emplace_back(tokens, tokens + num_tokens);
    }
  }
  return stored;
}

class ReplayedCache {
 public:
  struct Group {
    int64_t block_size = 0;
    std::string kind = {};
    std::optional<int64_t> sliding_window = std::nullopt;
  };
  struct Facts {
    int64_t num_blocks = 0, scheduler_block_size = 0, hash_block_size = 0;
    std::vector<Group> groups = {};
  };
  struct Block {
    int32_t ref_count = 0;
    GroupId cached_group = -1;  // -1: not cached
  };
  struct Counts {
    int64_t num_free = 0, num_keys = 0;
    double usage = 0;
  };

  // A manager configured as recorded, with the engines' formula for admission caps. InvalidArgument
  // if the configuration makes no sense.
  static absl::StatusOr<std::unique_ptr<ReplayedCache>> Create(const TranscriptConfig& config,
                                                               Recorder recorder) {
    const auto made_from = ManagerConfigOf(config, recorder);
    if (!made_from.ok()) return made_from.status();
    const std::string text = ConfigText(config, *made_from);
    kvb_manager* manager = nullptr;
    const kvb_status status =
        kvb_manager_create(text.data(), text.size(), KVB_FORMAT_TEXT, &manager);
    if (status != KVB_OK) return StatusOf(status);
    return std::unique_ptr<ReplayedCache>(new ReplayedCache(manager));
  }
  explicit ReplayedCache(kvb_manager* manager) : manager_(manager) {
    kvb_manager_info info = KVB_INIT(kvb_manager_info);
    Require(kvb_manager_get_info(manager_, &info));
    facts_ = {.num_blocks = info.num_blocks,
              .scheduler_block_size = info.scheduler_block_size,
              .hash_block_size = info.hash_block_size};
    for (int32_t g = 0; g < info.num_groups; ++g) {
      kvb_group_info group = KVB_INIT(kvb_group_info);
      Require(kvb_manager_get_group(manager_, g, &group));
      facts_.groups.push_back({.block_size = group.block_size, .kind = group.kind});
      if (group.sliding_window > 0) facts_.groups.back().sliding_window = group.sliding_window;
    }
  }
  ~ReplayedCache() { kvb_manager_destroy(manager_); }

  const Facts& facts() const { return facts_; }
  absl::StatusOr<std::unique_ptr<ReplayedSequence>> New(const Operation& operation) {
    kvb_request_options options = KVB_INIT(kvb_request_options);
    options.id = operation.id.c_str();
    options.token_ids = operation.prompt.data();
    options.num_tokens = operation.prompt.size();
    options.lora_name = operation.lora.c_str();
    options.cache_salt = operation.salt.c_str();
    options.skip_reading_prefix_cache = operation.skip_reading;
    kvb_request* request = nullptr;
    const kvb_status status = kvb_request_create(manager_, &options, &request);
    if (status != KVB_OK) return StatusOf(status);
    return std::make_unique<ReplayedSequence>(request, facts_.groups.size(),
                                              facts_.hash_block_size);
  }
  absl::Status EvictBlocks(const std::vector<BlockId>& ids) {
    return StatusOf(kvb_manager_evict_blocks(manager_, ids.data(), ids.size()));
  }
  bool ResetPrefixCache() { return kvb_manager_reset_prefix_cache(manager_) == KVB_OK; }
  absl::Status StartStep() { return StatusOf(kvb_manager_start_step(manager_)); }
  std::vector<BlockCopy> TakeCopies() {
    const kvb_block_copy* copies = nullptr;
    size_t num_copies = 0;
    Require(kvb_manager_take_copies(manager_, &copies, &num_copies));
    std::vector<BlockCopy> taken;
    for (size_t i = 0; i < num_copies; ++i) {
      taken.push_back(
          {.group = copies[i].group, .source = copies[i].source, .target = copies[i].target});
    }
    return taken;
  }
  absl::Status ReleaseCopies(const std::vector<BlockCopy>& copies) {
    std::vector<kvb_block_copy> given;
    for (const BlockCopy& copy : copies) given.push_back({copy.group, copy.source, copy.target});
    return StatusOf(kvb_manager_release_copies(manager_, given.data(), given.size()));
  }
  std::vector<KvEvent> TakeEvents() {
    kvb_events* batch = nullptr;
    Require(kvb_manager_take_events(manager_, &batch));
    std::vector<KvEvent> events;
    for (size_t i = 0; i < kvb_events_count(batch); ++i) events.push_back(EventAt(batch, i));
    // The views of names in the events live as long as the program.
    kvb_events_destroy(batch);
    return events;
  }
  Block BlockAt(BlockId id) const {
    kvb_block_info info = KVB_INIT(kvb_block_info);
    Require(kvb_manager_get_block(manager_, id, &info));
    return {.ref_count = info.ref_count, .cached_group = info.cached_group};
  }
  std::vector<BlockId> FreeList() {
    const int32_t* blocks = nullptr;
    size_t num_blocks = 0;
    Require(kvb_manager_get_free_list(manager_, &blocks, &num_blocks));
    return {blocks, blocks + num_blocks};
  }
  Counts GetCounts() const {
    kvb_pool_stats stats = KVB_INIT(kvb_pool_stats);
    Require(kvb_manager_get_pool_stats(manager_, &stats));
    return {.num_free = stats.num_free, .num_keys = stats.num_keys, .usage = stats.usage};
  }
  absl::Status CheckInvariants() const { return StatusOf(kvb_manager_check_invariants(manager_)); }

 private:
  kvb_manager* manager_;
  Facts facts_;
};

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_REPLAYED_CACHE_H_
