#include "kvblocks/request_footprint.h"

#include <algorithm>
#include <limits>
#include <string>

#include "checks/checked_int64.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr auto kExact = BlockCountFormula::kExact;
constexpr auto kUpstream = BlockCountFormula::kUpstream;

KvCacheSpec FullOf(int64_t block) {
  return *FullAttentionSpec::Create({.block_size = block, .num_kv_heads = 1, .head_size = 1});
}
KvCacheSpec Window(int64_t block, int64_t window) {
  return *SlidingWindowSpec::Create(
      {.block_size = block, .num_kv_heads = 1, .head_size = 1, .sliding_window = window});
}
KvCacheSpec Chunked(int64_t block, int64_t chunk) {
  return *ChunkedLocalAttentionSpec::Create(
      {.block_size = block, .num_kv_heads = 1, .head_size = 1, .attention_chunk_size = chunk});
}
KvCacheSpec Mla(int64_t block, int64_t ratio) {
  return *MlaAttentionSpec::Create(
      {.block_size = block, .head_size = 512, .compress_ratio = ratio});
}
KvCacheSpec WindowMla(int64_t block, int64_t window) {
  return *SlidingWindowMlaSpec::Create(
      {.block_size = block, .head_size = 512, .sliding_window = window});
}

RequestLimits Limits(int64_t length, int64_t in_flight) {
  return {.max_model_len = length, .max_in_flight_tokens = in_flight};
}

int64_t Blocks(const KvCacheSpec& spec, const RequestLimits& limits,
               BlockCountFormula formula = kExact) {
  const auto blocks = MaxBlocksPerRequest(spec, limits, formula);
  EXPECT_TRUE(blocks.ok()) << blocks.status();
  return blocks.value_or(-1);
}

