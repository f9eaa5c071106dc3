// T-6 for attention: each row of the table of bad input, for each operation that has the argument.
//
// Split plans that do not fit the batch they are given with.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "attention/testing/refusals.h"
#include "attention/testing/says.h"
#include "kvblocks/attention_ops.h"
#include "kvblocks/split_planner.h"

namespace kvblocks::attention {
namespace {

TEST(ChecksTest, PagedDecodeRefuses) {
  using Args = PagedDecodeArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("PagedDecode", Join(ParamRows<Args>(at, true), TableRows<Args>()));
  ExpectRefused<Args>("PagedDecode", {
    KVBLOCKS_BAD(kInvalid, "H = 3|Hkv = 2", a.q = s.Input(DType::kF32, {2, 3, 8})),
    KVBLOCKS_BAD(kInvalid, "q is i8", a.q = s.Input(DType::kI8, {2, 4, 8})),
    KVBLOCKS_BAD(kInvalid, "D = 8", a.q = s.Input(DType::kF32, {2, 4, 16})),
    KVBLOCKS_BAD(kInvalid, "out is f32[2, 4, 4]|Dv = 8",
                 a.out = s.Output(DType::kF32, {2, 4, 4})),
    KVBLOCKS_BAD(kInvalid, "lse is f32[4, 2]|R = 2", a.lse = s.Output(DType::kF32, {4, 2})),
    KVBLOCKS_BAD(kInvalid, "lse is f16", a.lse = s.Output(DType::kF16, {2, 4})),
    KVBLOCKS_BAD(kInvalid, "out shares memory with q", a.q = a.out),
    KVBLOCKS_BAD(kInvalid, "out|share memory", a.out.stride[0] = 0),
    KVBLOCKS_BAD(kInvalid, "q is on cuda:0", a.q = OnCuda(a.q)),
    KVBLOCKS_BAD(kInvalid, "scales.k[3] is -1", a.cache = NhdCache(s, DType::kI8);
                 a.params.scales.k = s.Values<float>({1, 1, 1, -1}, {2, 2})),
    KVBLOCKS_BAD(kInvalid, "q is f8e5m2|f8e4m3", a.q = s.Input(DType::kF8E5M2, {2, 4, 8})),
    KVBLOCKS_BAD(kInvalid, "scales.q is f32[3]|[Hkv = 2]",
                 a.q = s.Input(DType::kF8E4M3, {2, 4, 8});
                     a.params.scales.q = s.Floats({1, 1, 1})),
        KVBLOCKS_BAD(kInvalid, "scales.q[1] is -2", a.q = s.Input(DType::kF8E4M3, {2, 4, 8});
                     a.params.scales.q = s.Floats({1, -2})),
        KVBLOCKS_BAD(kInvalid, "out is f8e4m3", a.q = s.Input(DType::kF8E4M3, {2, 4, 8});
                     a.out = s.Output(DType::kF8E4M3, {2, 4, 8})),
        KVBLOCKS_BAD(kInvalid, "q begins 1 bytes past|f32", a.q.data += 1)
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.q = s.Input(DType::kF8E4M3, {2, 4, 8});
    a.params.scales.q = s.Floats({1, 2});
  });
  // Entries that no query may see: outside the window, past the length; the length needs columns.
  const auto garbage_before = [](Args& a, TensorStore& s) {
    a.block_table = s.Values<int32_t>({2147480000, 2, 3, -7}, {2, 2});
  };
  ExpectAccepted<Args>([&](Args& a, TensorStore& s) {
    garbage_before(a, s);
    a.params.window_left = 1;
  });
  ExpectAccepted<Args>([&](Args& a, TensorStore& s) {
    garbage_before(a, s);
    a.params.chunk = 4;
  });
  TensorStore store;
  Args args = Valid<Args>(store);
  garbage_before(args, store);
  args.params.window_left = 2;  // reaches position 3, in block 0
  EXPECT_EQ(Check({}, args).code(), kRange);
}

TEST(ChecksTest, PagedDecodePartialRefuses) {
  using Args = PagedDecodePartialArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("PagedDecodePartial", Join(ParamRows<Args>(at, true), TableRows<Args>()));
  ExpectRefused<Args>(
      "PagedDecodePartial",
      {KVBLOCKS_BAD(kInvalid, "partition_tokens is 6|block size 4", a.partition_tokens = 6),
       KVBLOCKS_BAD(kInvalid, "partition_tokens is 0", a.partition_tokens = 0),
       KVBLOCKS_BAD(kExhausted, "P = 2|9 tokens take 3", a.max_seq_len = 9),
       KVBLOCKS_BAD(kInvalid, "P = 2|take 1 exactly", a.partition_tokens = 8),
       KVBLOCKS_BAD(kInvalid, "exp_sums|P = 2", a.exp_sums = s.Output(DType::kF32, {2, 4, 3})),
       KVBLOCKS_BAD(kInvalid, "tmp_out is f16", a.tmp_out = s.Output(DType::kF16, {2, 4, 2, 8})),
       KVBLOCKS_BAD(kInvalid, "max_logits shares memory with exp_sums",
                    a.exp_sums = a.max_logits)});
}

TEST(ChecksTest, PagedPrefillRefuses) {
  using Args = PagedPrefillArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("PagedPrefill", Join(ParamRows<Args>(at, true), TableRows<Args>()));
  ExpectRefused<Args>("PagedPrefill", {
    KVBLOCKS_BAD(kInvalid, "query_start_loc[0] is 1|must be 0",
                 a.query_start_loc = s.Ints({1, 2, 3})),
    KVBLOCKS_BAD(kInvalid, "query_start_loc[2] is 3, below 4",
                 a.query_start_loc = s.Ints({0, 4, 3})),
    KVBLOCKS_BAD(kInvalid, "query_start_loc[2] is 2|T = 3",
                 a.query_start_loc = s.Ints({0, 1, 2})),
    KVBLOCKS_BAD(kInvalid, "query_start_loc is i32[2]|R + 1 = 3",
                 a.query_start_loc = s.Ints({0, 3})),
    KVBLOCKS_BAD(kInvalid, "seq_lens[0] is 1|2 queries", a.seq_lens = s.Ints({1, 3})),
    KVBLOCKS_BAD(kInvalid, "max_query_len is 1|2 queries", a.max_query_len = 1),
    KVBLOCKS_BAD(kInvalid, "query_positions[1] is 6|length 6",
                 a.query_positions = s.Ints({0, 6, 2})),
    KVBLOCKS_BAD(kInvalid, "query_positions[2] is -1", a.query_positions = s.Ints({0, 5, -1})),
    KVBLOCKS_BAD(kInvalid, "T = 3", a.query_positions = s.Ints({0, 5})),
    KVBLOCKS_BAD(kInvalid, "out_scale is nan", a.out_scale = kNan),
    KVBLOCKS_BAD(kInvalid, "out_scale is -1", a.out_scale = -1),
    KVBLOCKS_BAD(kInvalid, "out is f32|f8e4m3", a.out_scale = 1),
    KVBLOCKS_BAD(kInvalid, "out is f8e4m3", a.out = s.Output(DType::kF8E4M3, {3, 4, 8})),
    KVBLOCKS_BAD(kInvalid, "out shares memory with cache.v",
                 a.out.data = const_cast<std::byte*>(a.cache.v.data)),
    KVBLOCKS_BAD(kInvalid, "out is absent", a.q = s.Input(DType::kF32, {3, 5, 8}); a.out = {})
  });
  // No query: the table is not read. Padding rows of a bucket: T repeated, length 0.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.query_start_loc = s.Ints({0, 3, 3, 3});
    a.seq_lens = s.Ints({6, 6, 0});
    a.max_query_len = 3;
    a.block_table = s.Values<int32_t>({1, 2, -1, -1, -1, -1}, {3, 2});
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.q = s.Input(DType::kF32, {0, 4, 8});
    a.out = s.Output(DType::kF32, {0, 4, 8});
    a.lse = {};
    a.query_start_loc = s.Ints({0});
    a.seq_lens = s.Ints({});
    a.block_table = s.Values<int32_t>({}, {0, 0});
  });
  // Under causal, blocks behind the last query are not seen.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.query_positions = s.Ints({1, 3, 2});
    a.block_table = s.Values<int32_t>({1, -1, 3, 0}, {2, 2});
  });
}

