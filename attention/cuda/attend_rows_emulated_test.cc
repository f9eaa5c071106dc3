// What kernels check themselves, because only the device sees it: indices and lengths that are out
// of range, put in by calling the launch functions directly. And what CUDA's operations refuse.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/cuda/kernel_params.h"
#include "attention/cuda/kernels/attend_rows.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A prefill of the case, as the kernel takes it.
AttendRowsParams ParamsOf(PagedCase& paged) {
  return AttendRowsParamsOf(DenseAttentionOf(paged.PrefillArgs()));
}

// Runs the kernel; returns its error flags.
uint32_t FlagsOfRun(const AttendRowsParams& params) {
  uint32_t bits = 0;
  LaunchContext context;
  context.error_flags = &bits;
  EXPECT_EQ(LaunchAttendRows(context, params), 0);
  return bits;
}

std::string MismatchOf(const PagedCase& paged) {
  return paged.Mismatch(CudaTolerance(paged.options().q_dtype));
}

PagedCaseOptions Options() {
  PagedCaseOptions options;
  options.lengths = {40, 9, 0, 70};
  options.q_lens = {3, 1, 0, 17};
  options.key_dim = options.value_dim = 32;
  return options;
}

TEST(AttendRowsTest, KeysOfImpossibleBlocksAreInvisibleAndFlagged) {
  for (KvLayout layout : {KvLayout::kNhd, KvLayout::kHnd, KvLayout::kPagedX}) {
    for (int32_t block : {-1, -2147483647, 100000, 2147483647}) {
      PagedCaseOptions options = Options();
      options.layout = layout;
      PagedCase paged(options);
      const int64_t columns = paged.block_table.view.extent[1];
      const AttendRowsParams params = ParamsOf(paged);
      EXPECT_EQ(FlagsOfRun(params), 0u);
      EXPECT_EQ(MismatchOf(paged), "");
      // The second block of request 0, the only one of request 1.
      paged.block_table.view.as<int32_t>()[1] = block;
      paged.block_table.view.as<int32_t>()[columns] = block;
      paged.hide = [](int64_t b, int64_t, int64_t j, int64_t) {
        return b == 1 || (b == 0 && j >= 16 && j < 32);
      };
      paged.ClearOutputs();
      EXPECT_EQ(FlagsOfRun(params), static_cast<uint32_t>(kBadBlock));
      EXPECT_EQ(MismatchOf(paged), "");
      EXPECT_EQ(LaunchAttendRows({}, params), 0);  // nowhere to flag
    }
  }
}

TEST(AttendRowsTest, LengthsBeyondTheTableAreClampedAndFlagged) {
  PagedCaseOptions options = Options();
  options.lengths = {48, 9, 0, 33};
  PagedCase paged(options);
  AttendRowsParams params = ParamsOf(paged);
  // As the host never lets it: three columns, and lengths that claim more.
  params.keys.table_columns = 3;
  for (int32_t claim : {49, 1000, 2147483647}) {
    paged.seq_lens.view.as<int32_t>()[0] = claim;
    paged.ClearOutputs();
    EXPECT_EQ(FlagsOfRun(params), static_cast<uint32_t>(kLengthClamped));
    EXPECT_EQ(MismatchOf(paged), "") << claim;
  }
  paged.seq_lens.view.as<int32_t>()[0] = -5;
  paged.ClearOutputs();
  EXPECT_EQ(FlagsOfRun(params), static_cast<uint32_t>(kLengthClamped));
  const std::vector<double> out = paged.out.Get();
  for (int i = 0; i < 3 * 4 * 32; ++i) ASSERT_EQ(out[i], 0);
  EXPECT_EQ(paged.lse.Get()[0], -kInfinity);
}

TEST(AttendRowsTest, RowsOfNoRequestAreEmpty) {
  PagedCase paged(Options());
  AttendRowsParams params = ParamsOf(paged);
  // The last request loses its queries, as padded rows have none.
  paged.query_start_loc.view.as<int32_t>()[4] = 4;
  paged.ClearOutputs();
  EXPECT_EQ(FlagsOfRun(params), 0u);
  const std::vector<double> out = paged.out.Get(), lse = paged.lse.Get();
  for (size_t i = 4 * 4 * 32; i < out.size(); ++i) ASSERT_EQ(out[i], 0);
  for (size_t i = 4 * 4; i < lse.size(); ++i) ASSERT_EQ(lse[i], -kInfinity);
  params.num_requests = 0;
  EXPECT_EQ(FlagsOfRun(params), 0u);
  for (double value : paged.out.Get()) ASSERT_EQ(value, 0);
}

