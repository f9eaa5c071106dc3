// Python's KVCache.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/kv_cache_view.h"
#include "python/src/attention/op_call.h"

namespace kvblocks::python {

using attention::KvLayout;
using attention::TensorView;

namespace {

constexpr KvLayout kLayouts[] = {KvLayout::kPagedX,    KvLayout::kNhd,      KvLayout::kHnd,
                                 KvLayout::kMlaLatent, KvLayout::kMlaSplit, KvLayout::kMlaFp8_656,
                                 KvLayout::kMlaFp8_584};

constexpr auto kNameOf = [](auto value) { return attention::Name(value); };

attention::KvRowFormat RowFormatByName(const char* name) {
  std::vector<attention::KvRowFormat> formats;
  for (int i = 0; i < attention::kNumKvRowFormats; ++i) {
    formats.push_back(static_cast<attention::KvRowFormat>(i));
  }
  return EntryNamed(name, formats, kNameOf, "KVCache: row_format");
}

template <auto kGetter>
int64_t OfView(const PyKvCache& cache) {
  return (cache.view.*kGetter)();
}

int RankOf(KvLayout layout, bool is_v) {
  if (layout == KvLayout::kPagedX && !is_v) return 5;
  if (layout == KvLayout::kMlaFp8_584) return 2;
  return attention::IsMla(layout) ? 3 : 4;
}

void CheckRank(const char* name, const TensorView& view, KvLayout layout) {
  const int rank = RankOf(layout, name[0] == 'v');
  if (view.rank == rank) return;
  Raise("InvalidArgumentError",
        absl::StrCat("KVCache: ", name, " is ", view.DebugString(), "; layout ",
                     attention::Name(layout), " has ", rank, " dimensions"));
}

}  // namespace

PyKvCache::PyKvCache(Array the_k, Array the_v, const char* layout_name,
                     std::optional<int64_t> latent_rank, std::optional<int64_t> block_size,
                     const char* row_format, Array the_k_scales, Array the_v_scales)
    : k(nb::borrow(the_k)),
      v(nb::borrow(the_v)),
      k_scales(nb::borrow(the_k_scales)),
      v_scales(nb::borrow(the_v_scales)) {
  const attention::KvRowFormat format = RowFormatByName(row_format);
  const KvLayout layout = EntryNamed(layout_name, kLayouts, kNameOf, "KVCache: layout");
  const bool has_v = !attention::IsMla(layout) || layout == KvLayout::kMlaSplit;
  const char* problem = nullptr;
  if (has_v == v.is_none())
    problem = has_v ? "v is None; this layout has a V of its own"
                    : "v is given; this layout has rows of one tensor";
  const bool is_record = attention::IsMlaRecord(format);
  if ((layout == KvLayout::kMlaLatent && !is_record) != latent_rank.has_value()) {
    problem = latent_rank
                  ? "latent_rank is given; it is for mla_latent only, and not for its records"
                  : "latent_rank is None; mla_latent needs the columns that are V";
  }
  if ((layout == KvLayout::kMlaFp8_584) != block_size.has_value()) {
    problem = block_size
                  ? "block_size is given; other layouts than mla_fp8_584 tell it by their shape"
                  : "block_size is None; mla_fp8_584 does not tell it by its shape";
  }
  const bool has_scales = format != attention::KvRowFormat::kElements && !is_record;
  if (is_record && layout != KvLayout::kMlaLatent) {
    problem = "this row_format is for mla_latent";
  } else if (has_scales && !attention::IsStrided(layout)) {
    problem = "this row_format is for nhd and hnd";
  } else if (k_scales.is_none() == has_scales || v_scales.is_none() == has_scales) {
    problem = has_scales ? "k_scales or v_scales is None; this row_format has scales of its own"
                         : "k_scales or v_scales is given; this row_format has none";
  }
  if (problem != nullptr) {
    Raise("InvalidArgumentError", absl::StrCat("KVCache(layout=\"", layout_name, "\"): ", problem));
  }
  try {
    const ImportedArray keys = Import("KVCache", "k", k, &held[0]);
    CheckRank("k", keys.view, layout);
    is_read_only = keys.is_read_only;
    view = {layout, keys.view, {}, block_size.value_or(0)};
    if (has_v) {
      const ImportedArray values = Import("KVCache", "v", v, &held[1]);
      CheckRank("v", values.view, layout);
      is_read_only = is_read_only || values.is_read_only;
      view.v = values.view;
    } else if (latent_rank) {
      view = Value(attention::MakeMlaLatentView(keys.view, *latent_rank));
    }
    view.format = format;
    if (has_scales) {
      const ImportedArray of_k = Import("KVCache", "k_scales", k_scales, &held[2]);
      const ImportedArray of_v = Import("KVCache", "v_scales", v_scales, &held[3]);
      is_read_only = is_read_only || of_k.is_read_only || of_v.is_read_only;
      view.k_scales = of_k.view;
      view.v_scales = of_v.view;
    }
  } catch (...) {
    for (Held& one : held) Release(&one);
    throw;
  }
}

PyKvCache::~PyKvCache() {
  for (Held& one : held) Release(&one);
}

void BindKvCache(nb::module_& module) {
  nb::class_<PyKvCache>(
      module, "KVCache",
      R"(One layer's paged cache, over the caller's memory: made once per layer, passed to every
call.

With NB blocks of BS tokens, Hkv KV heads of D values (V: Dv), `layout` is one of

  "nhd"          k and v [NB, BS, Hkv, D]
  "hnd"          k and v [NB, Hkv, BS, D]
  "paged_x"      k [NB, Hkv, D/x, BS, x] with x = 16 bytes / element size, v [NB, Hkv, Dv, BS]
  "mla_latent"   k [NB, BS, R_kv + R_pe], of which the first `latent_rank` = R_kv columns are also V
  "mla_split"    k [NB, BS, R_kv] and v [NB, BS, R_pe], separate
  "mla_fp8_656"  k uint8 [NB, BS, 656]: DeepSeek V3.2's rows
  "mla_fp8_584"  k uint8 [NB, bytes of a block], with `block_size` tokens: DeepSeek V4's blocks

Strides of blocks, tokens and heads are free, so kv[:, 0] and kv[:, 1] of one allocation will do.
Elements are float32, float16, bfloat16, or codes with scales: float8_e4m3fn, float8_e5m2, int8;
Tensor(array, dtype) gives uint8 memory such a type. A slot is block * BS + offset in the block.)")
      .def(nb::init<Array, Array, const char*, std::optional<int64_t>, std::optional<int64_t>,
                    const char*, Array, Array>(),
           nb::arg("k"), nb::arg("v") = nb::none(), nb::kw_only(), nb::arg("layout") = "nhd",
           nb::arg("latent_rank") = nb::none(), nb::arg("block_size") = nb::none(),
           nb::arg("row_format") = "elements", nb::arg("k_scales") = nb::none(),
           nb::arg("v_scales") = nb::none(),
           R"(row_format: of nhd and hnd, "per_token_head" (codes of int8 or float8_e4m3fn),
"int4_per_token_head" or "nvfp4" (uint8 [..., D / 2], two codes each), with scales in the cache:
k_scales and v_scales have the first three dimensions of k, float32, or for nvfp4 float8_e4m3fn with
a fourth of D / 16. Of mla_latent, "mla_v41_528", "mla_v41_fp4_288" or "mla_nvfp4_352": k uint8 [NB,
BS, bytes of a record], without latent_rank.)")
      .def_ro("k", &PyKvCache::k)
      .def_ro("v", &PyKvCache::v, "None for rows of one tensor.")
      .def_prop_ro("layout", [](const PyKvCache& c) { return attention::Name(c.view.layout); })
      .def_prop_ro("dtype", [](const PyKvCache& c) { return DTypeName(c.view.k.dtype); })
      .def_prop_ro("device", [](const PyKvCache& c) { return attention::Name(c.view.k.device); })
      .def_prop_ro("num_blocks", OfView<&attention::KvCacheView::num_blocks>)
      .def_prop_ro("block_size", OfView<&attention::KvCacheView::block_size>, "Tokens per block.")
      .def_prop_ro("num_kv_heads", OfView<&attention::KvCacheView::num_kv_heads>)
      .def_prop_ro("key_dim", OfView<&attention::KvCacheView::key_dim>, "Values per row of K.")
      .def_prop_ro("value_dim", OfView<&attention::KvCacheView::value_dim>, "Values per row of V.")
      .def("__repr__", [](const PyKvCache& c) {
        return absl::StrCat("KVCache(", attention::Name(c.view.layout), ", ",
                            DTypeName(c.view.k.dtype), ", ", c.view.num_blocks(), " blocks of ",
                            c.view.block_size(), " on ", attention::Name(c.view.k.device), ")");
      });
}

}  // namespace kvblocks::python
