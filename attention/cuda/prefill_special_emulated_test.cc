// Prefill on tensor cores with explicit masks, block-sparse visibility and kPagedX, emulated,
// against the dense oracle.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/cuda/kernels/prefill.h"
#include "attention/cuda/testing/prefill_fixture.h"
#include "attention/testing/paged_case.h"
#include "attention/testing/random_features.h"
#include "attention/testing/tolerance.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_cuda.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {
namespace {

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInf = std::numeric_limits<double>::infinity();

using Hide = std::function<bool(int64_t b, int64_t i, int64_t j, int64_t h)>;

class PrefillSpecialTest : public PrefillFixture {
 protected:
  static PagedCaseOptions SpecialOptions() {
    return Options({1, 170, 0, 64, 300, 33}, {1, 90, 0, 64, 37, 1});
  }
  // By the operation, with a workspace, so that keys are cut where that is worth it.
  template <typename Args>
  uint32_t RunOp(const Args& args, absl::Status (AttentionOps::*op)(const ExecContext&, const Args&)
                                       const) {
    EXPECT_TRUE(TakesPrefill(PrefillParams{DenseAttentionOf(args)}));
    std::vector<std::max_align_t> memory((size_t{1} << 22) / sizeof(std::max_align_t));
    Workspace workspace;
    workspace.device = absl::MakeSpan(reinterpret_cast<std::byte*>(memory.data()),
                                      memory.size() * sizeof(std::max_align_t));
    uint32_t bits = 0;
    DeviceErrorFlags flags;
    flags.bits = &bits;
    ExecContext context;
    context.workspace = &workspace;
    context.error_flags = &flags;
    EXPECT_EQ((Cuda().*op)(context, args), absl::OkStatus());
    return bits;
  }
  void ExpectExact(PagedCase& paged) {
    // Sums of bits are the operation's.
    if (paged.params.mask.form != MaskForm::kRaggedBits) ExpectPrefillIsExact(paged);
    if (GetParam().capability == 90) return;
    const PagedPrefillArgs args = paged.PrefillArgs();
    paged.ClearOutputs();
    EXPECT_EQ(RunOp(args, &AttentionOps::PagedPrefill), 0u);
    PrefillFixture::ExpectExact(paged);
  }
  void ExpectVarlenExact(PagedCase& paged) {
    paged.ClearOutputs();
    EXPECT_EQ(RunOp(paged.VarlenArgs(), &AttentionOps::VarlenSelfAttention), 0u);
    PrefillFixture::ExpectExact(paged);
  }
  std::vector<std::byte> Launched(PagedCase& paged) {
    paged.ClearOutputs();
    Launch(PrefillParams{DenseAttentionOf(paged.PrefillArgs())}, 0);
    return OutputBytes(paged);
  }
  static int64_t PositionOf(const PagedCase& paged, int64_t b, int64_t i) {
    return paged.options().lengths[b] - paged.options().q_lens[b] + i;
  }
};
INSTANTIATE_TEST_SUITE_P(ComputeCapability, PrefillSpecialTest, BothPrefillKernels(),
                         NameOfPrefillKernel);

// [B, H, S1, S2] that hides by `hide`, with `hidden` where it does.
Tensor MaskOf(PagedCase& paged, DType dtype, const Hide& hide, double hidden, int64_t rows,
              int64_t columns) {
  const int64_t heads = paged.options().num_heads;
  Tensor tensor(dtype, {paged.num_requests(), heads, rows, columns});
  std::vector<double> values(tensor.view.num_elements());
  for (int64_t n = 0; n < static_cast<int64_t>(values.size()); ++n) {
    const int64_t j = n % columns, i = n / columns % rows, h = n / columns / rows % heads;
    const int64_t b = n / columns / rows / heads;
    if (i < paged.options().q_lens[b] && j < paged.options().lengths[b] && hide(b, i, j, h)) {
      values[n] = hidden;
    }
  }
  tensor.Set(values);
  paged.params.mask.tensor = tensor.view;
  paged.params.mask.form = MaskForm::kPerHead;
  paged.params.mask.encoding =
      hidden == 1 ? MaskEncoding::kMarker : MaskEncoding::kAdditive;
  paged.hide = hide;
  return tensor;
}

TEST_P(PrefillSpecialTest, WhatWgmmaTakes) {
  const auto takes = [](KvLayout layout, int64_t block_size, int64_t dim, auto change) {
    PagedCaseOptions options = Options({40}, {30});
    options.layout = layout;
    options.block_size = block_size;
    options.key_dim = dim;
    PagedCase paged(options);
    PrefillParams params{DenseAttentionOf(paged.PrefillArgs())};
    change(params.scoring);
    EXPECT_TRUE(TakesPrefill(params));
    EXPECT_TRUE(params.is_special());
    return TakesPrefillHopper(params);
  };
  const auto nothing = [](Scoring&) {};
  const auto sparse = [](Scoring& scoring) { scoring.block_sparse.vert_stride = 2; };
  EXPECT_TRUE(takes(KvLayout::kPagedX, 48, 128, nothing));
  EXPECT_FALSE(takes(KvLayout::kPagedX, 24, 128, nothing));
  EXPECT_FALSE(takes(KvLayout::kPagedX, 16, 136, nothing));
  EXPECT_FALSE(takes(KvLayout::kPagedX, 16, 128, sparse));
  EXPECT_TRUE(takes(KvLayout::kHnd, 8, 128, sparse));
  EXPECT_FALSE(takes(KvLayout::kNhd, 20, 128, sparse));
  const auto marker = [](Scoring& scoring) { scoring.mask.form = 1, scoring.mask.marker = true; };
  const auto added = [](Scoring& scoring) { scoring.mask.form = 1; };
  EXPECT_TRUE(takes(KvLayout::kNhd, 16, 64, marker));
  EXPECT_FALSE(takes(KvLayout::kNhd, 16, 64, added));
}

// --- kPagedX ---

TEST_P(PrefillSpecialTest, PagedXOfTypesHeadSizesAndBlocks) {
  struct Case {
    DType q, cache;
    int64_t key_dim, value_dim, block_size;
  };
  for (const Case& given : {Case{DType::kBF16, DType::kBF16, 64, 64, 8},
                            Case{DType::kF16, DType::kF16, 128, 96, 16},
                            Case{DType::kBF16, DType::kBF16, 80, 128, 40},
                            Case{DType::kF16, DType::kF16, 256, 192, 128},
                            Case{DType::kBF16, DType::kBF16, 96, 112, 48},
                            Case{DType::kBF16, DType::kF8E4M3, 64, 128, 16},
                            Case{DType::kF16, DType::kI8, 128, 80, 48},
                            Case{DType::kBF16, DType::kF8E5M2, 112, 64, 64}}) {
    PagedCaseOptions options = SpecialOptions();
    options.layout = KvLayout::kPagedX;
    options.q_dtype = given.q;
    options.cache_dtype = given.cache;
    options.key_dim = given.key_dim;
    options.value_dim = given.value_dim;
    options.block_size = given.block_size;
    options.scales = PagedCaseOptions::Scales::kPerRequest;
    PagedCase paged(options);
    SCOPED_TRACE(absl::StrCat(Name(given.cache), " D ", given.key_dim, "/", given.value_dim));
    ExpectExact(paged);
    paged.params.window_left = 43;
    paged.params.soft_cap = 2;
    ExpectExact(paged);
    paged.params.window_left = -1;
    paged.params.causal = false;
    ExpectExact(paged);
  }
}

TEST_P(PrefillSpecialTest, PagedXHasNanAndBadBlocks) {
  PagedCaseOptions options = SpecialOptions();
  options.layout = KvLayout::kPagedX;
  PagedCase paged(options);
  paged.SetValue(1, 120, 0, std::vector<double>(64, kNan));
  paged.SetKey(4, 290, 1, std::vector<double>(64, kNan));
  paged.SetValue(4, 277, 1, std::vector<double>(64, kInf));
  ExpectExact(paged);
  paged.block_table.view.as<int32_t>()[4 * paged.block_table.view.extent[1] + 3] = 1 << 29;
  paged.hide = [](int64_t b, int64_t, int64_t j, int64_t) { return b == 4 && j / 16 == 3; };
  ExpectPrefillIsExact(paged, kBadBlock);
}

// --- Masks ---

// T-11: masks that say the same as rules give the same bits.
TEST_P(PrefillSpecialTest, T11MasksEqualTheImplicitPathToTheBit) {
  struct Rule {
    const char* name;
    std::function<void(AttnParams&)> implicit;
    std::function<bool(int64_t p, int64_t j)> hide;
  };
  const Rule rules[] = {
      {"causal", [](AttnParams&) {}, [](int64_t p, int64_t j) { return j > p; }},
      {"window", [](AttnParams& params) { params.window_left = 70; },
       [](int64_t p, int64_t j) { return j > p || j < p - 70; }},
      {"chunk", [](AttnParams& params) { params.chunk = 128; },
       [](int64_t p, int64_t j) { return j > p || j / 128 != p / 128; }}};
  for (const Rule& rule : rules) {
    PagedCase implicit(SpecialOptions());
    rule.implicit(implicit.params);
    const std::vector<std::byte> wanted = Launched(implicit);
    for (const DType dtype : {DType::kBool, DType::kBF16, DType::kF32}) {
      for (const int64_t columns : {300, 301, 384}) {  // aligned, unaligned, all tiles whole
        PagedCase paged(SpecialOptions());
        paged.params.causal = false;
        const Hide hide = [&](int64_t b, int64_t i, int64_t j, int64_t) {
          return rule.hide(PositionOf(paged, b, i), j);
        };
        const Tensor mask =
            MaskOf(paged, dtype, hide, dtype == DType::kF32 ? -kInf : 1, 90, columns);
        SCOPED_TRACE(absl::StrCat(rule.name, " ", Name(dtype), " ", columns));
        // Additive masks scale before softmax: equal but for rounding.
        if (dtype == DType::kF32) {
          ExpectExact(paged);
        } else {
          EXPECT_EQ(Launched(paged), wanted);
        }
      }
    }
  }
}

TEST_P(PrefillSpecialTest, RandomBitsOfEveryHeadAndNanBehindThem) {
  std::mt19937_64 random(5);
  for (const int64_t one_in : {2, 50}) {  // or nearly all hidden
    for (const int64_t dim : {64, 128, 256}) {
      if (dim == 256 && one_in != 2) continue;
      PagedCaseOptions options = SpecialOptions();
      options.key_dim = options.value_dim = dim;
      PagedCase paged(options);
      std::vector<bool> hidden(6 * 4 * 90 * 300);
      for (size_t n = 0; n < hidden.size(); ++n) {
        hidden[n] = one_in == 2 ? random() % 2 == 0 : random() % 50 != 0;
      }
      const Hide hide = [&](int64_t b, int64_t i, int64_t j, int64_t h) {
        return hidden[((b * 4 + h) * 90 + i) * 300 + j];
      };
      const Tensor mask = MaskOf(paged, DType::kBool, hide, 1, 90, 384);
      SCOPED_TRACE(absl::StrCat(one_in, " D ", dim));
      ExpectExact(paged);
      paged.SetValue(1, 100, 0, std::vector<double>(dim, kNan));
      paged.SetValue(4, 3, 1, std::vector<double>(dim, -kInf));
      paged.SetKey(4, 200, 0, std::vector<double>(dim, kNan));
      ExpectExact(paged);
    }
  }
}

TEST_P(PrefillSpecialTest, RaggedBitsOfPagedAndContiguousKeys) {
  std::mt19937_64 random(11);
  PagedCase paged(SpecialOptions());
  paged.params.causal = false;
  std::vector<int64_t> first_bit = {0};
  for (int64_t b = 0; b < paged.num_requests(); ++b) {
    first_bit.push_back(first_bit.back() + paged.options().q_lens[b] * paged.options().lengths[b]);
  }
  Tensor bits(DType::kU8, {(first_bit.back() + 7) / 8});
  for (std::byte& byte : bits.bytes) byte = static_cast<std::byte>(random());
  // Some whole tiles of all rows are hidden.
  const auto set = [&](int64_t bit) { bits.bytes[bit / 8] |= std::byte{1} << bit % 8; };
  for (int64_t i = 0; i < 37; ++i) {
    for (int64_t j = 0; j < 200; ++j) set(first_bit[4] + i * 300 + j);
  }
  paged.params.mask.form = MaskForm::kRaggedBits;
  paged.params.mask.tensor = bits.view;
  paged.hide = [&](int64_t b, int64_t i, int64_t j, int64_t) {
    const int64_t bit = first_bit[b] + i * paged.options().lengths[b] + j;
    return (static_cast<int>(bits.bytes[bit / 8]) >> (bit % 8) & 1) != 0;
  };
  if (GetParam().capability == 90) {
    PrefillParams params{DenseAttentionOf(paged.PrefillArgs())};
    params.scoring.mask.bits_before = first_bit.data();
    ASSERT_TRUE(TakesPrefillHopper(params));
    Launch(params, 0);
    return PrefillFixture::ExpectExact(paged);
  }
  ExpectExact(paged);
  ExpectVarlenExact(paged);
}

TEST_P(PrefillSpecialTest, BiasesAreAddedBehindSoftCaps) {
  std::mt19937_64 random(13);
  for (const KvLayout layout : {KvLayout::kNhd, KvLayout::kPagedX}) {
    PagedCaseOptions options = SpecialOptions();
    options.layout = layout;
    PagedCase paged(options);
    Tensor mask(DType::kF32, {1, 4, 90, 300});
    std::vector<double> values = NormalDraws(random, 4 * 90 * 300);
    for (double& value : values) {
      if (random() % 8 == 0) value = -kInf;
    }
    mask.Set(values);
    values = mask.Get();
    paged.params.mask.tensor = mask.view;
    paged.params.mask.form = MaskForm::kPerHead;
    paged.params.mask.encoding = MaskEncoding::kAdditive;
    paged.bias = [&](int64_t, int64_t i, int64_t j, int64_t h) {
      return values[(h * 90 + i) * 300 + j];
    };
    for (const float cap : {0.0f, 2.0f}) {
      paged.params.soft_cap = cap;
      ExpectExact(paged);
      if (layout == KvLayout::kNhd) ExpectVarlenExact(paged);
    }
  }
}

TEST_P(PrefillSpecialTest, TemplatesBandsAndAbsoluteRows) {
  PagedCase paged(SpecialOptions());
  paged.params.causal = false;
  Tensor mask(DType::kBool, {32, 32});
  std::vector<double> values(32 * 32);
  for (int64_t n = 0; n < 32 * 32; ++n) values[n] = n % 32 > n / 32;
  mask.Set(values);
  paged.params.mask.tensor = mask.view;
  paged.params.mask.form = MaskForm::kTemplate;
  paged.params.mask.sparse_mode = 4;
  paged.params.mask.pre_tokens = 80;
  paged.params.mask.next_tokens = 0;
  paged.hide = [&](int64_t b, int64_t i, int64_t j, int64_t) {
    const int64_t p = PositionOf(paged, b, i);
    return j > p || j < p - 80;
  };
  ExpectExact(paged);

  PagedCase absolute(SpecialOptions());
  Tensor square(DType::kBool, {300, 300});
  std::vector<double> hides(300 * 300);
  const auto hidden = [](int64_t p, int64_t j) { return (p * 7 + j) % 3 == 0; };
  for (int64_t n = 0; n < 300 * 300; ++n) hides[n] = hidden(n / 300, n % 300);
  square.Set(hides);
  absolute.params.mask.tensor = square.view;
  absolute.params.mask.form = MaskForm::kShared;
  absolute.params.mask.rows_are_absolute = true;
  absolute.hide = [&](int64_t b, int64_t i, int64_t j, int64_t) {
    return hidden(PositionOf(absolute, b, i), j);
  };
  ExpectExact(absolute);
}

TEST_P(PrefillSpecialTest, MasksTooSmallForALengthHideTheRestAndFlag) {
  PagedCase paged(SpecialOptions());
  const Tensor mask = MaskOf(
      paged, DType::kBool, [](int64_t, int64_t, int64_t, int64_t) { return false; }, 1, 90, 300);
  PrefillParams params{DenseAttentionOf(paged.PrefillArgs())};
  params.scoring.mask.columns = 100;  // as if lengths had grown
  paged.hide = [](int64_t, int64_t, int64_t j, int64_t) { return j >= 100; };
  paged.ClearOutputs();
  Launch(params, 0, kLengthClamped);
  PrefillFixture::ExpectExact(paged);
}

// --- Block-sparse visibility ---

TEST_P(PrefillSpecialTest, BlockSparseTilesThatNobodySeesAreNotRead) {
  for (const int32_t step : {0, 1, -2}) {
    for (const int64_t block : {16, 64, 128}) {
      PagedCaseOptions options = SpecialOptions();
      options.lengths = {700, 120};
      options.q_lens = {70, 120};
      PagedCase paged(options);
      BlockSparse& sparse = paged.params.block_sparse;
      sparse.local_blocks = 2;
      sparse.vert_stride = 5;
      sparse.block_size = block;
      sparse.head_sliding_step = step;
      SCOPED_TRACE(absl::StrCat("step ", step, " blocks of ", block));
      ExpectExact(paged);
      if (block < 64) continue;
      const std::vector<std::byte> before = Launched(paged);
      int32_t* table = paged.block_table.view.as<int32_t>();
      const auto is_hidden = [&](int64_t b, int64_t k_block) {
        if (k_block > (options.lengths[b] - options.q_lens[b]) / block - 2) return false;
        for (int64_t h = 0; h < 4; ++h) {
          const int64_t offset = step >= 0 ? h * step + 1 : h / 2 * -step + 1;
          if ((k_block + offset) % 5 == 0) return false;
        }
        return true;
      };
      int64_t hidden = 0;
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t column = 0; column * 16 < options.lengths[b]; ++column) {
          if (!is_hidden(b, column * 16 / block)) continue;
          table[b * paged.block_table.view.extent[1] + column] = 1 << 29;  // would be flagged
          ++hidden;
        }
      }
      EXPECT_GT(hidden, 0);
      EXPECT_EQ(Launched(paged), before);
    }
  }
}

