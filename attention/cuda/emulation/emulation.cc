#include "attention/cuda/emulation/emulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/emulation/block.h"
#include "attention/cuda/emulation/races.h"

namespace kvblocks::attention::cuda::emulation {

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
        races::Release(&runner.begun);
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
        races::Acquire(&runner.ended);
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
    const races::Unwatched unwatched;
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
  const Barrier& barrier = running_block->barrier(id);
  const uint64_t generation = barrier.generation;
  running_block->Arrive(id, threads);
  running_block->Wait("a barrier", [&] { return barrier.generation != generation; });
  races::Acquire(&barrier.order[generation % 2]);
}

void ClusterSync() {
  Cluster& cluster = running_block->cluster();
  const uint64_t generation = cluster.generation;
  races::Release(&cluster.order[generation % 2]);
  const size_t all = cluster.blocks.size() * running_block->num_threads();
  if (++cluster.arrived == all) {
    cluster.arrived = 0;
    ++cluster.generation;
  }
  running_block->Wait("a barrier of the cluster", [&] { return cluster.generation != generation; });
  races::Acquire(&cluster.order[generation % 2]);
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

void InitPhases(Phases* at, unsigned arrivals) {
  races::Write8(at);
  const uint16_t count = static_cast<uint16_t>(arrivals);
  *at = {count, count, 0};
  Delivery& delivery = running_block->DeliveryAt(at);
  if (!delivery.boxes.empty()) running_block->Fail("a barrier made anew while boxes are under way");
  delivery.expected = 0;
}

namespace {
// Where arrivals of a phase leave what is ordered before its end.
const char* OrderOf(const Phases* at, uint32_t phase) {
  return reinterpret_cast<const char*>(at) + phase % 2;
}
}  // namespace

void ArriveAtPhase(Phases* at) { ArriveExpecting(at, 0); }

void ArriveExpecting(Phases* at, unsigned bytes) {
  races::Read8(at);
  races::Release(OrderOf(at, at->phase));
  if (at->pending == 0) running_block->Fail("more arrivals than the phase of a barrier has");
  if (bytes > 0) running_block->DeliveryAt(at).expected += bytes;
  --at->pending;
  running_block->EndPhase(at);
}

void QueueBox(const Box& box, unsigned char* to, Phases* barrier) {
  size_t bytes = 2;
  for (const int32_t extent : box.box) bytes *= static_cast<size_t>(extent);
  const size_t offset = static_cast<size_t>(to - running_block->shared());
  if (offset % 128 != 0) running_block->Fail("a box at no multiple of 128 bytes");
  if (box.at[0] % 8 != 0) running_block->Fail("a box from no multiple of 16 bytes of a row");
  if (offset + bytes > running_block->shared_bytes()) {
    running_block->Fail("a box that ends behind shared memory");
  }
  std::memset(to, 0xff, bytes);
  races::Release(OrderOf(barrier, barrier->phase));
  Delivery& delivery = running_block->DeliveryAt(barrier);
  {
    const races::Unwatched unwatched;
    delivery.boxes.emplace_back(box, to);
  }
  delivery.queued += bytes;
  running_block->EndPhase(barrier);
}

void QueueStore(void* to, const unsigned char* from, size_t bytes) {
  const auto misfit = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | bytes;
  if (misfit % 16 != 0) running_block->Fail("a bulk store of no multiples of 16 bytes");
  running_block->current().stores.push_back({to, from, bytes});
}

void CommitStores() {
  Thread& thread = running_block->current();
  thread.committed_stores = thread.stores.size();
}

void FinishStores() {
  Thread& thread = running_block->current();
  const auto end = thread.stores.begin() + static_cast<ptrdiff_t>(thread.committed_stores);
  for (auto store = thread.stores.begin(); store != end; ++store) {
    std::memcpy(store->to, store->from, store->bytes);
  }
  thread.stores.erase(thread.stores.begin(), end);
  thread.committed_stores = 0;
}

bool PhaseIsOver(const Phases* at, uint32_t parity) {
  races::Read8(at);
  if ((at->phase & 1) == parity) return false;
  races::Acquire(OrderOf(at, parity));
  return true;
}

void WaitForPhase(const Phases* at, uint32_t parity) {
  running_block->Wait("a barrier in shared memory", [&] { return (at->phase & 1) != parity; });
  PhaseIsOver(at, parity);
}

uint32_t NextRandom() {
  static thread_local uint32_t random = 1;
  return random = random * 1664525u + 1013904223u;
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
  thread.groups.erase(thread.groups.begin(),
                      thread.groups.begin() + static_cast<ptrdiff_t>(groups));
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
