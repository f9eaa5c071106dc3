#include <cstdio>

#include "kvblocks/kv_cache.h"

int main() {
  using namespace kvblocks;
  auto spec = FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  auto manager = KvCacheManager::Create({.num_blocks = 100, .groups = {{.spec = *spec}}},
                                        {.max_model_len = 8192});
  auto request = (*manager)->NewRequest({.id = "first", .content = {.token_ids = {3, 1, 4}}});
  auto slots = (*manager)->AllocateSlots(**request, {.num_new_tokens = 3});
  for (BlockId block : (*manager)->GetBlocks(**request, 0)) std::printf("block %d\n", block);
  return slots.ok() && slots->has_value() ? 0 : 1;
}
