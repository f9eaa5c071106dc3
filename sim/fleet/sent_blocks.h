// SentBlocks: what a router without news of the caches guesses that one of them holds - the leading
// blocks of the prompts that it sent there, the least recently sent of which it forgets.
//
// Always: at most `capacity` blocks; with a block it knows all blocks before it, since a prompt's
// are renewed from the last to the first. Cost: 50 to 100 ns per block, 60 bytes each.
// Single-threaded.

#ifndef KVBLOCKS_SIM_FLEET_SENT_BLOCKS_H_
#define KVBLOCKS_SIM_FLEET_SENT_BLOCKS_H_

#include <cstdint>
#include <list>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "kvblocks/block_pool/block_hash.h"

namespace kvblocks::sim {

class SentBlocks {
 public:
  // REQUIRES: capacity >= 1.
  explicit SentBlocks(int64_t capacity) : capacity_(capacity) {}

  // Leading blocks of `prompt` that it knows.
  int64_t Match(absl::Span<const BlockHash> prompt) const;
  // Of a prompt longer than the capacity, the first blocks.
  void Add(absl::Span<const BlockHash> prompt);

  int64_t size() const { return static_cast<int64_t>(places_.size()); }

 private:
  int64_t capacity_;
  std::list<BlockHash> order_;  // most recently sent first
  absl::flat_hash_map<BlockHash, std::list<BlockHash>::iterator> places_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_FLEET_SENT_BLOCKS_H_
