#include "attention/cuda/emulation/emulation.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "boost/context/fiber.hpp"
#include "boost/context/fixedsize_stack.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvblocks::attention::cuda::emulation {
namespace {

namespace context = boost::context;

// Sanitizers make frames several times larger.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kOutermostBytes = 16 * 1024;
#else
constexpr size_t kStackBytes = 96 * 1024;
#endif
constexpr unsigned kMaxThreads = 1024;

// Threads that meet: a set of lanes of a warp, or a warpgroup. A lane can be one meeting ahead of the
// others at most, so two buffers in turn suffice.
struct Meeting {
  unsigned mask = 0;  // of a warp
  const char* operation = nullptr;
  unsigned arrived = 0;
  uint64_t generation = 0;
  std::vector<unsigned char> payloads[2];
};

struct Barrier {
  unsigned arrived = 0;
  uint64_t generation = 0;
  bool whole_block = false;
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
  ThreadIndices indices;
  unsigned linear = 0;
  bool done = false;
  // Nothing to wait for: null. Valid while the fiber is suspended, on whose stack it lives.
  const absl::FunctionRef<bool()>* ready = nullptr;
  const char* waits_for = "";
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // ends in `copies`, of committed groups
  std::vector<Product> products;
  std::vector<size_t> product_groups;
};

// Freed stacks are kept: a grid has many blocks of the same size.
class StackPool {
 public:
  context::stack_context allocate() {
    if (free_.empty()) return source_.allocate();
    const context::stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void deallocate(context::stack_context& stack) {
#if defined(__SANITIZE_ADDRESS__)
    // A fiber's outermost frames never return, and leave what lies around their variables poisoned.
    ASAN_UNPOISON_MEMORY_REGION(static_cast<char*>(stack.sp) - kOutermostBytes, kOutermostBytes);
#endif
    free_.push_back(stack);
  }
  ~StackPool() {
    for (context::stack_context& stack : free_) source_.deallocate(stack);
  }

 private:
  context::fixedsize_stack source_{kStackBytes};
  std::vector<context::stack_context> free_;
};
StackPool& Stacks() {
  static thread_local StackPool pool;
  return pool;
}
// What Boost takes by value; leaves the stack that it gave where the sanitizers' hooks find it.
struct PooledStack {
  context::stack_context* given;
  context::stack_context allocate() { return *given = Stacks().allocate(); }
  void deallocate(context::stack_context& stack) { Stacks().deallocate(stack); }
};

class Block;

// Blocks that run at the same time, and their barrier.
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  unsigned arrived = 0;
  uint64_t generation = 0;
};

class Block {
 public:
  Block(dim3 grid, dim3 block, size_t shared_bytes)
      : grid_(grid),
        block_(block),
        num_threads_(block.x * block.y * block.z),
        shared_bytes_(shared_bytes),
        threads_(num_threads_),
        warps_((num_threads_ + 31) / 32),
        groups_((num_threads_ + 127) / 128) {
    // Exactly as large as asked for, so that a sanitizer sees what lies behind it.
    if (shared_bytes > 0) {
      shared_ = static_cast<unsigned char*>(std::aligned_alloc(1024, Padded(shared_bytes)));
#if defined(__SANITIZE_ADDRESS__)
      ASAN_POISON_MEMORY_REGION(shared_ + shared_bytes, Padded(shared_bytes) - shared_bytes);
#endif
    }
    if (const char* seed = std::getenv("KVBLOCKS_EMULATION_SEED")) {
      random_.emplace(static_cast<unsigned>(std::atoi(seed)));
    }
  }
  ~Block() {
#if defined(__SANITIZE_ADDRESS__)
    if (shared_ != nullptr) ASAN_UNPOISON_MEMORY_REGION(shared_, Padded(shared_bytes_));
#endif
    std::free(shared_);
  }

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
  uint64_t generation(int id) const { return barriers_[id].generation; }
  void Wait(const char* what, absl::FunctionRef<bool()> condition);
  [[noreturn]] void Fail(const std::string& why);
  void Report() const;

