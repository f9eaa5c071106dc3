// BlockCopy: one block's content to be copied to another before the next step computes anything.
//
// Made where a request may not write into a block that others can hit: the request goes on in its
// own copy, or the cache keeps one. Both blocks stay referenced until the copy is released.

#ifndef KVBLOCKS_MANAGERS_BLOCK_COPY_H_
#define KVBLOCKS_MANAGERS_BLOCK_COPY_H_

#include "kvblocks/block_pool/kv_cache_block.h"

namespace kvblocks {

struct BlockCopy {
  GroupId group = 0;
  BlockId source = kNullBlockId;
  BlockId target = kNullBlockId;

  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_MANAGERS_BLOCK_COPY_H_