TEST(ChecksTest, VarlenSelfAttentionRefuses) {
  using Args = VarlenSelfAttentionArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("VarlenSelfAttention", ParamRows<Args>(at, false));
  const auto codes = [](Args& a, TensorStore& s) {
    a.k = s.Input(DType::kF8E4M3, {9, 2, 8});
    a.v = s.Input(DType::kF8E4M3, {9, 2, 8});
  };
  ExpectAccepted<Args>([&](Args& a, TensorStore& s) {
    codes(a, s);
    a.params.scales.k = s.Values<float>({1, 2, 3, 4}, {2, 2});
    a.params.scales.v = s.Floats({1});
  });
  ExpectRefused<Args>("VarlenSelfAttention", {
    KVBLOCKS_BAD(kInvalid, "k is f8e4m3 and v f32", const ConstTensorView v = a.v; codes(a, s);
                 a.v = v),
    KVBLOCKS_BAD(kInvalid, "scales.v is f32[3]", codes(a, s);
                 a.params.scales.v = s.Floats({1, 1, 1}))
  });
  ExpectRefused<Args>("VarlenSelfAttention", {
    KVBLOCKS_BAD(kInvalid, "Hkv = 3", a.k = s.Input(DType::kF32, {9, 3, 8})),
    KVBLOCKS_BAD(kInvalid, "D = 8", a.k = s.Input(DType::kF32, {9, 2, 6})),
    KVBLOCKS_BAD(kInvalid, "Tk = 9", a.v = s.Input(DType::kF32, {8, 2, 8})),
    KVBLOCKS_BAD(kInvalid, "k has 9 tokens and q 3", a.kv_start_loc = {}),
    KVBLOCKS_BAD(kInvalid, "kv_start_loc[2] is 8|Tk = 9", a.kv_start_loc = s.Ints({0, 6, 8})),
    KVBLOCKS_BAD(kInvalid, "R + 1 = 3", a.kv_start_loc = s.Ints({0, 9})),
    KVBLOCKS_BAD(kInvalid, "2 queries", a.kv_start_loc = s.Ints({0, 1, 9})),
    {[](Args& a, TensorStore& s) {  // the first query has no row in a mask by positions
       a.kv_start_loc = s.Ints({0, 1, 9});
           a.params.causal = false;
           a.params.mask.form = MaskForm::kShared;
           a.params.mask.rows_are_absolute = true;
           a.params.mask.tensor = s.Input(DType::kI8, {8, 8});
         },
         kInvalid, "2 queries"},
        KVBLOCKS_BAD(kInvalid, "kv_start_loc and kv_seq_lens are given",
                     a.kv_seq_lens = s.Ints({6, 3})),
        KVBLOCKS_BAD(kInvalid, "kv_seq_lens add up to 8|Tk = 9", a.kv_start_loc = {};
                     a.kv_seq_lens = s.Ints({6, 2})),
        KVBLOCKS_BAD(kInvalid, "kv_seq_lens[1] is -1", a.kv_start_loc = {};
                     a.kv_seq_lens = s.Ints({10, -1})),
        KVBLOCKS_BAD(kInvalid, "kv_seq_lens is i32[1]|R = 2", a.kv_start_loc = {};
                     a.kv_seq_lens = s.Ints({9})),
        KVBLOCKS_BAD(kInvalid, "2 queries", a.kv_start_loc = {}; a.kv_seq_lens = s.Ints({1, 8})),
        KVBLOCKS_BAD(kInvalid, "query_start_loc[2] is 2|T = 3",
                     a.query_start_loc = s.Ints({0, 2, 2})),
        KVBLOCKS_BAD(kInvalid, "R + 1", a.query_start_loc = s.Ints({}); a.kv_start_loc = {}),
        KVBLOCKS_BAD(kInvalid, "params.scales", a.params.scales.v = s.Floats({1})),
        KVBLOCKS_BAD(kInvalid, "query_positions[2] is 3", a.query_positions = s.Ints({0, 1, 3})),
        KVBLOCKS_BAD(kInvalid, "k is on cuda:0", a.k = OnCuda(a.k))
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.kv_start_loc = {};
    a.kv_seq_lens = s.Ints({6, 3});
  });
  // Cross attention: more queries than keys.
  for (const bool is_masked : {false, true}) {
    ExpectAccepted<Args>([is_masked](Args& a, TensorStore& s) {
      a.kv_start_loc = s.Ints({0, 1, 9});
      a.params.causal = false;
      if (!is_masked) return;
      a.params.mask.form = MaskForm::kShared;
      a.params.mask.tensor = s.Input(DType::kI8, {8, 8});
    });
  }
}

