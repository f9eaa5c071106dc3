// T-6 for everything but attention itself: caches, states, blending.
//
// T-6 for the operations of an indexer and a compressor.

#include "kvblocks/attention_ops.h"

#include <cstring>
#include <string>
#include <vector>

#include "attention/testing/refusals.h"

namespace kvblocks::attention {
namespace {

TEST(ChecksTest, ReshapeAndCacheRefuses) {
  using Args = ReshapeAndCacheArgs;
  ExpectRefused<Args>("ReshapeAndCache", {
    KVBLOCKS_BAD(kInvalid, "k is f32[3, 16]|[T, Hkv, D]", a.k = s.Input(DType::kF32, {3, 16})),
    KVBLOCKS_BAD(kInvalid, "k is f32[3, 4, 8]|Hkv = 2|the cache",
                 a.k = s.Input(DType::kF32, {3, 4, 8})),
    KVBLOCKS_BAD(kInvalid, "dimension 2 must be D = 8", a.k = s.Input(DType::kF32, {3, 2, 6})),
    KVBLOCKS_BAD(kInvalid, "v is f32[2, 2, 8]|T = 3", a.v = s.Input(DType::kF32, {2, 2, 8})),
    KVBLOCKS_BAD(kInvalid, "k is i32|bf16", a.k = s.Input(DType::kI32, {3, 2, 8})),
    KVBLOCKS_BAD(kInvalid, "k is i8 and the cache f32", a.k = s.Input(DType::kI8, {3, 2, 8})),
    KVBLOCKS_BAD(kInvalid, "k is on cuda:0|host", a.k = OnCuda(a.k)),
    KVBLOCKS_BAD(kInvalid, "slot_mapping is i32[3]|i64", a.slot_mapping = s.Ints({1, 2, 3})),
    KVBLOCKS_BAD(kInvalid, "slot_mapping has 4|T = 3", a.slot_mapping = s.Slots({1, 2, 3, 4})),
    KVBLOCKS_BAD(kRange, "slot_mapping[1] is 24|below 24",
                 a.slot_mapping = s.Slots({1, 24, 3})),
    KVBLOCKS_BAD(kInvalid, "slot_mapping has 7 twice", a.slot_mapping = s.Slots({7, -1, 7})),
    {[](Args& a, TensorStore&) {  // one slot, repeated without end
       for (ConstTensorView* view : {&a.k, &a.v, &a.slot_mapping}) {
         view->extent[0] = int64_t{1} << 40;
         view->stride[0] = 0;
       }
     },
     kInvalid, "slot_mapping has 9 twice"},
    KVBLOCKS_BAD(kInvalid, "v is|Dv = 9", a.cache.v.extent[3] = 9),
    KVBLOCKS_BAD(kInvalid, "cache.k shares memory with cache.v", a.cache.v = a.cache.k),
    KVBLOCKS_BAD(kInvalid, "shares memory with k",
                 a.k = *ConstTensorView(a.cache.k).Reshape({24, 2, 8})->Slice(0, 2, 5)),
    KVBLOCKS_BAD(kInvalid, "cache.k|strides let elements share memory",
                 a.cache.k.stride[0] = 0),
    KVBLOCKS_BAD(kInvalid, "cache.k has stride -8 in dimension 2", a.cache.k.stride[2] = -8),
    // NB * BS * Hkv * D beyond int64.
    KVBLOCKS_BAD(kInvalid, "cache.k|2^63",
                 a.cache.k.extent[0] = a.cache.v.extent[0] = int64_t{1} << 60),
    KVBLOCKS_BAD(kInvalid, "scales.k is given|cache is f32", a.scales.k = s.Floats({1})),
    KVBLOCKS_BAD(kInvalid, "scales.v[1] is 0", a.cache = NhdCache(s, DType::kF8E4M3, true);
                 a.scales.v = s.Floats({1, 0})),
    KVBLOCKS_BAD(kInvalid, "scales.k[0] is nan", a.cache = NhdCache(s, DType::kI8, true);
                 a.scales.k = s.Floats({kNan})),
    KVBLOCKS_BAD(kInvalid, "scales.k[1] is inf", a.cache = NhdCache(s, DType::kI8, true);
                 a.scales.k = s.Floats({1, kInf})),
    KVBLOCKS_BAD(kInvalid, "scales.k is f32[3]|Hkv = 2",
                 a.cache = NhdCache(s, DType::kI8, true);
                 a.scales.k = s.Floats({1, 1, 1})),
    KVBLOCKS_BAD(kInvalid, "cache has layout mla_latent", a.cache = LatentCache(s)),
    // D mod x.
    KVBLOCKS_BAD(kInvalid, "cache.k is f32[6, 2, 4, 4, 2]|x = 4|16 bytes",
                 a.cache = {KvLayout::kPagedX, s.Output(DType::kF32, {6, 2, 4, 4, 2}),
                            s.Output(DType::kF32, {6, 2, 8, 4})}),
    KVBLOCKS_BAD(kInvalid, "blocks of 0 tokens",
                 a.cache.k = s.Output(DType::kF32, {6, 0, 2, 8});
                     a.cache.v = s.Output(DType::kF32, {6, 0, 2, 8})),
        KVBLOCKS_BAD(kInvalid, "cache.v is f16|f32",
                     a.cache.v = s.Output(DType::kF16, {6, 4, 2, 8}))
  });
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
  ExpectRefused<Args>("ConcatAndCacheMla", {
    KVBLOCKS_BAD(kInvalid, "kv_c is f32[3, 5]|R_kv = 6", a.kv_c = s.Input(DType::kF32, {3, 5})),
    KVBLOCKS_BAD(kInvalid, "k_pe is f32[3, 3]|R_pe = 2", a.k_pe = s.Input(DType::kF32, {3, 3})),
    KVBLOCKS_BAD(kInvalid, "T = 3", a.k_pe = s.Input(DType::kF32, {2, 2})),
    KVBLOCKS_BAD(kInvalid, "k_pe is on cuda:0", a.k_pe = OnCuda(a.k_pe)),
    KVBLOCKS_BAD(kInvalid, "1 twice", a.slot_mapping = s.Slots({1, 1})),
    KVBLOCKS_BAD(kRange, "slot_mapping[0] is 25", a.slot_mapping = s.Slots({25})),
    KVBLOCKS_BAD(kInvalid, "scale is given", a.scale = s.Floats({1})),
    KVBLOCKS_BAD(kInvalid, "scale[0] is -1", a.cache = LatentCache(s, DType::kF8E4M3, true);
                 a.scale = s.Floats({-1})),
    KVBLOCKS_BAD(kInvalid, "cache has layout nhd|MLA", a.cache = NhdCache(s)),
    KVBLOCKS_BAD(kInvalid, "cache.v is not the first 6 columns",
                 a.cache.v = s.Output(DType::kF32, {6, 4, 6})),
    KVBLOCKS_BAD(kInvalid, "cache.k is u8[6, 4, 576]|656",
                 a.cache = {KvLayout::kMlaFp8_656, s.Output(DType::kU8, {6, 4, 576})}),
    KVBLOCKS_BAD(kInvalid, "blocks of 2304 bytes|4 tokens take 2880",
                 a.cache = {KvLayout::kMlaFp8_584, s.Output(DType::kU8, {2, 2304}), {}, 4}),
    KVBLOCKS_BAD(kInvalid, "planar_block_size is 0",
                 a.cache = {KvLayout::kMlaFp8_584, s.Output(DType::kU8, {2, 2304}), {}, 0}),
    KVBLOCKS_BAD(kInvalid, "cache.k|2^63", a.cache.k.extent[2] = int64_t{1} << 62)
  });
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
      {KVBLOCKS_BAD(kInvalid, "k is absent", a.k = {}),
       KVBLOCKS_BAD(kInvalid, "Hkv = 2", a.v = s.Input(DType::kF32, {3, 3, 8})),
       KVBLOCKS_BAD(kInvalid, "v is i8", a.v = s.Input(DType::kI8, {3, 2, 8})),
       KVBLOCKS_BAD(kInvalid, "k_divisor is 0", a.k_divisor = 0),
       KVBLOCKS_BAD(kInvalid, "v_divisor is nan", a.v_divisor = kNan),
       KVBLOCKS_BAD(kInvalid, "q and q_scale go together", a.q = {}),
       KVBLOCKS_BAD(kInvalid, "k_scale is f32[3]", a.k_scale = s.Output(DType::kF32, {3})),
       KVBLOCKS_BAD(kInvalid, "q_scale is f32[2]", a.q_scale = s.Output(DType::kF32, {2})),
       KVBLOCKS_BAD(kInvalid, "k_scale shares memory with v_scale",
                    a.v_scale = *a.k_scale.Slice(0, 0, 1)),
       KVBLOCKS_BAD(kInvalid, "v_scale is on cuda:0", a.v_scale = OnCuda(a.v_scale))});
}

TEST(ChecksTest, ScaleAndCacheRefuses) {
  using Args = ScaleAndCacheArgs;
  ExpectRefused<Args>(
      "ScaleAndCache",
      {KVBLOCKS_BAD(kInvalid, "k is absent", a.scales.k = {}),
       KVBLOCKS_BAD(kInvalid, "k_divisor is 0", a.scales.k_divisor = 0),
       KVBLOCKS_BAD(kInvalid, "v_scale is absent", a.scales.v_scale = {}),
       KVBLOCKS_BAD(kInvalid, "q and q_scale go together", a.scales.q = {}),
       KVBLOCKS_BAD(kInvalid, "k_scale is f32[3]", a.scales.k_scale = s.Output(DType::kF32, {3})),
       KVBLOCKS_BAD(kInvalid, "slot_mapping has 9 twice", a.slot_mapping = s.Slots({9, 9, 3})),
       KVBLOCKS_BAD(kRange, "slot_mapping[2] is 24", a.slot_mapping = s.Slots({1, 2, 24})),
       KVBLOCKS_BAD(kInvalid, "the cache is f32|takes no scales",
                    a.cache = NhdCache(s, DType::kF32, /*output=*/true)),
       KVBLOCKS_BAD(kInvalid, "cache.k shares memory with cache.v", a.cache.v = a.cache.k),
       KVBLOCKS_BAD(kInvalid, "k_scale shares memory with cache.v",
                    a.scales.k_scale.data = a.cache.v.data),
       KVBLOCKS_BAD(kInvalid, "cache.k is on cuda:0", a.cache.k = OnCuda(a.cache.k))});
}

TEST(ChecksTest, QuantizeQueriesRefuses) {
  using Args = QuantizeQueriesArgs;
  ExpectAccepted<Args>([](Args& a, TensorStore&) { a.scale = {}; });
  ExpectRefused<Args>(
      "QuantizeQueries",
      {KVBLOCKS_BAD(kInvalid, "q is f8e4m3", a.q = s.Input(DType::kF8E4M3, {3, 4, 8})),
       KVBLOCKS_BAD(kInvalid, "codes is f8e5m2", a.codes = s.Output(DType::kF8E5M2, {3, 4, 8})),
       KVBLOCKS_BAD(kInvalid, "H = 4", a.codes = s.Output(DType::kF8E4M3, {3, 2, 8})),
       KVBLOCKS_BAD(kInvalid, "scale is f32[2]", a.scale = s.Floats({1, 1})),
       KVBLOCKS_BAD(kInvalid, "scale[0] is 0", a.scale = s.Floats({0})),
       KVBLOCKS_BAD(kInvalid, "q is on cuda:0", a.q = OnCuda(a.q))});
}

TEST(ChecksTest, ReduceSplitsRefuses) {
  using Args = ReduceSplitsArgs;
  ExpectRefused<Args>("ReduceSplits", {
    KVBLOCKS_BAD(kInvalid, "P = 2", a.exp_sums = s.Input(DType::kF32, {2, 4, 3})),
    KVBLOCKS_BAD(kInvalid, "[R, H, P, Dv]", a.tmp_out = s.Input(DType::kF32, {2, 4, 2})),
    KVBLOCKS_BAD(kInvalid, "sinks has 1", a.sinks = s.Floats({1})),
    KVBLOCKS_BAD(kInvalid, "sinks[0] is NaN", a.sinks = s.Floats({kNan, 0, 0, 0})),
    KVBLOCKS_BAD(kInvalid, "out is absent", a.lse = {}; a.out = {}),
    KVBLOCKS_BAD(kInvalid, "R = 2", a.out = s.Output(DType::kF32, {1, 4, 8}))
  });
}

TEST(ChecksTest, MergeStatesRefuses) {
  using Args = MergeStatesArgs;
  ExpectRefused<Args>("MergeStates", {
    KVBLOCKS_BAD(kInvalid, "outs|T = 4", a.lses = s.Input(DType::kF32, {2, 4, 3})),
    KVBLOCKS_BAD(kInvalid, "lses is f64", a.lses = s.Input(DType::kF64, {2, 3, 4})),
    KVBLOCKS_BAD(kInvalid, "number of states is 0", a.outs = s.Input(DType::kF32, {0, 3, 4, 8});
                     a.lses = s.Input(DType::kF32, {0, 3, 4})),
        KVBLOCKS_BAD(kInvalid, "tokens_with_context is 4|T = 3", a.tokens_with_context = 4),
        KVBLOCKS_BAD(kInvalid, "is -2", a.tokens_with_context = -2),
        KVBLOCKS_BAD(kInvalid, "lses[1][0][2] is infinity",
                     const TensorView lses = s.Input(DType::kF32, {2, 3, 4});
                     std::memcpy(lses.At(1, 0, 2), &kInf, sizeof(kInf)); a.lses = lses),
        KVBLOCKS_BAD(kInvalid, "sinks has 3", a.sinks = s.Floats({1, 1, 1})),
        KVBLOCKS_BAD(kInvalid, "out_scale is inf", a.out_scale = kInf), {
      [](Args& a, TensorStore& s) {  // shifted by a row: no state
        const TensorView states = s.Output(DType::kF32, {2, 3, 4, 8});
        a.outs = states;
        a.out = *states.Reshape({6, 4, 8})->Slice(0, 1, 4);
      },
          kInvalid, "out shares memory with outs"
    }
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {  // in place
    const TensorView states = s.Output(DType::kF32, {2, 3, 4, 8});
    a.outs = states;
    a.out = *states.Select(0, 1);
  });
}

TEST(ChecksTest, GatherCacheRefuses) {
  using Args = GatherCacheArgs;
  ExpectRefused<Args>("GatherCache",
                      {KVBLOCKS_BAD(kInvalid, "lengths[0] is 7", a.lengths = s.Ints({7, 3})),
                       KVBLOCKS_BAD(kInvalid, "lengths[1] is -3", a.lengths = s.Ints({1, -3})),
                       KVBLOCKS_BAD(kInvalid, "seq_lens[1] is -3", a.seq_lens = s.Ints({6, -3})),
                       KVBLOCKS_BAD(kExhausted, "M = 6|needs 7", a.row_offset = 2),
                       KVBLOCKS_BAD(kExhausted, "M = 6", a.row_offset = INT64_MAX),
                       KVBLOCKS_BAD(kInvalid, "row_offset is -1", a.row_offset = -1),
                       KVBLOCKS_BAD(kRange, "needs 3", a.seq_lens = s.Ints({9, 3})),
                       KVBLOCKS_BAD(kRange, "block_table[0][1] is 9",
                                    a.block_table = s.Values<int32_t>({1, 9, 3, 0}, {2, 2})),
                       KVBLOCKS_BAD(kInvalid, "out_v is absent", a.out_v = {}),
                       KVBLOCKS_BAD(kInvalid, "out is", a.cache = LatentCache(s)),
                       {[](Args& a, TensorStore& s) {  // no blocks, each as large as can be
                          for (ConstTensorView* view : {&a.cache.k, &a.cache.v}) {
                            view->extent = {0, INT64_MAX, 1, 1, 1, 1};
                          }
                          a.out = s.Output(DType::kF32, {2, 6, 1, 1});
                          a.out_v = s.Output(DType::kF32, {2, 6, 1, 1});
                        },
                        kRange, "block_table[0][0] is 1|0 to -1"},
                       KVBLOCKS_BAD(kInvalid, "shares memory", a.out_v = a.out)});
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
      {KVBLOCKS_BAD(kInvalid, "suffix_len is 0", a.suffix_len = 0),
       KVBLOCKS_BAD(kInvalid, "suffix_len is 6|n = 5", a.suffix_len = 6),
       KVBLOCKS_BAD(kInvalid, "ratio is -0.1", a.ratio = -0.1),
       KVBLOCKS_BAD(kInvalid, "ratio is 1.5", a.ratio = 1.5),
       KVBLOCKS_BAD(kInvalid, "ratio is nan", a.ratio = kNan),
       KVBLOCKS_BAD(kInvalid, "v_old|n = 5", a.v_old = s.Input(DType::kF32, {4, 2, 8})),
       KVBLOCKS_BAD(kExhausted, "imp has 2|take 3", a.imp = s.Output(DType::kI32, {2})),
       KVBLOCKS_BAD(kInvalid, "imp is i64", a.imp = s.Output(DType::kI64, {3})),
       KVBLOCKS_BAD(kInvalid, "diffs|n - suffix_len = 4", a.diffs = s.Output(DType::kF32, {5}))});
}

TEST(ChecksTest, FuseKvRefuses) {
  using Args = FuseKvArgs;
  ExpectRefused<Args>(
      "FuseKv",
      {KVBLOCKS_BAD(kRange, "imp[1] is 5|n = 5", a.imp = s.Ints({1, 5})),
       KVBLOCKS_BAD(kRange, "imp[0] is -1", a.imp = s.Ints({-1, 2})),
       KVBLOCKS_BAD(kInvalid, "imp has 2 twice", a.imp = s.Ints({2, 2})),
       {[](Args& a, TensorStore&) {  // one row, repeated without end
          for (ConstTensorView* view : {&a.imp, &a.k_new, &a.v_new}) {
            view->extent[0] = int64_t{1} << 40;
            view->stride[0] = 0;
          }
        },
        kInvalid, "twice"},
       KVBLOCKS_BAD(kInvalid, "M = 1", a.imp = s.Ints({2})),
       KVBLOCKS_BAD(kInvalid, "v_old|n = 5", a.v_old = s.Output(DType::kF32, {4, 2, 8})),
       KVBLOCKS_BAD(kInvalid, "k_new is f16|f32", a.k_new = s.Input(DType::kF16, {2, 2, 8})),
       KVBLOCKS_BAD(kInvalid, "k_old shares memory with k_new",
                    a.k_new = *a.k_old.Slice(0, 0, 2))});
}

TEST(ChecksTest, GatherRowsRefuses) {
  using Args = GatherRowsArgs;
  ExpectRefused<Args>("GatherRows", {
    KVBLOCKS_BAD(kRange, "index[1] is 5|n = 5", a.index = s.Ints({1, 5})),
    KVBLOCKS_BAD(kRange, "index[0] is -1", a.index = s.Ints({-1, 5})),
    KVBLOCKS_BAD(kInvalid, "out has 2|M = 1", a.index = s.Ints({1})),
    KVBLOCKS_BAD(kInvalid, "index is i64", a.index = s.Slots({1, 4})),
    KVBLOCKS_BAD(kInvalid, "out is i32", a.out = s.Output(DType::kI32, {2, 2, 8})),
    KVBLOCKS_BAD(kInvalid, "out is f32[2, 2, 7]|f32[5, 2, 8]",
                 a.out = s.Output(DType::kF32, {2, 2, 7})),
    KVBLOCKS_BAD(kInvalid, "rank 1, 2 or 3", a.out = s.Output(DType::kF32, {2, 16})),
    KVBLOCKS_BAD(kRange, "n = 2", a.in = *a.out.Slice(0, 0, 2)),
    KVBLOCKS_BAD(kInvalid, "out shares memory with in", a.in = a.out; a.index = s.Ints({1, 0}))
  });
  ExpectAccepted<Args>([](Args& a, TensorStore& s) { a.index = s.Ints({3, 3}); });
}

TEST(ChecksTest, RotateKeysRefuses) {
  using Args = RotateKeysArgs;
  ExpectRefused<Args>("RotateKeys", {
    KVBLOCKS_BAD(kInvalid, "n = 2", a.positions = s.Ints({1})),
    KVBLOCKS_BAD(kInvalid, "from_positions is f32", a.from_positions = s.Floats({1, 2})),
    KVBLOCKS_BAD(kInvalid, "theta is 0", a.theta = 0),
    KVBLOCKS_BAD(kInvalid, "rotary_dim is 3", a.rotary_dim = 3),
    KVBLOCKS_BAD(kInvalid, "rotary_dim is 10|D = 8", a.rotary_dim = 10),
    KVBLOCKS_BAD(kInvalid, "rotary_dim is -2", a.rotary_dim = -2),
    KVBLOCKS_BAD(kInvalid, "out shares memory with in",
                 const TensorView keys = s.Output(DType::kF32, {3, 2, 8});
                     a.in = *keys.Slice(0, 0, 2); a.out = *keys.Slice(0, 1, 3))
  });
  ExpectAccepted<Args>([](Args& a, TensorStore&) { a.in = a.out; });
}

TEST(IndexChecksTest, CacheIndexKeysRefuses) {
  using Args = CacheIndexKeysArgs;
  ExpectRefused<Args>(
      "CacheIndexKeys",
      {KVBLOCKS_BAD(kInvalid, "k is i8", a.k = s.Input(DType::kI8, {3, 8})),
       KVBLOCKS_BAD(kInvalid, "slot_mapping has 4|T = 3", a.slot_mapping = s.Slots({1, 2, 3, 4})),
       KVBLOCKS_BAD(kRange, "slot_mapping[1] is 24", a.slot_mapping = s.Slots({1, 24})),
       KVBLOCKS_BAD(kInvalid, "5 twice", a.slot_mapping = s.Slots({5, 5})),
       KVBLOCKS_BAD(kInvalid, "blocks of 5 rows of 8 codes|60 bytes",
                    a.cache.planar_block_size = 5),
       KVBLOCKS_BAD(kInvalid, "planar_block_size is -1", a.cache.planar_block_size = -1),
       KVBLOCKS_BAD(kInvalid, "Di = 6|multiple of 4", a.k = s.Input(DType::kF32, {3, 6})),
       KVBLOCKS_BAD(kInvalid, "cache.rows|Di = 8", a.cache = {s.Output(DType::kF32, {6, 4, 7})})});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.cache = {s.Output(DType::kBF16, {6, 4, 8})};
  });
}

