// Small models for the tests of this folder: specs by their block size, a manager in one line,
// requests by their tokens, and the whole visible state as text, so that "nothing changed" is one
// comparison.

#ifndef KVBLOCKS_MANAGERS_TESTING_TEST_MODELS_H_
#define KVBLOCKS_MANAGERS_TESTING_TEST_MODELS_H_

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kvblocks/kv_cache_manager.h"

namespace kvblocks {

inline KvCacheSpec Full(int64_t block_size) {
  return FullAttentionSpec::Create({.block_size = block_size, .num_kv_heads = 1, .head_size = 8})
      .value();
}
inline KvCacheSpec Window(int64_t block_size, int64_t window, int64_t extra_retained_tokens = 0) {
  return SlidingWindowSpec::Create({.block_size = block_size,
                                    .num_kv_heads = 1,
                                    .head_size = 8,
                                    .sliding_window = window,
                                    .extra_retained_tokens = extra_retained_tokens})
      .value();
}
inline KvCacheSpec Chunked(int64_t block_size, int64_t chunk) {
  return ChunkedLocalAttentionSpec::Create({.block_size = block_size,
                                            .num_kv_heads = 1,
                                            .head_size = 8,
                                            .attention_chunk_size = chunk})
      .value();
}
inline KvCacheSpec Sink(int64_t block_size, int64_t sink_length) {
  return SinkFullAttentionSpec::Create({.block_size = block_size,
                                        .num_kv_heads = 1,
                                        .head_size = 8,
                                        .sink_length = sink_length})
      .value();
}
inline KvCacheSpec Mla(int64_t block_size) {
  return MlaAttentionSpec::Create({.block_size = block_size, .head_size = 64}).value();
}

inline KvCacheConfig Config(int64_t num_blocks, std::vector<KvCacheSpec> specs) {
  KvCacheConfig config{.num_blocks = num_blocks};
  for (KvCacheSpec& spec : specs) config.groups.push_back({.spec = std::move(spec)});
  return config;
}

// Options with a seed, so that two managers agree on hashes, and with all registered that some hit
// can use, so that a window's hits are as long as they look.
inline KvCacheManagerOptions Seeded(KvCacheManagerOptions options = {}) {
  if (options.max_model_len == 0) options.max_model_len = 8192;
  options.hash_algorithm = HashAlgorithm::kXxh3_128;
  options.hash_seed = "seed";
  if (options.semantics == Semantics::Vllm033()) {
    options.semantics.retention_interval = std::nullopt;
  }
  return options;
}

inline std::unique_ptr<KvCacheManager> Manager(const KvCacheConfig& config,
                                               const KvCacheManagerOptions& options = {}) {
  auto manager = KvCacheManager::Create(config, Seeded(options));
  EXPECT_TRUE(manager.ok()) << manager.status();
  return *std::move(manager);
}
inline std::unique_ptr<KvCacheManager> Manager(int64_t num_blocks, std::vector<KvCacheSpec> specs,
                                               const KvCacheManagerOptions& options = {}) {
  return Manager(Config(num_blocks, std::move(specs)), options);
}

// Tokens first, first + 1, ...
inline std::vector<TokenId> Tokens(int64_t count, TokenId first = 0) {
  std::vector<TokenId> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}
inline std::vector<TokenId> operator+(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::unique_ptr<Request> NewRequest(const KvCacheManager& manager,
                                           std::vector<TokenId> tokens, std::string id = "r",
                                           bool skip_reading = false) {
  auto request = manager.NewRequest({.id = std::move(id),
                                     .content = {.token_ids = std::move(tokens)},
                                     .skip_reading_prefix_cache = skip_reading});
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

using Lists = std::vector<std::vector<BlockId>>;

inline ComputedBlocks Hits(const KvCacheManager& manager, const Request& request) {
  auto hits = manager.GetComputedBlocks(request);
  EXPECT_TRUE(hits.ok()) << hits.status();
  return *std::move(hits);
}
inline Lists ListsOf(const ComputedBlocks& hits) {
  Lists lists;
  for (size_t g = 0; g < hits.num_groups(); ++g) {
    const auto blocks = hits.blocks(static_cast<GroupId>(g));
    lists.emplace_back(blocks.begin(), blocks.end());
  }
  return lists;
}

// The new blocks per group, or nothing if it does not fit. Looks up first where the request holds
// no blocks, and moves the computed tokens on, as a scheduler does.
inline std::optional<Lists> Step(KvCacheManager& manager, Request& request, int64_t num_new_tokens,
                                 AllocateSlotsParams params = {}) {
  ComputedBlocks hits;
  if (!manager.HoldsBlocks(request) && params.computed_blocks == nullptr) {
    hits = Hits(manager, request);
    params.computed_blocks = &hits;
  }
  params.num_new_tokens = num_new_tokens;
  const int64_t computed = params.computed_blocks ? params.computed_blocks->num_tokens() : 0;
  const auto slots = manager.AllocateSlots(request, params);
  EXPECT_TRUE(slots.ok()) << slots.status();
  EXPECT_TRUE(manager.CheckInvariants().ok()) << manager.CheckInvariants();
  if (!slots.ok() || !slots->has_value()) return std::nullopt;
  request.set_num_computed_tokens(request.num_computed_tokens() + computed +
                                  params.num_external_computed_tokens + num_new_tokens);
  Lists lists;
  for (size_t g = 0; g < (*slots)->num_groups(); ++g) {
    const auto blocks = (*slots)->blocks(static_cast<GroupId>(g));
    lists.emplace_back(blocks.begin(), blocks.end());
  }
  return lists;
}

inline std::vector<BlockId> Queue(const KvCacheManager& manager) {
  return manager.pool().free_queue().Walk();
}

inline std::string State(const KvCacheManager& manager,
                         const std::vector<const Request*>& requests = {}) {
  const BlockPool& pool = manager.pool();
  std::string state =
      absl::StrCat("queue ", absl::StrJoin(Queue(manager), ","), " keys ", pool.num_keys(), "/",
                   pool.num_keyed_blocks(), " holders ", manager.num_requests_holding_blocks(),
                   " epoch ", pool.removal_epoch());
  for (BlockId id = 0; id < pool.num_blocks(); ++id) {
    absl::StrAppend(&state, "\n", id, ": ", pool.block(id).ref_count, " ",
                    pool.block(id).key_group);
  }
  for (const Request* request : requests) {
    absl::StrAppend(&state, "\n", request->id(), " holds ", manager.HoldsBlocks(*request));
    for (const auto& ids : manager.GetBlockIds(*request)) {
      absl::StrAppend(&state, " [", absl::StrJoin(ids, ","), "]");
    }
  }
  return state;
}

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_TESTING_TEST_MODELS_H_
