#include "kvblocks/block_pool/block_tokens.h"

#include <algorithm>

namespace kvblocks {

BlockTokens::BlockTokens(int64_t num_blocks, int64_t block_size)
    : block_size_(block_size),
      tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size)),
      num_tokens_(static_cast<size_t>(num_blocks)) {}

void BlockTokens::Store(BlockId id, const PrefixContent& content, int64_t begin, int64_t end) {
  std::copy(content.token_ids().begin() + begin, content.token_ids().begin() + end, TokensOf(id));
  num_tokens_[static_cast<size_t>(id)] = static_cast<int32_t>(end - begin);
  if (const ExtraKeys keys = content.ExtraKeysOf(begin, end); !keys.empty()) {
    extra_keys_[id] = EncodeExtraKeys(keys);
  } else {
    extra_keys_.erase(id);
  }
}

bool BlockTokens::Matches(BlockId id, const PrefixContent& content, int64_t begin,
                          int64_t end) const {
  if (!content.has_token_ids() || num_tokens_[static_cast<size_t>(id)] != end - begin) return false;
  if (!std::equal(content.token_ids().begin() + begin, content.token_ids().begin() + end,
                  TokensOf(id))) {
    return false;
  }
  const ExtraKeys keys = content.ExtraKeysOf(begin, end);
  const auto held = extra_keys_.find(id);
  if (keys.empty()) return held == extra_keys_.end();
  return held != extra_keys_.end() && held->second == EncodeExtraKeys(keys);
}

}  // namespace kvblocks
