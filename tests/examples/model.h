// Model: a KvCacheManager and its requests in the words of the worked examples.
//
// "alloc(k)" is a look-up followed by AllocateSlots with k new tokens, after which the tokens count
// as computed. Lists are written as text: "1..3,7" is 1,2,3,7; "0x6,7" is six nulls and 7; "|"
// separates groups.

#ifndef KVBLOCKS_TESTS_EXAMPLES_MODEL_H_
#define KVBLOCKS_TESTS_EXAMPLES_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvblocks/kv_cache_manager.h"

namespace kvblocks::examples {

using Ids = std::vector<BlockId>;
using Lists = std::vector<Ids>;  // per group
using Tokens = std::vector<TokenId>;

Ids Blocks(const std::string& text);
Lists Groups(const std::string& text);

// first, first + 1, ..., last.
Tokens Range(TokenId first, TokenId last);
Tokens Join(const Tokens& a, const Tokens& b);
// Tokens that no other call returns.
Tokens Fresh(int64_t count);

KvCacheGroup DraftGroup(KvCacheSpec spec);

class Model {
 public:
  Model(int64_t num_blocks, const std::vector<KvCacheSpec>& specs,
        KvCacheManagerOptions options = Options());
  Model(int64_t num_blocks, const std::vector<KvCacheGroup>& groups,
        KvCacheManagerOptions options = Options());

  // max_model_len 8192 and the semantics that the examples WE-n were computed with; everything else
  // as KvCacheManagerOptions has it.
  static KvCacheManagerOptions Options();
  // The same with those of the examples VE-n, and without sparse retention.
  static KvCacheManagerOptions Options033();

  Request& New(const Tokens& tokens, bool skip_reading = false);

  int64_t HitTokens(const Request& request) { return LookUp(request).num_tokens(); }
  Lists Hits(const Request& request);
  ComputedBlocks LookUp(const Request& request);

  // Stage-3 blocks per group; empty: no space.
  std::optional<Lists> Alloc(Request& request, int64_t num_new, AllocateSlotsParams params = {});
  // The error of a refused call, with hits given by the caller.
  absl::Status AllocWith(Request& request, int64_t num_new, const ComputedBlocks& hits);

  void Append(Request& request, const Tokens& tokens);
  void Free(Request& request);
  void Evict(const Ids& ids);

  Lists Tables(const Request& request) const { return manager->GetBlockIds(request); }
  Ids Queue() const { return manager->pool().free_queue().Walk(); }
  int64_t NumKeys() const { return manager->pool().num_keys(); }
  int32_t Ref(BlockId id) const { return manager->pool().block(id).ref_count; }
  bool HasKey(BlockId id) const { return manager->pool().block(id).has_key(); }
  // Positions of a request's table whose block has a key.
  std::vector<int> Registered(const Request& request, GroupId group) const;

  // Groups whose request hashes are finer than the blocks.
  static Model WithHashBlocks(int64_t num_blocks, const std::vector<KvCacheSpec>& specs,
                              int64_t hash_block_size, KvCacheManagerOptions options);

  std::unique_ptr<KvCacheManager> manager;

 private:
  explicit Model(std::unique_ptr<KvCacheManager> m) : manager(std::move(m)) {}

  std::vector<std::unique_ptr<Request>> requests_;
};

}  // namespace kvblocks::examples

#endif  // KVBLOCKS_TESTS_EXAMPLES_MODEL_H_
