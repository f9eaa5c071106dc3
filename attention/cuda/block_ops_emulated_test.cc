// Block operations of CUDA, emulated, against those of the host.

#include <numeric>
#include <string>
#include <vector>

#include "attention/cpu/block_ops.h"
#include "attention/cuda/block_ops.h"
#include "attention/testing/random_cache.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {
namespace {

// A dense kNhd cache [blocks, 1, 1, 8], or, interleaved, of strided blocks, labelled as wanted.
struct Labelled {
  std::vector<float> memory;
  KvCacheView view;

  Labelled(int64_t blocks, DeviceKind kind, bool heads_apart = false)
      : memory(static_cast<size_t>(2 * 2 * blocks * 8)) {
    std::iota(memory.begin(), memory.end(), 1.0f);
    TensorView both = ViewOf(absl::MakeSpan(memory), {blocks, 2, 2, 1, 8});
    both.device.kind = kind;
    if (heads_apart) {
      // K and V of a token are adjacent, tokens of a block are not.
      view = KvCacheView(KvLayout::kNhd, *both.Select(2, 0), *both.Select(2, 1));
    } else {
      both = ViewOf(absl::MakeSpan(memory), {2, blocks, 2, 1, 8});
      both.device.kind = kind;
      view = KvCacheView(KvLayout::kNhd, *both.Select(0, 0), *both.Select(0, 1));
    }
  }
  KvCacheView OnHost() const {
    KvCacheView host = view;
    host.k.device = host.v.device = {};
    return host;
  }
};

ExecContext OnDevice() {
  ExecContext context;
  context.device = {DeviceKind::kCuda, 0};
  return context;
}

TEST(CudaBlockOpsTest, BlocksAreSwappedWithPinnedMemory) {
  for (const bool heads_apart : {false, true}) {
    for (const bool out : {false, true}) {
      const Labelled source(9, out ? DeviceKind::kCuda : DeviceKind::kPinnedHost, heads_apart);
      Labelled expected(12, DeviceKind::kHost);
      Labelled actual(12, out ? DeviceKind::kPinnedHost : DeviceKind::kCuda);
      // Runs of neighbours, one that is broken on one side, and single blocks.
      const BlockPair pairs[] = {{0, 3}, {1, 4}, {2, 5}, {3, 7}, {8, 8}, {5, 0}, {4, 1}};
      ASSERT_EQ(SwapBlocks({}, source.OnHost(), expected.view, pairs), absl::OkStatus());
      ASSERT_EQ(CudaSwapBlocks(OnDevice(), source.view, actual.view, pairs), absl::OkStatus());
      EXPECT_EQ(actual.memory, expected.memory);
    }
  }
}

TEST(CudaBlockOpsTest, ListsLongerThanAKernelTakesAreCut) {
  constexpr int64_t kBlocks = 2000;
  Labelled expected(kBlocks, DeviceKind::kHost), actual(kBlocks, DeviceKind::kCuda);
  std::vector<BlockPair> pairs;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 1000; ++i) {
    pairs.emplace_back(2 * i, 2 * ((i * 7) % 1000) + 1);
    ids.push_back(2 * i);
  }
  const KvCacheView of_host[] = {expected.view}, of_device[] = {actual.view};
  ASSERT_EQ(CopyBlocks({}, of_host, pairs), absl::OkStatus());
  ASSERT_EQ(CudaCopyBlocks(OnDevice(), of_device, pairs), absl::OkStatus());
  EXPECT_EQ(actual.memory, expected.memory);
  ASSERT_EQ(FillBlocks({}, expected.view, ids, std::byte{0x11}), absl::OkStatus());
  ASSERT_EQ(CudaFillBlocks(OnDevice(), actual.view, ids, std::byte{0x11}), absl::OkStatus());
  EXPECT_EQ(actual.memory, expected.memory);
}

TEST(CudaBlockOpsTest, WhatTheHostRefusesIsRefused) {
  Labelled cache(4, DeviceKind::kCuda), other(4, DeviceKind::kCuda);
  Labelled pinned(4, DeviceKind::kPinnedHost), host(4, DeviceKind::kHost);
  const std::vector<float> before = cache.memory;
  const auto refused = [&](const absl::Status& status, absl::StatusCode code,
                           const std::string& words) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status, Says(words));
    EXPECT_EQ(cache.memory, before);
  };
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto range = absl::StatusCode::kOutOfRange;
  const auto copy = [&](std::vector<BlockPair> pairs) {
    const KvCacheView caches[] = {cache.view};
    return CudaCopyBlocks(OnDevice(), caches, pairs);
  };
  refused(copy({{0, 1}, {2, 1}}), invalid, "given twice");
  refused(copy({{0, 1}, {1, 2}}), invalid, "is a source and a destination");
  refused(copy({{0, 4}}), range, "destination block 4 of a cache of 4 blocks");
  refused(copy({{-1, 0}}), range, "source block -1");
  const KvCacheView twice[] = {cache.view, other.view, cache.view};
  const BlockPair pair[] = {{0, 1}};
  refused(CudaCopyBlocks(OnDevice(), twice, pair), invalid, "share memory");
  const int32_t id = 4;
  refused(CudaFillBlocks(OnDevice(), cache.view, {&id, 1}, std::byte{0}), range, "ids block 4");
  refused(CudaFillBlocks(OnDevice(), host.view, {}, std::byte{0}), invalid, "is on host");
  refused(CudaSwapBlocks(OnDevice(), cache.view, cache.view, pair), invalid, "share memory");
  refused(CudaSwapBlocks(OnDevice(), host.view, cache.view, pair), invalid,
          "src is on host; it must be on cuda:0, or in pinned host memory");
  refused(CudaSwapBlocks(OnDevice(), pinned.view, pinned.view, pair), invalid,
          "the host's SwapBlocks does that");
  KvCacheView split = pinned.view;
  split.v.device = {};
  refused(CudaSwapBlocks(OnDevice(), split, cache.view, pair), invalid, "and elsewhere");
  EXPECT_EQ(CudaSwapBlocks(OnDevice(), other.view, cache.view, {}), absl::OkStatus());
}

}  // namespace
}  // namespace kvblocks::attention::cuda
