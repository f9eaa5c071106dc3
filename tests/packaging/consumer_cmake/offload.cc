// A prompt's blocks are stored in a host tier and found there by the next request.
#include <cstdio>
#include <numeric>

#include "kvblocks/offload.h"

int main() {
  using namespace kvblocks;
  const auto spec =
      FullAttentionSpec::Create({.block_size = 16, .num_kv_heads = 8, .head_size = 128});
  if (!spec.ok()) return 1;
  auto manager = KvCacheManager::Create({.num_blocks = 10, .groups = {{.spec = *spec}}},
                                        {.max_model_len = 1024});
  if (!manager.ok()) return 1;
  auto tiers = offload::OffloadManager::Create(**manager, {.tiers = {{.capacity_bytes = 1 << 20}}});
  std::vector<TokenId> prompt(100);
  std::iota(prompt.begin(), prompt.end(), 1);
  auto request = (*manager)->NewRequest({.id = "r", .content = {.token_ids = prompt}});
  if (!tiers.ok() || !request.ok()) return 1;
  const PrefixContent& content = (*request)->content();
  auto store = (*tiers)->PrepareStore(/*owner=*/1, content, {.end = 100, .num_prompt_tokens = 100});
  if (!store.ok() || !(*tiers)->CompleteStore(store->ticket).ok()) return 1;
  const auto match = (*tiers)->Lookup(content, 0, 99);
  std::printf("offload: %d tokens can be loaded\n", static_cast<int>(match.num_tokens));
  return match.num_tokens == 96 ? 0 : 1;
}
