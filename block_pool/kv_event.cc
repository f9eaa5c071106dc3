#include "kvblocks/block_pool/kv_event.h"

namespace kvblocks {

std::string_view RemovalReasonName(RemovalReason reason) {
  switch (reason) {
    case RemovalReason::kReused:
      return "reused";
    case RemovalReason::kEvicted:
      return "evicted";
    case RemovalReason::kReplaced:
      return "replaced";
  }
  return "unknown";
}

}  // namespace kvblocks
