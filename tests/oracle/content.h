// Content: what a request's blocks hold, named by plain strings instead of hashes.
//
// The name of a prefix is everything that decides its KV, written out: the tokens and the extra
// keys of every hash block. Two prefixes have equal names iff they may share blocks, so the
// library's hashes must be a bijection of these names.

#ifndef KVBLOCKS_TESTS_ORACLE_CONTENT_H_
#define KVBLOCKS_TESTS_ORACLE_CONTENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvblocks/block.h"
#include "kvblocks/prefix_content.h"

namespace kvblocks::oracle {

struct Content {
  std::vector<TokenId> tokens;
  std::string lora_name = {};
  std::string lora_path = {};
  std::string cache_salt = {};
  std::vector<MultimodalFeature> features = {};

  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// Extra keys of tokens [begin, end), in the order of BM-24.
ExtraKeys ExtraKeysOf(const Content& content, int64_t begin, int64_t end);

// Entry k names the first (k + 1) * hash_block_size tokens; only complete runs have one. Where
// hashes look ahead, only runs with so many tokens behind them, which belong to the name (V-10).
std::vector<std::string> PrefixNames(const Content& content, int64_t hash_block_size,
                                     int64_t num_lookahead = 0);

}  // namespace kvblocks::oracle

#endif  // KVBLOCKS_TESTS_ORACLE_CONTENT_H_
