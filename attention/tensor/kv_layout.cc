#include "kvblocks/attention/tensor/kv_layout.h"

namespace kvblocks::attention {

const char* Name(KvLayout layout) {
  switch (layout) {
    case KvLayout::kPagedX:
      return "paged_x";
    case KvLayout::kNhd:
      return "nhd";
    case KvLayout::kHnd:
      return "hnd";
    case KvLayout::kMlaLatent:
      return "mla_latent";
    case KvLayout::kMlaSplit:
      return "mla_split";
    case KvLayout::kMlaFp8_656:
      return "mla_fp8_656";
    case KvLayout::kMlaFp8_584:
      return "mla_fp8_584";
  }
  return "?";
}

const char* Name(KvRowFormat format) {
  switch (format) {
    case KvRowFormat::kElements:
      return "elements";
    case KvRowFormat::kPerTokenHead:
      return "per_token_head";
    case KvRowFormat::kInt4PerTokenHead:
      return "int4_per_token_head";
    case KvRowFormat::kNvfp4:
      return "nvfp4";
  }
  return "?";
}

}  // namespace kvblocks::attention
