// Attention over keys with heads.

#include <nanobind/stl/optional.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention/ops/args.h"
#include "kvblocks/python/src/attention/attention_rules.h"
#include "kvblocks/python/src/attention/op_call.h"
#include "kvblocks/python/src/attention/signatures.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "kvblocks/attention/cuda/paged_decode_ops.h"
#endif

namespace kvblocks::python {

using attention::AttnParams;
using attention::ConstTensorView;

namespace {

// As Python gives them.
struct Scores {
  std::optional<double> scale;
  double soft_cap;
  int64_t window_left, chunk;
  nb::handle alibi_slopes, sinks;
};
struct PrefillRules {
  bool causal;
  int64_t window_right;
  nb::handle mask;
  const attention::BlockSparse* block_sparse;
  bool mask_rows_are_absolute;
};
struct Scales {
  nb::handle k, v, q;
};
struct Outputs {
  nb::handle out, lse;
  bool return_lse;
};

void Fill(OpCall& call, const Scores& scores, int64_t key_dim, AttnParams* params) {
  params->scale = static_cast<float>(scores.scale ? *scores.scale
                                                  : 1 / std::sqrt(static_cast<double>(key_dim)));
  params->soft_cap = static_cast<float>(scores.soft_cap);
  params->window_left = scores.window_left;
  params->chunk = scores.chunk;
  params->alibi_slopes = call.In("alibi_slopes", scores.alibi_slopes);
  params->sinks = call.In("sinks", scores.sinks);
}

void Fill(OpCall& call, const PrefillRules& rules, AttnParams* params) {
  params->causal = rules.causal;
  params->window_right = rules.window_right;
  FillMask(call, rules.mask, rules.mask_rows_are_absolute, params);
  if (rules.block_sparse != nullptr) params->block_sparse = *rules.block_sparse;
}

void Fill(OpCall& call, const Scales& scales, AttnParams* params) {
  params->scales = {call.Scale("k_scale", scales.k), call.Scale("v_scale", scales.v),
                    call.Scale("q_scale", scales.q)};
}

template <typename Args>
nb::object RunAttention(OpCall& call, const Args& args, double work, nb::object out,
                        nb::object lse) {
  call.Run(args, work);
  return lse.is_valid() ? nb::object(nb::make_tuple(out, lse)) : out;
}

// out [T, H, Dv] and lse [T, H] of any attention.
template <typename Args>
std::pair<nb::object, nb::object> TakeOutputs(OpCall& call, const Outputs& outputs, nb::handle q,
                                              int64_t value_dim, Args* args) {
  const int64_t tokens = Extent(args->q, 0), heads = Extent(args->q, 1);
  if (outputs.out.is_none() && attention::IsQuantizedCode(args->q.dtype))
    call.Refuse("out is None; with q in codes give an array of floats");
  std::pair<nb::object, nb::object> result;
  result.first = call.Out("out", outputs.out, q, {tokens, heads, value_dim}, &args->out);
  if (outputs.return_lse) {
    result.second = call.Out("lse", outputs.lse, q, {tokens, heads}, &args->lse, /*float32=*/true);
  } else {
    args->lse = call.Out("lse", outputs.lse);
  }
  return result;
}

double WorkOf(const ConstTensorView& q, int64_t keys) {
  return 2.0 * static_cast<double>(q.num_elements()) * static_cast<double>(keys);
}

// Python's DecodePlan.
struct PyDecodePlan {
  attention::DeviceDecodePlan core;
  nb::object memory;
  Held held = {};