TEST(ChecksTest, CascadeRefuses) {
  using Args = CascadeArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.prefill.params; };
  ExpectRefused<Args>("Cascade", ParamRows<Args>(at, true));
  ExpectRefused<Args>(
      "Cascade",
      {KVBLOCKS_BAD(kInvalid, "common_prefix_len is 3|block size 4", a.common_prefix_len = 3),
       KVBLOCKS_BAD(kInvalid, "is -4", a.common_prefix_len = -4),
       KVBLOCKS_BAD(kRange, "2 columns|12|needs 3", a.common_prefix_len = 12),
       KVBLOCKS_BAD(kInvalid, "request 1 has only 3", a.prefill.seq_lens = s.Ints({6, 4})),
       KVBLOCKS_BAD(kInvalid, "block_table[1][0] is 4|whose block is 1",
                    a.prefill.block_table = s.Values<int32_t>({1, 2, 4, 3}, {2, 2})),
       KVBLOCKS_BAD(kUnimplemented, "window", a.prefill.params.window_left = 2),
       KVBLOCKS_BAD(kInvalid, "query_start_loc", a.prefill.query_start_loc = s.Ints({0, 1, 2}))});
}

TEST(ChecksTest, MlaDecodeRefuses) {
  using Args = MlaDecodeArgs;
  const auto at = [](Args& a) -> AttnParams& { return a.params; };
  ExpectRefused<Args>("MlaDecode", Join(ParamRows<Args>(at, true), TableRows<Args>()));
  ExpectRefused<Args>(
      "MlaDecode",
      {KVBLOCKS_BAD(kInvalid, "q_lat|R_kv = 6", a.q_lat = s.Input(DType::kF32, {3, 4, 8})),
       KVBLOCKS_BAD(kInvalid, "q_pe|R_pe = 2", a.q_pe = s.Input(DType::kF32, {3, 4, 3})),
       KVBLOCKS_BAD(kInvalid, "q_lat|R_kv + R_pe = 8", a.q_pe = {}),
       KVBLOCKS_BAD(kInvalid, "T = 3|R = 2", a.query_start_loc = {}),
       KVBLOCKS_BAD(kInvalid, "query_start_loc[2] is 2, below 3",
                    a.query_start_loc = s.Ints({0, 3, 2})),
       KVBLOCKS_BAD(kInvalid, "Dv = 6", a.out = s.Output(DType::kF32, {3, 4, 8})),
       KVBLOCKS_BAD(kInvalid, "layout nhd|MLA", a.cache = NhdCache(s))});
}

