// T-6 for everything but attention itself: caches, states, blending.

#include "kvblocks/attention/ops/checks.h"

#include <cstring>
#include <string>
#include <vector>

#include "kvblocks/attention/testing/refusals.h"

namespace kvblocks::attention {
namespace {

TEST(ChecksTest, ReshapeAndCacheRefuses) {
  using Args = ReshapeAndCacheArgs;
  ExpectRefused<Args>(
      "ReshapeAndCache",
      {{[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kF32, {3, 16});
        },
        kInvalid,
        {"k is f32[3, 16]", "[T, Hkv, D]"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kF32, {3, 4, 8});
        },
        kInvalid,
        {"k is f32[3, 4, 8]", "Hkv = 2", "the cache"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kF32, {3, 2, 6});
        },
        kInvalid,
        {"dimension 2 must be D = 8"}},
       {[](Args& a, TensorStore& s) {
          a.v = s.Input(DType::kF32, {2, 2, 8});
        },
        kInvalid,
        {"v is f32[2, 2, 8]", "T = 3"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kI32, {3, 2, 8});
        },
        kInvalid,
        {"k is i32", "bf16"}},
       {[](Args& a, TensorStore& s) {
          a.k = s.Input(DType::kI8, {3, 2, 8});
        },
        kInvalid,
        {"k is i8 and the cache f32"}},
       {[](Args& a, TensorStore&) { a.k = OnCuda(a.k); }, kInvalid, {"k is on cuda:0", "host"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Ints({1, 2, 3});
        },
        kInvalid,
        {"slot_mapping is i32[3]", "i64"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({1, 2, 3, 4});
        },
        kInvalid,
        {"slot_mapping has 4", "T = 3"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({1, 24, 3});
        },
        kRange,
        {"slot_mapping[1] is 24", "below 24"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({7, -1, 7});
        },
        kInvalid,
        {"slot_mapping has 7 twice"}},
       {[](Args& a, TensorStore&) {  // one slot, repeated without end
          for (ConstTensorView* view : {&a.k, &a.v, &a.slot_mapping}) {
            view->extent[0] = int64_t{1} << 40;
            view->stride[0] = 0;
          }
        },
        kInvalid,
        {"slot_mapping has 9 twice"}},
       {[](Args& a, TensorStore&) { a.cache.v.extent[3] = 9; }, kInvalid, {"v is", "Dv = 9"}},
       {[](Args& a, TensorStore&) { a.cache.v = a.cache.k; },
        kInvalid,
        {"cache.k shares memory with cache.v"}},
       {[](Args& a, TensorStore&) {
          a.k = *ConstTensorView(a.cache.k).Reshape({24, 2, 8})->Slice(0, 2, 5);
        },
        kInvalid,
        {"shares memory with k"}},
       {[](Args& a, TensorStore&) { a.cache.k.stride[0] = 0; },
        kInvalid,
        {"cache.k", "strides let elements share memory"}},
       {[](Args& a, TensorStore&) { a.cache.k.stride[2] = -8; },
        kInvalid,
        {"cache.k has stride -8 in dimension 2"}},
       // NB * BS * Hkv * D beyond int64.
       {[](Args& a, TensorStore&) { a.cache.k.extent[0] = a.cache.v.extent[0] = int64_t{1} << 60; },
        kInvalid,
        {"cache.k", "2^63"}},
       {[](Args& a, TensorStore& s) { a.scales.k = s.Floats({1}); },
        kInvalid,
        {"scales.k is given", "cache is f32"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kF8E4M3, true);
          a.scales.v = s.Floats({1, 0});
        },
        kInvalid,
        {"scales.v[1] is 0"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kI8, true);
          a.scales.k = s.Floats({kNan});
        },
        kInvalid,
        {"scales.k[0] is nan"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kI8, true);
          a.scales.k = s.Floats({1, kInf});
        },
        kInvalid,
        {"scales.k[1] is inf"}},
       {[](Args& a, TensorStore& s) {
          a.cache = NhdCache(s, DType::kI8, true);
          a.scales.k = s.Floats({1, 1, 1});
        },
        kInvalid,
        {"scales.k is f32[3]", "Hkv = 2"}},
       {[](Args& a, TensorStore& s) { a.cache = LatentCache(s); },
        kInvalid,
        {"cache has layout mla_latent"}},
       // D mod x.
       {[](Args& a, TensorStore& s) {
          a.cache = {KvLayout::kPagedX, s.Output(DType::kF32, {6, 2, 4, 4, 2}),
                     s.Output(DType::kF32, {6, 2, 8, 4})};
        },
        kInvalid,
        {"cache.k is f32[6, 2, 4, 4, 2]", "x = 4", "16 bytes"}},
       {[](Args& a, TensorStore& s) {
          a.cache.k = s.Output(DType::kF32, {6, 0, 2, 8});
          a.cache.v = s.Output(DType::kF32, {6, 0, 2, 8});
        },
        kInvalid,
        {"blocks of 0 tokens"}},
       {[](Args& a, TensorStore& s) {
          a.cache.v = s.Output(DType::kF16, {6, 4, 2, 8});
        },
        kInvalid,
        {"cache.v is f16", "f32"}}});
  // Padding rows, a non-contiguous k cut out of a fused projection, K and V in one allocation.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) { a.slot_mapping = s.Slots({5}); });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    const TensorView qkv = s.Input(DType::kF32, {3, 8, 8});
    a.k = *qkv.Slice(1, 4, 6);
    a.v = *qkv.Slice(1, 6, 8);
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    const TensorView both = s.Output(DType::kF32, {6, 2, 4, 2, 8});
    a.cache.k = *both.Select(1, 0);
    a.cache.v = *both.Select(1, 1);
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.k = s.Input(DType::kF32, {0, 2, 8});
    a.v = s.Input(DType::kF32, {0, 2, 8});
    a.slot_mapping = s.Slots({});
  });
}

