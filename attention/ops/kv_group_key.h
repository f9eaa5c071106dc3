// KvGroupKey: by what layers and split plans of the same kind recognise each other.

#ifndef KVBLOCKS_ATTENTION_OPS_KV_GROUP_KEY_H_
#define KVBLOCKS_ATTENTION_OPS_KV_GROUP_KEY_H_

#include <cstdint>
#include <string>

namespace kvblocks::attention {

// Groups with equal keys have metadata of the same shape: plans and virtual batches that depend on
// lengths alone are shared between them.
struct KvGroupKey {
  int64_t block_size = 0;  // of the kernel, in rows of the cache
  int64_t window = 0;      // 0: full attention
  int64_t compression_ratio = 1;

  friend bool operator==(const KvGroupKey&, const KvGroupKey&) = default;
};
std::string DebugString(const KvGroupKey& key);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_KV_GROUP_KEY_H_