TEST(AttendRowsTest, MasksTooSmallForALengthHideTheRestAndFlag) {
  PagedCase paged(Options());
  Tensor mask(DType::kBool, {17, 50});  // of requests of up to 70 keys
  for (std::byte& byte : mask.bytes) byte = std::byte{0};
  paged.params.mask.form = MaskForm::kShared;
  paged.params.mask.tensor = mask.view;
  paged.hide = [](int64_t, int64_t, int64_t j, int64_t) { return j >= 50; };
  EXPECT_EQ(FlagsOfRun(ParamsOf(paged)), static_cast<uint32_t>(kLengthClamped));
  EXPECT_EQ(MismatchOf(paged), "");
  // Rows by positions that the mask does not have, some of them negative.
  paged.params.mask.rows_are_absolute = true;
  paged.params.causal = false;
  const AttendRowsParams params = ParamsOf(paged);
  paged.seq_lens.view.as<int32_t>()[3] = 10;  // of 17 queries
  EXPECT_EQ(FlagsOfRun(params), static_cast<uint32_t>(kLengthClamped));
  // Ragged bits that end early.
  Tensor bits(DType::kU8, {4});
  for (std::byte& byte : bits.bytes) byte = std::byte{0};
  paged.params.mask.rows_are_absolute = false;
  paged.params.mask.form = MaskForm::kRaggedBits;
  paged.params.mask.tensor = bits.view;
  const std::vector<int64_t> bits_before = {0, 120, 129, int64_t{1} << 40};
  AttendRowsParams ragged = ParamsOf(paged);
  ragged.scoring.mask.bits_before = bits_before.data();
  ragged.scoring.mask.columns = 4;
  EXPECT_EQ(FlagsOfRun(ragged), static_cast<uint32_t>(kLengthClamped));
}

// Heads of a group share each loaded key; what one of them does not see must not reach it.
TEST(AttendRowsTest, KeysThatSomeHeadsOfAGroupSeeStayAwayFromTheOthers) {
  for (int64_t heads : {2, 3, 4, 7, 8}) {
    for (int64_t dim : {32, 160}) {
      PagedCaseOptions options;
      options.lengths = {100};
      options.q_lens = {2};
      options.num_heads = heads, options.num_kv_heads = 1;
      options.key_dim = 32, options.value_dim = dim;
      PagedCase clean(options), spoiled(options);
      const std::vector<double> nan_key(32, NAN), nan_value(dim, NAN);
      for (int64_t j = 1; j < 100; j += 3) {
        spoiled.SetKey(0, j, 0, nan_key);
        spoiled.SetValue(0, j, 0, nan_value);
      }
      Tensor mask(DType::kBool, {1, heads, 2, 100});
      for (int64_t n = 0; n < heads * 200; ++n) {
        mask.bytes[n] = static_cast<std::byte>(n / 200 % 2 == 0 && n % 100 % 3 == 1);
      }
      for (PagedCase* paged : {&clean, &spoiled}) {
        paged->params.mask.form = MaskForm::kPerHead;
        paged->params.mask.tensor = mask.view;
        paged->hide = [](int64_t, int64_t, int64_t j, int64_t h) {
          return h % 2 == 0 && j % 3 == 1;
        };
        EXPECT_EQ(FlagsOfRun(ParamsOf(*paged)), 0u);
        EXPECT_EQ(MismatchOf(*paged), "");
      }
      const std::vector<double> a = clean.out.Get(), b = spoiled.out.Get();
      for (size_t i = 0; i < a.size(); ++i) {
        if (i / dim % heads % 2 == 0) {
          ASSERT_EQ(b[i], a[i]) << heads << " heads, element " << i;
        } else {
          ASSERT_TRUE(std::isnan(b[i])) << heads << " heads, element " << i;
        }
      }
    }
  }
}

TEST(AttendRowsTest, PositionsMayBeAnything) {
  PagedCase paged(Options());
  AttendRowsParams params = ParamsOf(paged);
  std::vector<int32_t> positions(params.num_rows, 2147483647);
  for (size_t i = 0; i < positions.size(); i += 2) positions[i] = -2147483647;
  params.query_positions = positions.data();
  params.scoring.window_left = 3;
  params.scoring.chunk = 16;
  EXPECT_EQ(FlagsOfRun(params), 0u);
  for (double lse : paged.lse.Get()) ASSERT_EQ(lse, -kInfinity);
}

TEST(AttendRowsTest, ContiguousKeysPastTheTensorAreInvisibleAndFlagged) {
  PagedCase paged(Options());
  const AttendRowsParams params = AttendRowsParamsOf(DenseAttentionOf(paged.VarlenArgs()));
  paged.ClearOutputs();
  EXPECT_EQ(FlagsOfRun(params), 0u);
  EXPECT_EQ(MismatchOf(paged), "");
  paged.kv_start_loc.view.as<int32_t>()[4] += 1000;
  const std::vector<std::byte> out = paged.out.bytes;
  EXPECT_EQ(FlagsOfRun(params), static_cast<uint32_t>(kLengthClamped));
  EXPECT_EQ(paged.out.bytes, out);
  for (int32_t start : {-2147483647, 2147483647}) {
    for (int n = 0; n < 5; ++n) paged.kv_start_loc.view.as<int32_t>()[n] = start;
    EXPECT_EQ(FlagsOfRun(params), static_cast<uint32_t>(kLengthClamped));
    for (double lse : paged.lse.Get()) ASSERT_EQ(lse, -kInfinity);
  }
}

