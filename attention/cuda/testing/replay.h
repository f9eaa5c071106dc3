// What was enqueued on a stream, again: on a GPU by a graph; emulated, where nothing can be
// captured, by the same calls.

#ifndef KVBLOCKS_ATTENTION_CUDA_TESTING_REPLAY_H_
#define KVBLOCKS_ATTENTION_CUDA_TESTING_REPLAY_H_

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "attention/cuda/kernels/runtime.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {

class Replay {
 public:
  explicit Replay(void* stream) : stream_(stream) {}
  Replay(Replay&& other) : stream_(other.stream_), graph_(other.graph_), call_(other.call_) {
    other.graph_ = nullptr;
  }
  ~Replay() {
    if (graph_ != nullptr) {
      EXPECT_EQ(DestroyGraph(graph_), 0);
    }
  }

  void Capture(std::function<absl::Status()> call) {
    call_ = std::move(call);
    if (IsEmulation()) return;
    ASSERT_EQ(BeginCapture(stream_), 0);
    const absl::Status status = call_();
    ASSERT_EQ(EndCapture(stream_, &graph_), 0);
    ASSERT_TRUE(status.ok()) << status;
  }
  void Run() const {
    if (IsEmulation()) {
      ASSERT_EQ(call_(), absl::OkStatus());
    } else {
      ASSERT_EQ(LaunchGraph(graph_, stream_), 0);
    }
  }

 private:
  void* stream_;
  void* graph_ = nullptr;
  std::function<absl::Status()> call_;
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_TESTING_REPLAY_H_
