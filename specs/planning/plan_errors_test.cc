// The errors of planning by their number: what each message must contain.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/plan.h"
#include "specs/planning/pool_sizing.h"
#include "specs/planning/testing/plan_test_helpers.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::vector<LayerCache> Mixed(const std::vector<KvCacheSpec>& specs) {
  std::vector<LayerCache> caches;
  for (const KvCacheSpec& spec : specs) {
    caches.push_back({.name = "l" + std::to_string(caches.size()), .spec = spec});
  }
  return caches;
}

TEST(PlanErrorsTest, E1OptionsOutOfRange) {
  struct Case {
    std::string field;
    PlanOptions options;
  };
  const PlanOptions good = Exact(kGiB, 1024);
  std::vector<Case> cases;
  const auto add = [&](const std::string& field, auto change) {
    cases.push_back({field, good});
    change(cases.back().options);
  };
  add("max_model_len", [](PlanOptions& o) { o.limits.max_model_len = -1; });
  add("max_in_flight_tokens", [](PlanOptions& o) { o.limits.max_in_flight_tokens = 0; });
  add("decode_context_parallel", [](PlanOptions& o) { o.limits.decode_context_parallel = 0; });
  add("longest_automatic_len", [](PlanOptions& o) { o.longest_automatic_len = 0; });
  add("typical_len", [](PlanOptions& o) { o.typical_len = -1; });
  add("table_cost_bytes", [](PlanOptions& o) { o.table_cost_bytes = -1; });
  add("max_chunk_bytes", [](PlanOptions& o) { o.max_chunk_bytes = 0; });
  add("state_chunk_tokens", [](PlanOptions& o) { o.state_chunk_tokens = 0; });
  add("num_blocks_override", [](PlanOptions& o) { o.num_blocks_override = 0; });
  add("match_unit", [](PlanOptions& o) { o.match_unit = 0; });
  add("kernel_block_sizes", [](PlanOptions& o) { o.kernel_block_sizes = {0}; });
  add("available_bytes", [](PlanOptions& o) { o.available_bytes = {}; });
  add("layout", [](PlanOptions& o) {
    o.policy = PlanPolicy::kUpstream;
    o.layout = PoolLayout::kSlab;
  });
  for (const Case& c : cases) {
    const PlanError error = ErrorOf(Llama31_8b(), c.options, PlanErrorCode::kBadValue);
    EXPECT_THAT(error.message, AllOf(HasSubstr(c.field), HasSubstr("expected")));
  }
}

TEST(PlanErrorsTest, E1BlockThatNoKernelTakes) {
  PlanOptions options = Exact(16 * kGiB, 1024);
  options.kernel_block_sizes = {64, 24};
  const PlanError error = ErrorOf({{.name = "layers.0", .spec = FullSpec(16, 8, 128)}}, options,
                                  PlanErrorCode::kBadValue);
  EXPECT_THAT(error.message,
              AllOf(HasSubstr("layers.0"), HasSubstr("got 16"), HasSubstr("64, 24")));
  EXPECT_TRUE(MakePlan(Mixed({FullSpec(192, 8, 128), FullSpec(192, 8, 64)}), options).ok());
}

TEST(PlanErrorsTest, E1NamesAndWorkers) {
  std::vector<LayerCache> caches = Llama31_8b();
  caches[1].name = "";
  caches[2].name = "a\nb";
  caches[3].worker = -1;
  const std::vector<PlanError> errors = ErrorsOf(caches, Exact(16 * kGiB, 1024));
  ASSERT_THAT(errors, SizeIs(3));  // all of them, not only the first
  for (const PlanError& error : errors) EXPECT_EQ(error.code, PlanErrorCode::kBadValue);
  EXPECT_THAT(errors[1].message, HasSubstr("\"a?b\""));
  EXPECT_THAT(errors[2].message, AllOf(HasSubstr("layers.3"), HasSubstr("got -1")));
}

TEST(PlanErrorsTest, E2OneNameTwoSpecs) {
  const PlanError error = ErrorOf({{.name = "layers.0", .spec = FullSpec(16, 8, 128)},
                                   {.name = "layers.0", .spec = FullSpec(16, 4, 128), .worker = 1}},
                                  Exact(kGiB, 1024), PlanErrorCode::kConflictingSpecs);
  EXPECT_THAT(error.message,
              AllOf(HasSubstr("layers.0"), HasSubstr("num_kv_heads=8"), HasSubstr("worker 0"),
                    HasSubstr("num_kv_heads=4"), HasSubstr("worker 1")));
}

