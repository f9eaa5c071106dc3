// T-6 for the operations of an indexer and a compressor.

#include "kvblocks/attention/ops/checks.h"
#include "kvblocks/attention/testing/refusals.h"

namespace kvblocks::attention {
namespace {

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
  // Tokens 4 and 5 read positions from 2 on, in blocks 0 and 1; the other request completes nothing.
  ExpectAccepted<Args>([](Args& a, TensorStore& s) {
    a.block_table = s.Values<int32_t>({1, 2, -5, -5}, {2, 2});
  });
}

}  // namespace
}  // namespace kvblocks::attention
