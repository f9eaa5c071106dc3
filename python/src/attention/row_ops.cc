// Operations that write, read and turn rows of keys and values.

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <array>

#include "absl/types/span.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/attention/ops/hkvd_count.h"
#include "kvblocks/python/src/attention/op_call.h"
#include "kvblocks/python/src/attention/signatures.h"

namespace kvblocks::python {
namespace {

void ReshapeAndCache(nb::handle k, nb::handle v, nb::handle slot_mapping, const PyKvCache& cache,
                     nb::handle k_scale, nb::handle v_scale, nb::handle stream,
                     PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("reshape_and_cache", {stream, workspace, threads});
  attention::ReshapeAndCacheArgs args;
  args.k = call.In("k", k);
  args.v = call.In("v", v);
  args.slot_mapping = call.In("slot_mapping", slot_mapping);
  args.cache = call.Out("cache", cache);
  args.scales = {call.Scale("k_scale", k_scale), call.Scale("v_scale", v_scale)};
  call.Run(args, static_cast<double>(args.k.num_elements()));
}

void ConcatAndCacheMla(nb::handle kv_c, nb::handle k_pe, nb::handle slot_mapping,
                       const PyKvCache& cache, nb::handle scale, nb::handle stream,
                       PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("concat_and_cache_mla", {stream, workspace, threads});
  attention::ConcatAndCacheMlaArgs args;
  args.kv_c = call.In("kv_c", kv_c);
  args.k_pe = call.In("k_pe", k_pe);
  args.slot_mapping = call.In("slot_mapping", slot_mapping);
  args.cache = call.Out("cache", cache);
  args.scale = call.Scale("scale", scale);
  call.Run(args, static_cast<double>(args.kv_c.num_elements()));
}

// The largest magnitudes of k, v and q are divided by these.
struct Divisors {
  double k, v, q;
};

attention::ComputeKvScalesArgs ScalesArgs(OpCall& call, nb::handle k, nb::handle v,
                                          nb::handle k_scale, nb::handle v_scale, nb::handle q,
                                          nb::handle q_scale, const Divisors& divisors) {
  attention::ComputeKvScalesArgs args;
  args.k = call.In("k", k);
  args.v = call.In("v", v);
  args.q = call.In("q", q);
  args.k_divisor = static_cast<float>(divisors.k);
  args.v_divisor = static_cast<float>(divisors.v);
  args.q_divisor = static_cast<float>(divisors.q);
  args.k_scale = call.Out("k_scale", k_scale);
  args.v_scale = call.Out("v_scale", v_scale);
  args.q_scale = call.Out("q_scale", q_scale);
  return args;
}

void ComputeKvScales(nb::handle k, nb::handle v, nb::handle k_scale, nb::handle v_scale,
                     nb::handle q, nb::handle q_scale, double k_divisor, double v_divisor,
                     double q_divisor, nb::handle stream, PyWorkspace* workspace,
                     PyThreadPool* threads) {
  OpCall call("compute_kv_scales", {stream, workspace, threads});
  const attention::ComputeKvScalesArgs args =
      ScalesArgs(call, k, v, k_scale, v_scale, q, q_scale, {k_divisor, v_divisor, q_divisor});
  call.Run(args, static_cast<double>(args.k.num_elements()));
}

void ScaleAndCache(nb::handle k, nb::handle v, nb::handle slot_mapping, const PyKvCache& cache,
                   nb::handle k_scale, nb::handle v_scale, nb::handle q, nb::handle q_scale,
                   double k_divisor, double v_divisor, double q_divisor, nb::handle stream,
                   PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("scale_and_cache", {stream, workspace, threads});
  attention::ScaleAndCacheArgs args;
  args.scales =
      ScalesArgs(call, k, v, k_scale, v_scale, q, q_scale, {k_divisor, v_divisor, q_divisor});
  args.slot_mapping = call.In("slot_mapping", slot_mapping);
  args.cache = call.Out("cache", cache);
  call.Run(args, 2.0 * static_cast<double>(args.scales.k.num_elements()));
}

void QuantizeQueries(nb::handle q, nb::handle codes, nb::handle scale, nb::handle stream,
                     PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("quantize_queries", {stream, workspace, threads});
  attention::QuantizeQueriesArgs args;
  args.q = call.In("q", q);
  args.scale = call.Scale("scale", scale);
  args.codes = call.Out("codes", codes);
  call.Run(args, static_cast<double>(args.q.num_elements()));
}

void GatherCache(const PyKvCache& cache, nb::handle block_table, nb::handle seq_lens,
                 nb::handle lengths, nb::handle out, nb::handle out_v, int64_t row_offset,
                 nb::handle k_scale, nb::handle v_scale, nb::handle stream, PyWorkspace* workspace,
                 PyThreadPool* threads) {
  OpCall call("gather_cache", {stream, workspace, threads});
  attention::GatherCacheArgs args;
  args.cache = call.In(cache);
  args.block_table = call.In("block_table", block_table);
  args.seq_lens = call.In("seq_lens", seq_lens);
  args.lengths = call.In("lengths", lengths);
  args.row_offset = row_offset;
  args.scales = {call.Scale("k_scale", k_scale), call.Scale("v_scale", v_scale)};
  args.out = call.Out("out", out);
  args.out_v = call.Out("out_v", out_v);
  call.Run(args, static_cast<double>(args.out.num_elements()));
}

nb::object RotateKeys(nb::handle keys, nb::handle positions, nb::handle from_positions,
                      double theta, int64_t rotary_dim, bool interleaved, nb::handle out,
                      nb::handle stream, PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("rotate_keys", {stream, workspace, threads});
  attention::RotateKeysArgs args;
  args.in = call.In("keys", keys);
  args.positions = call.In("positions", positions);
  args.from_positions = call.In("from_positions", from_positions);
  args.theta = theta;
  args.rotary_dim = rotary_dim;
  args.pairs = interleaved ? attention::RotaryPairs::kInterleaved : attention::RotaryPairs::kHalves;
  nb::object result = call.Out(
      "out", out, keys, {Extent(args.in, 0), Extent(args.in, 1), Extent(args.in, 2)}, &args.out);
  call.Run(args, 100.0 * static_cast<double>(args.in.num_elements()));
  return result;
}

void SelectHkvd(nb::handle v_new, nb::handle v_old, nb::handle imp, double ratio,
                int64_t suffix_len, nb::handle diffs, nb::handle stream, PyWorkspace* workspace,
                PyThreadPool* threads) {
  OpCall call("select_hkvd", {stream, workspace, threads});
  attention::SelectHkvdArgs args;
  args.v_new = call.In("v_new", v_new);
  args.v_old = call.In("v_old", v_old);
  args.ratio = ratio;
  args.suffix_len = suffix_len;
  args.imp = call.Out("imp", imp);
  args.diffs = call.Out("diffs", diffs);
  call.Run(args, static_cast<double>(args.v_new.num_elements()));
}

void FuseKv(nb::handle imp, nb::handle k_new, nb::handle v_new, nb::handle k_old, nb::handle v_old,
            nb::handle stream, PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("fuse_kv", {stream, workspace, threads});
  attention::FuseKvArgs args;
  args.imp = call.In("imp", imp);
  args.k_new = call.In("k_new", k_new);
  args.v_new = call.In("v_new", v_new);
  args.k_old = call.Out("k_old", k_old);
  args.v_old = call.Out("v_old", v_old);
  call.Run(args, static_cast<double>(args.k_new.num_elements()));
}

nb::object GatherRows(nb::handle rows, nb::handle index, nb::handle out, nb::handle stream,
                      PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("gather_rows", {stream, workspace, threads});
  attention::GatherRowsArgs args;
  args.in = call.In("rows", rows);
  args.index = call.In("index", index);
  std::array<int64_t, attention::kMaxRank> shape = {Extent(args.index, 0)};
  for (int dim = 1; dim < args.in.rank; ++dim) shape[dim] = args.in.extent[dim];
  const auto rank = static_cast<size_t>(std::max(1, int{args.in.rank}));
  nb::object result = call.Out("out", out, rows, absl::MakeConstSpan(shape).first(rank), &args.out);
  call.Run(args, static_cast<double>(args.out.num_elements()));
  return result;
}

}  // namespace

void BindRowOps(nb::module_& module) {
  module.def(
      "reshape_and_cache", &ReshapeAndCache, nb::arg("k"), nb::arg("v"), nb::arg("slot_mapping"),
      nb::arg("cache"), nb::kw_only(), KVBLOCKS_CACHE_SCALE_ARGS, KVBLOCKS_CALL_ARGS,
      nb::sig("def reshape_and_cache(k: Array, v: Array, slot_mapping: Array, cache: KVCache, "
              "*, " KVBLOCKS_CACHE_SCALE_SIG KVBLOCKS_CALL_SIG ") -> None"),
      R"(Stores the keys and values of new tokens.

k [T, Hkv, D], v [T, Hkv, Dv]; slot_mapping int64 [n], n <= T: slots, below 0 is skipped, and tokens from n on
are padding. Only the bytes of these slots change. A cache in codes stores value / scale, k_scale and v_scale
being float32 of one element or [Hkv], or on the host a number.)");
  module.def("concat_and_cache_mla", &ConcatAndCacheMla, nb::arg("kv_c"), nb::arg("k_pe"),
             nb::arg("slot_mapping"), nb::arg("cache"), nb::kw_only(),
             nb::arg("scale") = nb::none(), KVBLOCKS_CALL_ARGS,
             nb::sig("def concat_and_cache_mla(kv_c: Array, k_pe: Array, slot_mapping: Array, "
                     "cache: KVCache, *, scale: "
                     "Array | float | None = None, " KVBLOCKS_CALL_SIG ") -> None"),
             R"(Stores rows of a latent cache.

kv_c [T, R_kv], k_pe [T, R_pe]; slot_mapping as for reshape_and_cache. mla_fp8_656 and mla_fp8_584 quantise by
tiles; an 8-bit mla_latent or mla_split cache takes `scale`, float32 of one element, or on the host a number.)");
  module.def(
      "compute_kv_scales", &ComputeKvScales, nb::arg("k"), nb::arg("v"), nb::arg("k_scale"),
      nb::arg("v_scale"), nb::kw_only(), nb::arg("q") = nb::none(), nb::arg("q_scale") = nb::none(),
      nb::arg("k_divisor") = 200.0, nb::arg("v_divisor") = 100.0, nb::arg("q_divisor") = 200.0,
      KVBLOCKS_CALL_ARGS,
      nb::sig(
          "def compute_kv_scales(k: Array, v: Array, k_scale: Array, v_scale: Array, *, q: Array | "
          "None = "
          "None, q_scale: Array | None = None, k_divisor: float = 200.0, v_divisor: float = 100.0, "
          "q_divisor: float = 200.0, " KVBLOCKS_CALL_SIG ") -> None"),
      R"(The scales of a cache in codes: the largest magnitude / divisor.

k [T, Hkv, D], v [T, Hkv, Dv], q [T, H, D] -> k_scale and v_scale, float32 of one element or [Hkv], and q_scale of
one. Nothing but zeros gives 1; what is not finite is left out and flagged. int8 caches use divisors of 127.)");
  module.def(
      "scale_and_cache", &ScaleAndCache, nb::arg("k"), nb::arg("v"), nb::arg("slot_mapping"),
      nb::arg("cache"), nb::arg("k_scale"), nb::arg("v_scale"), nb::kw_only(),
      nb::arg("q") = nb::none(), nb::arg("q_scale") = nb::none(), nb::arg("k_divisor") = 200.0,
      nb::arg("v_divisor") = 100.0, nb::arg("q_divisor") = 200.0, KVBLOCKS_CALL_ARGS,
      nb::sig("def scale_and_cache(k: Array, v: Array, slot_mapping: Array, cache: KVCache, "
              "k_scale: Array, v_scale: Array, *, q: Array | None = None, q_scale: Array | None = "
              "None, k_divisor: float = 200.0, v_divisor: float = 100.0, q_divisor: float = "
              "200.0, " KVBLOCKS_CALL_SIG ") -> None"),
      R"(compute_kv_scales, then reshape_and_cache by these scales, in one call: bit for bit the same.

k [T, Hkv, D], v [T, Hkv, Dv], q [T, H, D], slot_mapping int64 [n], n <= T; k_scale and v_scale, float32 of one
element or [Hkv], and q_scale of one are written. The cache is one in codes that is given scales. Without tokens
nothing changes.)");
  module.def("quantize_queries", &QuantizeQueries, nb::arg("q"), nb::arg("codes"), nb::kw_only(),
             nb::arg("scale") = nb::none(), KVBLOCKS_CALL_ARGS,
             nb::sig("def quantize_queries(q: Array, codes: Array, *, scale: Array | float | None "
                     "= None, " KVBLOCKS_CALL_SIG ") -> None"),
             R"(Codes of queries, for operations that take a q_scale.

q [T, H, D] -> codes float8_e4m3fn [T, H, D]: q / scale, rounded to nearest even, at most 448 either way. scale:
float32 of one element, or on the host a number; None is 1.)");
  module.def("gather_cache", &GatherCache, nb::arg("cache"), nb::arg("block_table"),
             nb::arg("seq_lens"), nb::arg("lengths"), nb::arg("out"), nb::arg("out_v") = nb::none(),
             nb::kw_only(), nb::arg("row_offset") = 0, KVBLOCKS_CACHE_SCALE_ARGS,
             KVBLOCKS_CALL_ARGS,
             nb::sig("def gather_cache(cache: KVCache, block_table: Array, seq_lens: Array, "
                     "lengths: Array, out: Array, "
                     "out_v: Array | None = None, *, row_offset: int = 0, " KVBLOCKS_CACHE_SCALE_SIG
                         KVBLOCKS_CALL_SIG ") -> None"),
             R"(Copies the last lengths[b] tokens of each request out of the cache, dequantised.

block_table int32 [R, columns], seq_lens and lengths int32 [R] -> out [R, M, Hkv, D] and out_v [R, M, Hkv, Dv],
or of a latent cache out [R, M, key_dim]; rows from row_offset on.)");
  module.def(
      "rotate_keys", &RotateKeys, nb::arg("keys"), nb::arg("positions"), nb::kw_only(),
      nb::arg("from_positions") = nb::none(), nb::arg("theta") = 10000.0, nb::arg("rotary_dim") = 0,
      nb::arg("interleaved") = false, nb::arg("out") = nb::none(), KVBLOCKS_CALL_ARGS,
      nb::sig(
          "def rotate_keys(keys: Array, positions: Array, *, from_positions: Array | None = None, "
          "theta: "
          "float = 10000.0, rotary_dim: int = 0, interleaved: bool = False, out: Array | None = "
          "None, " KVBLOCKS_CALL_SIG ") -> Any"),
      R"(Rotary embedding of keys [n, Hkv, D] by positions, int32 or int64 [n]; returns out.

Angle i is position * theta^(-2i / rotary_dim) (0: D columns); with from_positions, the rotation is from there to
positions. Pairs are column i and i + rotary_dim / 2, or with interleaved 2i and 2i + 1. out may be keys.)");
  module.def(
      "select_hkvd", &SelectHkvd, nb::arg("v_new"), nb::arg("v_old"), nb::arg("imp"), nb::kw_only(),
      nb::arg("ratio") = 0.16, nb::arg("suffix_len") = 1, nb::arg("diffs") = nb::none(),
      KVBLOCKS_CALL_ARGS,
      nb::sig("def select_hkvd(v_new: Array, v_old: Array, imp: Array, *, ratio: float = 0.16, "
              "suffix_len: int = "
              "1, diffs: Array | None = None, " KVBLOCKS_CALL_SIG ") -> None"),
      R"(CacheBlend's choice of tokens to compute anew: those whose values deviate most, then the suffix.

v_new, v_old [n, Hkv, D] -> imp int32, ascending, of which the first hkvd_count(n, ratio, suffix_len) are written;
diffs float32 [n - suffix_len]: the squared deviations.)");
  module.def(
      "hkvd_count",
      [](int64_t num_tokens, double ratio, int64_t suffix_len) {
        return attention::HkvdCount(num_tokens, suffix_len, ratio) + suffix_len;
      },
      nb::arg("num_tokens"), nb::arg("ratio") = 0.16, nb::arg("suffix_len") = 1,
      "How many of num_tokens tokens select_hkvd chooses, the suffix included.");
  module.def(
      "fuse_kv", &FuseKv, nb::arg("imp"), nb::arg("k_new"), nb::arg("v_new"), nb::arg("k_old"),
      nb::arg("v_old"), nb::kw_only(), KVBLOCKS_CALL_ARGS,
      nb::sig("def fuse_kv(imp: Array, k_new: Array, v_new: Array, k_old: Array, v_old: Array, "
              "*, " KVBLOCKS_CALL_SIG ") -> None"),
      R"(old[imp[r]] = new[r] for keys and values.

imp int32 [M]; k_new and v_new [M, Hkv, D]; k_old and v_old [n, Hkv, D].)");
  module.def("gather_rows", &GatherRows, nb::arg("rows"), nb::arg("index"),
             nb::arg("out") = nb::none(), nb::kw_only(), KVBLOCKS_CALL_ARGS,
             nb::sig("def gather_rows(rows: Array, index: Array, out: Array | None = None, "
                     "*, " KVBLOCKS_CALL_SIG ") -> Any"),
             R"(out[r] = rows[index[r]], bit by bit; returns out.

rows [n, ...] of any type and of one to three dimensions, index int32 [M] -> out [M, ...] of the same type. A row may
be taken repeatedly.)");
}

}  // namespace kvblocks::python
