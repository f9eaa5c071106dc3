// T-17: the planner on the device against the one on the host.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "attention/cuda/device/gpu.h"
#include "attention/cuda/kernels/decode_partition.h"
#include "attention/cuda/kernels/decode_plan.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention::cuda {
namespace {

struct Batch {
  std::vector<int32_t> lengths;
  int64_t window = 0, chunk = 0;
  SplitPolicy policy;
  int64_t tile = 64, overhead = -1;
  int32_t parts = 1;
  int64_t block_size = 16;
};

// Runs both and compares pieces, parts and offsets; `num_pieces` becomes how many there are.
void ExpectSamePlan(const Batch& batch, int64_t* num_pieces = nullptr) {
  DecodePlanParams params;
  params.seq_lens = batch.lengths.data();
  params.num_requests = static_cast<int32_t>(batch.lengths.size());
  params.max_seq_len = *std::max_element(batch.lengths.begin(), batch.lengths.end());
  params.max_keys = params.max_seq_len + 100;
  params.block_size = static_cast<int32_t>(batch.block_size);
  params.window = static_cast<int32_t>(batch.window);
  params.chunk = static_cast<int32_t>(batch.chunk);
  params.kind = static_cast<SplitKind>(batch.policy.kind);
  params.value = batch.policy.value;
  params.tile = static_cast<int32_t>(batch.tile);
  params.overhead = static_cast<int32_t>(batch.overhead);
  params.num_parts = batch.parts;
  params.num_counters = 37;
  ASSERT_TRUE(TakesDecodePlan(params));
  const DecodePlanLayout layout = LayoutOf(params);
  std::vector<int32_t> words(layout.bytes / 4 + 3, -1);
  int32_t* plan = words.data();
  while (reinterpret_cast<uintptr_t>(plan) % 16 != 0) ++plan;
  ASSERT_EQ(LaunchDecodePlan({}, params, plan), 0);

  const bool is_auto = batch.policy.kind == SplitPolicy::Kind::kAuto;
  // A plan with chunks is the host's for the keys that are left.
  std::vector<int32_t> left = batch.lengths;
  for (int32_t& length : left) {
    length -= FirstKey(length, 1, {0, params.chunk}, params.block_size);
  }
  SplitPlanInput input;
  input.type.block_size = batch.block_size;
  input.type.window = batch.window;
  input.seq_lens = left;
  input.policy = batch.policy;
  input.tile = batch.tile;
  input.overhead = is_auto ? plan[kPlanOverhead] : 0;
  if (batch.overhead >= 0 && is_auto) {
    ASSERT_EQ(plan[kPlanOverhead], batch.overhead);
  }
  input.num_parts = batch.parts;
  SplitPlanner host(1, 1);
  ASSERT_TRUE(host.Plan(input).ok());
  const SplitPlan& expected = host.plan();

  const int64_t pieces = static_cast<int64_t>(expected.ranges.size());
  ASSERT_EQ(plan[kPlanNumPieces], pieces);
  if (num_pieces != nullptr) *num_pieces = pieces;
  ASSERT_LE(pieces, layout.max_pieces);
  ASSERT_EQ(plan[kPlanTile], expected.tile);
  if (is_auto) {
    ASSERT_EQ(plan[kPlanPayload], expected.payload);
    for (int32_t part = 0; part < batch.parts; ++part) {
      ASSERT_EQ(plan[layout.part_begin + part], expected.parts[part].begin_range) << part;
      ASSERT_EQ(plan[layout.part_begin + part + 1], expected.parts[part].end_range) << part;
    }
  }
  for (size_t b = 0; b < expected.split_offsets.size(); ++b) {
    ASSERT_EQ(plan[layout.split_offsets + static_cast<int64_t>(b)], expected.split_offsets[b]) << b;
  }
  const auto* actual = reinterpret_cast<const DecodePiece*>(plan + layout.pieces);
  for (int64_t i = 0; i < pieces; ++i) {
    const SplitRange& range = expected.ranges[i];
    ASSERT_EQ(actual[i].request, range.request) << i;
    ASSERT_EQ(actual[i].begin_tile, range.begin_tile) << i;
    ASSERT_EQ(actual[i].end_tile, range.end_tile) << i;
    const uint32_t count = static_cast<uint32_t>(expected.num_splits(range.request));
    const uint32_t index = static_cast<uint32_t>(i - expected.split_offsets[range.request]);
    ASSERT_EQ(actual[i].cut, count << 16 | index) << i;
  }
  for (int32_t i = 0; i < params.num_counters; ++i) ASSERT_EQ(plan[layout.counters + i], 0);
}

TEST(DecodePlanTest, EqualsTheHostsOnRandomBatches) {
  std::mt19937_64 random(5);
  for (int n = 0; n < 400; ++n) {
    Batch batch;
    const int64_t longest = int64_t{1} << IntegerDraw(random, 0, 15);
    const int64_t requests =
        n % 40 == 0 ? IntegerDraw(random, 200, 700) : IntegerDraw(random, 1, 60);
    for (int64_t b = 0; b < requests; ++b) {
      batch.lengths.push_back(static_cast<int32_t>(
          IntegerDraw(random, 0, 9) == 0 ? IntegerDraw(random, 0, longest)
                                         : IntegerDraw(random, longest / 2, longest)));
    }
    batch.block_size = int64_t{8} << IntegerDraw(random, 0, 5);
    if (IntegerDraw(random, 0, 3) == 0) batch.window = IntegerDraw(random, 1, longest);
    switch (IntegerDraw(random, 0, 5)) {
      case 0:
        batch.policy = SplitPolicy::None();
        break;
      case 1:
        batch.policy = SplitPolicy::Fixed(batch.block_size * IntegerDraw(random, 1, 20));
        break;
      case 2:
        batch.policy = SplitPolicy::Count(IntegerDraw(random, 1, 70));
        break;
      default:
        batch.parts =
            static_cast<int32_t>(IntegerDraw(random, 1, IntegerDraw(random, 1, 8) == 1 ? 264 : 40));
        batch.overhead = IntegerDraw(random, -1, 6);
        if (batch.window == 0 && n % 3 == 0) batch.chunk = IntegerDraw(random, 1, 700);
    }
    SCOPED_TRACE(n);
    ExpectSamePlan(batch);
    if (HasFatalFailure()) return;
  }
}

struct OwnParts {
  const int32_t* tiles;
  int num_requests;
  int4* pieces;  // [parts][kMaxOwnRequests]
  int* counts;
};
void OwnPartsKernel(OwnParts own) {
  int32_t* sums = reinterpret_cast<int32_t*>(DynamicSharedMemory());
  int4* pieces = reinterpret_cast<int4*>(sums + kMaxOwnRequests + 4);
  const int lane = static_cast<int>(threadIdx.x), part = static_cast<int>(blockIdx.x);
  const int count = PlanOwnPart(
      own.num_requests, static_cast<int>(gridDim.x), part, [&](int b) { return own.tiles[b]; },
      sums, pieces);
  if (lane == 0) own.counts[part] = count;
  for (int i = lane; i < count; i += 32) {
    own.pieces[part * kMaxOwnRequests + i] = pieces[i];
  }
}

TEST(DecodePlanTest, BlocksPlanTheirOwnPartsAlike) {
  std::mt19937_64 random(6);
  for (int n = 0; n < 200; ++n) {
    const int requests = static_cast<int>(IntegerDraw(random, 1, kMaxOwnRequests));
    const int parts = static_cast<int>(IntegerDraw(random, 1, 70));
    const int64_t longest = int64_t{1} << IntegerDraw(random, 0, 10);
    std::vector<int32_t> lengths, tiles;
    // Of equal requests many parts have as many whole ones.
    const bool all_equal = n % 4 == 0;
    for (int b = 0; b < requests; ++b) {
      if (all_equal && b > 0) {
        tiles.push_back(tiles[0]);
        lengths.push_back(lengths[0]);
        continue;
      }
      tiles.push_back(static_cast<int32_t>(IntegerDraw(random, 0, 4) == 0
                                               ? IntegerDraw(random, 1, longest)
                                               : IntegerDraw(random, longest / 2 + 1, longest)));
      lengths.push_back(tiles.back() * 64);
    }
    std::vector<int4> pieces(parts * kMaxOwnRequests);
    std::vector<int> counts(parts);
    LaunchConfig config;
    config.grid = dim3(static_cast<unsigned>(parts));
    config.shared_bytes = (kMaxOwnRequests + 4) * 4 + kMaxOwnRequests * 16;
    ASSERT_EQ(Launch(config, OwnPartsKernel,
                     OwnParts{tiles.data(), requests, pieces.data(), counts.data()}),
              0);
    SplitPlanInput input;
    input.seq_lens = lengths;
    int total = 0;
    for (const int32_t count : tiles) total += count;
    input.overhead = ChooseOverhead(total, parts);
    input.num_parts = parts;
    SplitPlanner host(1, 1);
    ASSERT_TRUE(host.Plan(input).ok());
    const SplitPlan& plan = host.plan();
    for (int part = 0; part < parts; ++part) {
      const SplitPart& expected = plan.parts[part];
      ASSERT_EQ(counts[part], expected.end_range - expected.begin_range) << n << " " << part;
      for (int i = 0; i < counts[part]; ++i) {
        const SplitRange& range = plan.ranges[expected.begin_range + i];
        const int4 piece = pieces[part * kMaxOwnRequests + i];
        ASSERT_EQ(piece.x, range.request) << n;
        ASSERT_EQ(piece.y, range.begin_tile) << n;
        ASSERT_EQ(piece.z, range.end_tile) << n;
        const int index = expected.begin_range + i - plan.split_offsets[range.request];
        ASSERT_EQ(piece.w, plan.num_splits(range.request) << 16 | index) << n;
      }
    }
  }
}

TEST(DecodePlanTest, EqualBatchesAreNotCut) {
  // 33 parts of two blocks per multiprocessor and 8 KV heads on 132 of them.
  for (const auto& [requests, length] : {std::pair<int, int>{128, 1024}, {64, 4096}, {32, 8192}}) {
    Batch batch;
    batch.lengths.assign(requests, length);
    batch.parts = 33;
    int64_t num_pieces = 0;
    ExpectSamePlan(batch, &num_pieces);
    EXPECT_EQ(num_pieces, requests);
  }
}

TEST(DecodePlanTest, RefusesWhatDoesNotFit) {
  DecodePlanParams params;
  params.num_requests = kMaxPlanRequests + 1;
  EXPECT_FALSE(TakesDecodePlan(params));
  params.num_requests = 1;
  EXPECT_TRUE(TakesDecodePlan(params));
  params.kind = SplitKind::kFixed;
  params.value = 8;
  params.max_seq_len = params.max_keys = 1 << 20;
  EXPECT_FALSE(TakesDecodePlan(params));
}

}  // namespace
}  // namespace kvblocks::attention::cuda
