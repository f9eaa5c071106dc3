// The groups of a KV cache and the blocks that they share.

#ifndef KVBLOCKS_KV_CACHE_CONFIG_H_
#define KVBLOCKS_KV_CACHE_CONFIG_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvblocks/kv_cache_spec.h"

// KvCacheConfig: the pool and the groups of layer caches that share it - what a block manager is
// built from.
//
// A group is a set of layer caches with one block table: a request needs the same block ids for all
// of them. The ids of all groups come from one pool of num_blocks, the null block included. Plain
// data; Validate says whether it makes sense, and the managers check what depends on their own
// options.

namespace kvblocks {

// Block ids are 32-bit, and the pool's queue needs one more than there are blocks.
inline constexpr int64_t kMaxNumBlocks = (int64_t{1} << 31) - 2;

struct KvCacheGroup {
  KvCacheSpec spec;
  std::vector<std::string> layer_names = {};
  bool is_draft = false;  // contains layers of a speculative drafter (EAGLE, MTP)

  friend bool operator==(const KvCacheGroup&, const KvCacheGroup&) = default;
};

// The native layout: memory cut into chunks of equal bytes, each lent to one page class at a time
// and cut into its pages; groups of one class share it. Pages of different bytes then need neither
// padding nor one common size.
//
// Block ids: chunk c holds ids 1 + c * ids_per_chunk() and up, of which a chunk lent to class k
// uses the first pages_per_chunk[k]. The null block, id 0, lies in no chunk.
struct NativeLayout {
  int64_t num_chunks = 0;
  std::vector<int64_t> pages_per_chunk = {};  // per page class
  std::vector<int32_t> class_of_group = {};   // per group

  int64_t ids_per_chunk() const {
    return pages_per_chunk.empty() ? 0 : *std::ranges::max_element(pages_per_chunk);
  }

  friend bool operator==(const NativeLayout&, const NativeLayout&) = default;
};

struct KvCacheConfig {
  int64_t num_blocks = 0;  // with `native`: 1 + its num_chunks * ids_per_chunk()
  std::vector<KvCacheGroup> groups = {};
  // Default: derived from the groups' block sizes by the manager.
  std::optional<int64_t> scheduler_block_size = std::nullopt;
  std::optional<int64_t> hash_block_size = std::nullopt;
  // Default: every block id can serve every group.
  std::optional<NativeLayout> native = std::nullopt;

  friend bool operator==(const KvCacheConfig&, const KvCacheConfig&) = default;
};

// Refuses: num_blocks outside [1, 2^31 - 2]; a group of encoder-only attention, which stores
// nothing; a layer name that is empty, not printable ASCII or
// there twice; a scheduler block size that is not a multiple of every group's block size or of the
// hash block size; a native layout without chunks or classes, with a class of no pages, with other
// than one class per group, or that does not make up num_blocks. The status names the field as a
// path, groups[1].layer_names[0] for one (see FieldOfError).
absl::Status Validate(const KvCacheConfig& config);

// Whether groups store different (dtype, quantisation) pairs. Newly handed-out blocks must then be
// zeroed: bytes that served one format may decode to NaN in another.
bool IsMixedPrecision(const KvCacheConfig& config);

// Whether newly handed-out blocks must be zeroed: with mixed precision, and for Mamba, whose states
// start from zero.
bool NeedsZeroedBlocks(const KvCacheConfig& config);

}  // namespace kvblocks

#endif  // KVBLOCKS_KV_CACHE_CONFIG_H_