TEST(PlanErrorsTest, E4PaddingThatUpstreamsCountExceeds) {
  const SlidingWindowSpec::Options options = {.block_size = 16,
                                              .num_kv_heads = 8,
                                              .head_size = 128,
                                              .sliding_window = 64,
                                              .dtype = DataType::kUint8,
                                              .quant_mode = QuantMode::kInt4PerTokenHead,
                                              .page_size_padded = 20000};
  const std::vector<LayerCache> caches = Mixed({*SlidingWindowSpec::Create(options)});
  EXPECT_EQ(PlanOf(caches, Exact(kGiB, 1024)).groups[0].page_bytes, 20000);
  const PlanError error = ErrorOf(caches, Upstream(kGiB, 1024), PlanErrorCode::kPaddingTooSmall);
  EXPECT_THAT(error.message, AllOf(HasSubstr("l0"), HasSubstr("20000"), HasSubstr("33792")));
}

TEST(PlanErrorsTest, E6MlaCachesWithDifferentBlocks) {
  std::vector<LayerCache> caches = DeepseekV4("4H");
  caches.push_back({.name = "odd", .spec = LatentSpec(64)});
  const PlanError error =
      ErrorOf(caches, Upstream025(16 * kGiB, 1024), PlanErrorCode::kTableWidths);
  EXPECT_THAT(error.message, AllOf(HasSubstr("64"), HasSubstr("256"), HasSubstr("odd")));
}

TEST(PlanErrorsTest, E7NamesLayerPagesAndTheWayOut) {
  const PlanError error = ErrorOf(Gemma4(QuantMode::kInt8PerTokenHead),
                                  Upstream025(16 * kGiB, 1024), PlanErrorCode::kPagesDoNotEqualise);
  EXPECT_THAT(error.message, AllOf(HasSubstr("layers.5"), HasSubstr("33024"), HasSubstr("66560"),
                                   HasSubstr("not a divisor and backend cannot read padded pages"),
                                   HasSubstr("native layout")));
}

TEST(PlanErrorsTest, E7TuplesThatAreNotWhole) {
  std::vector<LayerCache> caches = DeepseekV4("44");
  std::erase_if(caches, [](const LayerCache& c) { return c.name == "layers.1.indexer_state"; });
  const PlanError error =
      ErrorOf(caches, Upstream025(16 * kGiB, 1024), PlanErrorCode::kPagesDoNotEqualise);
  EXPECT_THAT(error.message, AllOf(HasSubstr("32832"), HasSubstr("8640"), HasSubstr("2 times")));
  EXPECT_TRUE(MakePlan(caches, Exact(16 * kGiB, 1024)).ok());
}

TEST(PlanErrorsTest, E8StatesCannotBeStoredAsAttention) {
  std::vector<LayerCache> caches =
      Mixed({FullSpec(16, 8, 128), WindowSpec(16, 8, 128, 64), StateSpec(16, 1024, 1024)});
  PlanOptions options = Exact(16 * kGiB, 1024);
  options.hybrid = false;
  const PlanError error = ErrorOf(caches, options, PlanErrorCode::kNotOneType);
  EXPECT_THAT(error.message, AllOf(HasSubstr("full_attention"), HasSubstr("mamba")));
}

TEST(PlanErrorsTest, E8AndE15TwoWindowsWithoutFullLayers) {
  PlanOptions options = Exact(16 * kGiB, 1024);
  options.hybrid = false;
  const std::vector<PlanError> errors =
      ErrorsOf(Mixed({WindowSpec(16, 8, 128, 64), WindowSpec(16, 8, 128, 80)}), options);
  ASSERT_THAT(errors, SizeIs(2));
  EXPECT_EQ(errors[0].code, PlanErrorCode::kNotOneType);
  EXPECT_THAT(errors[0].message, AllOf(HasSubstr("window 64"), HasSubstr("window 80")));
  EXPECT_EQ(errors[1].code, PlanErrorCode::kMerge);
  EXPECT_THAT(errors[1].message, AllOf(HasSubstr("l0"), HasSubstr("sliding_window"),
                                       HasSubstr("64"), HasSubstr("80")));
}

