// T-1: every pair of types, layouts, head sizes, groups, block sizes and lengths; T-2: every pair
// of score features.

#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "attention/testing/ops_suite.h"

namespace kvblocks::attention {
namespace {

// --- Pairwise covering ---

constexpr int kNumFactors = 6;
using Choice = std::array<int, kNumFactors>;

// Rows such that any two values of any two factors meet in one of them: greedily, each row the best
// of some random ones.
std::vector<Choice> CoverPairs(const Choice& sizes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<bool> covered(kNumFactors * kNumFactors * 64);
  const auto pair_index = [](int f, int a, int g, int b) {
    return (f * kNumFactors + g) * 64 + a * 8 + b;
  };
  int missing = 0;
  for (int f = 0; f < kNumFactors; ++f) {
    for (int g = f + 1; g < kNumFactors; ++g) missing += sizes[f] * sizes[g];
  }
  std::vector<Choice> rows;
  while (missing > 0) {
    Choice best = {};
    int best_gain = -1;
    for (int trial = 0; trial < 64; ++trial) {
      Choice row;
      for (int f = 0; f < kNumFactors; ++f) row[f] = IntegerDraw(random, 0, sizes[f] - 1);
      int gain = 0;
      for (int f = 0; f < kNumFactors; ++f) {
        for (int g = f + 1; g < kNumFactors; ++g)
          gain += !covered[pair_index(f, row[f], g, row[g])];
      }
      if (gain > best_gain) best_gain = gain, best = row;
    }
    for (int f = 0; f < kNumFactors; ++f) {
      for (int g = f + 1; g < kNumFactors; ++g) covered[pair_index(f, best[f], g, best[g])] = true;
    }
    missing -= best_gain;
    if (best_gain > 0) rows.push_back(best);
  }
  return rows;
}

const DType kQueryTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
const DType kCodeTypes[] = {DType::kF8E4M3, DType::kF8E5M2, DType::kI8};  // and the query's own
const KvLayout kLayouts[] = {KvLayout::kPagedX, KvLayout::kNhd, KvLayout::kHnd};
const int64_t kHeadSizes[] = {64, 80, 96, 128, 256};
const std::pair<int64_t, int64_t> kHeads[] = {{1, 1}, {8, 8}, {8, 2}, {32, 8}, {64, 8}, {16, 1}};
const int64_t kBlockSizes[] = {8, 16, 32, 64, 128, 256};

std::vector<PagedCaseOptions> GridCases() {
  std::vector<PagedCaseOptions> cases;
  for (const Choice& row : CoverPairs({3, 4, 3, 5, 6, 6}, 1)) {
    PagedCaseOptions options;
    options.q_dtype = kQueryTypes[row[0]];
    options.cache_dtype = row[1] == 3 ? options.q_dtype : kCodeTypes[row[1]];
    options.layout = kLayouts[row[2]];
    options.key_dim = options.value_dim = kHeadSizes[row[3]];
    options.num_heads = kHeads[row[4]].first;
    options.num_kv_heads = kHeads[row[4]].second;
    options.block_size = kBlockSizes[row[5]];
    if (options.layout == KvLayout::kPagedX) {  // whose rows of V are the tokens of a block
      options.block_size = std::max(options.block_size, TraitsUnderTest().alignment /
                                                            ElementBytes(options.cache_dtype));
    }
    options.seed = cases.size() + 1;
    options.scales = static_cast<PagedCaseOptions::Scales>(cases.size() % 3);
    options.interleave_kv = cases.size() % 2 == 0;
    options.q_factor = cases.size() % 2 == 0 ? 1 : 4;
    cases.push_back(options);
  }
  return cases;
}

std::string Describe(const PagedCaseOptions& options) {
  return absl::StrCat(Name(options.q_dtype), " over ", Name(options.cache_dtype), " ",
                      Name(options.layout), ", D ", options.key_dim, ", heads ", options.num_heads,
                      "/", options.num_kv_heads, ", BS ", options.block_size, ", seed ",
                      options.seed);
}

// Lengths around the block size and powers of two, as many as the work allows.
void SetDecodeLengths(PagedCaseOptions& options) {
  const int64_t BS = options.block_size;
  options.lengths = {1, BS - 1, 0, BS, BS + 1};
  int64_t budget = 300000 / (options.num_heads * options.key_dim);
  for (int64_t length : {4097, 513, 512, 511}) {
    if (length <= budget) options.lengths.push_back(length), budget -= length;
  }
  options.q_lens.assign(options.lengths.size(), 1);
}

TEST(OpsGridTest, T1DecodeOfEveryPairOfFactors) {
  for (PagedCaseOptions options : GridCases()) {
    SCOPED_TRACE(Describe(options));
    SetDecodeLengths(options);
    PagedCase paged(options);
    ExpectDecodeIsExact(paged);
  }
}

TEST(OpsGridTest, T1PrefillOfEveryPairOfFactors) {
  const int64_t kQueryLengths[] = {1, 2, 5, 17, 129, 512};
  for (PagedCaseOptions options : GridCases()) {
    SCOPED_TRACE(Describe(options));
    // Each case has some of the lengths; all together have all of them with all factors' values.
    const int64_t budget = 2000000 / (options.num_heads * options.key_dim);
    int64_t work = 0;
    options.lengths = {0}, options.q_lens = {0};
    for (int n = 0; n < 4; ++n) {
      const int64_t q_len = kQueryLengths[(options.seed + n) % 6];
      const int64_t length = q_len + (n % 2 == 0 ? 0 : options.block_size + n - 2);
      if (work + q_len * length > budget) continue;
      work += q_len * length;
      options.lengths.push_back(length);
      options.q_lens.push_back(q_len);
    }
    PagedCase paged(options);
    ExpectPrefillIsExact(paged);
  }
}

TEST(OpsGridTest, T1ContiguousKeysOfEveryType) {
  int n = 0;
  for (DType type : kQueryTypes) {
    for (const auto& [heads, kv_heads] : kHeads) {
      PagedCaseOptions options;
      options.q_dtype = options.cache_dtype = type;
      options.num_heads = heads, options.num_kv_heads = kv_heads;
      options.key_dim = kHeadSizes[n % 5], options.value_dim = kHeadSizes[++n % 3];
      options.lengths = {17, 5, 0, 20, 9};
      options.q_lens = {7, 5, 0, 3, 1};
      SCOPED_TRACE(Describe(options));
      PagedCase paged(options);
      ExpectVarlenIsExact(paged);
      paged.params.causal = false;
      ExpectVarlenIsExact(paged);
    }
  }
}

// 512 queries and a request of thousands of keys, which the pairs above have no room for.
TEST(OpsGridTest, T1LongRequests) {
  PagedCaseOptions options;
  options.num_heads = 2, options.num_kv_heads = 1;
  options.key_dim = options.value_dim = 64;
  options.q_dtype = options.cache_dtype = DType::kBF16;
  options.lengths = {4097, 512, 140};
  options.q_lens = {2, 512, 129};
  PagedCase paged(options);
  ExpectPrefillIsExact(paged);
}

// --- Features ---

enum Feature { kAlibi, kCap, kWindow, kSink, kBlockSparse, kMask, kChunk, kNumFeatures };
const char* const kFeatureNames[] = {"alibi", "cap",  "window", "sink", "block_sparse",
                                     "mask",  "chunk"};

// What features point to.
struct Features {
  explicit Features(const PagedCaseOptions& options) {
    std::mt19937_64 random(7);
    std::vector<double> slopes, biases, hides;
    for (int64_t h = 0; h < options.num_heads; ++h) slopes.push_back(std::ldexp(1, -1 - h));
    alibi = FloatTensor(slopes);
    sinks = FloatTensor(NormalDraws(random, options.num_heads + 3));  // padded, as some have it
    max_len = *std::max_element(options.lengths.begin(), options.lengths.end());
    mask = Tensor(DType::kBool, {max_len, max_len});
    for (int64_t n = 0; n < max_len * max_len; ++n) hides.push_back(random() % 4 == 0);
    mask.Set(hides);
  }

