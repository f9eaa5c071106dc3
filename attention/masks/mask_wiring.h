// Which masks a step carries, and which of them a layer uses.
//
// Most backends see keys by lengths, causality and window alone and get no mask for them. For one
// that asks for explicit masks, AttachMasks fills the metadata's MaskRefs once per step: generation
// gets the split-fuse template, pooling a causal bool mask as a template, windowed layers a window
// template besides; a non-causal step gets none, because a causal template would hide what it must
// see. A configured custom mask is attached for every backend, and so is one that shows the sink rows
// of a group with a window, which no window would. ChooseMask then picks per layer:
// custom before window before standard.
//
// Cost of a custom mask: while all requests fit in kLongestWholeMask positions, the whole mask is
// made once, a power of two wide, and serves every step. Beyond that each step makes the rows of
// its new tokens, a bit per key: at most one call of the generator per new token and key, which is
// 131,072 for a decode of 128k tokens, and none where the mask's bounds say it all (windows have
// such bounds, strided masks for the last keys).

#ifndef KVBLOCKS_ATTENTION_MASKS_MASK_WIRING_H_
#define KVBLOCKS_ATTENTION_MASKS_MASK_WIRING_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "kvblocks/attention/masks/mask_builder.h"
#include "kvblocks/attention/metadata/common_metadata.h"

namespace kvblocks::attention {

struct CustomMaskConfig {
  enum class Type : uint8_t {
    kSparse,  // the last `parameter` keys, and of the earlier ones every parameter-th (strided)
    kWindow,  // the last `parameter` keys
    kCustom,  // the mask registered as `name`, with `params` unless empty
  };
  bool enabled = false;
  Type type = Type::kCustom;
  int64_t parameter = 0;
  std::string name = {};
  std::string params = {};
};

inline constexpr int64_t kLongestWholeMask = 2048;

struct MaskNeeds {
  bool explicit_masks = false;  // what the chosen backend asks for
  bool pooling = false;
  int64_t window = 0;  // of the group's windowed layers, the query included; 0: none
  CustomMaskConfig custom = {};
};

// Sets the three masks of the metadata (null where not needed). On failure nothing is changed.
// A custom mask beyond kLongestWholeMask reads the host's lengths, which must be exact.
absl::Status AttachMasks(AttentionMaskBuilder& builder, const MaskNeeds& needs,
                         CommonAttentionMetadata* metadata);

// The mask for a layer of the given window (0: none), as an operation takes it; disabled if the
// step carries none. `metadata` must live as long as the result is used.
ExplicitMask ChooseMask(const CommonAttentionMetadata& metadata, int64_t window);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_MASKS_MASK_WIRING_H_