// --- All together ---

TEST_P(PrefillSpecialTest, RandomBatches) {
  std::mt19937_64 random(23 + static_cast<uint64_t>(GetParam().capability));
  const auto draw = [&](int64_t low, int64_t high) { return IntegerDraw(random, low, high); };
  for (int n = 0; n < 24; ++n) {
    PagedCaseOptions options = Options(n % 2 == 0 ? DType::kBF16 : DType::kF16);
    options.seed = static_cast<uint64_t>(n) + 1;
    options.layout = n % 3 == 0 ? KvLayout::kPagedX : n % 3 == 1 ? KvLayout::kNhd : KvLayout::kHnd;
    const bool codes = n % 4 == 3;
    if (codes) options.cache_dtype = n % 8 == 3 ? DType::kF8E4M3 : DType::kI8;
    options.num_kv_heads = draw(1, 2);
    options.num_heads = options.num_kv_heads * draw(1, 3);
    options.block_size = codes ? 16 * draw(1, 3) : 8 * draw(1, 6);
    options.lengths.clear(), options.q_lens.clear();
    for (int64_t b = draw(1, 4); b > 0; --b) {
      options.lengths.push_back(draw(0, 280));
      options.q_lens.push_back(std::min(options.lengths.back(), draw(0, 80)));
    }
    PagedCase paged(options);
    const RandomFeatures features(paged, false, draw);
    SCOPED_TRACE(n);
    ExpectExact(paged);
  }
}

}  // namespace
}  // namespace kvblocks::attention::cuda
