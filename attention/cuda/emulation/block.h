// Blocks of emulated threads, clusters of blocks, and what they meet at: what the functions of
// emulation.cc act on. Internal to the emulation.

#ifndef KVBLOCKS_ATTENTION_CUDA_EMULATION_BLOCK_H_
#define KVBLOCKS_ATTENTION_CUDA_EMULATION_BLOCK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "attention/cuda/emulation/emulation.h"
#include "attention/cuda/emulation/races.h"
#include "boost/context/fiber.hpp"
#include "boost/context/fixedsize_stack.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvblocks::attention::cuda::emulation {

namespace context = boost::context;

inline constexpr unsigned kMaxThreads = 1024;  // of a block

// Threads that meet: a set of lanes of a warp, or a warpgroup. A lane can be one meeting before
// the others at most, so two buffers in turn suffice.
struct Meeting {
  unsigned mask = 0;  // of a warp
  const char* operation = nullptr;
  unsigned arrived = 0;
  uint64_t generation = 0;
  std::vector<unsigned char> payloads[2];
  char order[2] = {};  // addresses of releases and acquires, of even and odd generations
};

struct Barrier {
  unsigned arrived = 0;
  uint64_t generation = 0;
  bool whole_block = false;
  char order[2] = {};
};

struct Warp {
  unsigned running = 0;  // bit mask of lanes that have not returned
  std::vector<std::unique_ptr<Meeting>> meetings;  // by mask
};

struct Copy {
  unsigned char* to;
  const void* from;
  size_t copied, zeroed;
};

struct Store {
  void* to;
  const unsigned char* from;
  size_t bytes;
};

// What the running phase of a barrier expects beside arrivals.
struct Delivery {
  const Phases* at = nullptr;
  size_t expected = 0, queued = 0;  // bytes
  std::vector<std::pair<Box, unsigned char*>> boxes;
};

// Accumulators of products under way, and how many there are.
struct Accumulators {
  float* at;
  std::vector<float> values;
  unsigned products = 0;
};
struct Product {
  std::shared_ptr<Accumulators> of;
  std::function<void(float*)> multiply;
};

struct Thread {
  context::fiber fiber;
  context::stack_context stack;
  void* watched = nullptr;  // races.h
  ThreadIndices indices;
  unsigned linear = 0;
  bool done = false;
  // Nothing to wait for: null. Valid while the fiber is suspended, on whose stack it lives.
  const absl::FunctionRef<bool()>* ready = nullptr;
  const char* waits_for = "";
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // ends in `copies`, of committed groups
  std::vector<Store> stores;
  size_t committed_stores = 0;
  std::vector<Product> products;
  std::vector<size_t> product_groups;
};

class Block;

// Blocks that run at the same time, and their barrier.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  unsigned arrived = 0;
  uint64_t generation = 0;
  char order[2] = {};
  char begun, ended;  // addresses of what orders all threads behind and before the host
};

class Block {
 public:
  Block(dim3 grid, dim3 block, size_t shared_bytes);
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Step runs each thread that can run until it waits; false if none can. `body` outlives the last.
  void Start(Cluster* cluster, dim3 index, absl::FunctionRef<void()> body);
  bool Step();
  bool running() const { return num_running_ > 0; }
  unsigned num_threads() const { return num_threads_; }
  Cluster& cluster() { return *cluster_; }

  const dim3& grid() const { return grid_; }
  const dim3& block() const { return block_; }
  unsigned char* shared() const { return shared_; }
  size_t shared_bytes() const { return shared_bytes_; }
  Thread& current() { return *current_; }

  const unsigned char* Meet(Meeting& meeting, unsigned place, unsigned places, unsigned expected,
                            const char* operation, const void* payload, size_t bytes);
  Warp& warp(unsigned linear) { return warps_[linear / 32]; }
  Meeting& group(unsigned linear) { return groups_[linear / 128]; }
  void Arrive(int id, unsigned threads);
  const Barrier& barrier(int id) const { return barriers_[id]; }
  Delivery& DeliveryAt(const Phases* at);
  // Unless something is still missing.
  void EndPhase(Phases* at);
  void Wait(const char* what, absl::FunctionRef<bool()> condition);
  [[noreturn]] void Fail(const std::string& why);
  void Report() const;

 private:
  void Resume(Thread& thread);
  void OnExit(Thread& thread);
  void ReleaseFullBarrier(Barrier& barrier);

  Cluster* cluster_ = nullptr;
  dim3 grid_, block_;
  unsigned num_threads_;
  size_t shared_bytes_;
  unsigned char* shared_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<unsigned> order_;  // of warps
  std::vector<Meeting> groups_;
  std::array<Barrier, 16> barriers_;
  std::vector<Delivery> deliveries_;
  unsigned num_running_ = 0;
  Thread* current_ = nullptr;
  context::fiber scheduler_;  // where a suspending fiber goes back to
  void* scheduler_watched_ = nullptr;
  std::optional<std::minstd_rand> random_;
#if defined(__SANITIZE_ADDRESS__)
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
#endif
};

// The block whose threads run on this host thread.
extern thread_local Block* running_block;

}  // namespace kvblocks::attention::cuda::emulation

#endif  // KVBLOCKS_ATTENTION_CUDA_EMULATION_BLOCK_H_