 private:
  static size_t Padded(size_t bytes) { return (bytes + 1023) / 1024 * 1024; }
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
  unsigned num_running_ = 0;
  Thread* current_ = nullptr;
  context::fiber scheduler_;  // where a suspending fiber goes back to
  std::optional<std::minstd_rand> random_;
#if defined(__SANITIZE_ADDRESS__)
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
#endif
};

thread_local Block* running_block = nullptr;

void Block::Start(Cluster* cluster, dim3 index, absl::FunctionRef<void()> body) {
  cluster_ = cluster;
  if (shared_ != nullptr) std::memset(shared_, 0xff, shared_bytes_);
  barriers_ = {};
  num_running_ = num_threads_;
  for (Warp& warp : warps_) {
    warp.running = 0;
    warp.meetings.clear();
  }
  for (unsigned i = 0; i < num_threads_; ++i) {
    Thread& thread = threads_[i];
    thread.indices.thread = dim3(i % block_.x, i / block_.x % block_.y, i / (block_.x * block_.y));
    thread.indices.block = index;
    thread.linear = i;
    thread.done = false;
    thread.ready = nullptr;
    thread.copies.clear();
    thread.groups.clear();
    thread.products.clear();
    thread.product_groups.clear();
    warps_[i / 32].running |= 1u << i % 32;
    thread.fiber = context::fiber(std::allocator_arg, PooledStack{&thread.stack},
                                  [this, &thread, body](context::fiber&& back) {
#if defined(__SANITIZE_ADDRESS__)
                                    __sanitizer_finish_switch_fiber(
                                        nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
                                    scheduler_ = std::move(back);
                                    body();
                                    thread.done = true;
                                    OnExit(thread);
#if defined(__SANITIZE_ADDRESS__)
                                    __sanitizer_start_switch_fiber(nullptr, scheduler_stack_,
                                                                   scheduler_stack_bytes_);
#endif
                                    return std::move(scheduler_);
                                  });
  }
  order_.resize(warps_.size());
  for (unsigned w = 0; w < order_.size(); ++w) order_[w] = w;
}

bool Block::Step() {
  running_block = this;
  if (random_) std::shuffle(order_.begin(), order_.end(), *random_);
  bool progress = false;
  for (const unsigned w : order_) {
    for (unsigned i = w * 32; i < std::min(num_threads_, w * 32 + 32); ++i) {
      Thread& thread = threads_[i];
      if (thread.done || (thread.ready != nullptr && !(*thread.ready)())) continue;
      Resume(thread);
      progress = true;
    }
  }
  running_block = nullptr;
  return progress;
}

void Block::Resume(Thread& thread) {
  thread.ready = nullptr;
  current_ = &thread;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(
      &fake_stack, static_cast<char*>(thread.stack.sp) - thread.stack.size, thread.stack.size);
#endif
  thread.fiber = std::move(thread.fiber).resume();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  current_ = nullptr;
}

void Block::Wait(const char* what, absl::FunctionRef<bool()> condition) {
  if (condition()) return;
  Thread& thread = *current_;
  thread.waits_for = what;
  thread.ready = &condition;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, scheduler_stack_, scheduler_stack_bytes_);
#endif
  scheduler_ = std::move(scheduler_).resume();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

const unsigned char* Block::Meet(Meeting& meeting, unsigned place, unsigned places,
                                 unsigned expected, const char* operation, const void* payload,
                                 size_t bytes) {
  std::vector<unsigned char>& buffer = meeting.payloads[meeting.generation % 2];
  buffer.resize(places * kMaxPayload);
  if (meeting.arrived == 0) {
    meeting.operation = operation;
  } else if (std::strcmp(meeting.operation, operation) != 0) {
    Fail(std::string("threads meet in different operations: ") + meeting.operation + " and " +
         operation);
  }
  std::memcpy(buffer.data() + place * kMaxPayload, payload, bytes);
  const uint64_t generation = meeting.generation;
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    ++meeting.generation;
  } else {
    Wait(operation, [&] { return meeting.generation != generation; });
  }
  return buffer.data();
}

void Block::ReleaseFullBarrier(Barrier& barrier) {
  barrier.arrived = 0;
  barrier.whole_block = false;
  ++barrier.generation;
}

void Block::Arrive(int id, unsigned threads) {
  if (id < 0 || id > 15) Fail("a barrier is one of 0 to 15, not " + std::to_string(id));
  if (threads % 32 != 0) Fail("barriers count whole warps, not " + std::to_string(threads));
  Barrier& barrier = barriers_[id];
  ++barrier.arrived;
  barrier.whole_block = threads == 0;
  if (barrier.arrived >= (threads == 0 ? num_running_ : threads)) ReleaseFullBarrier(barrier);
}

void Block::OnExit(Thread& thread) {
  if (!thread.products.empty()) Fail("a thread ended with products that it did not wait for");
  --num_running_;
  Warp& warp = warps_[thread.linear / 32];
  warp.running &= ~(1u << thread.linear % 32);
  // Who returned is waited for by nobody.
  for (Barrier& barrier : barriers_) {
    if (barrier.whole_block && barrier.arrived > 0 && barrier.arrived >= num_running_) {
      ReleaseFullBarrier(barrier);
    }
  }
  for (const std::unique_ptr<Meeting>& meeting : warp.meetings) {
    const unsigned expected = __builtin_popcount(meeting->mask & warp.running);
    if (meeting->arrived > 0 && meeting->arrived == expected) {
      meeting->arrived = 0;
      ++meeting->generation;
    }
  }
}

void Block::Fail(const std::string& why) {
  std::fprintf(stderr, "emulated GPU: %s\n", why.c_str());
  Report();
  std::abort();
}

void Block::Report() const {
  for (const Thread& thread : threads_) {
    if (thread.done || thread.linear % 32 != 0) continue;
    std::fprintf(stderr, "  block (%u, %u, %u) warp %u, first lane: %s\n", thread.indices.block.x,
                 thread.indices.block.y, thread.indices.block.z, thread.linear / 32,
                 thread.ready != nullptr ? thread.waits_for : "runs");
  }
}

}  // namespace

