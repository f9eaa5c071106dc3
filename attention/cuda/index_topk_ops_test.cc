// IndexTopk at sizes that its kernels were made for, which suites of all backends avoid for their
// cost: many tiles and pieces, blocks of several tokens, clusters that select.

#include <cstdint>

#include "attention/cuda/kernels/runtime.h"
#include "attention/cuda/testing/on_device.h"
#include "attention/testing/topk_case.h"
#include "gtest/gtest.h"

namespace kvblocks::attention::cuda {
namespace {

// In blocks of 64 rows where nothing else is said.
void ExpectChosen(TopkOptions options, int64_t block_size = 64) {
  options.block_size = block_size;
  // The emulation takes seconds for what is there.
  if (IsEmulation()) {
    for (int64_t& length : options.lengths) length /= 8;
    options.width /= 8;
  }
  SCOPED_TRACE(options.DebugString());
  TopkCase topk(options);
  ASSERT_EQ(OnDevice().IndexTopk({}, topk.Args()), absl::OkStatus());
  topk.ExpectChosen();
}

TEST(CudaIndexTopkTest, DecodesOfManyRows) {
  ExpectChosen({.lengths = {20'000, 300, 5'000}, .q_lens = {1, 1, 1}, .width = 2048});
  ExpectChosen({.lengths = {66'000}, .heads = 4, .width = 2048});
  ExpectChosen({.lengths = {9'000}, .width = 512, .ratio = 4}, 5);
}

TEST(CudaIndexTopkTest, SeveralTokensOfARequest) {
  ExpectChosen({.lengths = {900}, .q_lens = {37}, .width = 104});
  ExpectChosen({.lengths = {3'000, 700, 2'500}, .q_lens = {2, 3, 2}, .width = 512});
}

TEST(CudaIndexTopkTest, PlainKeys) {
  ExpectChosen(
      {.lengths = {2'000}, .q_lens = {2}, .width = 64, .q = DType::kBF16, .cache = DType::kBF16});
  ExpectChosen(
      {.lengths = {1'000}, .heads = 7, .width = 64, .q = DType::kF16, .cache = DType::kF16});
}

}  // namespace
}  // namespace kvblocks::attention::cuda