TEST(ChecksTest, SparseMlaDecodeRefuses) {
  using Args = SparseMlaDecodeArgs;
  ExpectRefused<Args>("SparseMlaDecode", {
    KVBLOCKS_BAD(kInvalid, "q is|[B, s_q, H, D]", a.q = s.Input(DType::kF32, {2, 4, 8})),
    KVBLOCKS_BAD(kInvalid, "s_q = 1", a.q = s.Input(DType::kF32, {2, 2, 4, 8})),
    KVBLOCKS_BAD(kInvalid, "indices is i64|i32",
                 a.main.indices = s.Input(DType::kI64, {2, 1, 3})),
    KVBLOCKS_BAD(kInvalid, "topk_len[0] is 4|K = 3", a.main.topk_len = s.Ints({4, 0})),
    KVBLOCKS_BAD(kInvalid, "topk_len[0] is -1", a.main.topk_len = s.Ints({-1, 0})),
    KVBLOCKS_BAD(kInvalid, "extra.cache has rows of 10",
                 const TensorView k = s.Input(DType::kF32, {6, 4, 10});
                     a.extra.cache = {KvLayout::kMlaLatent, k, *k.Slice(2, 0, 6)}),
        KVBLOCKS_BAD(kInvalid, "extra.indices is given without", a.extra.cache = {}),
        KVBLOCKS_BAD(kInvalid, "extra.cache.k is", a.extra.cache.k.rank = 2;
                     a.extra.cache.k.extent[2] = 1),
        KVBLOCKS_BAD(kInvalid, "scale is 0", a.scale = 0),
        KVBLOCKS_BAD(kInvalid, "sinks[3] is NaN", a.sinks = s.Floats({0, 0, 0, kNan})),
        KVBLOCKS_BAD(kInvalid, "kv_scale is given", a.kv_scale = s.Floats({1})),
        KVBLOCKS_BAD(kInvalid, "Dv = 6", a.out = s.Output(DType::kF32, {2, 1, 4, 8}))
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {  // K = 0
    a.main.indices = s.Input(DType::kI32, {2, 1, 0});
    a.main.topk_len = {};
  });
}

TEST(ChecksTest, SparseMlaPrefillRefuses) {
  using Args = SparseMlaPrefillArgs;
  ExpectRefused<Args>(
      "SparseMlaPrefill",
      {KVBLOCKS_BAD(kInvalid, "kv is|one KV head", a.kv = s.Input(DType::kF32, {5, 2, 8})),
       KVBLOCKS_BAD(kInvalid, "D = 8", a.kv = s.Input(DType::kF32, {5, 1, 6})),
       KVBLOCKS_BAD(kInvalid, "T = 2", a.indices = s.Input(DType::kI32, {3, 1, 3})),
       KVBLOCKS_BAD(kInvalid, "topk_len[1] is 5", a.topk_len = s.Ints({0, 5})),
       KVBLOCKS_BAD(kInvalid, "rows of 9|D = 8", a.out = s.Output(DType::kF32, {2, 4, 9})),
       KVBLOCKS_BAD(kInvalid, "max_logits|H = 4", a.max_logits = s.Output(DType::kF32, {2, 3})),
       KVBLOCKS_BAD(kInvalid, "scale is inf", a.scale = kInf),
       KVBLOCKS_BAD(kInvalid, "sinks has 1", a.sinks = s.Floats({0}))});
}

// AT-5: only for tensors on a CUDA device, where indices are not read.
TEST(ChecksTest, CudaNeedsAlignedTensors) {
  TensorStore store;
  alignas(16) static std::byte buffer[4096];
  PagedDecodeArgs args = Valid<PagedDecodeArgs>(store);
  const DeviceId cuda = {DeviceKind::kCuda, 0};
  int64_t at = 0;
  const auto place = [&](auto view) {
    if (view.absent()) return view;
    view.data = buffer + at;
    view.device = cuda;
    at += (view.num_elements() * ElementBytes(view.dtype) + 15) / 16 * 16;
    return view;
  };
  for (ConstTensorView* view : {&args.q, &args.cache.k, &args.cache.v}) *view = place(*view);
  args.block_table = place(args.block_table);
  args.seq_lens = place(args.seq_lens);
  args.out = place(args.out);
  args.lse = place(args.lse);
  ASSERT_LE(at, static_cast<int64_t>(sizeof(buffer)));
  args.max_seq_len = 1;  // lengths are on the device: nobody can tell
  const ExecContext context = {.device = cuda};
  EXPECT_EQ(Check(context, args), absl::OkStatus());
  EXPECT_THAT(Check({}, args), Says("the context is on host"));

  PagedDecodeArgs bad = args;
  bad.q.data += 4;
  EXPECT_THAT(Check(context, bad), Says("q begins 4 bytes past a multiple of 16"));
  bad = args;
  bad.q.stride[1] = 7;
  EXPECT_THAT(Check(context, bad), Says("q has stride 7 in dimension 1"));
  bad = args;
  bad.out.device.ordinal = 1;
  EXPECT_THAT(Check(context, bad), Says("out is on cuda:1; the context is on cuda:0"));
}

TEST(PlanChecksTest, PlanOfAnotherBatchIsStale) {
  const auto plan_of = [](const std::vector<int32_t>& lengths, const KvGroupKey& type) {
    SplitPlanInput input;
    input.type = type;
    input.seq_lens = lengths;
    input.policy = SplitPolicy::Fixed(4);
    return input;
  };
  struct Row {
    std::vector<int32_t> lengths;
    KvGroupKey type;
    int64_t window_left;
    const char* says;  // null: fine
  };
  const std::vector<Row> rows = {
      {{6, 3}, {.block_size = 4}, -1, nullptr},
      {{9, 3},
       {.block_size = 4},
       -1,
       "request 0: the plan has 3 tiles of 4 keys, length 6 needs 2"},
      {{6, 3}, {.block_size = 4, .window = 3}, 2, nullptr},
      {{6, 3}, {.block_size = 4}, 2, nullptr},
      {{6, 3, 1}, {.block_size = 4}, -1, "the plan is for 3 requests, the batch has R = 2"},
      {{6, 3}, {.block_size = 2}, -1, "for block size 2, the cache has 4"},
      {{6, 3}, {.block_size = 4, .window = 3}, -1, "for a window of 3 tokens"},
      {{4, 3},
       {.block_size = 4},
       -1,
       "request 0: the plan has 1 tiles of 4 keys, length 6 needs 2"},
  };
  for (const Row& row : rows) {
    SplitPlanner planner(/*max_num_reqs=*/4, /*max_num_parts=*/4);
    ASSERT_EQ(planner.Plan(plan_of(row.lengths, row.type)), absl::OkStatus());
    TensorStore store;
    PagedDecodeArgs args = Valid<PagedDecodeArgs>(store);
    args.params.window_left = row.window_left;
    args.plan = &planner.plan();
    const absl::Status status = Check({}, args);
    if (row.says == nullptr) {
      EXPECT_EQ(status, absl::OkStatus());
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      EXPECT_THAT(status, Says(row.says));
    }
  }
}

// What a kernel would leave out or do twice.
TEST(PlanChecksTest, PlansWithGapsAreRefused) {
  SplitPlanner planner(/*max_num_reqs=*/4, /*max_num_parts=*/4);
  SplitPlanInput input;
  const std::vector<int32_t> lengths = {6, 3};
  input.type = {.block_size = 4};
  input.seq_lens = lengths;
  input.policy = SplitPolicy::Fixed(4);
  ASSERT_EQ(planner.Plan(input), absl::OkStatus());
  TensorStore store;
  PagedDecodeArgs args = Valid<PagedDecodeArgs>(store);
  for (const auto& [begin, end] : {std::pair(2, 2), {0, 2}, {1, 0}}) {
    std::vector<SplitRange> ranges(planner.plan().ranges.begin(), planner.plan().ranges.end());
    ranges[1].begin_tile = begin, ranges[1].end_tile = end;
    SplitPlan plan = planner.plan();
    plan.ranges = ranges;
    args.plan = &plan;
    const absl::Status status = Check({}, args);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status, Says("in split 1 of request 0, which begins at 1; plan again"));
  }
}

}  // namespace
}  // namespace kvblocks::attention