cudaError_t RunGrid(dim3 grid, dim3 block, size_t shared_bytes, absl::FunctionRef<void()> thread,
                    unsigned cluster) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > kMaxThreads || shared_bytes > 227 * 1024 || cluster < 1 ||
      cluster > 16 || grid.x % cluster != 0) {
    return cudaErrorInvalidConfiguration;
  }
  Cluster runner;
  for (unsigned i = 0; i < cluster; ++i) {
    runner.blocks.push_back(std::make_unique<Block>(grid, block, shared_bytes));
  }
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; x += cluster) {
        for (unsigned i = 0; i < cluster; ++i) {
          runner.blocks[i]->Start(&runner, dim3(x + i, y, z), thread);
        }
        for (bool running = true; running;) {
          bool progress = false;
          running = false;
          for (const std::unique_ptr<Block>& one : runner.blocks) {
            if (one->running() && one->Step()) progress = true;
            if (one->running()) running = true;
          }
          if (running && !progress) {
            std::fprintf(stderr, "emulated GPU: deadlock: every thread waits\n");
            for (const std::unique_ptr<Block>& one : runner.blocks) one->Report();
            std::abort();
          }
        }
      }
    }
  }
  return cudaSuccess;
}

const ThreadIndices& Indices() { return running_block->current().indices; }
dim3 BlockDim() { return running_block->block(); }
dim3 GridDim() { return running_block->grid(); }
unsigned char* DynamicShared() { return running_block->shared(); }
size_t DynamicSharedBytes() { return running_block->shared_bytes(); }
unsigned LinearThread() { return running_block->current().linear; }

const unsigned char* MeetWarp(unsigned mask, const char* operation, const void* payload,
                              size_t bytes) {
  const unsigned linear = LinearThread();
  const unsigned lane = linear % 32;
  if ((mask >> lane & 1) == 0) {
    running_block->Fail(std::string(operation) + " by a lane that its mask leaves out");
  }
  Warp& warp = running_block->warp(linear);
  Meeting* meeting = nullptr;
  for (const std::unique_ptr<Meeting>& known : warp.meetings) {
    if (known->mask == mask) meeting = known.get();
  }
  if (meeting == nullptr) {
    warp.meetings.push_back(std::make_unique<Meeting>());
    meeting = warp.meetings.back().get();
    meeting->mask = mask;
  }
  return running_block->Meet(*meeting, lane, 32, __builtin_popcount(mask & warp.running), operation,
                             payload, bytes);
}

