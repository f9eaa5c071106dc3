// PrefixContentPeer: lets tests give a content the hash of another one, as a collision would.

#ifndef KVBLOCKS_BLOCK_POOL_TESTING_PREFIX_CONTENT_PEER_H_
#define KVBLOCKS_BLOCK_POOL_TESTING_PREFIX_CONTENT_PEER_H_

#include "kvblocks/prefix_content.h"

namespace kvblocks {

class PrefixContentPeer {
 public:
  // Hash block `index` of `content` gets that of `other`.
  static void CopyHash(const PrefixContent& other, size_t index, PrefixContent& content) {
    content.hashes_[index] = other.hashes_[index];
  }
};

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_TESTING_PREFIX_CONTENT_PEER_H_
