// Where pages lie, as views: the worked example, refusals, and blocks that share memory.

#include "kvblocks/kv_cache_view.h"

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/cpu/block_ops.h"
#include "attention/testing/says.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using attention::KvLayout;
using attention::Says;
using attention::TensorView;
using attention::ViewOf;

// The example of the header.
TEST(PagePlaceTest, TheExampleOfTheHeader) {
  attention::PagePlace place = {.page_bytes = 96,
                                .block_stride = 96,
                                .ids_per_chunk = 5,
                                .pages_per_chunk = 2,
                                .chunk_bytes = 200,
                                .null_offset = 400};
  std::vector<std::byte> bytes(496);
  const TensorView memory = ViewOf(absl::MakeSpan(bytes));
  for (const auto& [stride, pages, at] :
       {std::tuple<int64_t, int64_t, int64_t>(96, 2, 296), {40, 5, 240}}) {
    place.page_bytes = place.block_stride = stride;
    place.pages_per_chunk = pages;
    const auto placed = PlacePages(place, 11, 1, memory);
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_EQ(place.PageOffset(7), at);
    EXPECT_EQ(placed->pages.At(placed->blocks.First(7)) - bytes.data(), at);
    EXPECT_EQ(placed->pages.At(placed->blocks.First(0)) - bytes.data(), 400);
    EXPECT_TRUE(placed->overlapping == (stride == 96));
    EXPECT_EQ(placed->blocks.IsPage(8), stride == 40);
  }
}

TEST(PagePlaceTest, WhatContradictsItselfIsRefused) {
  std::vector<std::byte> bytes(1000);
  const auto status_of = [&](attention::PagePlace place, int64_t num_blocks = 11,
                             int64_t split = 1) {
    return PlacePages(place, num_blocks, split, ViewOf(absl::MakeSpan(bytes))).status();
  };
  const attention::PagePlace even = {.page_bytes = 90, .block_stride = 90};
  EXPECT_EQ(status_of(even), absl::OkStatus());
  EXPECT_THAT(status_of(even, 0), Says("num_blocks is 0"));
  EXPECT_THAT(status_of(even, 12), Says("end at byte 1080 of the memory, which has 1000"));
  EXPECT_THAT(status_of(even, 11, 4), Says("split is 4; it must divide the 90"));
  EXPECT_THAT(status_of({.page_bytes = 90, .block_stride = 89}), Says("89 bytes of stride"));
  EXPECT_THAT(status_of({.offset = INT64_MAX, .page_bytes = 1, .block_stride = 1}),
              Says("beyond 2^63"));
  const attention::PagePlace chunks = {.page_bytes = 40,
                                       .block_stride = 40,
                                       .ids_per_chunk = 5,
                                       .pages_per_chunk = 4,
                                       .chunk_bytes = 170,
                                       .null_offset = 340};
  EXPECT_EQ(status_of(chunks), absl::OkStatus());
  EXPECT_THAT(status_of(chunks, 12), Says("ids_per_chunk is 5; the 11 ids"));
  attention::PagePlace bad = chunks;
  bad.pages_per_chunk = 5;
  EXPECT_THAT(status_of(bad), Says("pages_per_chunk is 5"));
  bad = chunks;
  bad.null_offset = 970;
  EXPECT_THAT(status_of(bad), Says("end at byte 1010"));
}

// In the example of the header ids 6 and 7 are block numbers 25 and 37, and numbers between them
// are no blocks: whole views cannot be converted, pairs of blocks can.
TEST(PagePlaceTest, ViewsWhoseBlocksShareMemoryConvertByPairsOnly) {
  const attention::PagePlace place = {.page_bytes = 96,
                                      .block_stride = 96,
                                      .ids_per_chunk = 5,
                                      .pages_per_chunk = 2,
                                      .chunk_bytes = 200,
                                      .null_offset = 400};
  std::vector<float> bytes(124), dense(3 * 24);
  for (size_t i = 0; i < dense.size(); ++i) dense[i] = static_cast<float>(i + 1);
  const auto placed = PlacePages(place, 11, 1, ViewOf(absl::MakeSpan(bytes)));
  ASSERT_TRUE(placed.ok()) << placed.status();
  attention::KvCacheGeometry geometry = {.dtype = attention::DType::kF32,
                                         .num_blocks = 3,
                                         .block_size = 3,
                                         .key_dim = 4,
                                         .value_dim = 4};
  const auto native = PlacedKvCache(*placed, geometry);
  ASSERT_TRUE(native.ok()) << native.status();
  ASSERT_TRUE(native->overlapping_blocks);
  geometry.layout = KvLayout::kHnd, geometry.placement = attention::KvPlacement::kInterleaved;
  const attention::KvCacheView hnd = *MakeKvCacheView(geometry, ViewOf(absl::MakeSpan(dense)));
  const auto number = [&](int32_t id) { return static_cast<int32_t>(placed->blocks.First(id)); };

  EXPECT_THAT(attention::ConvertLayout({}, *native, hnd),
              Says("src has blocks that share memory, so not all of them are there"));
  const attention::BlockPair neighbours[] = {{0, number(7)}, {1, number(7) + 11}};
  const std::vector<float> before = bytes;
  const absl::Status refused = attention::ConvertLayout({}, hnd, *native, neighbours);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused, Says("of dst share memory: a block has 96 bytes"));
  EXPECT_EQ(bytes, before);
  const attention::BlockPair pairs[] = {{0, number(7)}, {1, number(6)}, {2, number(1)}};
  ASSERT_EQ(attention::ConvertLayout({}, hnd, *native, pairs), absl::OkStatus());
  // One head: blocks are the same in both.
  for (const auto& [block, id] : {std::pair(0, 7), {1, 6}, {2, 1}}) {
    const float* const at = bytes.data() + place.PageOffset(id) / 4;
    EXPECT_EQ(std::vector<float>(at, at + 24),
              std::vector<float>(dense.begin() + block * 24, dense.begin() + (block + 1) * 24));
  }
}

}  // namespace
}  // namespace kvblocks