TEST(PlanErrorsTest, E9WindowsOverContextParallelRanks) {
  PlanOptions options = Exact(16 * kGiB, 1024);
  options.limits.decode_context_parallel = 2;
  const PlanError error = ErrorOf(Gemma3_27b(), options, PlanErrorCode::kContextParallelWindow);
  EXPECT_THAT(error.message, AllOf(HasSubstr("is 2"), HasSubstr("layers.0")));
  EXPECT_THAT(error.layers, SizeIs(52));
}

TEST(PlanErrorsTest, E10NoMemory) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-5}}) {
    const PlanError error = ErrorOf(Llama31_8b(), Exact(bytes, 1024), PlanErrorCode::kNoMemory);
    EXPECT_EQ(error.available, bytes);
    EXPECT_THAT(error.message, AllOf(HasSubstr(std::to_string(bytes) + " bytes"),
                                     HasSubstr("raise the fraction of memory")));
  }
}

TEST(PlanErrorsTest, E11NeededAndAvailableWithTheLengthThatFits) {
  const PlanError error =
      ErrorOf(Llama31_8b(), Upstream025(10 * kGiB, 131072), PlanErrorCode::kRequestDoesNotFit);
  EXPECT_THAT(error.message,
              AllOf(HasSubstr("131,072 tokens"), HasSubstr("16.00 GiB"), HasSubstr("10.00 GiB"),
                    HasSubstr("longest length that fits: 81,920")));
  EXPECT_EQ(error.needed, 16 * kGiB);
  EXPECT_EQ(error.available, 10 * kGiB);
}

TEST(PlanErrorsTest, E11WithoutALengthThatFits) {
  const PlanError error =
      ErrorOf(Llama31_8b(), Upstream(1, 131072), PlanErrorCode::kRequestDoesNotFit);
  EXPECT_EQ(error.longest_length, std::nullopt);
  EXPECT_EQ(error.message.find("longest"), std::string::npos);
}

TEST(PlanErrorsTest, E11NamesEveryWorkerThatIsTooSmall) {
  std::vector<LayerCache> caches = Llama31_8b();
  for (int i = 0; i < 32; ++i) caches[i].worker = i % 4;
  PlanOptions options = Exact(0, 131072);
  options.available_bytes = {kGiB, 8 * kGiB, 2 * kGiB, 8 * kGiB};
  const std::vector<PlanError> errors = ErrorsOf(caches, options);
  ASSERT_THAT(errors, SizeIs(2));
  EXPECT_EQ(errors[0].worker, 0);
  EXPECT_EQ(errors[1].worker, 2);
  EXPECT_THAT(errors[1].message, HasSubstr("worker 2: "));
}

TEST(PlanErrorsTest, E12AutomaticLengthWithoutRoomForOneToken) {
  const PlanError error =
      ErrorOf(Llama31_8b(), Exact(1 << 20, /*length=*/0), PlanErrorCode::kNoLengthFits);
  // The null block and one more of 2 MiB.
  EXPECT_THAT(error.message, AllOf(HasSubstr("1,048,576 bytes"), HasSubstr("4,194,304 bytes")));
}

TEST(PlanErrorsTest, E13MatchUnit) {
  std::vector<PlanError> errors;
  const std::vector<KvCacheSpec> groups = {FullSpec(32, 2, 128), FullSpec(16, 4, 128)};
  EXPECT_FALSE(PlanBlockSizes(groups, 1, true, 12, &errors).has_value());
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_EQ(errors[0].code, PlanErrorCode::kMatchUnit);
  EXPECT_THAT(errors[0].message, AllOf(HasSubstr("12"), HasSubstr("32, 16")));
}

TEST(PlanErrorsTest, E16TwiceOnOneWorker) {
  std::vector<LayerCache> caches = Llama31_8b();
  caches[7].name = caches[3].name;
  const PlanError error = ErrorOf(caches, Exact(16 * kGiB, 1024), PlanErrorCode::kNotInOneGroup);
  EXPECT_THAT(error.layers, ElementsAre("layers.3"));
  EXPECT_THAT(error.message, HasSubstr("layers.3"));
}

