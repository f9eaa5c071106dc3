// KvLayout: how a KV cache lies in memory; cache/kv_cache_view.h says what each one means.
//
// As dtype.h without Abseil, so that device code includes it, too: hosts and kernels count layouts
// and element types by the same enums.

#ifndef KVBLOCKS_ATTENTION_TENSOR_KV_LAYOUT_H_
#define KVBLOCKS_ATTENTION_TENSOR_KV_LAYOUT_H_

#include <cstdint>

namespace kvblocks::attention {

enum class KvLayout : uint8_t {
  kPagedX,
  kNhd,
  kHnd,
  kMlaLatent,
  kMlaSplit,
  kMlaFp8_656,
  kMlaFp8_584,
};
const char* Name(KvLayout layout);  // "paged_x", "nhd", "hnd", "mla_latent", ...

constexpr bool IsMla(KvLayout layout) { return layout >= KvLayout::kMlaLatent; }
// Whether strides say all: a row's elements follow each other, blocks, tokens and heads lie anywhere.
constexpr bool IsStrided(KvLayout layout) {
  return layout == KvLayout::kNhd || layout == KvLayout::kHnd;
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TENSOR_KV_LAYOUT_H_
