// LibraryEngine: kvblocks behind the few calls that the benchmarks time. NaiveEngine has the same
// calls, so that every benchmark is written once and runs on both.

#ifndef KVBLOCKS_BENCH_LIBRARY_ENGINE_H_
#define KVBLOCKS_BENCH_LIBRARY_ENGINE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "bench/naive_engine.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_cache_manager.h"
#include "kvblocks/lookup_explanation.h"

namespace kvblocks::bench {

class LibraryEngine {
 public:
  struct Sequence {
    std::unique_ptr<Request> request;
    ComputedBlocks hits;
  };

  explicit LibraryEngine(const EngineOptions& options) {
    const KvCacheSpec full =
        FullAttentionSpec::Create(
            {.block_size = options.block_size, .num_kv_heads = 1, .head_size = 8})
            .value();
    KvCacheConfig config{.num_blocks = options.num_blocks, .groups = {{.spec = full}}};
    if (options.window > 0) {
      config.groups[0].spec = SlidingWindowSpec::Create({.block_size = options.block_size,
                                                         .num_kv_heads = 1,
                                                         .head_size = 8,
                                                         .sliding_window = options.window})
                                  .value();
    }
    auto manager =
        KvCacheManager::Create(config, {.max_model_len = int64_t{1} << 30,
                                        .enable_caching = options.enable_caching,
                                        .hash_seed = "bench",
                                        .lookup_history_blocks = options.lookup_history_blocks});
    KVBLOCKS_CHECK(manager.ok(), manager.status().ToString());
    manager_ = *std::move(manager);
  }

  Sequence New(int64_t num_tokens, std::vector<BlockHash> hashes) {
    if (manager_->hashing() == nullptr) hashes.clear();
    auto request = manager_->NewRequestFromHashes("", num_tokens, std::move(hashes));
    KVBLOCKS_CHECK(request.ok(), request.status().ToString());
    return {*std::move(request), {}};
  }

  // Tokens hit; the hits stay in the sequence for Allocate.
  int64_t Lookup(Sequence& s) {
    KVBLOCKS_CHECK(manager_->GetComputedBlocks(*s.request, s.hits).ok(), "look-up");
    return s.hits.num_tokens();
  }
  int64_t Explain(const Sequence& s) {
    const auto why = ExplainLookup(*manager_, *s.request);
    KVBLOCKS_CHECK(why.ok(), why.status().ToString());
    return why->num_hit_tokens;
  }
  // False: does not fit.
  bool AllocateFirst(Sequence& s, int64_t num_new_tokens, bool register_blocks = true) {
    return Allocated(manager_->AllocateSlots(*s.request, {.num_new_tokens = num_new_tokens,
                                                          .computed_blocks = &s.hits,
                                                          .delay_cache_blocks = !register_blocks}));
  }
  bool Step(Sequence& s, int64_t num_computed, int64_t num_new_tokens) {
    s.request->set_num_computed_tokens(num_computed);
    return Allocated(manager_->AllocateSlots(*s.request, {.num_new_tokens = num_new_tokens}));
  }
  void Register(Sequence& s, int64_t num_tokens) {
    KVBLOCKS_CHECK(manager_->CacheBlocks(*s.request, num_tokens).ok(), "registration");
  }
  void Free(Sequence& s) {
    KVBLOCKS_CHECK(manager_->Free(*s.request).ok(), "free");
    s.request->set_num_computed_tokens(0);
  }
  bool Reset() { return manager_->ResetPrefixCache(); }
  int64_t num_keyed_blocks() const { return manager_->pool().num_keyed_blocks(); }

 private:
  static bool Allocated(const absl::StatusOr<std::optional<NewBlocks>>& slots) {
    KVBLOCKS_CHECK(slots.ok(), slots.status().ToString());
    return slots->has_value();
  }

  std::unique_ptr<KvCacheManager> manager_;
};

// The same, remembering as many removals as the pool has blocks, for ExplainLookup.
class RememberingEngine : public LibraryEngine {
 public:
  explicit RememberingEngine(EngineOptions options) : LibraryEngine(Remembering(options)) {}

 private:
  static EngineOptions Remembering(EngineOptions options) {
    options.lookup_history_blocks = options.num_blocks;
    return options;
  }
};

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_LIBRARY_ENGINE_H_
