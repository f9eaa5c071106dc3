// IndexTopk at sizes that its kernels were made for, which suites of all backends avoid for their
// cost: many tiles and pieces, blocks of several tokens, clusters that select. Small integers, so
// that sums are exact and lists are those of CPU_REFERENCE.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cuda/kernels/runtime.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention::cuda {
namespace {

struct TopkShape {
  std::vector<int64_t> lengths, q_lens;
  int64_t width = 2048, ratio = 1, heads = 64, block_size = 64;
  DType type = DType::kF8E4M3;  // of queries; codes: a planar cache
};

void ExpectReference(TopkShape shape) {
  constexpr int64_t kDim = 128, kSpread = 3;
  // The emulation takes seconds for what is there.
  if (IsEmulation()) {
    for (int64_t& length : shape.lengths) length /= 8;
    shape.width /= 8;
  }
  std::mt19937_64 random(shape.width);
  const auto requests = static_cast<int64_t>(shape.lengths.size());
  const int64_t longest = *std::max_element(shape.lengths.begin(), shape.lengths.end());
  const int64_t columns = longest / shape.ratio / shape.block_size + 1;
  const int64_t num_blocks = requests * columns, num_rows = num_blocks * shape.block_size;
  const auto draw = [&](int64_t count) {
    std::vector<double> values(count);
    for (double& value : values) {
      value = static_cast<double>(IntegerDraw(random, -kSpread, kSpread));
    }
    return values;
  };
  std::vector<double> starts = {0}, blocks(num_blocks), slots(num_rows);
  for (const int64_t q_len : shape.q_lens) {
    starts.push_back(starts.back() + static_cast<double>(q_len));
  }
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::iota(slots.begin(), slots.end(), 0);
  const auto tokens = static_cast<int64_t>(starts.back());
  const Tensor table = IntTensor(blocks, {requests, columns});
  const Tensor query_start_loc = IntTensor(starts, {requests + 1});
  const Tensor seq_lens =
      IntTensor(std::vector<double>(shape.lengths.begin(), shape.lengths.end()), {requests});

  const bool planar = shape.type == DType::kF8E4M3;
  Tensor keys(DType::kBF16, {num_rows, kDim}), mapping(DType::kI64, {num_rows});
  keys.Set(draw(num_rows * kDim)), mapping.Set(slots);
  Tensor rows = planar ? Tensor(DType::kU8, {num_blocks, IndexBlockBytes(shape.block_size, kDim)})
                       : Tensor(shape.type, {num_blocks, shape.block_size, kDim});
  CacheIndexKeysArgs write;
  write.k = keys.view, write.slot_mapping = mapping.view;
  write.cache = IndexCacheView(rows.view, planar ? shape.block_size : 0);
  absl::Status status = OnDevice().CacheIndexKeys({}, write);
  ASSERT_TRUE(status.ok()) << status;

  Tensor q(shape.type, {tokens, shape.heads, kDim}), weights(DType::kF32, {tokens, shape.heads});
  q.Set(draw(tokens * shape.heads * kDim)), weights.Set(draw(tokens * shape.heads));
  Tensor indices(DType::kI32, {tokens, shape.width}), lens(DType::kI32, {tokens});
  IndexTopkArgs args;
  args.q = q.view, args.weights = weights.view, args.cache = write.cache;
  args.query_start_loc = query_start_loc.view, args.seq_lens = seq_lens.view;
  args.block_table = table.view;
  args.max_seq_len = longest, args.ratio = shape.ratio;
  args.indices = indices.view, args.lens = lens.view;
  status = OnDevice().IndexTopk({}, args);
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<std::byte> chosen = indices.bytes, counts = lens.bytes;
  std::fill(indices.bytes.begin(), indices.bytes.end(), std::byte{0x55});
  std::fill(lens.bytes.begin(), lens.bytes.end(), std::byte{0x55});
  status = CpuReference().IndexTopk({}, args);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(lens.bytes, counts);
  // Not by EXPECT_EQ, which would print megabytes.
  EXPECT_TRUE(indices.bytes == chosen);
}

TEST(CudaIndexTopkTest, DecodesOfManyRows) {
  ExpectReference({.lengths = {20'000, 300, 5'000}, .q_lens = {1, 1, 1}});
  ExpectReference({.lengths = {66'000}, .q_lens = {1}, .heads = 4});
  ExpectReference({.lengths = {9'000}, .q_lens = {1}, .width = 512, .ratio = 4, .block_size = 5});
}

TEST(CudaIndexTopkTest, SeveralTokensOfARequest) {
  ExpectReference({.lengths = {900}, .q_lens = {37}, .width = 104});
  ExpectReference({.lengths = {3'000, 700, 2'500}, .q_lens = {2, 3, 2}, .width = 512});
}

TEST(CudaIndexTopkTest, PlainKeys) {
  ExpectReference({.lengths = {2'000}, .q_lens = {2}, .width = 64, .type = DType::kBF16});
  ExpectReference(
      {.lengths = {1'000}, .q_lens = {1}, .width = 64, .heads = 7, .type = DType::kF16});
}

}  // namespace
}  // namespace kvblocks::attention::cuda