const unsigned char* MeetWarpgroup(const char* operation, const void* payload, size_t bytes) {
  const unsigned linear = LinearThread();
  return running_block->Meet(running_block->group(linear), linear % 128, 128, 128, operation,
                             payload, bytes);
}

void BarrierArrive(int id, unsigned threads) { running_block->Arrive(id, threads); }

void BarrierSync(int id, unsigned threads) {
  const uint64_t generation = running_block->generation(id);
  running_block->Arrive(id, threads);
  running_block->Wait("a barrier", [&] { return running_block->generation(id) != generation; });
}

void ClusterSync() {
  Cluster& cluster = running_block->cluster();
  const uint64_t generation = cluster.generation;
  const size_t all = cluster.blocks.size() * running_block->num_threads();
  if (++cluster.arrived == all) {
    cluster.arrived = 0;
    ++cluster.generation;
  }
  running_block->Wait("a barrier of the cluster", [&] { return cluster.generation != generation; });
}

const unsigned char* ClusterShared(int rank, size_t offset, size_t bytes) {
  const std::vector<std::unique_ptr<Block>>& blocks = running_block->cluster().blocks;
  if (rank < 0 || static_cast<size_t>(rank) >= blocks.size()) {
    running_block->Fail("no block " + std::to_string(rank) + " in the cluster");
  }
  const Block& block = *blocks[static_cast<size_t>(rank)];
  if (!block.running()) running_block->Fail("shared memory of a block that has ended");
  if (offset + bytes > block.shared_bytes()) running_block->Fail("behind another's shared memory");
  return block.shared() + offset;
}

void WaitUntil(const char* what, absl::FunctionRef<bool()> condition) {
  running_block->Wait(what, condition);
}

void QueueCopy(unsigned char* to, const void* from, size_t copied, size_t zeroed) {
  running_block->current().copies.push_back({to, from, copied, zeroed});
}

void CommitCopies() {
  Thread& thread = running_block->current();
  thread.groups.push_back(thread.copies.size());
}

void FinishCopies(unsigned pending) {
  Thread& thread = running_block->current();
  if (thread.groups.size() <= pending) return;
  const size_t groups = thread.groups.size() - pending;
  const size_t end = thread.groups[groups - 1];
  for (size_t i = 0; i < end; ++i) {
    const Copy& copy = thread.copies[i];
    if (copy.copied > 0) std::memcpy(copy.to, copy.from, copy.copied);
    std::memset(copy.to + copy.copied, 0, copy.zeroed);
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<ptrdiff_t>(end));
  thread.groups.erase(thread.groups.begin(), thread.groups.begin() + static_cast<ptrdiff_t>(groups));
  for (size_t& group : thread.groups) group -= end;
}

void QueueProduct(float* accumulators, size_t count, std::function<void(float*)> multiply) {
  Thread& thread = running_block->current();
  std::shared_ptr<Accumulators> of;
  for (const Product& product : thread.products) {
    if (product.of->at == accumulators) of = product.of;
  }
  if (of == nullptr) {
    of = std::make_shared<Accumulators>();
    of->at = accumulators;
    of->values.assign(accumulators, accumulators + count);
    std::fill(accumulators, accumulators + count, std::numeric_limits<float>::quiet_NaN());
  }
  ++of->products;
  thread.products.push_back({std::move(of), std::move(multiply)});
}

void CommitProducts() {
  Thread& thread = running_block->current();
  thread.product_groups.push_back(thread.products.size());
}

void FinishProducts(unsigned pending) {
  Thread& thread = running_block->current();
  if (thread.product_groups.size() <= pending) return;
  const size_t groups = thread.product_groups.size() - pending;
  const size_t end = thread.product_groups[groups - 1];
  for (size_t i = 0; i < end; ++i) {
    Accumulators& of = *thread.products[i].of;
    thread.products[i].multiply(of.values.data());
    if (--of.products == 0) std::copy(of.values.begin(), of.values.end(), of.at);
  }
  thread.products.erase(thread.products.begin(),
                        thread.products.begin() + static_cast<ptrdiff_t>(end));
  thread.product_groups.erase(thread.product_groups.begin(),
                              thread.product_groups.begin() + static_cast<ptrdiff_t>(groups));
  for (size_t& group : thread.product_groups) group -= end;
}

}  // namespace kvblocks::attention::cuda::emulation
