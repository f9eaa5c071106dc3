// Operations that store, quantise, gather and move rows of keys and values.

#include <algorithm>
#include <array>

#include "absl/types/span.h"
#include "kvblocks/attention_args.h"
#include "python/src/attention/op_bind.h"

namespace kvblocks::python {

namespace {

// Parameters of the scales of caches in codes.
template <typename At>
auto CacheScales(At scales) {
  return Parameters(OptionalScale("k_scale", KVBLOCKS_OF(scales, k)),
                    OptionalScale("v_scale", KVBLOCKS_OF(scales, v)));
}

// The parameters of ComputeKvScalesArgs behind k and v, which lie at `at`.
template <typename At>
auto ScaleOutputs(At at) {
  return Parameters(Out("k_scale", KVBLOCKS_OF(at, k_scale)),
                    Out("v_scale", KVBLOCKS_OF(at, v_scale)));
}
template <typename At>
auto QueriesAndDivisors(At at) {
  return Parameters(OptionalIn("q", KVBLOCKS_OF(at, q)),
                    OptionalOut("q_scale", KVBLOCKS_OF(at, q_scale)),
                    Number("k_divisor", KVBLOCKS_OF(at, k_divisor), 200.0),
                    Number("v_divisor", KVBLOCKS_OF(at, v_divisor), 100.0),
                    Number("q_divisor", KVBLOCKS_OF(at, q_divisor), 200.0));
}

AnyObject RunRotateKeys(OpCall& call, attention::RotateKeysArgs& args) {
  return call.RunInto(args, &args, {Extent(args.in, 0), Extent(args.in, 1), Extent(args.in, 2)},
                      100.0 * static_cast<double>(args.in.num_elements()));
}

AnyObject RunGatherRows(OpCall& call, attention::GatherRowsArgs& args) {
  std::array<int64_t, attention::kMaxRank> shape = {Extent(args.index, 0)};
  for (int dim = 1; dim < args.in.rank; ++dim) shape[dim] = args.in.extent[dim];
  const auto rank = static_cast<size_t>(std::max(1, int{args.in.rank}));
  return call.RunInto(args, &args, absl::MakeConstSpan(shape).first(rank),
                      static_cast<double>(args.in.num_elements()));
}

}  // namespace

void BindRowOps(nb::module_& module) {
  {
    using A = attention::ReshapeAndCacheArgs;
    BindOp<A>(module, "reshape_and_cache",
              R"(Stores the keys and values of new tokens.

k [T, Hkv, D], v [T, Hkv, Dv]; slot_mapping int64 [n], n <= T: slots, below 0 is skipped, and tokens
from n on are padding. Only the bytes of these slots change. A cache in codes stores value / scale,
k_scale and v_scale being float32 of one element or [Hkv], or on the host a number.)",
              Elements(&A::k),
              Parameters(In("k", &A::k), In("v", &A::v), In("slot_mapping", &A::slot_mapping),
                         CacheOut(&A::cache)),
              CacheScales(KVBLOCKS_AT(scales)));
  }
  {
    using A = attention::ConcatAndCacheMlaArgs;
    BindOp<A>(module, "concat_and_cache_mla",
              R"(Stores rows of a latent cache.

kv_c [T, R_kv], k_pe [T, R_pe]; slot_mapping as for reshape_and_cache. mla_fp8_656 and mla_fp8_584
quantise by tiles; an 8-bit mla_latent or mla_split cache takes `scale`, float32 of one element, or
on the host a number.)",
              Elements(&A::kv_c),
              Parameters(In("kv_c", &A::kv_c), In("k_pe", &A::k_pe),
                         In("slot_mapping", &A::slot_mapping), CacheOut(&A::cache)),
              Parameters(OptionalScale("scale", &A::scale)));
  }
  {
    using A = attention::ComputeKvScalesArgs;
    const auto self = [](auto& a) -> auto& { return a; };
    BindOp<A>(module, "compute_kv_scales",
              R"(The scales of a cache in codes: the largest magnitude / divisor.

k [T, Hkv, D], v [T, Hkv, Dv], q [T, H, D] -> k_scale and v_scale, float32 of one element or [Hkv],
and q_scale of one. Nothing but zeros gives 1; what is not finite is left out and flagged. int8
caches use divisors of 127.)",
              Elements(&A::k),
              std::tuple_cat(Parameters(In("k", &A::k), In("v", &A::v)), ScaleOutputs(self)),
              QueriesAndDivisors(self));
  }
  {
    using A = attention::ScaleAndCacheArgs;
    const auto scales = KVBLOCKS_AT(scales);
    BindOp<A>(
        module, "scale_and_cache",
        R"(compute_kv_scales, then reshape_and_cache by these scales, in one call: bit for bit the
same.

k [T, Hkv, D], v [T, Hkv, Dv], q [T, H, D], slot_mapping int64 [n], n <= T; k_scale and v_scale,
float32 of one element or [Hkv], and q_scale of one are written. The cache is one in codes that is
given scales. Without tokens nothing changes.)",
        Elements(KVBLOCKS_AT(scales.k), 2),
        std::tuple_cat(Parameters(In("k", KVBLOCKS_AT(scales.k)), In("v", KVBLOCKS_AT(scales.v)),
                                  In("slot_mapping", &A::slot_mapping), CacheOut(&A::cache)),
                       ScaleOutputs(scales)),
        QueriesAndDivisors(scales));
  }
  {
    using A = attention::QuantizeQueriesArgs;
    BindOp<A>(module, "quantize_queries",
              R"(Codes of queries, for operations that take a q_scale.

q [T, H, D] -> codes float8_e4m3fn [T, H, D]: q / scale, rounded to nearest even, at most 448 either
way. scale: float32 of one element, or on the host a number; None is 1.)",
              Elements(&A::q), Parameters(In("q", &A::q), Out("codes", &A::codes)),
              Parameters(OptionalScale("scale", &A::scale)));
  }
  {
    using A = attention::GatherCacheArgs;
    BindOp<A>(module, "gather_cache",
              R"(Copies the last lengths[b] tokens of each request out of the cache, dequantised.

block_table int32 [R, columns], seq_lens and lengths int32 [R] -> out [R, M, Hkv, D] and out_v [R,
M, Hkv, Dv], or of a latent cache out [R, M, key_dim]; rows from row_offset on.)",
              Elements(&A::out),
              Parameters(CacheIn(&A::cache), In("block_table", &A::block_table),
                         In("seq_lens", &A::seq_lens), In("lengths", &A::lengths),
                         Out("out", &A::out), OptionalOut("out_v", &A::out_v)),
              std::tuple_cat(Parameters(Number("row_offset", &A::row_offset, int64_t{0})),
                             CacheScales(KVBLOCKS_AT(scales))));
  }
  {
    using A = attention::RotateKeysArgs;
    BindOp<A>(module, "rotate_keys",
              R"(Rotary embedding of keys [n, Hkv, D] by positions, int32 or int64 [n]; returns out.

Angle i is position * theta^(-2i / rotary_dim) (0: D columns); with from_positions, the rotation is
from there to positions. Pairs are column i and i + rotary_dim / 2, or with interleaved 2i and 2i +
1. out may be keys.)",
              RunRotateKeys, Parameters(In("keys", &A::in), In("positions", &A::positions)),
              Parameters(OptionalIn("from_positions", &A::from_positions),
                         Number("theta", &A::theta, 10000.0),
                         Number("rotary_dim", &A::rotary_dim, int64_t{0}),
                         Take<bool>(nb::arg("interleaved") = false,
                                    [](A& a, bool interleaved) {
                                      if (interleaved)
                                        a.pairs = attention::RotaryPairs::kInterleaved;
                                    }),
                         GivenOut()));
  }
  {
    using A = attention::SelectHkvdArgs;
    BindOp<A>(
        module, "select_hkvd",
        R"(CacheBlend's choice of tokens to compute anew: those whose values deviate most, then the
suffix.

v_new, v_old [n, Hkv, D] -> imp int32, ascending, of which the first hkvd_count(n, ratio,
suffix_len) are written; diffs float32 [n - suffix_len]: the squared deviations.)",
        Elements(&A::v_new),
        Parameters(In("v_new", &A::v_new), In("v_old", &A::v_old), Out("imp", &A::imp)),
        Parameters(Number("ratio", &A::ratio, 0.16),
                   Number("suffix_len", &A::suffix_len, int64_t{1}),
                   OptionalOut("diffs", &A::diffs)));
  }
  module.def(
      "hkvd_count",
      [](int64_t num_tokens, double ratio, int64_t suffix_len) {
        return attention::HkvdCount(num_tokens, suffix_len, ratio) + suffix_len;
      },
      nb::arg("num_tokens"), nb::arg("ratio") = 0.16, nb::arg("suffix_len") = 1,
      "How many of num_tokens tokens select_hkvd chooses, the suffix included.");
  {
    using A = attention::FuseKvArgs;
    BindOp<A>(module, "fuse_kv",
              R"(old[imp[r]] = new[r] for keys and values.

imp int32 [M]; k_new and v_new [M, Hkv, D]; k_old and v_old [n, Hkv, D].)",
              Elements(&A::k_new),
              Parameters(In("imp", &A::imp), In("k_new", &A::k_new), In("v_new", &A::v_new),
                         Out("k_old", &A::k_old), Out("v_old", &A::v_old)),
              Parameters());
  }
  {
    using A = attention::GatherRowsArgs;
    BindOp<A>(module, "gather_rows",
              R"(out[r] = rows[index[r]], bit by bit; returns out.

rows [n, ...] of any type and of one to three dimensions, index int32 [M] -> out [M, ...] of the
same type. A row may be taken repeatedly.)",
              RunGatherRows, Parameters(In("rows", &A::in), In("index", &A::index), GivenOut()),
              Parameters());
  }
}

}  // namespace kvblocks::python
