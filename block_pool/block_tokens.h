// BlockTokens: the tokens and extra keys that cached blocks stand for, so that a hit can be
// compared with what it claims to be instead of trusting its hash.
//
// Two contents with one hash then give a miss, never each other's blocks. Only the block itself is
// compared, with the tokens after it where hashes look ahead. The prefixes before it are equal if
// the blocks before it are compared, too, as they are for every kind of attention that reads them.
//
// Cost: 4 bytes per token slot of the pool, and the bytes of extra keys where there are any;
// O(tokens of a block) per registration and per hit. Single-threaded.

#ifndef KVBLOCKS_BLOCK_POOL_BLOCK_TOKENS_H_
#define KVBLOCKS_BLOCK_POOL_BLOCK_TOKENS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kvblocks/block_pool/kv_cache_block.h"
#include "kvblocks/block_pool/prefix_content.h"

namespace kvblocks {

class BlockTokens {
 public:
  // `block_size`: of the largest blocks, with the tokens after them that hashes cover.
  BlockTokens(int64_t num_blocks, int64_t block_size)
      : block_size_(block_size),
        tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size)),
        num_tokens_(static_cast<size_t>(num_blocks)) {}

  int64_t block_size() const { return block_size_; }

  // The block now stands for tokens [begin, end) of `content`. REQUIRES: a content with token ids
  // that hashed them; they and the look-ahead tokens are at most block_size().
  void Store(BlockId id, const PrefixContent& content, int64_t begin, int64_t end) {
    end += content.num_lookahead_tokens();
    std::copy(content.token_ids().begin() + begin, content.token_ids().begin() + end, TokensOf(id));
    num_tokens_[static_cast<size_t>(id)] = static_cast<int32_t>(end - begin);
    if (const ExtraKeys keys = content.ExtraKeysOf(begin, end); !keys.empty()) {
      extra_keys_[id] = EncodeExtraKeys(keys);
    } else {
      extra_keys_.erase(id);
    }
  }

  // The block `to` gets the content of another one.
  void Copy(BlockId from, BlockId to) {
    num_tokens_[static_cast<size_t>(to)] = num_tokens_[static_cast<size_t>(from)];
    std::copy_n(TokensOf(from), num_tokens_[static_cast<size_t>(to)], TokensOf(to));
    if (const auto keys = extra_keys_.find(from); keys != extra_keys_.end()) {
      std::string copy = keys->second;
      extra_keys_[to] = std::move(copy);
    } else {
      extra_keys_.erase(to);
    }
  }

  // Whether the block stands for just these; false for a content without token ids. REQUIRES: as
  // Store.
  bool Matches(BlockId id, const PrefixContent& content, int64_t begin, int64_t end) const {
    const int64_t length = end + content.num_lookahead_tokens() - begin;
    return num_tokens_[static_cast<size_t>(id)] == length && StartsWith(id, content, begin, end);
  }
  // Whether the block stands for these and maybe more. False also where the extra keys of what it
  // stands for are not those of the tokens asked for, as when an image begins behind them: nobody
  // knows which keys belong to which tokens.
  bool StartsWith(BlockId id, const PrefixContent& content, int64_t begin, int64_t end) const {
    end += content.num_lookahead_tokens();
    if (!content.has_token_ids() || num_tokens_[static_cast<size_t>(id)] < end - begin)
      return false;
    if (!std::equal(content.token_ids().begin() + begin, content.token_ids().begin() + end,
                    TokensOf(id))) {
      return false;
    }
    const ExtraKeys keys = content.ExtraKeysOf(begin, end);
    const auto held = extra_keys_.find(id);
    if (keys.empty()) return held == extra_keys_.end();
    return held != extra_keys_.end() && held->second == EncodeExtraKeys(keys);
  }

 private:
  TokenId* TokensOf(BlockId id) {
    return tokens_.data() + static_cast<size_t>(id) * static_cast<size_t>(block_size_);
  }
  const TokenId* TokensOf(BlockId id) const { return const_cast<BlockTokens*>(this)->TokensOf(id); }

  int64_t block_size_;
  std::vector<TokenId> tokens_;
  std::vector<int32_t> num_tokens_;                       // per block
  absl::flat_hash_map<BlockId, std::string> extra_keys_;  // encoded; absent: none
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_BLOCK_TOKENS_H_