TEST(AttendRowsTest, ListsAreBoundByTheirEntriesAndTheCache) {
  // One query of one head over rows of two values; row n is (n, 1).
  std::vector<float> rows;
  for (int n = 0; n < 6; ++n) rows.insert(rows.end(), {static_cast<float>(n), 1});
  const float q[2] = {0, 0};
  float out[2], lse;
  const int32_t slots[] = {2, 6, 4, -1, 2147483647, 0};
  AttendRowsParams params;
  params.q = {q, 2, 2, Element::kF32};
  params.q_dim = params.key_dim = params.value_dim = 2;
  params.num_rows = params.inner_rows = 1;
  params.source = KeySource::kLists;
  params.main.cache.layout = Layout::kMlaLatent;
  params.main.cache.k = {rows.data(), 4, 2, 0};
  params.main.cache.num_blocks = 3;
  params.main.cache.block_size = 2;
  params.main.slots = slots;
  params.main.num_entries = 6;
  params.scoring.causal = false;
  params.output.out = {out, 2, 2, Element::kF32};
  params.output.lse = {&lse, 0, 1, 1, 0};
  EXPECT_EQ(FlagsOfRun(params), static_cast<uint32_t>(kBadIndex));
  EXPECT_FLOAT_EQ(out[0], 2);
  EXPECT_FLOAT_EQ(lse, std::log(3.0f));
  int32_t length = 2147483647;
  params.main.lengths = &length;
  EXPECT_EQ(FlagsOfRun(params), static_cast<uint32_t>(kBadIndex));
  EXPECT_FLOAT_EQ(out[0], 2);
  length = 1;
  EXPECT_EQ(FlagsOfRun(params), 0u);
  EXPECT_FLOAT_EQ(out[0], 2);
  EXPECT_FLOAT_EQ(lse, 0);
  length = -3;
  EXPECT_EQ(FlagsOfRun(params), 0u);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(lse, -kInfinity);
}

// Whatever stands in the arrays that only the device reads: nothing outside of any tensor is
// touched, which sanitizers see, and nothing but outputs is written.
TEST(AttendRowsTest, GarbageInDeviceArraysIsHarmless) {
  const auto garbage = [](std::mt19937_64& random) {
    const int32_t kExtremes[] = {INT32_MIN, INT32_MIN + 1, -1, 0, 1, 17, 1000, INT32_MAX};
    return random() % 2 == 0 ? kExtremes[random() % 8] : static_cast<int32_t>(random() % 100) - 10;
  };
  for (uint64_t seed = 0; seed < 150; ++seed) {
    std::mt19937_64 random(seed);
    PagedCaseOptions options = Options();
    options.lengths = {40, 9, 1, 20};
    options.q_lens = {3, 1, 1, 6};
    const KvLayout kLayouts[] = {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd};
    options.layout = kLayouts[seed % 3];
    if (seed % 4 == 1) options.cache_dtype = DType::kI8;
    options.num_heads = 2, options.num_kv_heads = 1;
    options.key_dim = options.value_dim = 16;
    PagedCase paged(options);
    paged.params.causal = seed % 5 != 0;
    if (seed % 3 == 1) paged.params.window_left = 7;
    if (seed % 7 == 1) paged.params.chunk = 32;
    Tensor mask(DType::kU8, {4, 6, 40});
    for (std::byte& byte : mask.bytes) byte = static_cast<std::byte>(random() % 2);
    if (seed % 4 == 2) {
      paged.params.mask.tensor = mask.view;
      paged.params.mask.form = MaskForm::kPerRequest;
      paged.params.mask.rows_are_absolute = seed % 8 == 2;
    }
    Tensor bits(DType::kU8, {40});
    if (seed % 4 == 3) {
      paged.params.mask.tensor = bits.view;
      paged.params.mask.form = MaskForm::kRaggedBits;
    }
    AttendRowsParams params = ParamsOf(paged);
    std::vector<int64_t> bits_before(4);
    std::vector<int32_t> positions(params.num_rows);
    if (seed % 6 == 0) params.query_positions = positions.data();
    for (int32_t& position : positions) position = garbage(random);
    std::vector<std::pair<int32_t*, int64_t>> arrays;
    for (Tensor* tensor : {&paged.block_table, &paged.seq_lens, &paged.query_start_loc}) {
      arrays.emplace_back(tensor->view.as<int32_t>(), tensor->view.num_elements());
    }
    // All of one array, or an element here and there.
    for (const auto& [array, count] : arrays) {
      const bool all = random() % 4 == 0;
      for (int64_t n = 0; n < count; ++n) {
        if (all || random() % 6 == 0) array[n] = garbage(random);
      }
    }
    if (seed % 4 == 3) {
      MaskBitsParams counts;
      counts.num_requests = 4;
      counts.query_start_loc = params.query_start_loc;
      counts.seq_lens = params.keys.seq_lens;
      counts.bits_before = bits_before.data();
      ASSERT_EQ(LaunchMaskBits({}, counts), 0);
      params.scoring.mask.bits_before = bits_before.data();
      params.scoring.mask.columns = 40;
    }
    const std::vector<std::byte> k = paged.k_bytes.bytes, v = paged.v_bytes.bytes;
    paged.ClearOutputs();
    params.pieces.count = 1 + static_cast<int32_t>(seed % 2);
    params.pieces.step = 16;
    params.output.out_piece_stride = params.output.lse.piece_stride = 0;
    EXPECT_EQ(FlagsOfRun(params) & ~static_cast<uint32_t>(kBadBlock | kLengthClamped), 0u);
    EXPECT_EQ(paged.k_bytes.bytes, k);
    EXPECT_EQ(paged.v_bytes.bytes, v);
  }
}

