// What an operation of the block pool costs per block, against the pool's size.
//
//   bazel run -c opt //bench:pool_sizes
//   bazel run -c opt //bench:pool_sizes -- --largest=100000000
//
// Every pool is full of cached blocks whose ids were handed out in random order, so that no two
// blocks of a run share a cache line: the worst that can happen to locality. Beside it stands what
// one dependent load costs on this machine in a buffer as large as the pool's book-keeping,
// measured in the same run. An operation that waited for each of its cache lines in turn would cost
// several times that per block.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "bench/thread_time.h"
#include "kvblocks/block_pool.h"
#include "kvblocks/check.h"

namespace kvblocks::bench {
namespace {

constexpr int64_t kBlockSize = 16;
constexpr int64_t kRun = 256;  // blocks per call
constexpr double kMeasureSeconds = 0.3;

BlockHash HashOf(uint64_t index) {
  BlockHash hash;
  uint64_t state = index * 4;
  for (uint64_t& word : hash.words) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);  // splitmix64
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    word = z ^ (z >> 31);
  }
  return hash;
}

// One dependent load after another along a random cycle through `bytes` bytes, one per cache line.
double LoadNanoseconds(size_t bytes, std::mt19937_64& random) {
  struct alignas(64) Line {
    uint32_t next;
  };
  const size_t count = std::max<size_t>(2, bytes / sizeof(Line));
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Line> lines(count);
  for (size_t i = 0; i < count; ++i) lines[order[i]].next = order[(i + 1) % count];
  constexpr int64_t kLoads = 4'000'000;
  uint32_t at = order[0];
  const double start = ThreadSeconds();
  for (int64_t i = 0; i < kLoads; ++i) at = lines[at].next;
  const double seconds = ThreadSeconds() - start;
  KVBLOCKS_CHECK(at < count, "the walk left its buffer");
  return seconds / kLoads * 1e9;
}

class FullPool {
 public:
  explicit FullPool(int64_t num_blocks, std::mt19937_64& random)
      : hashing_(std::make_shared<const PrefixHashing>(
            PrefixHashing{BlockHasher(HashAlgorithm::kXxh3_128, "bench"), kBlockSize})),
        pool_(*BlockPool::Create({.num_blocks = num_blocks})) {
    std::vector<BlockId> all;
    pool_->GetNewBlocks(num_blocks - 1, all, /*group=*/0);
    std::shuffle(all.begin(), all.end(), random);
    pool_->FreeBlocksReversed(all);
    num_runs_ = (num_blocks - 1) / kRun;
    for (int64_t i = 0; i < num_runs_; ++i) Replace();
  }

  struct Costs {
    double look_up = 0, touch = 0, free = 0, evict = 0, insert = 0;  // ns per block
  };
  Costs Measure(std::mt19937_64& random) {
    Costs total;
    int64_t num_blocks = 0;
    double measured = 0;
    std::vector<BlockId> found(static_cast<size_t>(kRun));
    while (measured < kMeasureSeconds) {
      // Among the newest third, which nothing has evicted: at most two thirds were used since.
      const int64_t newest = std::max<int64_t>(1, num_runs_ / 3);
      const int64_t run =
          next_run_ - 1 - static_cast<int64_t>(random() % static_cast<uint64_t>(newest));
      const PrefixContent content = ContentOf(run);
      const double start = ThreadSeconds();
      const size_t hits = pool_->FindCachedRun(content, 0, 1, 0, absl::MakeSpan(found));
      const double looked_up = ThreadSeconds();
      KVBLOCKS_CHECK(hits == static_cast<size_t>(kRun), "a cached run was not found");
      pool_->Touch(found);
      const double touched = ThreadSeconds();
      pool_->FreeBlocksReversed(found);
      const double freed = ThreadSeconds();
      total.look_up += looked_up - start;
      total.touch += touched - looked_up;
      total.free += freed - touched;
      const Costs replaced = Replace();
      total.evict += replaced.evict;
      total.insert += replaced.insert;
      num_blocks += kRun;
      measured += freed - start + replaced.evict + replaced.insert;
    }
    for (double* cost : {&total.look_up, &total.touch, &total.free, &total.evict, &total.insert}) {
      *cost *= 1e9 / static_cast<double>(num_blocks);
    }
    return total;
  }

 private:
  PrefixContent ContentOf(int64_t run) const {
    std::vector<BlockHash> hashes;
    for (int64_t i = 0; i < kRun; ++i) {
      hashes.push_back(HashOf(static_cast<uint64_t>(run * kRun + i)));
    }
    return PrefixContent::FromHashes(kRun * kBlockSize, std::move(hashes), hashing_).value();
  }

  // The next content takes the blocks that are first in the queue.
  Costs Replace() {
    const PrefixContent content = ContentOf(next_run_++);
    table_.clear();
    const double start = ThreadSeconds();
    pool_->GetNewBlocks(kRun, table_, /*group=*/0);
    const double taken = ThreadSeconds();
    pool_->CacheFullBlocks(content, table_, 0, kRun, kBlockSize, 0, {});
    const double registered = ThreadSeconds();
    pool_->FreeBlocksReversed(table_);
    Costs costs;
    costs.evict = taken - start;
    costs.insert = registered - taken;
    return costs;
  }

  std::shared_ptr<const PrefixHashing> hashing_;
  std::unique_ptr<BlockPool> pool_;
  std::vector<BlockId> table_;
  int64_t num_runs_ = 0;
  int64_t next_run_ = 0;
};

int Main(int argc, char** argv) {
  int64_t largest = 10'000'000;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (!absl::ConsumePrefix(&argument, "--largest=") || !absl::SimpleAtoi(argument, &largest) ||
        largest < 10'000 || largest > 1'000'000'000) {
      std::fprintf(stderr, "usage: pool_sizes [--largest=BLOCKS], 10,000 to 1,000,000,000\n");
      return 2;
    }
  }
  absl::PrintF("ns per block, in runs of %d blocks with random ids\n\n", kRun);
  std::printf("%12s %10s %10s | %8s %8s %8s %8s %8s | %s\n", "blocks", "MiB", "one load", "look-up",
              "touch", "free", "evict", "register", "look-up / load");
  for (int64_t num_blocks = 10'000; num_blocks <= largest; num_blocks *= 10) {
    std::mt19937_64 random(static_cast<uint64_t>(num_blocks));
    const int64_t bytes =
        num_blocks * static_cast<int64_t>(sizeof(KvCacheBlock) + sizeof(BlockHash)) +
        PrefixHashTable::BytesFor(num_blocks);
    const double load = LoadNanoseconds(static_cast<size_t>(bytes), random);
    FullPool pool(num_blocks, random);
    const FullPool::Costs costs = pool.Measure(random);
    absl::PrintF("%12d %10.1f %10.1f | %8.1f %8.1f %8.1f %8.1f %8.1f | %.2f\n", num_blocks,
                 static_cast<double>(bytes) / (1 << 20), load, costs.look_up, costs.touch,
                 costs.free, costs.evict, costs.insert, costs.look_up / load);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace kvblocks::bench

int main(int argc, char** argv) { return kvblocks::bench::Main(argc, argv); }
