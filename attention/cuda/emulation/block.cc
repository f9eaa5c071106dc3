#include "attention/cuda/emulation/block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvblocks::attention::cuda::emulation {

thread_local Block* running_block = nullptr;

namespace {

// Sanitizers make frames several times larger.
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kOutermostBytes = 16 * 1024;
#else
constexpr size_t kStackBytes = 96 * 1024;
#endif

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

// What stands for an emulated thread in races.h is kept, too.
class WatchedPool {
 public:
  void* allocate() {
    if (free_.empty()) return races::CreateThread();
    void* const thread = free_.back();
    free_.pop_back();
    return thread;
  }
  void deallocate(void* thread) { free_.push_back(thread); }
  ~WatchedPool() {
    for (void* thread : free_) races::DestroyThread(thread);
  }

 private:
  std::vector<void*> free_;
};
WatchedPool& WatchedThreads() {
  static thread_local WatchedPool pool;
  return pool;
}

// One row of the innermost dimension at a time.
void CopyBox(const Box& box, unsigned char* to) {
  const auto bits = reinterpret_cast<uintptr_t>(to);
  const uintptr_t pieces = static_cast<uintptr_t>(box.permuted) / 16 - 1;
  unsigned char row[128];
  size_t done = 0;
  for (int32_t z = 0; z < box.box[3]; ++z) {
    for (int32_t y = 0; y < box.box[2]; ++y) {
      for (int32_t x = 0; x < box.box[1]; ++x) {
        const int64_t place[3] = {int64_t{box.at[1]} + x, int64_t{box.at[2]} + y,
                                  int64_t{box.at[3]} + z};
        std::memset(row, 0, sizeof(row));
        const int64_t begin = std::max<int64_t>(0, -int64_t{box.at[0]});
        const int64_t end = std::min<int64_t>(box.box[0], box.extents[0] - box.at[0]);
        bool inside = end > begin;
        int64_t from = box.at[0] + begin;
        for (int i = 0; i < 3; ++i) {
          inside = inside && place[i] >= 0 && place[i] < box.extents[i + 1];
          from += place[i] * box.strides[i];
        }
        if (inside) {
          std::memcpy(row + 2 * begin, static_cast<const unsigned char*>(box.data) + 2 * from,
                      static_cast<size_t>(2 * (end - begin)));
        }
        for (int32_t piece = 0; piece < box.box[0] / 8; ++piece, done += 16) {
          const uintptr_t at = bits + done;
          const uintptr_t permuted = at ^ (at >> 7 & pieces) << 4;
          std::memcpy(to + static_cast<ptrdiff_t>(permuted - bits), row + 16 * piece, 16);
        }
      }
    }
  }
}

size_t Padded(size_t bytes) { return (bytes + 1023) / 1024 * 1024; }

}  // namespace

Block::Block(dim3 grid, dim3 block, size_t shared_bytes)
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
  for (Thread& thread : threads_) thread.watched = WatchedThreads().allocate();
}

Block::~Block() {
  for (const Thread& thread : threads_) WatchedThreads().deallocate(thread.watched);
#if defined(__SANITIZE_ADDRESS__)
  if (shared_ != nullptr) ASAN_UNPOISON_MEMORY_REGION(shared_, Padded(shared_bytes_));
#endif
  std::free(shared_);
}

void Block::Start(Cluster* cluster, dim3 index, absl::FunctionRef<void()> body) {
  cluster_ = cluster;
  if (shared_ != nullptr) std::memset(shared_, 0xff, shared_bytes_);
  barriers_ = {};
  deliveries_.clear();
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
    thread.stores.clear();
    thread.committed_stores = 0;
    thread.products.clear();
    thread.product_groups.clear();
    warps_[i / 32].running |= 1u << i % 32;
    thread.fiber = context::fiber(
        std::allocator_arg, PooledStack{&thread.stack},
        [this, &thread, body](context::fiber&& back) {
#if defined(__SANITIZE_ADDRESS__)
          __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
          scheduler_ = std::move(back);
          races::Acquire(&cluster_->begun);
          body();
          thread.done = true;
          OnExit(thread);
          races::Release(&cluster_->ended);
          races::SwitchTo(scheduler_watched_);
#if defined(__SANITIZE_ADDRESS__)
          __sanitizer_start_switch_fiber(nullptr, scheduler_stack_, scheduler_stack_bytes_);
#endif
          return std::move(scheduler_);
        });
  }
  order_.resize(warps_.size());
  for (unsigned w = 0; w < order_.size(); ++w) order_[w] = w;
}