// --- Merging ---

TEST(MergeStatesTest, NaNsAreNotHidden) {
  const std::vector<float> outs = {1, 5, 7};
  for (const std::vector<float>& lses :
       {std::vector<float>{0, NAN, 1}, std::vector<float>{NAN, NAN, NAN}}) {
    float out = 0, lse = 0;
    MergeStatesParams params;
    params.outs = {outs.data(), 1, 1, Element::kF32};
    params.out_state_stride = 1;
    params.lses = {lses.data(), 1, 1, 1};
    params.num_states = 3;
    params.num_rows = params.value_dim = 1;
    params.out = {&out, 1, 1, Element::kF32};
    params.lse = &lse;
    ASSERT_EQ(LaunchMergeStates({}, params), 0);
    EXPECT_TRUE(std::isnan(lse));
    EXPECT_TRUE(std::isnan(out));
  }
}

// What decode with a plan leaves: requests of 2, 1, 0 and 3 pieces with two rows each.
TEST(MergeStatesTest, OffsetsSayWhichStatesAreOfARequest) {
  constexpr int kRows = 2, kHeads = 3, kDim = 40, kStates = 6;
  const std::vector<int32_t> offsets = {0, 2, 3, 3, 6};
  std::vector<float> outs, lses;
  for (int n = 0; n < kStates * kRows * kHeads; ++n) {
    lses.push_back(static_cast<float>(n % 5) / 4);
    for (int d = 0; d < kDim; ++d) outs.push_back(static_cast<float>(n * kDim + d));
  }
  std::vector<float> out(8 * kHeads * kDim, -1), lse(8 * kHeads, -1);
  MergeStatesParams params;
  params.outs = {outs.data(), kHeads * kDim, kDim, Element::kF32};
  params.out_state_stride = kRows * kHeads * kDim;
  params.lses = {lses.data(), kRows * kHeads, kHeads, 1};
  params.state_offsets = offsets.data();
  params.rows_per_request = kRows;
  params.single_states_are_done = true;
  params.num_rows = 4 * kRows;
  params.num_heads = kHeads;
  params.value_dim = kDim;
  params.out = {out.data(), kHeads * kDim, kDim, Element::kF32};
  params.lse = lse.data();
  params.lse_row_stride = kHeads;
  params.lse_head_stride = 1;
  ASSERT_EQ(LaunchMergeStates({}, params), 0);
  for (int row = 0; row < 8; ++row) {
    const int request = row / kRows;
    for (int h = 0; h < kHeads; ++h) {
      double weights = 0, sum = 0;
      for (int n = offsets[request]; n < offsets[request + 1]; ++n) {
        const int at = (n * kRows + row % kRows) * kHeads + h;
        weights += std::exp(lses[at]);
        sum += std::exp(lses[at]) * outs[at * kDim + 33];
      }
      const int at = row * kHeads + h;
      const float value = out[at * kDim + 33];
      if (request == 1) {
        EXPECT_EQ(value, -1);  // untouched
        EXPECT_EQ(lse[at], -1);
      } else if (request == 2) {
        EXPECT_EQ(value, 0);
        EXPECT_EQ(lse[at], -kInfinity);
      } else {
        EXPECT_NEAR(value, sum / weights, 1e-5 * value);
        EXPECT_NEAR(lse[at], std::log(weights), 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
