#include "sim/engine/sim_request.h"

namespace kvblocks::sim {

std::string_view StateName(RequestState state) {
  switch (state) {
    case RequestState::kPending:
      return "pending";
    case RequestState::kWaiting:
      return "waiting";
    case RequestState::kLoading:
      return "loading";
    case RequestState::kRunning:
      return "running";
    case RequestState::kPreempted:
      return "preempted";
    case RequestState::kFinished:
      return "finished";
  }
  return "unknown";
}

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kRejected:
      return "rejected";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::string_view AbortCauseName(AbortCause cause) {
  switch (cause) {
    case AbortCause::kNone:
      return "none";
    case AbortCause::kAbortTime:
      return "abort_time";
    case AbortCause::kQueueTime:
      return "queue_time";
    case AbortCause::kSession:
      return "session";
    case AbortCause::kCrash:
      return "crash";
  }
  return "unknown";
}

}  // namespace kvblocks::sim
