// Two requests with one prompt: the second hits the full blocks of the first.
#include "kvblocks/kv_cache.h"

#include <cstdio>
#include <vector>

int main() {
  using namespace kvblocks;
  const auto spec =
      FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  auto manager = KvCacheManager::Create({.num_blocks = 100, .groups = {{.spec = *spec}}},
                                        {.max_model_len = 8192});
  const std::vector<TokenId> prompt(100, 7);
  int64_t num_hit_tokens = -1;
  for (const char* id : {"first", "second"}) {
    auto request = (*manager)->NewRequest({.id = id, .content = {.token_ids = prompt}});
    const auto hits = (*manager)->GetComputedBlocks(**request);
    num_hit_tokens = hits->num_tokens();
    const auto slots = (*manager)->AllocateSlots(
        **request, {.num_new_tokens = 100 - num_hit_tokens, .computed_blocks = &*hits});
    if (!slots.ok() || !slots->has_value()) return 1;
    (*request)->set_num_computed_tokens(100);
    if (!(*manager)->Free(**request).ok()) return 1;
  }
  std::printf("kv_cache: %d tokens hit\n", static_cast<int>(num_hit_tokens));
  return num_hit_tokens == 96 ? 0 : 1;
}
