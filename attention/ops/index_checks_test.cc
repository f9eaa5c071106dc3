// T-6 for the operations of an indexer and a compressor.

#include "kvblocks/attention/ops/checks.h"
#include "kvblocks/attention/testing/refusals.h"

namespace kvblocks::attention {
namespace {

TEST(IndexChecksTest, CacheIndexKeysRefuses) {
  using Args = CacheIndexKeysArgs;
  ExpectRefused<Args>("CacheIndexKeys",
                      {{[](Args& a, TensorStore& s) {
                          a.k = s.Input(DType::kI8, {3, 8});
                        },
                        kInvalid,
                        {"k is i8"}},
                       {[](Args& a, TensorStore& s) {
                          a.slot_mapping = s.Slots({1, 2, 3, 4});
                        },
                        kInvalid,
                        {"slot_mapping has 4", "T = 3"}},
                       {[](Args& a, TensorStore& s) {
                          a.slot_mapping = s.Slots({1, 24});
                        },
                        kRange,
                        {"slot_mapping[1] is 24"}},
                       {[](Args& a, TensorStore& s) {
                          a.slot_mapping = s.Slots({5, 5});
                        },
                        kInvalid,
                        {"5 twice"}},
                       {[](Args& a, TensorStore&) { a.cache.planar_block_size = 5; },
                        kInvalid,
                        {"blocks of 5 rows of 8 codes", "60 bytes"}},
                       {[](Args& a, TensorStore&) { a.cache.planar_block_size = -1; },
                        kInvalid,
                        {"planar_block_size is -1"}},
                       {[](Args& a, TensorStore& s) {
                          a.k = s.Input(DType::kF32, {3, 6});
                        },
                        kInvalid,
                        {"Di = 6", "multiple of 4"}},
                       {[](Args& a, TensorStore& s) {
                          a.cache = {s.Output(DType::kF32, {6, 4, 7})};
                        },
                        kInvalid,
                        {"cache.rows", "Di = 8"}}});
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.cache = {s.Output(DType::kBF16, {6, 4, 8})};
  });
}

TEST(IndexChecksTest, IndexTopkRefuses) {
  using Args = IndexTopkArgs;
  ExpectRefused<Args>("IndexTopk",
                      {{[](Args& a, TensorStore& s) {
                          a.weights = s.Input(DType::kF32, {3, 3});
                        },
                        kInvalid,
                        {"weights", "Hi = 2"}},
                       {[](Args& a, TensorStore&) { a.ratio = 0; }, kInvalid, {"ratio is 0"}},
                       {[](Args& a, TensorStore&) { a.max_seq_len = 5; },
                        kInvalid,
                        {"max_seq_len is 5", "seq_lens[0] = 6"}},
                       {[](Args& a, TensorStore& s) {
                          a.query_start_loc = s.Ints({0, 2, 4});
                        },
                        kInvalid,
                        {"query_start_loc[2] is 4", "T = 3"}},
                       {[](Args& a, TensorStore& s) {
                          a.seq_lens = s.Ints({1, 3});
                        },
                        kInvalid,
                        {"seq_lens[0] is 1", "2 queries"}},
                       {[](Args& a, TensorStore& s) {
                          a.seq_lens = s.Ints({20, 3}), a.max_seq_len = 20;
                        },
                        kRange,
                        {"2 columns", "length 10 needs 3"}},
                       {[](Args& a, TensorStore& s) {
                          a.block_table = s.Values<int32_t>({6, 2, 3, 0}, {2, 2});
                        },
                        kRange,
                        {"block_table[0][0] is 6"}},
                       {[](Args& a, TensorStore& s) {
                          a.indices = s.Output(DType::kI32, {2, 2});
                        },
                        kInvalid,
                        {"indices", "T = 3"}},
                       {[](Args& a, TensorStore& s) { a.lens = s.Output(DType::kI64, {3}); },
                        kInvalid,
                        {"lens is i64"}}});
  // Blocks behind the last row are not looked at.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.block_table = s.Values<int32_t>({1, -9, 3, 99}, {2, 2});
  });
}

TEST(IndexChecksTest, CompressTokensRefuses) {
  using Args = CompressTokensArgs;
  ExpectRefused<Args>(
      "CompressTokens",
      {{[](Args& a, TensorStore& s) {
          a.kv = s.Input(DType::kF32, {3, 4});
        },
        kInvalid,
        {"kv is f32[3, 4]", "C * D = 8"}},
       {[](Args& a, TensorStore&) { a.overlap = false; }, kInvalid, {"kv", "C * D = 4"}},
       {[](Args& a, TensorStore&) { a.ratio = 0; }, kInvalid, {"ratio is 0"}},
       {[](Args& a, TensorStore& s) {
          a.bias = s.Input(DType::kF32, {4, 8});
        },
        kInvalid,
        {"bias", "ratio = 2"}},
       {[](Args& a, TensorStore& s) {
          a.states = s.Output(DType::kF32, {6, 4, 8});
        },
        kInvalid,
        {"states", "2 * C * D = 16"}},
       {[](Args& a, TensorStore&) { a.norm_eps = 0; }, kInvalid, {"norm_eps is 0"}},
       {[](Args& a, TensorStore& s) { a.norm_weight = s.Input(DType::kF32, {3}); },
        kInvalid,
        {"norm_weight", "D = 4"}},
       {[](Args& a, TensorStore& s) {
          a.cos_sin = s.Input(DType::kF32, {9, 6});
        },
        kInvalid,
        {"cos_sin", "at most D = 4"}},
       {[](Args& a, TensorStore& s) {
          a.cos_sin = s.Input(DType::kF32, {4, 2});
        },
        kRange,
        {"P = 4", "request 0 needs that of 4"}},
       {[](Args& a, TensorStore& s) {
          a.block_table = s.Values<int32_t>({1, 6, 3, 0}, {2, 2});
        },
        kRange,
        {"block_table[0][1] is 6"}},
       {[](Args& a, TensorStore& s) {
          a.slot_mapping = s.Slots({4, 4});
        },
        kInvalid,
        {"4 twice"}}});
  // Tokens 4 and 5 read positions from 2 on, in blocks 0 and 1; the other request completes nothing.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.block_table = s.Values<int32_t>({1, 2, -5, -5}, {2, 2});
  });
}

}  // namespace
}  // namespace kvblocks::attention
