// Sparse MLA on tensor cores against the dense oracle: sizes that the kernels were made for, which
// suites of all backends avoid for their cost.

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kvblocks/attention/cuda/testing/mla_ops_suite.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/testing/latent_cache.h"
#include "kvblocks/attention/testing/latent_case.h"
#include "kvblocks/attention/testing/paged_case.h"
#include "kvblocks/attention/testing/tolerance.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct ListOptions {
  KvLayout layout = KvLayout::kMlaLatent;
  DType type = DType::kBF16;
  int64_t heads = 16, queries = 2, entries = 70, extra_entries = 0, block_size = 64;
  bool lengths = false, sink = false, all_invalid = false;
};

SparseCaseOptions OptionsOf(const ListOptions& list) {
  SparseCaseOptions options;
  options.cache = CacheOptions(list.layout, list.type, list.block_size);
  options.cache.num_blocks = 130 / list.block_size + 2;
  options.extra_cache = CacheOptions(list.layout, list.type, 2);
  options.extra_cache.num_blocks = 40;
  options.extra_cache.seed = 99;
  options.num_heads = list.heads, options.queries = list.queries;
  options.entries = list.entries, options.extra_entries = list.extra_entries;
  options.q_dtype = list.type;
  options.scale = 0.0625f;
  options.lengths = list.lengths, options.sink = list.sink;
  options.all_invalid = list.all_invalid;
  return options;
}

void ExpectExact(SparseCase& sparse) {
  Flagged flagged;
  const absl::Status status = OnDevice().SparseMlaDecode(flagged.context, sparse.args);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(flagged.bits & ~static_cast<uint32_t>(kBadIndex), 0u);
  EXPECT_EQ(sparse.MismatchNow(ToleranceOf(sparse.options.cache.layout, sparse.options.q_dtype)),
            "");
}

TEST(CudaMlaTest, T3SparseDecode) {
  const ListOptions kCases[] = {
      {.heads = 16, .entries = 70, .extra_entries = 33},
      {.type = DType::kF16, .heads = 1, .entries = 64, .block_size = 1, .lengths = true},
      {.heads = 64, .entries = 100, .extra_entries = 65, .lengths = true, .sink = true},
      {.heads = 64, .entries = 192, .block_size = 61},
      {.layout = KvLayout::kMlaFp8_656, .heads = 16, .entries = 70, .extra_entries = 33},
      {.layout = KvLayout::kMlaFp8_656, .heads = 17, .entries = 64, .block_size = 2, .sink = true},
      {.layout = KvLayout::kMlaFp8_656, .heads = 64, .entries = 130, .lengths = true},
      {.layout = KvLayout::kMlaFp8_584, .heads = 16, .entries = 70, .extra_entries = 33},
      {.layout = KvLayout::kMlaFp8_584, .heads = 5, .entries = 97, .block_size = 3, .sink = true},
      {.layout = KvLayout::kMlaFp8_584,
       .heads = 64,
       .queries = 1,
       .entries = 128,
       .extra_entries = 90,
       .lengths = true},
      {.layout = KvLayout::kMlaFp8_656, .heads = 33, .queries = 1, .entries = 390},
      {.layout = KvLayout::kMlaFp8_584, .heads = 33, .queries = 1, .entries = 330},
      // Nine tiles: twice as many as producers place at a time, and one.
      {.layout = KvLayout::kMlaFp8_584,
       .heads = 17,
       .queries = 1,
       .entries = 257,
       .extra_entries = 200},
      {.heads = 16, .entries = 40, .extra_entries = 3, .all_invalid = true},
      {.layout = KvLayout::kMlaFp8_656, .heads = 64, .entries = 40, .all_invalid = true},
  };
  for (const ListOptions& each : kCases) {
    SCOPED_TRACE(absl::StrCat(Name(each.layout), ", ", each.heads, " heads, K ", each.entries));
    SparseCase lists(OptionsOf(each));
    ExpectExact(lists);
  }
}