TEST(IndexChecksTest, IndexTopkRefuses) {
  using Args = IndexTopkArgs;
  ExpectRefused<Args>(
      "IndexTopk",
      {KVBLOCKS_BAD(kInvalid, "weights|Hi = 2", a.weights = s.Input(DType::kF32, {3, 3})),
       KVBLOCKS_BAD(kInvalid, "ratio is 0", a.ratio = 0),
       KVBLOCKS_BAD(kInvalid, "max_seq_len is 5|seq_lens[0] = 6", a.max_seq_len = 5),
       KVBLOCKS_BAD(kInvalid, "query_start_loc[2] is 4|T = 3",
                    a.query_start_loc = s.Ints({0, 2, 4})),
       KVBLOCKS_BAD(kInvalid, "seq_lens[0] is 1|2 queries", a.seq_lens = s.Ints({1, 3})),
       KVBLOCKS_BAD(kRange, "2 columns|length 10 needs 3", a.seq_lens = s.Ints({20, 3}),
                    a.max_seq_len = 20),
       KVBLOCKS_BAD(kRange, "block_table[0][0] is 6",
                    a.block_table = s.Values<int32_t>({6, 2, 3, 0}, {2, 2})),
       KVBLOCKS_BAD(kInvalid, "indices|T = 3", a.indices = s.Output(DType::kI32, {2, 2})),
       KVBLOCKS_BAD(kInvalid, "lens is i64", a.lens = s.Output(DType::kI64, {3}))});
  // Blocks behind the last row are not looked at.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.block_table = s.Values<int32_t>({1, -9, 3, 99}, {2, 2});
  });
}