TEST(PlanErrorsTest, AllErrorsOfAPlanAreReportedTogether) {
  PlanOptions options = Upstream(kGiB, 131072);
  options.match_unit = 24;
  options.kernel_block_sizes = {64};
  const std::vector<PlanError> errors = ErrorsOf(Gemma4(), options);
  std::vector<std::string> names;
  for (const PlanError& error : errors) {
    if (names.empty() || names.back() != PlanErrorName(error.code)) {
      names.push_back(PlanErrorName(error.code));
    }
  }
  EXPECT_THAT(names, ElementsAre("E-1", "E-13", "E-11"));
}

TEST(AutomaticLengthTest, IsTheLongestThatFitsTheSmallestWorker) {
  std::vector<LayerCache> caches = Llama31_8b();
  for (int i = 0; i < 32; ++i) caches[i].worker = i / 16;
  PlanOptions options = Exact(0, /*length=*/0);
  options.available_bytes = {8 * kGiB, 5 * kGiB};
  const Plan plan = PlanOf(caches, options);
  EXPECT_EQ(plan.limiting_worker, 1);
  EXPECT_EQ(plan.limits.max_model_len, (5 * 1024 - 1) * 16);  // less the null block
  // Fixed at that length, the plan is the same; a token longer does not fit.
  options.limits.max_model_len = plan.limits.max_model_len;
  EXPECT_TRUE(MakePlan(caches, options).ok());
  options.limits.max_model_len += 1;
  EXPECT_FALSE(MakePlan(caches, options).ok());
}

TEST(AutomaticLengthTest, WindowsAloneFitAnyLength) {
  const Plan plan = PlanOf(Mistral7b(), Exact(16 * kGiB, /*length=*/0));
  EXPECT_EQ(plan.limits.max_model_len, 1 << 20);
  EXPECT_EQ(plan.limiting_worker, std::nullopt);
}

TEST(StorageInFullTest, CarriesModeWindowAndBlockSize) {
  PlanOptions options = Upstream(40 * kGiB, 8192);
  options.hybrid = false;
  std::vector<LayerCache> caches =
      Mixed({FullSpec(32, 8, 128, QuantMode::kInt8PerTokenHead),
             WindowSpec(16, 8, 128, 1024, QuantMode::kInt8PerTokenHead)});
  const Plan plan = PlanOf(caches, options);
  EXPECT_THAT(GroupSizes(plan), ElementsAre(2));
  const auto* stored = plan.layers[1].stored.get_if<FullAttentionSpec>();
  ASSERT_NE(stored, nullptr);
  EXPECT_EQ(stored->options().quant_mode, QuantMode::kInt8PerTokenHead);
  EXPECT_EQ(stored->options().sliding_window, 1024);
  EXPECT_EQ(stored->options().block_size, 32);
  // The layer's own facts are still there.
  EXPECT_EQ(plan.layers[1].declared.sliding_window(), 1024);
}

TEST(StorageInFullTest, MlaNextToWindowsFallsBackToIt) {
  // 73,728 is no multiple of 65,536 and neither reads padded pages.
  std::vector<LayerCache> caches = Mixed({LatentSpec(64), WindowSpec(16, 8, 128, 1024)});
  const Plan plan = PlanOf(caches, Upstream025(40 * kGiB, 8192));
  EXPECT_THAT(GroupSizes(plan), ElementsAre(2));
  EXPECT_TRUE(plan.groups[0].is_aggregate);
  EXPECT_EQ(plan.layers[1].stored.kind(), KvCacheSpecKind::kFullAttention);
}

TEST(StorageInFullTest, MayBeBilledAtTheWindow) {
  PlanOptions options = Exact(40 * kGiB, 131072);
  options.hybrid = false;
  EXPECT_FALSE(MakePlan(Gemma3_27b(), options).ok());
  options.bill_promoted_at_window = true;
  const Plan plan = PlanOf(Gemma3_27b(), options);
  for (const PlannedGroup& group : plan.groups) {
    EXPECT_EQ(group.spec.kind(), KvCacheSpecKind::kFullAttention);
    const bool local = plan.layers[group.layers[0]].declared.sliding_window().has_value();
    EXPECT_EQ(group.billed_window.has_value(), local);
  }
  EXPECT_GT(plan.Concurrency(131072), 2.5);
}

}  // namespace
}  // namespace kvblocks
