#include "kvblocks/attention/metadata/common_metadata.h"

namespace kvblocks::attention {

const char* Name(AttentionState state) {
  switch (state) {
    case AttentionState::kPrefillNoCache:
      return "prefill_no_cache";
    case AttentionState::kPrefillCacheHit:
      return "prefill_cache_hit";
    case AttentionState::kDecodeOnly:
      return "decode_only";
    case AttentionState::kSpecDecoding:
      return "spec_decoding";
    case AttentionState::kChunkedPrefill:
      return "chunked_prefill";
  }
  return "?";
}

}  // namespace kvblocks::attention