TEST(IndexChecksTest, CompressTokensRefuses) {
  using Args = CompressTokensArgs;
  ExpectRefused<Args>(
      "CompressTokens",
      {KVBLOCKS_BAD(kInvalid, "kv is f32[3, 4]|C * D = 8", a.kv = s.Input(DType::kF32, {3, 4})),
       KVBLOCKS_BAD(kInvalid, "kv|C * D = 4", a.overlap = false),
       KVBLOCKS_BAD(kInvalid, "ratio is 0", a.ratio = 0),
       KVBLOCKS_BAD(kInvalid, "bias|ratio = 2", a.bias = s.Input(DType::kF32, {4, 8})),
       KVBLOCKS_BAD(kInvalid, "states|2 * C * D = 16", a.states = s.Output(DType::kF32, {6, 4, 8})),
       KVBLOCKS_BAD(kInvalid, "norm_eps is 0", a.norm_eps = 0),
       KVBLOCKS_BAD(kInvalid, "norm_weight|D = 4", a.norm_weight = s.Input(DType::kF32, {3})),
       KVBLOCKS_BAD(kInvalid, "cos_sin|at most D = 4", a.cos_sin = s.Input(DType::kF32, {9, 6})),
       KVBLOCKS_BAD(kRange, "P = 4|request 0 needs that of 4",
                    a.cos_sin = s.Input(DType::kF32, {4, 2})),
       KVBLOCKS_BAD(kRange, "block_table[0][1] is 6",
                    a.block_table = s.Values<int32_t>({1, 6, 3, 0}, {2, 2})),
       KVBLOCKS_BAD(kInvalid, "4 twice", a.slot_mapping = s.Slots({4, 4}))});
  // Tokens 4 and 5 read positions from 2 on, in blocks 0 and 1; the other request completes
  // nothing.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.block_table = s.Values<int32_t>({1, 2, -5, -5}, {2, 2});
  });
}

}  // namespace
}  // namespace kvblocks::attention
