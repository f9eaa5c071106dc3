// Operations of sparse attention's indexer and of DeepSeek V4's compressor.

#include "kvblocks/attention_args.h"
#include "python/src/attention/op_bind.h"

namespace kvblocks::python {

void BindIndexerOps(nb::module_& module) {
  const auto rows = KVBLOCKS_AT(cache.rows);
  const auto planar = KVBLOCKS_AT(cache.planar_block_size);
  {
    using A = attention::CacheIndexKeysArgs;
    BindOp<A>(module, "cache_index_keys",
              R"(Stores keys of a sparse-attention indexer.

k [T, Di]; slot_mapping int64 [n], n <= T, below 0 is skipped; cache [NB, BS, Di] of floats, or with
planar_block_size = BS uint8 [NB, block bytes]: a block's float8_e4m3fn codes, then a float32 scale
per row. power_of_two_scales: those scales are rounded up to powers of two.)",
              Elements(&A::k),
              Parameters(In("k", &A::k), In("slot_mapping", &A::slot_mapping), Out("cache", rows)),
              Parameters(Number("planar_block_size", planar, int64_t{0}),
                         Number("power_of_two_scales", &A::power_of_two_scales, true)));
  }
  {
    using A = attention::IndexTopkArgs;
    BindOp<A>(
        module, "index_topk",
        R"(The rows of an indexer's cache that each token reads: the K with the largest sum of w_h *
max(0, q_h . k).

q [T, Hi, Di], weights float32 [T, Hi]; cache as for cache_index_keys; query_start_loc int32 [R +
1], seq_lens int32 [R] in tokens, block_table int32 [R, columns] in blocks of rows, of which each
has `ratio` tokens -> indices int32 [T, K], ascending, -1 behind the chosen ones, and lens int32
[T]. A token at p chooses among the complete rows [0, (p + 1) // ratio); ties go to the lower row.
as_slots: indices are slots, as sparse_mla_decode takes them; otherwise rows of the request.)",
        [](OpCall& call, const A& a) {
          call.Run(a, static_cast<double>(a.q.num_elements()) * static_cast<double>(a.max_seq_len));
        },
        Parameters(In("q", &A::q), In("weights", &A::weights), In("cache", rows),
                   In("query_start_loc", &A::query_start_loc), In("seq_lens", &A::seq_lens),
                   In("block_table", &A::block_table), Out("indices", &A::indices),
                   Out("lens", &A::lens)),
        Parameters(MaxLength("max_seq_len", &A::max_seq_len, &A::seq_lens),
                   Number("ratio", &A::ratio, int64_t{1}), Number("as_slots", &A::as_slots, true),
                   Number("planar_block_size", planar, int64_t{0})));
  }
  {
    using A = attention::CompressTokensArgs;
    BindOp<A>(
        module, "compress_tokens",
        R"(DeepSeek V4's compressor: stores the states of new tokens, and combines those of each row
that they complete.

kv and score [T, C * D], C being 2 with overlap, else 1; bias float32 [ratio, C * D]; states float32
[NB, BS, 2 * C * D], written at slot_mapping int64 [n], n <= T. query_start_loc int32 [R + 1],
seq_lens int32 [R], block_table int32 [R, columns] of states. A token with (p + 1) % ratio == 0
writes its row of out [T, D]: per column the softmax of the last C * ratio scores over tokens weighs
kv. Then RMS norm by norm_weight float32 [D] and norm_eps, and rotation of the last columns by
cos_sin float32 [P, columns], cosines first.)",
        Elements(&A::kv, 10),
        Parameters(In("kv", &A::kv), In("score", &A::score), Out("states", &A::states),
                   In("slot_mapping", &A::slot_mapping), In("query_start_loc", &A::query_start_loc),
                   In("seq_lens", &A::seq_lens), In("block_table", &A::block_table),
                   Out("out", &A::out)),
        Parameters(Number<int64_t>("ratio", &A::ratio), Number("overlap", &A::overlap, true),
                   OptionalIn("bias", &A::bias), OptionalIn("norm_weight", &A::norm_weight),
                   Number("norm_eps", &A::norm_eps, 1e-6), OptionalIn("cos_sin", &A::cos_sin)));
  }
}

}  // namespace kvblocks::python