TEST(CudaMlaTest, ASlotListedTwiceCountsTwice) {
  for (const int64_t heads : {16, 64}) {
    SparseCase lists(OptionsOf({.heads = heads, .entries = 66}));
    std::vector<double> entries = lists.main_indices.Get();
    for (size_t k = 1; k < entries.size(); k += 2) entries[k] = entries[k - 1];
    lists.main_indices.Set(entries);
    for (auto& rows : lists.seen) rows.clear();
    for (size_t k = 0; k < entries.size(); ++k) {
      const auto slot = static_cast<int64_t>(entries[k]);
      if (slot < 0 || slot >= lists.main.view().num_slots()) continue;
      lists.seen[k / 66].push_back(&lists.main.row(slot));
    }
    ExpectExact(lists);
  }
}

TEST(CudaMlaTest, T3SparsePrefill) {
  for (const auto& [heads, dim] : {std::pair<int64_t, int64_t>{16, 576}, {64, 576}, {20, 512}}) {
    const DType type = heads == 16 ? DType::kF16 : DType::kBF16;
    SparsePrefillCase sparse({.type = type,
                              .tokens = 3,
                              .keys = 90,
                              .heads = heads,
                              .dim = dim,
                              .value_dim = 512,
                              .used = {70, 0, 60},
                              .sink = true,
                              .scale = 0.0625f,
                              .seed = static_cast<uint64_t>(heads)});
    const absl::Status status = OnDevice().SparseMlaPrefill({}, sparse.args);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(Mismatch(sparse.expected, sparse.out.view, sparse.lse.view, CudaTolerance(type)), "");
    const std::vector<double> max = sparse.max_logits.Get(), &largest = sparse.largest;
    for (size_t i = 0; i < max.size(); ++i) {
      if (largest[i] == -kInfinity) {
        EXPECT_EQ(max[i], -kInfinity);
      } else {
        EXPECT_NEAR(max[i], largest[i], 2e-5 + 1e-5 * std::abs(largest[i]));
      }
    }
  }
}

// What only the device sees: rows of blocks outside the cache are not chosen before others, lengths
// beyond the table are cut, slots beyond the cache skipped; each sets its bit.
TEST(CudaIndexerTest, BadBlocksSlotsAndLengthsAreFlagged) {
  Flagged flagged;
  const ExecContext& context = flagged.context;
  uint32_t& bits = flagged.bits;
  Tensor q(DType::kF32, {1, 1, 4}), weights(DType::kF32, {1, 1}), rows(DType::kF32, {3, 2, 4});
  q.Set({1, 0, 0, 0}), weights.Set({1}), rows.Set(std::vector<double>(24, 1));
  Tensor starts = IntTensor({0, 1}, {2}), lens = IntTensor({6}, {1}),
         table = IntTensor({1, 9, 2}, {1, 3});
  Tensor indices(DType::kI32, {1, 4}), counts(DType::kI32, {1});
  IndexTopkArgs args;
  args.q = q.view, args.weights = weights.view, args.cache = IndexCacheView(rows.view);
  args.query_start_loc = starts.view, args.seq_lens = lens.view, args.block_table = table.view;
  args.max_seq_len = 6;
  args.indices = indices.view, args.lens = counts.view;
  ASSERT_EQ(OnDevice().IndexTopk(context, args), absl::OkStatus());
  EXPECT_EQ(indices.Get(), (std::vector<double>{2, 3, 4, 5}));
  EXPECT_EQ(bits, kBadBlock);
  bits = 0;
  lens = IntTensor({40}, {1}), args.seq_lens = lens.view, args.max_seq_len = 40;
  ASSERT_EQ(OnDevice().IndexTopk(context, args), absl::OkStatus());
  EXPECT_EQ(counts.Get(), (std::vector<double>{4}));
  EXPECT_EQ(bits, kBadBlock | kLengthClamped);

  bits = 0;
  Tensor slots(DType::kI64, {1}), keys(DType::kF32, {1, 4});
  slots.Set({6}), keys.Set({7, 7, 7, 7});
  CacheIndexKeysArgs write;
  write.k = keys.view, write.slot_mapping = slots.view, write.cache = {rows.view};
  ASSERT_EQ(OnDevice().CacheIndexKeys(context, write), absl::OkStatus());
  EXPECT_EQ(rows.Get(), std::vector<double>(24, 1));
  EXPECT_EQ(bits, kBadSlot);
}

}  // namespace
}  // namespace kvblocks::attention::cuda