TEST(ChecksTest, ConcatAndCacheMlaRefuses) {
  using Args = ConcatAndCacheMlaArgs;
  ExpectRefused<Args>(
      "ConcatAndCacheMla",
      {{[](Args& a, TensorStore& s) {
          a.kv_c = s.Input(DType::kF32, {3, 5});
        },
        kInvalid,
        {"kv_c is f32[3, 5]", "R_kv = 6"}},
       {[](Args& a, TensorStore& s) {
          a.k_pe = s.Input(DType::kF32, {3, 3});
        },
        kInvalid,
        {"k_pe is f32[3, 3]", "R_pe = 2"}},
       {[](Args& a, TensorStore& s) {
          a.k_pe = s.Input(DType::kF32, {2, 2});
        },
        kInvalid,
        {"T = 3"}},
       {[](Args& a, TensorStore&) { a.k_pe = OnCuda(a.k_pe); }, kInvalid, {"k_pe is on cuda:0"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({1, 1});
        },
        kInvalid,
        {"1 twice"}},
       {[](Args& a, TensorStore& s) { a.slot_mapping = s.Slots({25}); },
        kRange,
        {"slot_mapping[0] is 25"}},
       {[](Args& a, TensorStore& s) { a.scale = s.Floats({1}); }, kInvalid, {"scale is given"}},
       {[](Args& a, TensorStore& s) {
          a.cache = LatentCache(s, DType::kF8E4M3, true);
          a.scale = s.Floats({-1});
        },
        kInvalid,
        {"scale[0] is -1"}},
       {[](Args& a, TensorStore& s) { a.cache = NhdCache(s); },
        kInvalid,
        {"cache has layout nhd", "MLA"}},
       {[](Args& a, TensorStore& s) {
          a.cache.v = s.Output(DType::kF32, {6, 4, 6});
        },
        kInvalid,
        {"cache.v is not the first 6 columns"}},
       {[](Args& a, TensorStore& s) {
          a.cache = {KvLayout::kMlaFp8_656, s.Output(DType::kU8, {6, 4, 576})};
        },
        kInvalid,
        {"cache.k is u8[6, 4, 576]", "656"}},
       {[](Args& a, TensorStore& s) {
          a.cache = {KvLayout::kMlaFp8_584, s.Output(DType::kU8, {2, 2304}), {}, 4};
        },
        kInvalid,
        {"blocks of 2304 bytes", "4 tokens take 2880"}},
       {[](Args& a, TensorStore& s) {
          a.cache = {KvLayout::kMlaFp8_584, s.Output(DType::kU8, {2, 2304}), {}, 0};
        },
        kInvalid,
        {"planar_block_size is 0"}},
       {[](Args& a, TensorStore&) { a.cache.k.extent[2] = int64_t{1} << 62; },
        kInvalid,
        {"cache.k", "2^63"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.cache = {KvLayout::kMlaFp8_584, s.Output(DType::kU8, {6, 2880}), {}, 4};
    a.kv_c = s.Input(DType::kBF16, {3, 448});
    a.k_pe = s.Input(DType::kBF16, {3, 64});
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.cache = {KvLayout::kMlaFp8_656, s.Output(DType::kU8, {6, 4, 656})};
    a.kv_c = s.Input(DType::kBF16, {3, 512});
    a.k_pe = s.Input(DType::kBF16, {3, 64});
  });
}

TEST(ChecksTest, ComputeKvScalesRefuses) {
  using Args = ComputeKvScalesArgs;
  ExpectRefused<Args>(
      "ComputeKvScales",
      {{[](Args& a, TensorStore&) { a.k = {}; }, kInvalid, {"k is absent"}},
       {[](Args& a, TensorStore& s) {
          a.v = s.Input(DType::kF32, {3, 3, 8});
        },
        kInvalid,
        {"Hkv = 2"}},
       {[](Args& a, TensorStore& s) {
          a.v = s.Input(DType::kI8, {3, 2, 8});
        },
        kInvalid,
        {"v is i8"}},
       {[](Args& a, TensorStore&) { a.k_divisor = 0; }, kInvalid, {"k_divisor is 0"}},
       {[](Args& a, TensorStore&) { a.v_divisor = kNan; }, kInvalid, {"v_divisor is nan"}},
       {[](Args& a, TensorStore&) { a.q = {}; }, kInvalid, {"q and q_scale go together"}},
       {[](Args& a, TensorStore& s) { a.k_scale = s.Output(DType::kF32, {3}); },
        kInvalid,
        {"k_scale is f32[3]"}},
       {[](Args& a, TensorStore& s) { a.q_scale = s.Output(DType::kF32, {2}); },
        kInvalid,
        {"q_scale is f32[2]"}},
       {[](Args& a, TensorStore&) { a.v_scale = *a.k_scale.Slice(0, 0, 1); },
        kInvalid,
        {"k_scale shares memory with v_scale"}},
       {[](Args& a, TensorStore&) { a.v_scale = OnCuda(a.v_scale); },
        kInvalid,
        {"v_scale is on cuda:0"}}});
}

TEST(ChecksTest, ScaleAndCacheRefuses) {
  using Args = ScaleAndCacheArgs;
  ExpectRefused<Args>(
      "ScaleAndCache",
      {{[](Args& a, TensorStore&) { a.scales.k = {}; }, kInvalid, {"k is absent"}},
       {[](Args& a, TensorStore&) { a.scales.k_divisor = 0; }, kInvalid, {"k_divisor is 0"}},
       {[](Args& a, TensorStore&) { a.scales.v_scale = {}; }, kInvalid, {"v_scale is absent"}},
       {[](Args& a, TensorStore&) { a.scales.q = {}; }, kInvalid, {"q and q_scale go together"}},
       {[](Args& a, TensorStore& s) { a.scales.k_scale = s.Output(DType::kF32, {3}); },
        kInvalid,
        {"k_scale is f32[3]"}},
       {[](Args& a, TensorStore& s) { a.slot_mapping = s.Slots({9, 9, 3}); },
        kInvalid,
        {"slot_mapping has 9 twice"}},
       {[](Args& a, TensorStore& s) { a.slot_mapping = s.Slots({1, 2, 24}); },
        kRange,
        {"slot_mapping[2] is 24"}},
       {[](Args& a, TensorStore& s) { a.cache = NhdCache(s, DType::kF32, /*output=*/true); },
        kInvalid,
        {"the cache is f32", "takes no scales"}},
       {[](Args& a, TensorStore&) { a.cache.v = a.cache.k; },
        kInvalid,
        {"cache.k shares memory with cache.v"}},
       {[](Args& a, TensorStore&) {
          a.scales.k_scale.data = a.cache.v.data;
        },
        kInvalid,
        {"k_scale shares memory with cache.v"}},
       {[](Args& a, TensorStore&) { a.cache.k = OnCuda(a.cache.k); },
        kInvalid,
        {"cache.k is on cuda:0"}}});
}

TEST(ChecksTest, QuantizeQueriesRefuses) {
  using Args = QuantizeQueriesArgs;
  ExpectAccepted<Args>([](Args& a, TensorStore&) { a.scale = {}; });
  ExpectRefused<Args>(
      "QuantizeQueries",
      {{[](Args& a, TensorStore& s) { a.q = s.Input(DType::kF8E4M3, {3, 4, 8}); },
        kInvalid,
        {"q is f8e4m3"}},
       {[](Args& a, TensorStore& s) { a.codes = s.Output(DType::kF8E5M2, {3, 4, 8}); },
        kInvalid,
        {"codes is f8e5m2"}},
       {[](Args& a, TensorStore& s) { a.codes = s.Output(DType::kF8E4M3, {3, 2, 8}); },
        kInvalid,
        {"H = 4"}},
       {[](Args& a, TensorStore& s) { a.scale = s.Floats({1, 1}); }, kInvalid, {"scale is f32[2]"}},
       {[](Args& a, TensorStore& s) { a.scale = s.Floats({0}); }, kInvalid, {"scale[0] is 0"}},
       {[](Args& a, TensorStore&) { a.q = OnCuda(a.q); }, kInvalid, {"q is on cuda:0"}}});
}

TEST(ChecksTest, ReduceSplitsRefuses) {
  using Args = ReduceSplitsArgs;
  ExpectRefused<Args>(
      "ReduceSplits",
      {{[](Args& a, TensorStore& s) {
          a.exp_sums = s.Input(DType::kF32, {2, 4, 3});
        },
        kInvalid,
        {"P = 2"}},
       {[](Args& a, TensorStore& s) {
          a.tmp_out = s.Input(DType::kF32, {2, 4, 2});
        },
        kInvalid,
        {"[R, H, P, Dv]"}},
       {[](Args& a, TensorStore& s) { a.sinks = s.Floats({1}); }, kInvalid, {"sinks has 1"}},
       {[](Args& a, TensorStore& s) {
          a.sinks = s.Floats({kNan, 0, 0, 0});
        },
        kInvalid,
        {"sinks[0] is NaN"}},
       {[](Args& a, TensorStore&) {
          a.lse = {};
          a.out = {};
        },
        kInvalid,
        {"out is absent"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kF32, {1, 4, 8});
        },
        kInvalid,
        {"R = 2"}}});
}

TEST(ChecksTest, MergeStatesRefuses) {
  using Args = MergeStatesArgs;
  ExpectRefused<Args>(
      "MergeStates",
      {{[](Args& a, TensorStore& s) {
          a.lses = s.Input(DType::kF32, {2, 4, 3});
        },
        kInvalid,
        {"outs", "T = 4"}},
       {[](Args& a, TensorStore& s) {
          a.lses = s.Input(DType::kF64, {2, 3, 4});
        },
        kInvalid,
        {"lses is f64"}},
       {[](Args& a, TensorStore& s) {
          a.outs = s.Input(DType::kF32, {0, 3, 4, 8});
          a.lses = s.Input(DType::kF32, {0, 3, 4});
        },
        kInvalid,
        {"number of states is 0"}},
       {[](Args& a, TensorStore&) { a.tokens_with_context = 4; },
        kInvalid,
        {"tokens_with_context is 4", "T = 3"}},
       {[](Args& a, TensorStore&) { a.tokens_with_context = -2; }, kInvalid, {"is -2"}},
       {[](Args& a, TensorStore& s) {
          const TensorView lses = s.Input(DType::kF32, {2, 3, 4});
          std::memcpy(lses.At(1, 0, 2), &kInf, sizeof(kInf));
          a.lses = lses;
        },
        kInvalid,
        {"lses[1][0][2] is infinity"}},
       {[](Args& a, TensorStore& s) {
          a.sinks = s.Floats({1, 1, 1});
        },
        kInvalid,
        {"sinks has 3"}},
       {[](Args& a, TensorStore&) { a.out_scale = kInf; }, kInvalid, {"out_scale is inf"}},
       {[](Args& a, TensorStore& s) {  // shifted by a row: no state
          const TensorView states = s.Output(DType::kF32, {2, 3, 4, 8});
          a.outs = states;
          a.out = *states.Reshape({6, 4, 8})->Slice(0, 1, 4);
        },
        kInvalid,
        {"out shares memory with outs"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {  // in place
    const TensorView states = s.Output(DType::kF32, {2, 3, 4, 8});
    a.outs = states;
    a.out = *states.Select(0, 1);
  });
}

TEST(ChecksTest, GatherCacheRefuses) {
  using Args = GatherCacheArgs;
  ExpectRefused<Args>(
      "GatherCache",
      {{[](Args& a, TensorStore& s) {
          a.lengths = s.Ints({7, 3});
        },
        kInvalid,
        {"lengths[0] is 7"}},
       {[](Args& a, TensorStore& s) {
          a.lengths = s.Ints({1, -3});
        },
        kInvalid,
        {"lengths[1] is -3"}},
       {[](Args& a, TensorStore& s) {
          a.seq_lens = s.Ints({6, -3});
        },
        kInvalid,
        {"seq_lens[1] is -3"}},
       {[](Args& a, TensorStore&) { a.row_offset = 2; }, kExhausted, {"M = 6", "needs 7"}},
       {[](Args& a, TensorStore&) { a.row_offset = INT64_MAX; }, kExhausted, {"M = 6"}},
       {[](Args& a, TensorStore&) { a.row_offset = -1; }, kInvalid, {"row_offset is -1"}},
       {[](Args& a, TensorStore& s) {
          a.seq_lens = s.Ints({9, 3});
        },
        kRange,
        {"needs 3"}},
       {[](Args& a, TensorStore& s) {
          a.block_table = s.Values<int32_t>({1, 9, 3, 0}, {2, 2});
        },
        kRange,
        {"block_table[0][1] is 9"}},
       {[](Args& a, TensorStore&) { a.out_v = {}; }, kInvalid, {"out_v is absent"}},
       {[](Args& a, TensorStore& s) { a.cache = LatentCache(s); }, kInvalid, {"out is"}},
       {[](Args& a, TensorStore& s) {  // no blocks, each as large as can be
          for (ConstTensorView* view : {&a.cache.k, &a.cache.v}) {
            view->extent = {0, INT64_MAX, 1, 1, 1, 1};
          }
          a.out = s.Output(DType::kF32, {2, 6, 1, 1});
          a.out_v = s.Output(DType::kF32, {2, 6, 1, 1});
        },
        kRange,
        {"block_table[0][0] is 1", "0 to -1"}},
       {[](Args& a, TensorStore&) { a.out_v = a.out; }, kInvalid, {"shares memory"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {  // blocks before the gathered tokens
    a.lengths = s.Ints({2, 3});
    a.block_table = s.Values<int32_t>({-1, 2, 3, -1}, {2, 2});
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {  // no blocks, of any size
    a.cache = LatentCache(s);
    a.cache.k.extent = a.cache.v.extent = {0, INT64_MAX, 1, 1, 1, 1};
    a.lengths = s.Ints({0, 0});
    a.out = s.Output(DType::kF32, {2, 6, 1});
    a.out_v = {};
  });
}

TEST(ChecksTest, SelectHkvdRefuses) {
  using Args = SelectHkvdArgs;
  ExpectRefused<Args>(
      "SelectHkvd",
      {{[](Args& a, TensorStore&) { a.suffix_len = 0; }, kInvalid, {"suffix_len is 0"}},
       {[](Args& a, TensorStore&) { a.suffix_len = 6; }, kInvalid, {"suffix_len is 6", "n = 5"}},
       {[](Args& a, TensorStore&) { a.ratio = -0.1; }, kInvalid, {"ratio is -0.1"}},
       {[](Args& a, TensorStore&) { a.ratio = 1.5; }, kInvalid, {"ratio is 1.5"}},
       {[](Args& a, TensorStore&) { a.ratio = kNan; }, kInvalid, {"ratio is nan"}},
       {[](Args& a, TensorStore& s) {
          a.v_old = s.Input(DType::kF32, {4, 2, 8});
        },
        kInvalid,
        {"v_old", "n = 5"}},
       {[](Args& a, TensorStore& s) { a.imp = s.Output(DType::kI32, {2}); },
        kExhausted,
        {"imp has 2", "take 3"}},
       {[](Args& a, TensorStore& s) { a.imp = s.Output(DType::kI64, {3}); },
        kInvalid,
        {"imp is i64"}},
       {[](Args& a, TensorStore& s) { a.diffs = s.Output(DType::kF32, {5}); },
        kInvalid,
        {"diffs", "n - suffix_len = 4"}}});
}

TEST(ChecksTest, FuseKvRefuses) {
  using Args = FuseKvArgs;
  ExpectRefused<Args>("FuseKv",
                      {{[](Args& a, TensorStore& s) {
                          a.imp = s.Ints({1, 5});
                        },
                        kRange,
                        {"imp[1] is 5", "n = 5"}},
                       {[](Args& a, TensorStore& s) {
                          a.imp = s.Ints({-1, 2});
                        },
                        kRange,
                        {"imp[0] is -1"}},
                       {[](Args& a, TensorStore& s) {
                          a.imp = s.Ints({2, 2});
                        },
                        kInvalid,
                        {"imp has 2 twice"}},
                       {[](Args& a, TensorStore&) {  // one row, repeated without end
                          for (ConstTensorView* view : {&a.imp, &a.k_new, &a.v_new}) {
                            view->extent[0] = int64_t{1} << 40;
                            view->stride[0] = 0;
                          }
                        },
                        kInvalid,
                        {"twice"}},
                       {[](Args& a, TensorStore& s) { a.imp = s.Ints({2}); }, kInvalid, {"M = 1"}},
                       {[](Args& a, TensorStore& s) {
                          a.v_old = s.Output(DType::kF32, {4, 2, 8});
                        },
                        kInvalid,
                        {"v_old", "n = 5"}},
                       {[](Args& a, TensorStore& s) {
                          a.k_new = s.Input(DType::kF16, {2, 2, 8});
                        },
                        kInvalid,
                        {"k_new is f16", "f32"}},
                       {[](Args& a, TensorStore&) { a.k_new = *a.k_old.Slice(0, 0, 2); },
                        kInvalid,
                        {"k_old shares memory with k_new"}}});
}

TEST(ChecksTest, GatherRowsRefuses) {
  using Args = GatherRowsArgs;
  ExpectRefused<Args>(
      "GatherRows",
      {{[](Args& a, TensorStore& s) {
          a.index = s.Ints({1, 5});
        },
        kRange,
        {"index[1] is 5", "n = 5"}},
       {[](Args& a, TensorStore& s) {
          a.index = s.Ints({-1, 5});
        },
        kRange,
        {"index[0] is -1"}},
       {[](Args& a, TensorStore& s) { a.index = s.Ints({1}); }, kInvalid, {"out has 2", "M = 1"}},
       {[](Args& a, TensorStore& s) {
          a.index = s.Slots({1, 4});
        },
        kInvalid,
        {"index is i64"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kI32, {2, 2, 8});
        },
        kInvalid,
        {"out is i32"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kF32, {2, 2, 7});
        },
        kInvalid,
        {"out is f32[2, 2, 7]", "f32[5, 2, 8]"}},
       {[](Args& a, TensorStore& s) {
          a.out = s.Output(DType::kF32, {2, 16});
        },
        kInvalid,
        {"rank 1, 2 or 3"}},
       {[](Args& a, TensorStore&) { a.in = *a.out.Slice(0, 0, 2); }, kRange, {"n = 2"}},
       {[](Args& a, TensorStore& s) {
          a.in = a.out;
          a.index = s.Ints({1, 0});
        },
        kInvalid,
        {"out shares memory with in"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) { a.index = s.Ints({3, 3}); });
}

TEST(ChecksTest, RotateKeysRefuses) {
  using Args = RotateKeysArgs;
  ExpectRefused<Args>(
      "RotateKeys",
      {{[](Args& a, TensorStore& s) { a.positions = s.Ints({1}); }, kInvalid, {"n = 2"}},
       {[](Args& a, TensorStore& s) {
          a.from_positions = s.Floats({1, 2});
        },
        kInvalid,
        {"from_positions is f32"}},
       {[](Args& a, TensorStore&) { a.theta = 0; }, kInvalid, {"theta is 0"}},
       {[](Args& a, TensorStore&) { a.rotary_dim = 3; }, kInvalid, {"rotary_dim is 3"}},
       {[](Args& a, TensorStore&) { a.rotary_dim = 10; }, kInvalid, {"rotary_dim is 10", "D = 8"}},
       {[](Args& a, TensorStore&) { a.rotary_dim = -2; }, kInvalid, {"rotary_dim is -2"}},
       {[](Args& a, TensorStore& s) {
          const TensorView keys = s.Output(DType::kF32, {3, 2, 8});
          a.in = *keys.Slice(0, 0, 2);
          a.out = *keys.Slice(0, 1, 3);
        },
        kInvalid,
        {"out shares memory with in"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore&) { a.in = a.out; });
}

}  // namespace
}  // namespace kvblocks::attention
