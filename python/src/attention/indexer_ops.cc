// Operations of sparse attention's indexer and of DeepSeek V4's compressor.

#include <nanobind/stl/optional.h>

#include "kvblocks/attention/ops/args.h"
#include "kvblocks/python/src/attention/op_call.h"
#include "kvblocks/python/src/attention/signatures.h"

namespace kvblocks::python {
namespace {

void CacheIndexKeys(nb::handle k, nb::handle slot_mapping, nb::handle cache,
                    int64_t planar_block_size, bool power_of_two_scales, nb::handle stream,
                    PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("cache_index_keys", {stream, workspace, threads});
  attention::CacheIndexKeysArgs args;
  args.k = call.In("k", k);
  args.slot_mapping = call.In("slot_mapping", slot_mapping);
  args.cache = {call.Out("cache", cache), planar_block_size};
  args.power_of_two_scales = power_of_two_scales;
  call.Run(args, static_cast<double>(args.k.num_elements()));
}

void IndexTopk(nb::handle q, nb::handle weights, nb::handle cache, nb::handle query_start_loc,
               nb::handle seq_lens, nb::handle block_table, nb::handle indices, nb::handle lens,
               std::optional<int64_t> max_seq_len, int64_t ratio, bool as_slots,
               int64_t planar_block_size, nb::handle stream, PyWorkspace* workspace,
               PyThreadPool* threads) {
  OpCall call("index_topk", {stream, workspace, threads});
  attention::IndexTopkArgs args;
  args.q = call.In("q", q);
  args.weights = call.In("weights", weights);
  args.cache = {call.In("cache", cache), planar_block_size};
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.seq_lens = call.In("seq_lens", seq_lens);
  args.block_table = call.In("block_table", block_table);
  args.max_seq_len = call.MaxLength("max_seq_len", max_seq_len, args.seq_lens);
  args.ratio = ratio;
  args.as_slots = as_slots;
  args.indices = call.Out("indices", indices);
  args.lens = call.Out("lens", lens);
  call.Run(args,
           static_cast<double>(args.q.num_elements()) * static_cast<double>(args.max_seq_len));
}

void CompressTokens(nb::handle kv, nb::handle score, nb::handle states, nb::handle slot_mapping,
                    nb::handle query_start_loc, nb::handle seq_lens, nb::handle block_table,
                    nb::handle out, int64_t ratio, bool overlap, nb::handle bias,
                    nb::handle norm_weight, double norm_eps, nb::handle cos_sin, nb::handle stream,
                    PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("compress_tokens", {stream, workspace, threads});
  attention::CompressTokensArgs args;
  args.kv = call.In("kv", kv);
  args.score = call.In("score", score);
  args.bias = call.In("bias", bias);
  args.states = call.Out("states", states);
  args.slot_mapping = call.In("slot_mapping", slot_mapping);
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.seq_lens = call.In("seq_lens", seq_lens);
  args.block_table = call.In("block_table", block_table);
  args.ratio = ratio;
  args.overlap = overlap;
  args.norm_weight = call.In("norm_weight", norm_weight);
  args.norm_eps = static_cast<float>(norm_eps);
  args.cos_sin = call.In("cos_sin", cos_sin);
  args.out = call.Out("out", out);
  call.Run(args, 10.0 * static_cast<double>(args.kv.num_elements()));
}

}  // namespace

void BindIndexerOps(nb::module_& module) {
  module.def(
      "cache_index_keys", &CacheIndexKeys, nb::arg("k"), nb::arg("slot_mapping"), nb::arg("cache"),
      nb::kw_only(), nb::arg("planar_block_size") = 0, nb::arg("power_of_two_scales") = true,
      KVBLOCKS_CALL_ARGS,
      nb::sig("def cache_index_keys(k: Array, slot_mapping: Array, cache: Array, *, "
              "planar_block_size: int = 0, power_of_two_scales: bool = True, " KVBLOCKS_CALL_SIG
              ") -> None"),
      R"(Stores keys of a sparse-attention indexer.

k [T, Di]; slot_mapping int64 [n], n <= T, below 0 is skipped; cache [NB, BS, Di] of floats, or with
planar_block_size = BS uint8 [NB, block bytes]: a block's float8_e4m3fn codes, then a float32 scale per row.
power_of_two_scales: those scales are rounded up to powers of two.)");
  module.def(
      "index_topk", &IndexTopk, nb::arg("q"), nb::arg("weights"), nb::arg("cache"),
      nb::arg("query_start_loc"), nb::arg("seq_lens"), nb::arg("block_table"), nb::arg("indices"),
      nb::arg("lens"), nb::kw_only(), nb::arg("max_seq_len") = nb::none(), nb::arg("ratio") = 1,
      nb::arg("as_slots") = true, nb::arg("planar_block_size") = 0, KVBLOCKS_CALL_ARGS,
      nb::sig("def index_topk(q: Array, weights: Array, cache: Array, query_start_loc: Array, "
              "seq_lens: Array, block_table: Array, indices: Array, lens: Array, *, max_seq_len: "
              "int | None = None, ratio: int = 1, as_slots: bool = True, planar_block_size: int = "
              "0, " KVBLOCKS_CALL_SIG ") -> None"),
      R"(The rows of an indexer's cache that each token reads: the K with the largest sum of w_h * max(0, q_h . k).

q [T, Hi, Di], weights float32 [T, Hi]; cache as for cache_index_keys; query_start_loc int32 [R + 1], seq_lens
int32 [R] in tokens, block_table int32 [R, columns] in blocks of rows, of which each has `ratio` tokens -> indices
int32 [T, K], ascending, -1 behind the chosen ones, and lens int32 [T]. A token at p chooses among the complete rows
[0, (p + 1) // ratio); ties go to the lower row. as_slots: indices are slots, as sparse_mla_decode takes them;
otherwise rows of the request.)");
  module.def(
      "compress_tokens", &CompressTokens, nb::arg("kv"), nb::arg("score"), nb::arg("states"),
      nb::arg("slot_mapping"), nb::arg("query_start_loc"), nb::arg("seq_lens"),
      nb::arg("block_table"), nb::arg("out"), nb::kw_only(), nb::arg("ratio"),
      nb::arg("overlap") = true, nb::arg("bias") = nb::none(), nb::arg("norm_weight") = nb::none(),
      nb::arg("norm_eps") = 1e-6, nb::arg("cos_sin") = nb::none(), KVBLOCKS_CALL_ARGS,
      nb::sig("def compress_tokens(kv: Array, score: Array, states: Array, slot_mapping: Array, "
              "query_start_loc: Array, seq_lens: Array, block_table: Array, out: Array, *, ratio: "
              "int, overlap: bool = True, bias: Array | None = None, norm_weight: Array | None = "
              "None, norm_eps: float = 1e-06, cos_sin: Array | None = None, " KVBLOCKS_CALL_SIG
              ") -> None"),
      R"(DeepSeek V4's compressor: stores the states of new tokens, and combines those of each row that they complete.

kv and score [T, C * D], C being 2 with overlap, else 1; bias float32 [ratio, C * D]; states float32
[NB, BS, 2 * C * D], written at slot_mapping int64 [n], n <= T. query_start_loc int32 [R + 1], seq_lens int32 [R],
block_table int32 [R, columns] of states. A token with (p + 1) % ratio == 0 writes its row of out [T, D]: per column
the softmax of the last C * ratio scores over tokens weighs kv. Then RMS norm by norm_weight float32 [D] and norm_eps,
and rotation of the last columns by cos_sin float32 [P, columns], cosines first.)");
}

}  // namespace kvblocks::python
