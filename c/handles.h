// What stands behind the opaque handles of the C interface.

#ifndef KVBLOCKS_C_HANDLES_H_
#define KVBLOCKS_C_HANDLES_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kvblocks/c/kvblocks.h"
#include "kvblocks/kv_cache.h"

struct kvb_manager {
  std::unique_ptr<kvblocks::KvCacheManager> manager;
  // The caller's handle and one per request: requests may outlive the caller's handle.
  int64_t num_users = 1;
  // What the latest kvb_manager_take_copies, kvb_manager_take_new_blocks and
  // kvb_manager_get_free_list handed out.
  std::vector<kvb_block_copy> copies = {};
  std::vector<kvblocks::BlockId> new_blocks = {};
  std::vector<kvblocks::BlockId> free_list = {};

  void Release() {
    if (--num_users == 0) delete this;
  }
};

struct kvb_request {
  kvb_manager* owner;
  std::unique_ptr<kvblocks::Request> request;
  kvblocks::ComputedBlocks hits = {};  // of the latest look-up
  kvblocks::NewBlocks new_blocks{{}};  // of the latest allocation, while it is valid
  std::vector<kvblocks::BlockId> popped = {};

  kvblocks::KvCacheManager& manager() const { return *owner->manager; }
};

namespace kvblocks::c {

static_assert(sizeof(kvb_hash) == sizeof(BlockHash));

inline BlockHash FromC(const kvb_hash& hash) {
  BlockHash result;
  std::memcpy(result.words.data(), hash.bytes, sizeof(hash));
  return result;
}
inline kvb_hash ToC(const BlockHash& hash) {
  kvb_hash result;
  std::memcpy(result.bytes, hash.words.data(), sizeof(hash));
  return result;
}

// A text with the same life as the program, ending with a zero byte. For names out of a fixed set.
const char* StaticText(std::string_view text);

// A copy that kvb_string_free frees.
char* NewString(std::string_view text);

}  // namespace kvblocks::c

#endif  // KVBLOCKS_C_HANDLES_H_
