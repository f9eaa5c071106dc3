// Steady state allocates nothing: every call of operator new is counted while batches of changing
// sizes are built, viewed, planned and cut.

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/split_planner.h"
#include "tests/allocation_counter/allocation_counter.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kMaxReqs = 32, kMaxTokens = 4096, kMaxSeqLen = 2048, kBlockSize = 16;
constexpr int64_t kBlocksPerRequest = kMaxSeqLen / kBlockSize;
constexpr int32_t kMaxParts = 64;

class SteadyStateTest : public testing::Test {
 protected:
  SteadyStateTest() {
    for (int64_t i = 0; i < kMaxReqs; ++i) {
      tables_.emplace_back();
      for (int64_t k = 0; k < kBlocksPerRequest; ++k) {
        tables_.back().push_back(static_cast<int32_t>(1 + i * kBlocksPerRequest + k));
      }
      for (int g = 0; g < 2; ++g) spans_.push_back(tables_.back());
    }
    requests_.reserve(static_cast<size_t>(kMaxReqs));
  }

  void Step() {
    const auto number = [this](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
    };
    requests_.clear();
    for (int64_t n = number(0, kMaxReqs); n > 0; --n) {
      const int64_t scheduled = number(0, 3) == 0 ? number(1, 128) : 1;
      requests_.push_back({.num_computed_tokens = number(0, kMaxSeqLen - scheduled),
                           .num_scheduled_tokens = scheduled});
    }
    const absl::Status built =
        builder_.Build({.requests = requests_,
                        .block_ids = absl::MakeConstSpan(spans_).subspan(0, 2 * requests_.size()),
                        .padded_num_reqs = kMaxReqs});
    const CommonAttentionMetadata& meta = builder_.metadata();
    builder_.token_to_req();
    num_rows_ += builder_.decode_view().num_reqs + builder_.prefill_view().num_reqs;

    bool all_ok = built.ok();
    for (int group = 0; group < 2; ++group) {
      all_ok &= planners_[group]
                    .Plan({.type = builder_.key(group),
                           .seq_lens = meta.host_seq_lens,
                           .num_parts = kMaxParts})
                    .ok();
    }
    all_ok &= pieces_.Build(meta, 256).ok();
    all_ok &= pieces_.UpdateBlockTable(builder_.metadata(1)).ok();
    num_pieces_ += pieces_.metadata().num_reqs;
    if (!all_ok) ++num_failures_;
  }

  std::mt19937_64 random_{5};
  std::vector<std::vector<int32_t>> tables_;
  std::vector<absl::Span<const int32_t>> spans_;
  std::vector<RequestInput> requests_;
  AttentionMetadataBuilder builder_ = *AttentionMetadataBuilder::Create(
      {.groups = {{.num_blocks = 1 + kMaxReqs * kBlocksPerRequest},
                  {.num_blocks = 1 + kMaxReqs * kBlocksPerRequest, .window = 300}},
       .max_num_reqs = kMaxReqs,
       .max_num_tokens = kMaxTokens,
       .max_seq_len = kMaxSeqLen});
  SplitPlanner planners_[2] = {{kMaxReqs, kMaxParts}, {kMaxReqs, kMaxParts}};
  VirtualBatches pieces_;
  int64_t num_rows_ = 0, num_pieces_ = 0, num_failures_ = 0;
};

TEST_F(SteadyStateTest, NothingIsAllocated) {
  for (int i = 0; i < 500; ++i) Step();
  num_rows_ = num_pieces_ = 0;
  const int64_t before = NumAllocations();
  {
    const CountAllocations counting;
    for (int i = 0; i < 500; ++i) Step();
  }
  EXPECT_EQ(NumAllocations() - before, 0);
  EXPECT_EQ(num_failures_, 0);
  EXPECT_GT(num_rows_, 5'000);
  EXPECT_GT(num_pieces_, 5'000);
}

}  // namespace
}  // namespace kvblocks::attention
