#include "kvblocks/attention/backends/workspace.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {
namespace {

using ::testing::HasSubstr;

// 256 sequences of 32 heads on 132 multiprocessors: O((R + parts) * H * Dv), whatever the lengths.
TEST(WorkspaceTest, DecodeNeedsPartialsOfRequestsAndParts) {
  const auto size =
      WorkspaceBytes(OpKind::kPagedDecode,
                     {.max_reqs = 256, .num_heads = 32, .value_head_size = 128, .max_parts = 132});
  ASSERT_TRUE(size.ok());
  EXPECT_EQ(size->pinned, 0);
  const int64_t partials = (256 + 132) * 32 * 128 * 4, statistics = (256 + 132) * 32 * 2 * 4;
  // Plan entries, offsets of splits and of mask bits, each rounded up.
  EXPECT_EQ(size->device, partials + statistics + 4352 + 1280 + 2048);
}

// Kernels keep states of whole tiles of rows, so few heads take as much as 32.
TEST(WorkspaceTest, DecodeOfFewHeadsHasRoomForTilesOfRows) {
  const auto bytes = [](int64_t heads) {
    return WorkspaceBytes(
               OpKind::kPagedDecode,
               {.max_reqs = 8, .num_heads = heads, .value_head_size = 64, .max_parts = 264})
        ->device;
  };
  EXPECT_EQ(bytes(1), bytes(32));
  EXPECT_GE(bytes(4), 422400);  // what an H200 asked for, with two KV heads
}

TEST(WorkspaceTest, EveryOperationHasASizeThatGrowsWithTheBounds) {
  const WorkspaceBounds small = {.max_reqs = 2,
                                 .max_tokens = 100,
                                 .num_heads = 4,
                                 .num_kv_heads = 2,
                                 .value_head_size = 64,
                                 .max_parts = 4};
  WorkspaceBounds large = small;
  large.max_reqs = large.max_tokens = 10000;
  for (int i = 0; i < kNumOpKinds; ++i) {
    const auto op = static_cast<OpKind>(i);
    const auto a = WorkspaceBytes(op, small), b = WorkspaceBytes(op, large);
    ASSERT_TRUE(a.ok() && b.ok()) << Name(op);
    EXPECT_LE(a->device, b->device) << Name(op);
    EXPECT_EQ(a->device == 0, b->device == 0) << Name(op);
  }
}

TEST(WorkspaceTest, BadBoundsAreRefused) {
  EXPECT_THAT(
      std::string(WorkspaceBytes(OpKind::kPagedDecode, {.max_reqs = -1}).status().message()),
      HasSubstr("WorkspaceBytes(decode): a bound is -1"));
  const auto huge = WorkspaceBytes(
      OpKind::kCascade,
      {.max_tokens = int64_t{1} << 50, .num_heads = 1 << 10, .value_head_size = 1 << 10});
  EXPECT_EQ(huge.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(huge.status().message()), HasSubstr("more than 2^63 bytes"));
}

TEST(WorkspaceArenaTest, PiecesAreApartAndAligned) {
  std::vector<std::byte> memory(1024);
  WorkspaceArena arena(absl::MakeSpan(memory));
  const auto a = arena.Take(1), b = arena.Take(300);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->data(), memory.data());
  EXPECT_EQ(a->size(), 1u);
  EXPECT_EQ(b->data(), memory.data() + 256);
  EXPECT_EQ(arena.used(), 768);
  arena.Reset();
  EXPECT_EQ(arena.Take(1024)->data(), memory.data());
}

TEST(WorkspaceArenaTest, TooSmallNamesTheBytesNeeded) {
  std::vector<std::byte> memory(1024);
  WorkspaceArena arena(absl::MakeSpan(memory));
  ASSERT_TRUE(arena.Take(1000).ok());
  const absl::Status status = arena.Take(500).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("needs a workspace of 1524 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the arena has 1024"));
  EXPECT_EQ(arena.most_needed(), 1524);
  EXPECT_EQ(arena.Take(-1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(arena.Take(INT64_MAX).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(arena.Take(0)->empty());
}

TEST(WorkspaceArenaTest, WhatIsNeededSuffices) {
  std::vector<std::byte> memory(300);  // no multiple of the alignment
  WorkspaceArena small(absl::MakeSpan(memory));
  ASSERT_TRUE(small.Take(300).ok());
  EXPECT_FALSE(small.Take(50).ok());
  memory.resize(static_cast<size_t>(small.most_needed()));
  WorkspaceArena arena(absl::MakeSpan(memory));
  EXPECT_TRUE(arena.Take(300).ok());
  EXPECT_TRUE(arena.Take(50).ok());
}

}  // namespace
}  // namespace kvblocks::attention