TEST(RequestFootprintExamples, WE_B1ToB10Blocks) {
  constexpr int64_t kTwoTo20 = 1'048'576;
  const struct {
    const char* example;
    KvCacheSpec spec;
    int64_t length, in_flight;
    int64_t exact, upstream;
  } rows[] = {
      {"B1", FullOf(16), 131'072, 8'192, 8'192, 8'192},
      {"B3", Window(16, 4'096), 32'768, 2'048, 385, 385},
      {"B3", Window(16, 4'096), 32'768, 8'192, 769, 769},
      {"B3", Window(16, 4'096), 32'768, 16'384, 1'281, 1'281},
      {"B4 Gemma 3", Window(16, 1'024), 131'072, 8'192, 577, 577},
      {"B5 gpt-oss", Window(16, 128), 131'072, 8'192, 521, 521},
      {"B6", Window(16, 1'024), 128, 8'192, 8, 9},
      {"B6 full", FullOf(16), 128, 8'192, 8, 8},
      {"B7", Window(16, 1'026), 131'072, 1'024, 129, 130},
      {"B8", Chunked(16, 8'192), kTwoTo20, 8'192, 1'024, 1'024},
      {"B8 short", Chunked(16, 8'192), 4'096, 8'192, 256, 256},
      {"B9", Mla(256, 4), kTwoTo20, 8'192, 4'096, 4'096},
      {"B9", WindowMla(64, 128), kTwoTo20, 8'192, 131, 131},
      {"B9", WindowMla(4, 8), kTwoTo20, 8'192, 2'051, 2'051},
      {"B9", WindowMla(8, 128), kTwoTo20, 8'192, 1'041, 1'041},
      {"B10", Mla(256, 4), kTwoTo20, 16'384, 4'096, 4'096},
      {"B10", WindowMla(64, 128), kTwoTo20, 16'384, 259, 259},
      {"B10", WindowMla(4, 8), kTwoTo20, 16'384, 4'099, 4'099},
      {"B10", WindowMla(8, 128), kTwoTo20, 16'384, 2'065, 2'065},
  };
  for (const auto& row : rows) {
    const RequestLimits limits = Limits(row.length, row.in_flight);
    EXPECT_EQ(Blocks(row.spec, limits, kExact), row.exact) << row.example;
    EXPECT_EQ(Blocks(row.spec, limits, kUpstream), row.upstream) << row.example;
  }
}

TEST(RequestFootprintExamples, WE_B2_FullBlocksWithContextParallelism) {
  RequestLimits limits = Limits(131'072, 8'192);
  limits.decode_context_parallel = 4;
  EXPECT_EQ(Blocks(FullOf(16), limits), 2'048);
  EXPECT_EQ(BlockTableWidth(FullOf(16), limits).value(), 2'048);
}

TEST(RequestFootprintExamples, WE_B11_CrossAttentionHoldsTheEncoder) {
  const auto spec =
      CrossAttentionSpec::Create({.block_size = 16, .num_kv_heads = 20, .head_size = 64});
  ASSERT_TRUE(spec.ok());
  RequestLimits limits = Limits(448, 8'192);
  limits.max_encoder_tokens = 1'500;
  EXPECT_EQ(Blocks(*spec, limits), 94);
  EXPECT_EQ(MaxBytesPerRequest(*spec, limits).value(), 7'700'480);
  EXPECT_EQ(BlockTableWidth(*spec, limits).value(), 94);
  limits.max_model_len = 1'000'000;
  EXPECT_EQ(Blocks(*spec, limits), 94) << "independent of the decoder's length";
  limits.decode_context_parallel = 4;
  EXPECT_EQ(Blocks(*spec, limits), 24);
}

KvCacheSpec MambaOf(MambaCacheMode mode, int64_t speculative) {
  return *MambaSpec::Create({.block_size = 1'056,
                             .states = {{{8}}},
                             .cache_mode = mode,
                             .num_speculative_blocks = speculative});
}

TEST(RequestFootprintExamples, WE_B12_MambaStatesByMode) {
  const RequestLimits limits = Limits(262'144, 8'192);
  for (const int64_t speculative : {0, 3}) {
    const KvCacheSpec none = MambaOf(MambaCacheMode::kNone, speculative);
    const KvCacheSpec align = MambaOf(MambaCacheMode::kAlign, speculative);
    const KvCacheSpec all = MambaOf(MambaCacheMode::kAll, speculative);
    EXPECT_EQ(Blocks(none, limits), 1 + speculative);
    EXPECT_EQ(Blocks(align, limits), 2 + speculative);
    EXPECT_EQ(Blocks(all, limits), 249 + speculative);
    EXPECT_EQ(AdmissionCap(align, limits).value(), std::nullopt);
    // KS-42
    EXPECT_EQ(BlockTableWidth(none, limits).value(), 1 + speculative);
    EXPECT_EQ(BlockTableWidth(align, limits).value(), 249 + speculative);
    EXPECT_EQ(BlockTableWidth(all, limits).value(), 249 + speculative);
    RequestLimits split = limits;
    split.decode_context_parallel = 4;
    EXPECT_EQ(Blocks(all, split), 249 + speculative) << "states are replicated";
  }
}

// KS-31
TEST(RequestFootprintTest, EncoderOnlyNeedsNothing) {
  const KvCacheSpec spec =
      *EncoderOnlyAttentionSpec::Create({.block_size = 16, .num_kv_heads = 20, .head_size = 64});
  EXPECT_GT(spec.page_bytes(), 0);
  EXPECT_EQ(Blocks(spec, Limits(100, 100)), 0);
  EXPECT_EQ(MaxBytesPerRequest(spec, Limits(100, 100)).value(), 0);
  EXPECT_EQ(BlockTableWidth(spec, Limits(100, 100)).value(), 0);
}

// The most blocks held over all states of a request: `settled` tokens processed, up to `in_flight`
// more scheduled, and whole blocks before the first token still needed given back.
template <typename FirstNeeded>
int64_t SimulatedWorst(int64_t block, const RequestLimits& limits, FirstNeeded first_needed) {
  int64_t worst = 0;
  for (int64_t settled = 0; settled < limits.max_model_len; ++settled) {
    const int64_t last = std::min(settled + limits.max_in_flight_tokens, limits.max_model_len);
    for (int64_t scheduled = settled; scheduled <= last; ++scheduled) {
      const int64_t given_back = first_needed(settled) / block;
      worst = std::max(worst, CeilDiv(scheduled, block) - given_back);
    }
  }
  return worst;
}

// P-1, KS-37.
TEST(RequestFootprintExhaustive, ExactSlidingCapIsTheSimulatedWorstCase) {
  int cases = 0;
  for (int64_t block = 1; block <= 5; ++block) {
    for (int64_t window = 1; window <= 10; ++window) {
      for (int64_t in_flight = 1; in_flight <= 9; ++in_flight) {
        for (int64_t length = 1; length <= 26; ++length, ++cases) {
          const RequestLimits limits = Limits(length, in_flight);
          const KvCacheSpec spec = Window(block, window);
          const int64_t exact = *AdmissionCap(spec, limits, kExact).value();
          const int64_t upstream = *AdmissionCap(spec, limits, kUpstream).value();
          const int64_t worst = SimulatedWorst(block, limits, [&](int64_t settled) {
            return std::max<int64_t>(0, settled - window + 1);
          });
          ASSERT_EQ(exact, worst) << spec.ToString() << " L=" << length << " T=" << in_flight;
          ASSERT_LE(exact, upstream);
          ASSERT_LE(upstream, exact + 1);
          ASSERT_LE(exact, Blocks(FullOf(block), limits));
        }
      }
    }
  }
  EXPECT_EQ(cases, 5 * 10 * 9 * 26);
}

TEST(RequestFootprintExhaustive, ExactChunkedCapIsTheSimulatedWorstCase) {
  for (int64_t block = 1; block <= 5; ++block) {
    for (int64_t chunk = block; chunk <= 4 * block; chunk += block) {
      for (int64_t in_flight = 1; in_flight <= 12; ++in_flight) {
        for (int64_t length = 1; length <= 50; ++length) {
          const RequestLimits limits = Limits(length, in_flight);
          const KvCacheSpec spec = Chunked(block, chunk);
          const int64_t exact = *AdmissionCap(spec, limits, kExact).value();
          const int64_t upstream = *AdmissionCap(spec, limits, kUpstream).value();
          const int64_t worst = SimulatedWorst(
              block, limits, [&](int64_t settled) { return settled / chunk * chunk; });
          ASSERT_EQ(exact, worst) << spec.ToString() << " L=" << length << " T=" << in_flight;
          ASSERT_LE(exact, upstream);
          ASSERT_LE(upstream, exact + 1);
        }
      }
    }
  }
}

TEST(RequestFootprintTest, OnlyLocalKindsHaveACap) {
  const RequestLimits limits = Limits(1'000, 100);
  EXPECT_EQ(AdmissionCap(FullOf(16), limits).value(), std::nullopt);
  EXPECT_EQ(AdmissionCap(Mla(16, 4), limits).value(), std::nullopt);
  const auto sink = SinkFullAttentionSpec::Create(
      {.block_size = 16, .num_kv_heads = 1, .head_size = 1, .sink_length = 16});
  ASSERT_TRUE(sink.ok());
  EXPECT_EQ(AdmissionCap(*sink, limits).value(), std::nullopt);
  EXPECT_EQ(Blocks(*sink, limits), 63);
  const auto labelled = FullAttentionSpec::Create(
      {.block_size = 16, .num_kv_heads = 1, .head_size = 1, .sliding_window = 32});
  ASSERT_TRUE(labelled.ok());
  EXPECT_EQ(AdmissionCap(*labelled, limits).value(), std::nullopt);
  EXPECT_EQ(AdmissionCap(Window(16, 32), limits).value(), 10);
  EXPECT_EQ(AdmissionCap(WindowMla(16, 32), limits).value(), 10);
  EXPECT_EQ(AdmissionCap(Chunked(16, 32), limits).value(), 9);
}

// KS-42: the table keeps an entry for every token, stored or not.
TEST(RequestFootprintTest, TableWidthCoversTheWholeRequestForEveryKind) {
  const RequestLimits limits = Limits(1'001, 100);
  for (const KvCacheSpec& spec : {FullOf(16), Mla(16, 4), Window(16, 32), Chunked(16, 32)}) {
    EXPECT_EQ(BlockTableWidth(spec, limits).value(), 63) << spec.ToString();
  }
}

TEST(RequestFootprintTest, LimitsBelowOneAreRefused) {
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    const std::string reason = ": got " + std::to_string(bad) + ", expected at least 1";
    for (const KvCacheSpec& spec : {FullOf(16), Window(16, 32)}) {
      EXPECT_EQ(AdmissionCap(spec, Limits(bad, 1)).status().message(), "max_model_len" + reason);
      EXPECT_EQ(MaxBlocksPerRequest(spec, Limits(1, bad)).status().message(),
                "max_in_flight_tokens" + reason);
      RequestLimits limits = Limits(1, 1);
      limits.decode_context_parallel = bad;
      EXPECT_EQ(BlockTableWidth(spec, limits).status().message(),
                "decode_context_parallel" + reason);
      EXPECT_FALSE(MaxBytesPerRequest(spec, limits).ok());
    }
  }
}

// E-9
TEST(RequestFootprintTest, LocalKindsRefuseContextParallelism) {
  RequestLimits limits = Limits(1'000, 100);
  limits.decode_context_parallel = 2;
  for (const KvCacheSpec& spec : {Window(16, 32), WindowMla(16, 32), Chunked(16, 32)}) {
    const auto cap = AdmissionCap(spec, limits);
    ASSERT_FALSE(cap.ok());
    EXPECT_THAT(std::string(cap.status().message()),
                HasSubstr("decode_context_parallel: got 2, expected 1 for " + spec.ToString()));
    EXPECT_FALSE(BlockTableWidth(spec, limits).ok());
  }
}

TEST(RequestFootprintTest, HugeLimitsNeverWrap) {
  EXPECT_EQ(Blocks(FullOf(1), Limits(kHuge, kHuge)), kHuge);
  EXPECT_EQ(Blocks(Window(1, kHuge), Limits(kHuge, kHuge)), kHuge);
  EXPECT_EQ(Blocks(Chunked(1, kHuge), Limits(kHuge, kHuge), kUpstream), kHuge);
  EXPECT_EQ(Blocks(Window(16, 128), Limits(kHuge, 64)), 13);
  const auto bytes = MaxBytesPerRequest(FullOf(1), Limits(kHuge, 1));
  ASSERT_FALSE(bytes.ok());
  EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("fits 63 bits"));
  EXPECT_FALSE(MaxBlocksPerRequest(MambaOf(MambaCacheMode::kAll, kHuge), Limits(kHuge, 1)).ok());
  EXPECT_FALSE(BlockTableWidth(MambaOf(MambaCacheMode::kNone, kHuge), Limits(1, 1)).ok());
  RequestLimits limits = Limits(kHuge, 1);
  limits.decode_context_parallel = kHuge;
  EXPECT_EQ(Blocks(FullOf(16), limits), 1);
}

TEST(RequestFootprintTest, UpstreamFormulaReachesTheEndOfTheRange) {
  // cdiv(n, 1) + 1 does not fit: refused, not wrapped.
  const auto cap = AdmissionCap(Window(1, kHuge), Limits(kHuge, kHuge), kUpstream);
  ASSERT_FALSE(cap.ok());
  EXPECT_THAT(std::string(cap.status().message()), HasSubstr("max_model_len: got "));
}

// BM-116: counted from the definition - w settled and T unsettled tokens, wherever they begin.
TEST(OutputCapTest, IsTheMostBlocksThatTheWindowTouches) {
  for (int64_t block : {1, 3, 4}) {
    for (int64_t window : {1, 4, 7}) {
      for (int64_t in_flight : {1, 2, 9}) {
        const auto spec = FullAttentionSpec::Create(
            {.block_size = block, .num_kv_heads = 1, .head_size = 8, .output_window = window});
        const RequestLimits limits{.max_model_len = 1'000, .max_in_flight_tokens = in_flight};
        int64_t most = 0;
        for (int64_t begin = 0; begin < block; ++begin) {
          most = std::max(most, (begin + window + in_flight - 1) / block + 1);
        }
        EXPECT_EQ(**OutputCap(*spec, limits), most);
        EXPECT_GE(**OutputCap(*spec, limits, BlockCountFormula::kUpstream), most);
        EXPECT_LE(**OutputCap(*spec, limits, BlockCountFormula::kUpstream), most + 1);
        // It keeps its prompt, which may be all there is.
        EXPECT_EQ(*AdmissionCap(*spec, limits), std::nullopt);
        EXPECT_EQ(*MaxBlocksPerRequest(*spec, limits), (1'000 + block - 1) / block);
      }
    }
  }
  const auto full = FullAttentionSpec::Create({.block_size = 4, .num_kv_heads = 1, .head_size = 8});
  EXPECT_EQ(*OutputCap(*full, {.max_model_len = 10, .max_in_flight_tokens = 1}), std::nullopt);
  const auto spread = FullAttentionSpec::Create(
      {.block_size = 4, .num_kv_heads = 1, .head_size = 8, .output_window = 16});
  EXPECT_EQ(**OutputCap(
                *spread,
                {.max_model_len = 1'000, .max_in_flight_tokens = 1, .decode_context_parallel = 2}),
            3);
  EXPECT_EQ(**OutputCap(*spread, {.max_model_len = 9, .max_in_flight_tokens = 1}), 3);
}

}  // namespace
}  // namespace kvblocks
