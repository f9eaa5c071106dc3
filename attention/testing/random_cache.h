// RandomCache: a cache of any layout in memory of random bytes, for property tests.
//
// Blocks, tokens and heads lie in any order with any gaps between them, and K and V may be
// interleaved, as far as the layout leaves that free. Equal seeds give equal caches.

#ifndef KVBLOCKS_ATTENTION_TESTING_RANDOM_CACHE_H_
#define KVBLOCKS_ATTENTION_TESTING_RANDOM_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attention/cpu/block_ops.h"
#include "kvblocks/kv_cache_view.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

inline constexpr KvLayout kAllLayouts[] = {
    KvLayout::kPagedX,   KvLayout::kNhd,        KvLayout::kHnd,       KvLayout::kMlaLatent,
    KvLayout::kMlaSplit, KvLayout::kMlaFp8_656, KvLayout::kMlaFp8_584};

struct RandomCacheShape {
  KvLayout layout = KvLayout::kNhd;
  DType dtype = DType::kF32;
  int64_t num_blocks = 1, block_size = 1, num_kv_heads = 1;
  int64_t key_dim = 1, value_dim = 1;  // as KvCacheView's; the FP8 MLA layouts know theirs
  int64_t alignment = 1;               // elements, of where tensors, blocks, tokens and heads begin
};

class RandomCache {
 public:
  RandomCache(const RandomCacheShape& shape, uint64_t seed);
  // The view points into the memory.
  RandomCache(const RandomCache&) = delete;
  RandomCache& operator=(const RandomCache&) = delete;

  const KvCacheView& view() const { return view_; }
  std::vector<std::byte>& memory() { return memory_; }

  // The address of one element of a key or value row, from the definition of each layout. REQUIRES:
  // no FP8 MLA layout.
  std::byte* KeyElement(int64_t slot, int64_t kv_head, int64_t d) const;
  std::byte* ValueElement(int64_t slot, int64_t kv_head, int64_t d) const;
  // The same address in another image of the memory.
  static std::byte* In(std::vector<std::byte>& image, const RandomCache& cache,
                       const std::byte* address) {
    return image.data() + (address - cache.memory_.data());
  }

 private:
  std::vector<std::byte> memory_;
  KvCacheView view_;
};

// A tensor of random elements, any bit pattern among them, with random strides.
class RandomTensor {
 public:
  RandomTensor(DType dtype, std::vector<int64_t> extents, uint64_t seed);
  RandomTensor(const RandomTensor&) = delete;
  RandomTensor& operator=(const RandomTensor&) = delete;

  const TensorView& view() const { return view_; }
  std::vector<std::byte>& memory() { return memory_; }

 private:
  std::vector<std::byte> memory_;
  TensorView view_;
};

// Random caches and pairs of their blocks, for tests of block operations on hosts and GPUs. `draw`
// gives a number from its first to its second argument, both included.

using DrawNumber = absl::FunctionRef<int64_t(int64_t low, int64_t high)>;

// Of any element type that the layout takes, and convertible into kPagedX if it has heads.
RandomCacheShape DrawCacheShape(KvLayout layout, int64_t least_blocks, DrawNumber draw);

// At most `most` pairs with distinct destinations that, within one cache, are no sources.
std::vector<BlockPair> DrawBlockPairs(int64_t src_blocks, int64_t dst_blocks, bool one_cache,
                                      int64_t most, DrawNumber draw);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_RANDOM_CACHE_H_