  void TurnOn(Feature feature, PagedCase& paged) const {
    AttnParams& params = paged.params;
    switch (feature) {
      case kAlibi:
        params.alibi_slopes = alibi.view;
        return;
      case kCap:
        params.soft_cap = 1.5f;
        return;
      case kWindow:
        params.window_left = 12;
        return;
      case kSink:
        params.sinks = sinks.view;
        return;
      case kBlockSparse:
        params.block_sparse.local_blocks = 1;
        params.block_sparse.vert_stride = 3;
        params.block_sparse.block_size = 8;
        params.block_sparse.head_sliding_step = 1;
        params.block_sparse.tp_rank = 1;
        return;
      case kMask:
        params.mask.tensor = mask.view;
        params.mask.form = MaskForm::kShared;
        paged.hide = [this](int64_t, int64_t i, int64_t j, int64_t) {
          return mask.bytes[i * max_len + j] != std::byte{0};
        };
        return;
      case kChunk:
        params.chunk = 32;
        return;
      case kNumFeatures:
        return;
    }
  }

  Tensor alibi, sinks, mask;
  int64_t max_len;
};

template <typename Expect>
void ForFeaturePairs(const PagedCaseOptions& options, const Expect& expect) {
  const Features features(options);
  for (int a = 0; a < kNumFeatures; ++a) {
    for (int b = a; b < kNumFeatures; ++b) {
      SCOPED_TRACE(absl::StrCat(kFeatureNames[a], " and ", kFeatureNames[b]));
      PagedCase paged(options);
      features.TurnOn(static_cast<Feature>(a), paged);
      features.TurnOn(static_cast<Feature>(b), paged);
      expect(paged);
    }
  }
}

TEST(OpsGridTest, T2DecodeWithEveryPairOfFeatures) {
  PagedCaseOptions options;
  options.lengths = {1, 70, 0, 33, 48, 131};
  options.key_dim = options.value_dim = 64;
  ForFeaturePairs(options, ExpectDecodeIsExact);
}

TEST(OpsGridTest, T2PrefillWithEveryPairOfFeatures) {
  PagedCaseOptions options;
  options.lengths = {1, 70, 0, 33, 48, 131};
  options.q_lens = {1, 17, 0, 33, 1, 5};
  options.key_dim = options.value_dim = 64;
  options.layout = KvLayout::kHnd;
  ForFeaturePairs(options, ExpectPrefillIsExact);
}

TEST(OpsGridTest, T2ContiguousKeysWithEveryPairOfFeatures) {
  PagedCaseOptions options;
  options.lengths = {1, 70, 0, 33};
  options.q_lens = {1, 17, 0, 33};
  options.key_dim = options.value_dim = 64;
  ForFeaturePairs(options, ExpectVarlenIsExact);
}

TEST(OpsGridTest, OutputsAreQuantisedByTheirScale) {
  for (DType type : {DType::kF8E4M3, DType::kF8E5M2}) {
    PagedCaseOptions options;
    options.q_dtype = options.cache_dtype = DType::kBF16;
    options.lengths = options.q_lens = {9, 1, 30};
    options.key_dim = options.value_dim = 64;
    PagedCase paged(options);
    PagedPrefillArgs args = paged.PrefillArgs();
    Tensor codes(type, {paged.num_tokens(), 4, 64});
    args.out = codes.view;
    args.out_scale = 0.0625f;
    ASSERT_TRUE(OpsUnderTest().PagedPrefill({}, args).ok());
    std::vector<double> values = codes.Get();
    for (double& value : values) value *= args.out_scale;
    Tensor wide(DType::kF32, {paged.num_tokens(), 4, 64});
    wide.Set(values);
    Tolerance tolerance = CudaTolerance(type);
    tolerance.lse_absolute = ToleranceUnderTest(DType::kBF16).lse_absolute;
    EXPECT_EQ(Mismatch(paged.Expected(), wide.view, paged.lse.view, tolerance), "");
    args.out_scale = 1e-6f;  // all but zeros saturate
    ASSERT_TRUE(OpsUnderTest().PagedPrefill({}, args).ok());
    double largest = 0;
    for (double code : codes.Get()) largest = std::max(largest, code);
    EXPECT_EQ(largest, type == DType::kF8E4M3 ? 448 : 57344);
  }
}

}  // namespace
}  // namespace kvblocks::attention
