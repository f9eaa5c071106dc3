// Two kinds of attention that the library does not have, added without editing it.
//
// Dilated attention looks at one token in four of the last 256 and stores no other: it is managed
// like a sliding window, with pages of its own. Half-context attention sees the later half of what
// came before: no built-in kind frees blocks by that rule, so it brings a manager.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "kvblocks/kv_cache.h"

namespace {

using namespace kvblocks;

constexpr int64_t kDilation = 4;

class HalfContextManager : public SingleTypeManager {
 public:
  HalfContextManager(const KvCacheSpec& spec, const Options& options, BlockPool* pool)
      : SingleTypeManager(spec, options, pool, {}) {}

  // The longest prefix whose later half is cached. `max_tokens` and `alignment` bound it.
  int64_t FindLongestCacheHit(const LookupQuery& query, HitLists& lists) const override {
    int64_t length = query.max_tokens - query.max_tokens % query.alignment;
    for (; length > 0; length -= query.alignment) {
      if (Find(query, length, lists)) return length;
    }
    for (GroupId g : query.groups) lists[static_cast<size_t>(g)].clear();
    return 0;
  }

 protected:
  int64_t NumUnneededTokensImpl(int64_t n) const override { return n / 2; }

 private:
  bool Find(const LookupQuery& query, int64_t length, HitLists& lists) const {
    const int64_t begin = block_size_.FloorDiv(length / 2);
    for (GroupId g : query.groups) {
      std::vector<BlockId>& list = lists[static_cast<size_t>(g)];
      list.assign(static_cast<size_t>(begin), kNullBlockId);
      for (int64_t position = begin; position * block_size() < length; ++position) {
        list.push_back(pool_->FindCached(*query.content, position, hashes_per_block_, g));
        if (list.back() == kNullBlockId) return false;
      }
    }
    return true;
  }
};

bool Run(const KvCacheSpec& spec) {
  auto manager = KvCacheManager::Create({.num_blocks = 1000, .groups = {{.spec = spec}}},
                                        {.max_model_len = 8192});
  if (!manager.ok()) return false;
  std::vector<TokenId> prompt(640);
  std::iota(prompt.begin(), prompt.end(), 0);
  for (const char* id : {"first", "second"}) {
    auto request = (*manager)->NewRequest({.id = id, .content = {.token_ids = prompt}});
    if (!request.ok()) return false;
    auto hits = (*manager)->GetComputedBlocks(**request);
    if (!hits.ok()) return false;
    const int64_t num_new_tokens = (*request)->num_tokens() - hits->num_tokens();
    auto slots = (*manager)->AllocateSlots(
        **request, {.num_new_tokens = num_new_tokens, .computed_blocks = &*hits});
    if (!slots.ok() || !slots->has_value()) return false;
    (*request)->set_num_computed_tokens((*request)->num_tokens());
    // The next token's slot; blocks that no later token needs go back.
    if (!(*request)->AppendOutputTokens({7}).ok()) return false;
    slots = (*manager)->AllocateSlots(**request, {.num_new_tokens = 1});
    if (!slots.ok() || !slots->has_value()) return false;
    const auto table = (*manager)->GetBlocks(**request, /*group=*/0);
    std::printf(
        "%s, %s: %lld tokens hit, %lld of %lld blocks kept, %lld bytes each\n",
        std::string(spec.kind_name()).c_str(), id, static_cast<long long>(hits->num_tokens()),
        static_cast<long long>(table.size() - static_cast<size_t>(std::count(
                                                  table.begin(), table.end(), kNullBlockId))),
        static_cast<long long>(table.size()), static_cast<long long>(spec.page_bytes()));
    if (!(*manager)->Free(**request).ok()) return false;
  }
  return true;
}

}  // namespace

int main() {
  const auto dilated = RegisterKvCacheKind(
      {.name = "dilated_attention",
       .managed_like = KvCacheSpecKind::kSlidingWindow,
       .page_bytes = [](const KvCacheSpecOptions& o) -> absl::StatusOr<int64_t> {
         return (o.block_size + kDilation - 1) / kDilation * 2 * o.num_kv_heads * o.head_size *
                ElementBytes(o.dtype);
       }});
  const auto half_context = RegisterKvCacheKind({.name = "half_context_attention"});
  if (!dilated.ok() || !half_context.ok()) return 1;
  const absl::Status registered = SingleTypeManager::RegisterFactory(
      **half_context,
      [](const KvCacheSpec& spec, const SingleTypeManager::Options& options,
         BlockPool* pool) -> absl::StatusOr<std::unique_ptr<SingleTypeManager>> {
        return std::make_unique<HalfContextManager>(spec, options, pool);
      });
  if (!registered.ok()) return 1;

  const auto window = KvCacheSpec::Create(
      **dilated,
      {.block_size = 16, .num_kv_heads = 8, .head_size = 128, .sliding_window = 64 * kDilation});
  const auto half =
      KvCacheSpec::Create(**half_context, {.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  if (!window.ok() || !half.ok()) return 1;
  return Run(*window) && Run(*half) ? 0 : 1;
}
