// KvGroupConfig: one KV-cache group as attention metadata sees it, and the key by which layers and
// split plans of the same kind recognise each other.

#ifndef KVBLOCKS_ATTENTION_METADATA_KV_GROUP_H_
#define KVBLOCKS_ATTENTION_METADATA_KV_GROUP_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace kvblocks::attention {

// Groups with equal keys have metadata of the same shape: plans and virtual batches that depend on
// lengths alone are shared between them.
struct KvGroupKey {
  int64_t block_size = 0;  // of the kernel, in rows of the cache
  int64_t window = 0;      // 0: full attention
  int64_t compression_ratio = 1;

  friend bool operator==(const KvGroupKey&, const KvGroupKey&) = default;
};

inline std::string DebugString(const KvGroupKey& key) {
  return absl::StrCat("{block_size=", key.block_size, ", window=", key.window,
                      ", compression_ratio=", key.compression_ratio, "}");
}

struct KvGroupConfig {
  int64_t manager_block_size = 16;  // tokens per block id of the manager
  int64_t kernel_block_size = 16;   // cache rows per block of the kernel
  int64_t num_blocks = 0;           // of the manager; ids are below it
  int64_t window = 0;               // in tokens, the query included; 0: full attention
  int64_t compression_ratio = 1;    // tokens per cache row
  int32_t null_block = 0;           // of the manager; never stored to; -1: there is none

  KvGroupKey key() const { return {kernel_block_size, window, compression_ratio}; }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_METADATA_KV_GROUP_H_
