#include "sim/engine/sim_request.h"

namespace kvblocks::sim {

std::string_view FinishReasonName(FinishReason reason) {
  constexpr std::string_view kNames[] = {"none", "stop", "length", "abort", "rejected", "error"};
  return kNames[static_cast<size_t>(reason)];
}

std::string_view AbortCauseName(AbortCause cause) {
  constexpr std::string_view kNames[] = {"none", "abort_time", "queue_time", "session", "crash"};
  return kNames[static_cast<size_t>(cause)];
}

}  // namespace kvblocks::sim