bool Block::Step() {
  running_block = this;
  scheduler_watched_ = races::CurrentThread();
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
  races::SwitchTo(thread.watched);
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
  races::SwitchTo(scheduler_watched_);
  scheduler_ = std::move(scheduler_).resume();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &scheduler_stack_, &scheduler_stack_bytes_);
#endif
}

const unsigned char* Block::Meet(Meeting& meeting, unsigned place, unsigned places,
                                 unsigned expected, const char* operation, const void* payload,
                                 size_t bytes) {
  const uint64_t generation = meeting.generation;
  // Of what warps do together, this alone orders their memory.
  const bool orders = std::strcmp(operation, "__syncwarp") == 0;
  if (orders) races::Release(&meeting.order[generation % 2]);
  std::vector<unsigned char>& buffer = meeting.payloads[generation % 2];
  if (meeting.arrived == 0) {
    meeting.operation = operation;
  } else if (meeting.operation != operation && std::strcmp(meeting.operation, operation) != 0) {
    Fail(std::string("threads meet in different operations: ") + meeting.operation + " and " +
         operation);
  }
  {
    const races::Unwatched unwatched;
    buffer.resize(places * kMaxPayload);
    std::memcpy(buffer.data() + place * kMaxPayload, payload, bytes);
  }
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    ++meeting.generation;
  } else {
    Wait(operation, [&] { return meeting.generation != generation; });
  }
  if (orders) races::Acquire(&meeting.order[generation % 2]);
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
  races::Release(&barrier.order[barrier.generation % 2]);
  ++barrier.arrived;
  barrier.whole_block = threads == 0;
  if (barrier.arrived >= (threads == 0 ? num_running_ : threads)) ReleaseFullBarrier(barrier);
}

Delivery& Block::DeliveryAt(const Phases* at) {
  for (Delivery& delivery : deliveries_) {
    if (delivery.at == at) return delivery;
  }
  const races::Unwatched unwatched;
  deliveries_.emplace_back().at = at;
  return deliveries_.back();
}

void Block::EndPhase(Phases* at) {
  if (at->pending > 0) return;
  Delivery& delivery = DeliveryAt(at);
  if (delivery.queued > delivery.expected) {
    Fail("a barrier expects " + std::to_string(delivery.expected) + " bytes and gets " +
         std::to_string(delivery.queued));
  }
  if (delivery.queued < delivery.expected) return;
  {
    // For the race check the thread that asked for the boxes writes them.
    const races::Unwatched unwatched;
    for (const auto& [box, to] : delivery.boxes) CopyBox(box, to);
  }
  delivery.boxes.clear();
  delivery.expected = delivery.queued = 0;
  at->pending = at->expected;
  ++at->phase;
}

void Block::OnExit(Thread& thread) {
  if (!thread.products.empty()) Fail("a thread ended with products that it did not wait for");
  if (!thread.stores.empty()) Fail("a thread ended with stores that it did not wait for");
  --num_running_;
  for (const Delivery& delivery : deliveries_) {
    if (num_running_ == 0 && !delivery.boxes.empty()) {
      Fail("a block ended with boxes that nobody waited for");
    }
  }
  Warp& warp = warps_[thread.linear / 32];
  warp.running &= ~(1u << thread.linear % 32);
  // Nobody waits for a thread that has returned.
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

}  // namespace kvblocks::attention::cuda::emulation