  explicit PyDecodePlan(nb::handle the_memory) : memory(nb::borrow(the_memory)) {
    const ImportedArray array = Import("DecodePlan", "memory", memory, &held);
    core.memory = array.view;
    const char* problem = array.view.device.on_host() ? "is on the host; plans are made on CUDA"
                          : array.is_read_only        ? "is read-only; the plan is written to it"
                          : array.view.contiguous()   ? nullptr
                                                      : "is not contiguous";
    if (problem == nullptr) return;
    Release(&held);
    Raise("InvalidArgumentError", absl::StrCat("DecodePlan: memory ", problem));
  }
  PyDecodePlan(const PyDecodePlan&) = delete;
  PyDecodePlan& operator=(const PyDecodePlan&) = delete;
  ~PyDecodePlan() { Release(&held); }
};

attention::PagedDecodeArgs DecodeArgs(OpCall& call, nb::handle q, const PyKvCache& cache,
                                      nb::handle block_table, nb::handle seq_lens,
                                      std::optional<int64_t> max_seq_len, const Scores& scores,
                                      nb::handle mask, const attention::BlockSparse* block_sparse,
                                      std::optional<int64_t> split_tokens,
                                      std::optional<int64_t> num_splits) {
  attention::PagedDecodeArgs args;
  args.q = call.In("q", q);
  args.cache = call.In(cache);
  args.block_table = call.In("block_table", block_table);
  args.seq_lens = call.In("seq_lens", seq_lens);
  args.max_seq_len = call.MaxLength("max_seq_len", max_seq_len, args.seq_lens);
  Fill(call, scores, args.cache.key_dim(), &args.params);
  Fill(call, PrefillRules{true, -1, mask, block_sparse, false}, &args.params);
  args.params.split = SplitFrom(call, split_tokens, num_splits);
  return args;
}

nb::object PagedDecode(nb::handle q, const PyKvCache& cache, nb::handle block_table,
                       nb::handle seq_lens, std::optional<int64_t> max_seq_len,
                       std::optional<double> scale, double soft_cap, int64_t window_left,
                       int64_t chunk, nb::handle alibi_slopes, nb::handle sinks, nb::handle mask,
                       const attention::BlockSparse* block_sparse, nb::handle k_scale,
                       nb::handle v_scale, nb::handle q_scale, std::optional<int64_t> split_tokens,
                       std::optional<int64_t> num_splits, nb::handle plan, nb::handle out,
                       nb::handle lse, bool return_lse, nb::handle stream, PyWorkspace* workspace,
                       PyThreadPool* threads) {
  OpCall call("paged_decode", {stream, workspace, threads});
  attention::PagedDecodeArgs args =
      DecodeArgs(call, q, cache, block_table, seq_lens, max_seq_len,
                 {scale, soft_cap, window_left, chunk, alibi_slopes, sinks}, mask, block_sparse,
                 split_tokens, num_splits);
  Fill(call, Scales{k_scale, v_scale, q_scale}, &args.params);
  if (nb::isinstance<PySplitPlanner>(plan)) {
    const auto* planner = nb::inst_ptr<PySplitPlanner>(plan);
    if (!planner->has_plan) call.Refuse("plan is a SplitPlanner without a plan; call plan() first");
    if (split_tokens || num_splits)
      call.Refuse("plan is given beside split_tokens or num_splits; give them to the planner");
    args.plan = &planner->core.plan();
  } else if (nb::isinstance<PyDecodePlan>(plan)) {
    if (args.q.device.on_host())
      call.Refuse("plan is a DecodePlan; on host memory take a SplitPlanner");
    args.device_plan = &nb::inst_ptr<PyDecodePlan>(plan)->core;
  } else if (!plan.is_none()) {
    PyErr_Format(PyExc_TypeError,
                 "paged_decode: plan must be a SplitPlanner or a DecodePlan, got %S",
                 reinterpret_cast<PyObject*>(Py_TYPE(plan.ptr())));
    nb::raise_python_error();
  }
  auto [result, result_lse] =
      TakeOutputs(call, {out, lse, return_lse}, q, args.cache.value_dim(), &args);
  return RunAttention(call, args, WorkOf(args.q, args.max_seq_len), result, result_lse);
}

void PlanDecode(PyDecodePlan& plan, nb::handle q, const PyKvCache& cache, nb::handle block_table,
                nb::handle seq_lens, int64_t max_seq_len, nb::handle out, int64_t window_left,
                std::optional<int64_t> split_tokens, std::optional<int64_t> num_splits,
                nb::handle stream, PyWorkspace* workspace) {
  OpCall call("plan_decode", {stream, workspace, nullptr});
  attention::PagedDecodeArgs args =
      DecodeArgs(call, q, cache, block_table, seq_lens, max_seq_len,
                 {std::nullopt, 0, window_left, 0, nb::none(), nb::none()}, nb::none(), nullptr,
                 split_tokens, num_splits);
  args.out = call.Out("out", out);
  const attention::ExecContext context = call.Context();
  if (context.device.on_host()) call.Refuse("q is on the host; plans are made on CUDA");
#ifdef KVBLOCKS_WITH_CUDA
  absl::Status status;
  {
    const nb::gil_scoped_release release;
    status = attention::cuda::CudaPlanDecode(context, args, &plan.core);
  }
  if (!status.ok()) call.Refuse(status);
#else
  (void)plan;
#endif
}

attention::PagedPrefillArgs PrefillArgs(OpCall& call, nb::handle q, const PyKvCache& cache,
                                        nb::handle query_start_loc, nb::handle seq_lens,
                                        nb::handle block_table,
                                        std::optional<int64_t> max_query_len,
                                        std::optional<int64_t> max_seq_len, const Scores& scores,
                                        const PrefillRules& rules, nb::handle query_positions,
                                        const Scales& scales, double out_scale) {
  attention::PagedPrefillArgs args;
  args.q = call.In("q", q);
  args.cache = call.In(cache);
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.seq_lens = call.In("seq_lens", seq_lens);
  args.block_table = call.In("block_table", block_table);
  args.max_query_len = call.MaxDifference("max_query_len", max_query_len, args.query_start_loc);
  args.max_seq_len = call.MaxLength("max_seq_len", max_seq_len, args.seq_lens);
  Fill(call, scores, args.cache.key_dim(), &args.params);
  Fill(call, rules, &args.params);
  args.query_positions = call.In("query_positions", query_positions);
  Fill(call, scales, &args.params);
  args.out_scale = static_cast<float>(out_scale);
  return args;
}

nb::object PagedPrefill(nb::handle q, const PyKvCache& cache, nb::handle query_start_loc,
                        nb::handle seq_lens, nb::handle block_table,
                        std::optional<int64_t> max_query_len, std::optional<int64_t> max_seq_len,
                        std::optional<double> scale, double soft_cap, int64_t window_left,
                        int64_t chunk, nb::handle alibi_slopes, nb::handle sinks, bool causal,
                        int64_t window_right, nb::handle mask,
                        const attention::BlockSparse* block_sparse, bool mask_rows_are_absolute,
                        nb::handle query_positions, nb::handle k_scale, nb::handle v_scale,
                        nb::handle q_scale, double out_scale, nb::handle out, nb::handle lse,
                        bool return_lse, nb::handle stream, PyWorkspace* workspace,
                        PyThreadPool* threads) {
  OpCall call("paged_prefill", {stream, workspace, threads});
  attention::PagedPrefillArgs args =
      PrefillArgs(call, q, cache, query_start_loc, seq_lens, block_table, max_query_len,
                  max_seq_len, {scale, soft_cap, window_left, chunk, alibi_slopes, sinks},
                  {causal, window_right, mask, block_sparse, mask_rows_are_absolute},
                  query_positions, {k_scale, v_scale, q_scale}, out_scale);
  if (out_scale > 0 && out.is_none())
    call.Refuse("out is None; with out_scale give an array of float8");
  auto [result, result_lse] =
      TakeOutputs(call, {out, lse, return_lse}, q, args.cache.value_dim(), &args);
  return RunAttention(call, args, WorkOf(args.q, args.max_seq_len), result, result_lse);
}

nb::object Cascade(nb::handle q, const PyKvCache& cache, nb::handle query_start_loc,
                   nb::handle seq_lens, nb::handle block_table, int64_t common_prefix_len,
                   std::optional<int64_t> max_query_len, std::optional<int64_t> max_seq_len,
                   std::optional<double> scale, double soft_cap, nb::handle alibi_slopes,
                   nb::handle sinks, bool causal, nb::handle k_scale, nb::handle v_scale,
                   nb::handle q_scale, nb::handle out, nb::handle lse, bool return_lse,
                   nb::handle stream, PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("cascade", {stream, workspace, threads});
  attention::CascadeArgs args;
  args.prefill = PrefillArgs(call, q, cache, query_start_loc, seq_lens, block_table, max_query_len,
                             max_seq_len, {scale, soft_cap, -1, 0, alibi_slopes, sinks},
                             {causal, -1, nb::none(), nullptr, false}, nb::none(),
                             {k_scale, v_scale, q_scale}, 0);
  args.common_prefix_len = common_prefix_len;
  auto [result, result_lse] =
      TakeOutputs(call, {out, lse, return_lse}, q, args.prefill.cache.value_dim(), &args.prefill);
  return RunAttention(call, args, WorkOf(args.prefill.q, args.prefill.max_seq_len), result,
                      result_lse);
}

nb::object VarlenSelfAttention(nb::handle q, nb::handle k, nb::handle v, nb::handle query_start_loc,
                               nb::handle kv_start_loc, nb::handle kv_seq_lens,
                               std::optional<double> scale, double soft_cap, int64_t window_left,
                               int64_t chunk, nb::handle alibi_slopes, nb::handle sinks,
                               bool causal, int64_t window_right, nb::handle mask,
                               const attention::BlockSparse* block_sparse,
                               bool mask_rows_are_absolute, nb::handle query_positions,
                               nb::handle k_scale, nb::handle v_scale, nb::handle q_scale,
                               double out_scale, nb::handle out, nb::handle lse, bool return_lse,
                               nb::handle stream, PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("varlen_self_attention", {stream, workspace, threads});
  attention::VarlenSelfAttentionArgs args;
  args.q = call.In("q", q);
  args.k = call.In("k", k);
  args.v = call.In("v", v);
  args.query_start_loc = call.In("query_start_loc", query_start_loc);
  args.kv_start_loc = call.In("kv_start_loc", kv_start_loc);
  args.kv_seq_lens = call.In("kv_seq_lens", kv_seq_lens);
  args.query_positions = call.In("query_positions", query_positions);
  Fill(call, {scale, soft_cap, window_left, chunk, alibi_slopes, sinks},
       std::max<int64_t>(1, Extent(args.q, 2)), &args.params);
  Fill(call, PrefillRules{causal, window_right, mask, block_sparse, mask_rows_are_absolute},
       &args.params);
  Fill(call, Scales{k_scale, v_scale, q_scale}, &args.params);
  args.out_scale = static_cast<float>(out_scale);
  if (out_scale > 0 && out.is_none())
    call.Refuse("out is None; with out_scale give an array of float8");
  auto [result, result_lse] =
      TakeOutputs(call, {out, lse, return_lse}, q, Extent(args.v, 2), &args);
  return RunAttention(call, args, WorkOf(args.q, Extent(args.k, 0)), result, result_lse);
}

void PagedDecodePartial(nb::handle q, const PyKvCache& cache, nb::handle block_table,
                        nb::handle seq_lens, nb::handle max_logits, nb::handle exp_sums,
                        nb::handle tmp_out, std::optional<int64_t> max_seq_len,
                        int64_t partition_tokens, std::optional<double> scale, double soft_cap,
                        int64_t window_left, nb::handle alibi_slopes, nb::handle mask,
                        const attention::BlockSparse* block_sparse, nb::handle k_scale,
                        nb::handle v_scale, nb::handle q_scale, nb::handle stream,
                        PyWorkspace* workspace, PyThreadPool* threads) {
  OpCall call("paged_decode_partial", {stream, workspace, threads});
  const attention::PagedDecodeArgs decode =
      DecodeArgs(call, q, cache, block_table, seq_lens, max_seq_len,
                 {scale, soft_cap, window_left, 0, alibi_slopes, nb::none()}, mask, block_sparse,
                 std::nullopt, std::nullopt);
  attention::PagedDecodePartialArgs args;
  args.q = decode.q;
  args.cache = decode.cache;
  args.block_table = decode.block_table;
  args.seq_lens = decode.seq_lens;
  args.max_seq_len = decode.max_seq_len;
  args.params = decode.params;
  Fill(call, Scales{k_scale, v_scale, q_scale}, &args.params);
  args.partition_tokens = partition_tokens;
  args.max_logits = call.Out("max_logits", max_logits);
  args.exp_sums = call.Out("exp_sums", exp_sums);
  args.tmp_out = call.Out("tmp_out", tmp_out);
  call.Run(args, WorkOf(args.q, args.max_seq_len));
}

}  // namespace

void BindDenseOps(nb::module_& module) {
  nb::class_<PyDecodePlan>(
      module, "DecodePlan",
      R"(How a decode on CUDA is cut into parts, in device memory of the caller.

plan_decode makes it, on the stream; it serves all layers of the same shapes until lengths change, on one stream at
a time. Without a plan paged_decode makes its own in the same launch: plans save time in batches above 128 requests.)")
      .def(nb::init<nb::handle>(), nb::arg("memory"),
           nb::sig("def __init__(self, memory: Array) -> None"),
           "memory: contiguous, on CUDA, from a multiple of 16 bytes on; plan_decode refuses too "
           "little "
           "with the size that it needs.")
      .def_prop_ro(
          "memory", [](const PyDecodePlan& p) { return p.memory; },
          nb::sig("def memory(self) -> Any"));
  module.def(
      "plan_decode", &PlanDecode, nb::arg("plan"), nb::arg("q"), nb::arg("cache"),
      nb::arg("block_table"), nb::arg("seq_lens"), nb::kw_only(), nb::arg("max_seq_len"),
      nb::arg("out"), nb::arg("window_left") = -1, KVBLOCKS_SPLIT_ARGS,
      nb::arg("stream") = nb::none(), nb::arg("workspace") = nb::none(),
      nb::sig("def plan_decode(plan: DecodePlan, q: Array, cache: KVCache, block_table: Array, "
              "seq_lens: Array, *, max_seq_len: int, out: Array, window_left: int = "
              "-1, " KVBLOCKS_SPLIT_SIG
              "stream: Stream = None, workspace: Workspace | None = None) -> None"),
      R"(Makes the plan of a step on CUDA: one launch, for layers that decode these shapes.

The arguments are those of paged_decode, of which only shapes, lengths and the window count; out is not written.)");
  module.def(
      "paged_decode", &PagedDecode, nb::arg("q"), nb::arg("cache"), nb::arg("block_table"),
      nb::arg("seq_lens"), nb::kw_only(), nb::arg("max_seq_len") = nb::none(), KVBLOCKS_SCORE_ARGS,
      KVBLOCKS_MASK_ARGS, KVBLOCKS_SCALE_ARGS, KVBLOCKS_SPLIT_ARGS, nb::arg("plan") = nb::none(),
      KVBLOCKS_OUT_ARGS, KVBLOCKS_CALL_ARGS,
      nb::sig(
          "def paged_decode(q: Array, cache: KVCache, block_table: Array, seq_lens: "
          "Array, *, max_seq_len: int | "
          "None = None, " KVBLOCKS_SCORE_SIG KVBLOCKS_MASK_SIG KVBLOCKS_SCALE_SIG KVBLOCKS_SPLIT_SIG
          "plan: DecodePlan | SplitPlanner | None = None, " KVBLOCKS_OUT_SIG KVBLOCKS_CALL_SIG
          ") -> Any"),
      R"(One new token per request, its key already in the cache.

q [R, H, D]; block_table int32 [R, columns], of which row b counts ceil(seq_lens[b] / block size) entries;
seq_lens int32 [R], the new token included. A request of length 0 gives 0 and -infinity.

max_seq_len: at least every length; on CUDA it must be given, and a captured graph serves lengths up to it.
split_tokens: keys are cut at multiples of it, a multiple of the block size, so that results do not depend on
the rest of the batch. num_splits: keys are cut into at most so many pieces; 1: not at all. plan: made by a
SplitPlanner, or on CUDA by plan_decode. A mask has one row per request.
The other arguments are those of paged_prefill. Returns out [R, H, Dv], or (out, lse [R, H]).)");
  module.def("paged_prefill", &PagedPrefill, nb::arg("q"), nb::arg("cache"),
             nb::arg("query_start_loc"), nb::arg("seq_lens"), nb::arg("block_table"), nb::kw_only(),
             nb::arg("max_query_len") = nb::none(), nb::arg("max_seq_len") = nb::none(),
             KVBLOCKS_SCORE_ARGS, KVBLOCKS_PREFILL_ARGS, KVBLOCKS_SCALE_ARGS,
             nb::arg("out_scale") = 0.0, KVBLOCKS_OUT_ARGS, KVBLOCKS_CALL_ARGS,
             nb::sig("def paged_prefill(q: Array, cache: KVCache, query_start_loc: Array, "
                     "seq_lens: Array, block_table: "
                     "Array, *, max_query_len: int | None = None, max_seq_len: int | None = "
                     "None, " KVBLOCKS_SCORE_SIG KVBLOCKS_PREFILL_SIG KVBLOCKS_SCALE_SIG
                     "out_scale: float = 0.0, " KVBLOCKS_OUT_SIG KVBLOCKS_CALL_SIG ") -> Any"),
             R"(Any number of new tokens per request, whose keys are already in the cache.

q [T, H, D], requests one after another; query_start_loc int32 [R + 1], from 0 to T; seq_lens int32 [R], new
tokens included; block_table int32 [R, columns]. Row i of request b stands at p = length - queries + i, or at
query_positions int32 [T].

max_query_len, max_seq_len: at least every request's; needed on CUDA, found on the host.
scale: of scores; None is 1 / sqrt(D). soft_cap: cap * tanh(score / cap); 0 is none.
causal: keys j <= p only. window_left: keys before the query that it sees, itself not counted: a window of W
tokens is W - 1; -1 is all. window_right: the same behind it. chunk: keys from chunk * (p // chunk) on; 0 is off.
alibi_slopes float32 [H]: adds slope * (j - p). sinks float32 [H]: one more term of the denominator.
mask: of bytes (not 0 hides) or floats (added to scores), [rows, keys], [R, rows, keys] or [R or 1, H or 1,
rows, keys]; rows are a request's new tokens, or with mask_rows_are_absolute positions. A Mask has other forms.
block_sparse: a BlockSparse.
k_scale, v_scale: of caches in codes: float32, one or [Hkv] or [R, Hkv]; on the host also a number.
q_scale: of q in codes, float8_e4m3fn as of quantize_queries: one or [Hkv], each for the heads of its group. Then
give out, of floats.
out_scale: above 0, out is float8 and holds the result / out_scale.
out: written and returned; if it is left out, a new array of q's library and type (numpy, torch).
lse: float32 [T, H], natural logarithm, without sinks; -infinity where nothing is visible. return_lse: return it, too.
stream: of CUDA: a number, or a stream of torch or CuPy; None is the current one of q's library (torch, CuPy), of
other libraries the legacy default stream. workspace: on CUDA; too small raises with the size. threads: on the host.
Returns out [T, H, Dv], or (out, lse).)");
  module.def(
      "cascade", &Cascade, nb::arg("q"), nb::arg("cache"), nb::arg("query_start_loc"),
      nb::arg("seq_lens"), nb::arg("block_table"), nb::arg("common_prefix_len"), nb::kw_only(),
      nb::arg("max_query_len") = nb::none(), nb::arg("max_seq_len") = nb::none(),
      nb::arg("scale") = nb::none(), nb::arg("soft_cap") = 0.0,
      nb::arg("alibi_slopes") = nb::none(), nb::arg("sinks") = nb::none(), nb::arg("causal") = true,
      KVBLOCKS_SCALE_ARGS, KVBLOCKS_OUT_ARGS, KVBLOCKS_CALL_ARGS,
      nb::sig(
          "def cascade(q: Array, cache: KVCache, query_start_loc: Array, seq_lens: Array, "
          "block_table: Array, "
          "common_prefix_len: int, *, max_query_len: int | None = None, max_seq_len: int | None = "
          "None, scale: "
          "float | None = None, soft_cap: float = 0.0, alibi_slopes: Array | None = None, sinks: "
          "Array | None = "
          "None, causal: bool = True, " KVBLOCKS_SCALE_SIG KVBLOCKS_OUT_SIG KVBLOCKS_CALL_SIG
          ") -> Any"),
      R"(paged_prefill of requests whose first common_prefix_len keys are the same blocks: read once for all.

common_prefix_len: tokens, a multiple of the block size, before every query; block_table's row 0 names the blocks.)");
  module.def(
      "varlen_self_attention", &VarlenSelfAttention, nb::arg("q"), nb::arg("k"), nb::arg("v"),
      nb::arg("query_start_loc"), nb::kw_only(), nb::arg("kv_start_loc") = nb::none(),
      nb::arg("kv_seq_lens") = nb::none(), KVBLOCKS_SCORE_ARGS, KVBLOCKS_PREFILL_ARGS,
      KVBLOCKS_SCALE_ARGS, nb::arg("out_scale") = 0.0, KVBLOCKS_OUT_ARGS, KVBLOCKS_CALL_ARGS,
      nb::sig("def varlen_self_attention(q: Array, k: Array, v: Array, query_start_loc: Array, *, "
              "kv_start_loc: Array "
              "| None = None, kv_seq_lens: Array | None = None, " KVBLOCKS_SCORE_SIG
                  KVBLOCKS_PREFILL_SIG KVBLOCKS_SCALE_SIG
              "out_scale: float = 0.0, " KVBLOCKS_OUT_SIG KVBLOCKS_CALL_SIG ") -> Any"),
      R"(Attention without a cache, each request to itself: encoders, and prompts from their first token.

q [T, H, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]; query_start_loc int32 [R + 1]; kv_start_loc the same of keys, or
kv_seq_lens int32 [R], or neither: as queries. k and v may be float8_e4m3fn, both, with k_scale and v_scale. The
other arguments are those of paged_prefill.)");
  module.def(
      "paged_decode_partial", &PagedDecodePartial, nb::arg("q"), nb::arg("cache"),
      nb::arg("block_table"), nb::arg("seq_lens"), nb::arg("max_logits"), nb::arg("exp_sums"),
      nb::arg("tmp_out"), nb::kw_only(), nb::arg("max_seq_len") = nb::none(),
      nb::arg("partition_tokens") = 512, nb::arg("scale") = nb::none(), nb::arg("soft_cap") = 0.0,
      nb::arg("window_left") = -1, nb::arg("alibi_slopes") = nb::none(), KVBLOCKS_MASK_ARGS,
      KVBLOCKS_SCALE_ARGS, KVBLOCKS_CALL_ARGS,
      nb::sig("def paged_decode_partial(q: Array, cache: KVCache, block_table: Array, seq_lens: "
              "Array, max_logits: "
              "Array, exp_sums: Array, tmp_out: Array, *, max_seq_len: int | None = None, "
              "partition_tokens: int = "
              "512, scale: float | None = None, soft_cap: float = 0.0, window_left: int = -1, "
              "alibi_slopes: Array | "
              "None = None, " KVBLOCKS_MASK_SIG KVBLOCKS_SCALE_SIG KVBLOCKS_CALL_SIG ") -> None"),
      R"(paged_decode cut into partitions of partition_tokens keys (a multiple of the block size), for reduce_splits.

With P = ceil(max_seq_len / partition_tokens), all float32: max_logits and exp_sums [R, H, P], tmp_out [R, H, P, Dv],
divided by its exp_sum. A partition with nothing visible has -infinity, 0, 0.)");
}

}  // namespace kvblocks::python
