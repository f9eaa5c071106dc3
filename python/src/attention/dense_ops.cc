// Attention over keys with heads, and the merging of its states.

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kvblocks/attention_args.h"
#include "python/src/attention/attention_rules.h"
#include "python/src/attention/op_bind.h"
#ifdef KVBLOCKS_WITH_CUDA
#include "attention/cuda/paged_decode_ops.h"
#endif

namespace kvblocks::python {

using attention::AttnParams;
using attention::ConstTensorView;

namespace {

// Python's DecodePlan.
struct PyDecodePlan {
  attention::DeviceDecodePlan core;
  AnyObject memory;
  Held held = {};

  explicit PyDecodePlan(Array the_memory) : memory(nb::borrow(the_memory)) {
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

// --- Parameters; `params` finds the AttnParams of the arguments ---

constexpr auto kParams = [](auto& a) -> AttnParams& { return a.params; };
constexpr auto kPrefillParams = [](auto& a) -> AttnParams& { return a.prefill.params; };

float DefaultScale(int64_t key_dim) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(key_dim)));
}

// None: 1 / sqrt of the head size that the arguments have.
template <typename At, typename KeyDim>
auto ScoreScale(At params, KeyDim key_dim) {
  return TakeOptional<std::optional<double>>("scale", [=](auto& args, std::optional<double> given) {
    params(args).scale = given ? static_cast<float>(*given) : DefaultScale(key_dim(args));
  });
}
constexpr auto kCacheKeyDim = [](auto& a) { return a.cache.key_dim(); };

template <typename At>
auto SoftCap(At params) {
  return Number("soft_cap", KVBLOCKS_OF(params, soft_cap), 0.0);
}
template <typename At>
auto WindowLeft(At params) {
  return Number("window_left", KVBLOCKS_OF(params, window_left), int64_t{-1});
}
template <typename At>
auto Slopes(At params) {
  return OptionalIn("alibi_slopes", KVBLOCKS_OF(params, alibi_slopes));
}
template <typename At>
auto Sinks(At params) {
  return OptionalIn("sinks", KVBLOCKS_OF(params, sinks));
}
template <typename At>
auto Causal(At params) {
  return Number("causal", KVBLOCKS_OF(params, causal), true);
}
// Scores and visibility of what attends to keys with heads.
template <typename KeyDim>
auto Scores(KeyDim key_dim) {
  return Parameters(ScoreScale(kParams, key_dim), SoftCap(kParams), WindowLeft(kParams),
                    Number("chunk", KVBLOCKS_AT(params.chunk), int64_t{0}), Slopes(kParams),
                    Sinks(kParams));
}
template <typename At>
auto Scales(At params) {
  return Parameters(OptionalScale("k_scale", KVBLOCKS_OF(params, scales.k)),
                    OptionalScale("v_scale", KVBLOCKS_OF(params, scales.v)),
                    OptionalScale("q_scale", KVBLOCKS_OF(params, scales.q)));
}

template <typename TakeMask>
auto MaskAndBlockSparse(TakeMask take_mask) {
  return Parameters(TakeOptional<Argument<"Array | Mask">>("mask", take_mask),
                    TakeOptional<const attention::BlockSparse*>(
                        "block_sparse", [](auto& args, const attention::BlockSparse* rule) {
                          if (rule != nullptr) args.params.block_sparse = *rule;
                        }));
}
// Of a decode: a row per request.
auto DecodeMask() {
  return MaskAndBlockSparse([](OpCall& call, auto& args, nb::handle mask) {
    FillMask(call, mask, /*rows_are_absolute=*/false, &args.params);
  });
}
// Of a prefill, whose arguments keep the mask until it is known how its rows count.
auto PrefillRules() {
  return std::tuple_cat(
      Parameters(Causal(kParams),
                 Number("window_right", KVBLOCKS_AT(params.window_right), int64_t{-1})),
      MaskAndBlockSparse([](auto& args, nb::handle mask) { args.mask = mask; }),
      Parameters(Take<bool>(nb::arg("mask_rows_are_absolute") = false,
                            [](OpCall& call, auto& args, bool absolute) {
                              FillMask(call, args.mask, absolute, &args.params);
                            }),
                 OptionalIn("query_positions", KVBLOCKS_AT(query_positions))));
}

// A decode, with what is looked at once the others are there.
struct DecodeCall : attention::PagedDecodeArgs {
  std::optional<int64_t> split_tokens, num_splits;
  nb::handle plan;                       // of paged_decode
  PyDecodePlan* plan_to_make = nullptr;  // of plan_decode
};
auto Splits() {
  return Parameters(Field("split_tokens", &DecodeCall::split_tokens),
                    Field("num_splits", &DecodeCall::num_splits));
}
struct PrefillCall : attention::PagedPrefillArgs {
  nb::handle mask;
};
struct VarlenCall : attention::VarlenSelfAttentionArgs {
  nb::handle mask;
};

// out, lse and return_lse of any attention.
auto AttentionOutputs() { return std::tuple_cat(Parameters(GivenOut()), GivenLse()); }

// --- Calls ---

// out [T, H, Dv] and lse [T, H] of any attention; `of` has q, out and lse.
template <typename Args, typename Of>
AnyObject RunAttention(OpCall& call, const Args& args, Of* of, int64_t value_dim, int64_t keys) {
  call.NeedOutIf(attention::IsQuantizedCode(of->q.dtype), "q in codes give an array of floats");
  return call.RunInto(args, of, {Extent(of->q, 0), Extent(of->q, 1), value_dim},
                      2.0 * static_cast<double>(of->q.num_elements()) * static_cast<double>(keys));
}

AnyObject RunPagedDecode(OpCall& call, DecodeCall& args) {
  const nb::handle plan = args.plan;
  args.params.split = SplitFrom(call, args.split_tokens, args.num_splits);
  if (nb::isinstance<PySplitPlanner>(plan)) {
    const auto* planner = nb::inst_ptr<PySplitPlanner>(plan);
    if (!planner->has_plan) call.Refuse("plan is a SplitPlanner without a plan; call plan() first");
    if (args.split_tokens || args.num_splits)
      call.Refuse("plan is given beside split_tokens or num_splits; give them to the planner");
    args.plan = nb::handle();
    args.PagedDecodeArgs::plan = &planner->core.plan();
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
  return RunAttention<attention::PagedDecodeArgs>(call, args, &args, args.cache.value_dim(),
                                                  args.max_seq_len);
}

void RunPlanDecode(OpCall& call, DecodeCall& args) {
  args.params.scale = DefaultScale(args.cache.key_dim());
  args.params.split = SplitFrom(call, args.split_tokens, args.num_splits);
  const attention::ExecContext context = call.Context();
  if (context.device.on_host()) call.Refuse("q is on the host; plans are made on CUDA");
#ifdef KVBLOCKS_WITH_CUDA
  absl::Status status;
  {
    const nb::gil_scoped_release release;
    status = attention::cuda::CudaPlanDecode(context, args, &args.plan_to_make->core);
  }
  if (!status.ok()) call.Refuse(status);
#endif
}

AnyObject RunPagedPrefill(OpCall& call, PrefillCall& args) {
  call.NeedOutIf(args.out_scale > 0, "out_scale give an array of float8");
  return RunAttention<attention::PagedPrefillArgs>(call, args, &args, args.cache.value_dim(),
                                                   args.max_seq_len);
}

AnyObject RunVarlen(OpCall& call, VarlenCall& args) {
  call.NeedOutIf(args.out_scale > 0, "out_scale give an array of float8");
  return RunAttention<attention::VarlenSelfAttentionArgs>(call, args, &args, Extent(args.v, 2),
                                                          Extent(args.k, 0));
}

AnyObject RunCascade(OpCall& call, attention::CascadeArgs& args) {
  return RunAttention(call, args, &args.prefill, args.prefill.cache.value_dim(),
                      args.prefill.max_seq_len);
}

// Queries and what they read, as all that attend to a cache have them; `at` finds the arguments.
template <typename At>
auto PrefillInputs(At at) {
  return Parameters(In("q", KVBLOCKS_OF(at, q)), CacheIn(KVBLOCKS_OF(at, cache)),
                    In("query_start_loc", KVBLOCKS_OF(at, query_start_loc)),
                    In("seq_lens", KVBLOCKS_OF(at, seq_lens)),
                    In("block_table", KVBLOCKS_OF(at, block_table)));
}
template <typename At>
auto PrefillBounds(At at) {
  return Parameters(
      MaxDifference("max_query_len", KVBLOCKS_OF(at, max_query_len),
                    KVBLOCKS_OF(at, query_start_loc)),
      MaxLength("max_seq_len", KVBLOCKS_OF(at, max_seq_len), KVBLOCKS_OF(at, seq_lens)));
}
template <typename A>
auto DecodeInputs() {
  return Parameters(In("q", &A::q), CacheIn(&A::cache), In("block_table", &A::block_table),
                    In("seq_lens", &A::seq_lens));
}

}  // namespace

void BindDenseOps(nb::module_& module) {
  nb::class_<PyDecodePlan>(
      module, "DecodePlan",
      R"(How a decode on CUDA is cut into parts, in device memory of the caller.

plan_decode makes it, on the stream; it serves all layers of the same shapes until lengths change,
on one stream at a time. Without a plan paged_decode makes its own in the same launch: plans save
time in batches above 128 requests.)")
      .def(nb::init<Array>(), nb::arg("memory"),
           "memory: contiguous, on CUDA, from a multiple of 16 bytes on; plan_decode refuses too "
           "little with the size that it needs.")
      .def_ro("memory", &PyDecodePlan::memory);
  {
    using A = DecodeCall;
    BindOp<A, false>(
        module, "plan_decode",
        R"(Makes the plan of a step on CUDA: one launch, for layers that decode these shapes.

The arguments are those of paged_decode, of which only shapes, lengths and the window count; out is
not written.)",
        RunPlanDecode,
        std::tuple_cat(
            Parameters(Take<PyDecodePlan&>(
                nb::arg("plan"), [](A& a, PyDecodePlan& plan) { a.plan_to_make = &plan; })),
            DecodeInputs<A>()),
        std::tuple_cat(Parameters(Number<int64_t>("max_seq_len", &A::max_seq_len),
                                  Out("out", &A::out), WindowLeft(kParams)),
                       Splits()));
    BindOp<A>(module, "paged_decode",
              R"(One new token per request, its key already in the cache.

q [R, H, D]; block_table int32 [R, columns], of which row b counts ceil(seq_lens[b] / block size)
entries; seq_lens int32 [R], the new token included. A request of length 0 gives 0 and -infinity.

max_seq_len: at least every length; on CUDA it must be given, and a captured graph serves lengths up
to it. split_tokens: keys are cut at multiples of it, a multiple of the block size, so that results
do not depend on the rest of the batch. num_splits: keys are cut into at most so many pieces; 1: not
at all. plan: made by a SplitPlanner, or on CUDA by plan_decode. A mask has one row per request. The
other arguments are those of paged_prefill. Returns out [R, H, Dv], or (out, lse [R, H]).)",
              RunPagedDecode, DecodeInputs<A>(),
              std::tuple_cat(Parameters(MaxLength("max_seq_len", &A::max_seq_len, &A::seq_lens)),
                             Scores(kCacheKeyDim), DecodeMask(), Scales(kParams), Splits(),
                             Parameters(TakeOptional<Argument<"DecodePlan | SplitPlanner">>(
                                 "plan", [](A& a, nb::handle plan) { a.plan = plan; })),
                             AttentionOutputs()));
  }
  {
    using A = PrefillCall;
    const auto self = [](auto& a) -> auto& { return a; };
    BindOp<A>(
        module, "paged_prefill",
        R"(Any number of new tokens per request, whose keys are already in the cache.

q [T, H, D], requests one after another; query_start_loc int32 [R + 1], from 0 to T; seq_lens int32
[R], new tokens included; block_table int32 [R, columns]. Row i of request b stands at p = length -
queries + i, or at query_positions int32 [T].

max_query_len, max_seq_len: at least every request's; needed on CUDA, found on the host. scale: of
scores; None is 1 / sqrt(D). soft_cap: cap * tanh(score / cap); 0 is none. causal: keys j <= p only.
window_left: keys before the query that it sees, itself not counted: a window of W tokens is W - 1;
-1 is all. window_right: the same behind it. chunk: keys from chunk * (p // chunk) on; 0 is off.
alibi_slopes float32 [H]: adds slope * (j - p). sinks float32 [H]: one more term of the denominator.
mask: of bytes (not 0 hides) or floats (added to scores), [rows, keys], [R, rows, keys] or [R or 1,
H or 1, rows, keys]; rows are a request's new tokens, or with mask_rows_are_absolute positions. A
Mask has other forms. block_sparse: a BlockSparse. k_scale, v_scale: of caches in codes: float32,
one or [Hkv] or [R, Hkv]; on the host also a number. q_scale: of q in codes, float8_e4m3fn as of
quantize_queries: one or [Hkv], each for the heads of its group. Then give out, of floats.
out_scale: above 0, out is float8 and holds the result / out_scale. out: written and returned; if it
is left out, a new array of q's library and type (numpy, torch). lse: float32 [T, H], natural
logarithm, without sinks; -infinity where nothing is visible. return_lse: return it, too. stream: of
CUDA: a number, or a stream of torch or CuPy; None is the current one of q's library (torch, CuPy),
of other libraries the legacy default stream. workspace: on CUDA; too small raises with the size.
threads: on the host. Returns out [T, H, Dv], or (out, lse).)",
        RunPagedPrefill, PrefillInputs(self),
        std::tuple_cat(PrefillBounds(self), Scores(kCacheKeyDim), PrefillRules(), Scales(kParams),
                       Parameters(Number("out_scale", &A::out_scale, 0.0)), AttentionOutputs()));
  }
  {
    using A = attention::CascadeArgs;
    const auto prefill = KVBLOCKS_AT(prefill);
    BindOp<A>(
        module, "cascade",
        R"(paged_prefill of requests whose first common_prefix_len keys are the same blocks: read
once for all.

common_prefix_len: tokens, a multiple of the block size, before every query; block_table's row 0
names the blocks.)",
        RunCascade,
        std::tuple_cat(PrefillInputs(prefill),
                       Parameters(Number<int64_t>("common_prefix_len", &A::common_prefix_len))),
        std::tuple_cat(
            PrefillBounds(prefill),
            Parameters(ScoreScale(kPrefillParams, [](A& a) { return a.prefill.cache.key_dim(); }),
                       SoftCap(kPrefillParams), Slopes(kPrefillParams), Sinks(kPrefillParams),
                       Causal(kPrefillParams)),
            Scales(kPrefillParams), AttentionOutputs()));
  }
  {
    using A = VarlenCall;
    BindOp<A>(
        module, "varlen_self_attention",
        R"(Attention without a cache, each request to itself: encoders, and prompts from their first
token.

q [T, H, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv]; query_start_loc int32 [R + 1]; kv_start_loc the same
of keys, or kv_seq_lens int32 [R], or neither: as queries. k and v may be float8_e4m3fn, both, with
k_scale and v_scale. The other arguments are those of paged_prefill.)",
        RunVarlen,
        Parameters(In("q", &A::q), In("k", &A::k), In("v", &A::v),
                   In("query_start_loc", &A::query_start_loc)),
        std::tuple_cat(Parameters(OptionalIn("kv_start_loc", &A::kv_start_loc),
                                  OptionalIn("kv_seq_lens", &A::kv_seq_lens)),
                       Scores([](A& a) { return std::max<int64_t>(1, Extent(a.q, 2)); }),
                       PrefillRules(), Scales(kParams),
                       Parameters(Number("out_scale", &A::out_scale, 0.0)), AttentionOutputs()));
  }
  {
    using A = attention::PagedDecodePartialArgs;
    BindOp<A>(
        module, "paged_decode_partial",
        R"(paged_decode cut into partitions of partition_tokens keys (a multiple of the block size),
for reduce_splits.

With P = ceil(max_seq_len / partition_tokens), all float32: max_logits and exp_sums [R, H, P],
tmp_out [R, H, P, Dv], divided by its exp_sum. A partition with nothing visible has -infinity, 0,
0.)",
        [](OpCall& call, const A& a) {
          call.Run(a, 2.0 * static_cast<double>(a.q.num_elements()) *
                          static_cast<double>(a.max_seq_len));
        },
        std::tuple_cat(DecodeInputs<A>(),
                       Parameters(Out("max_logits", &A::max_logits), Out("exp_sums", &A::exp_sums),
                                  Out("tmp_out", &A::tmp_out))),
        std::tuple_cat(Parameters(MaxLength("max_seq_len", &A::max_seq_len, &A::seq_lens),
                                  Number("partition_tokens", &A::partition_tokens, int64_t{512}),
                                  ScoreScale(kParams, kCacheKeyDim), SoftCap(kParams),
                                  WindowLeft(kParams), Slopes(kParams)),
                       DecodeMask(), Scales(kParams)));
  }
}

namespace {

AnyObject RunMergeStates(OpCall& call, attention::MergeStatesArgs& args) {
  call.NeedOutIf(args.out_scale > 0, "out_scale give an array of float8");
  return call.RunInto(args, &args,
                      {Extent(args.outs, 1), Extent(args.outs, 2), Extent(args.outs, 3)},
                      static_cast<double>(args.outs.num_elements()));
}

}  // namespace

void BindStateOps(nb::module_& module) {
  {
    using A = attention::MergeStatesArgs;
    BindOp<A>(module, "merge_states",
              R"(One state of attention from n, each over other keys.

outs [n, T, H, Dv] and lses float32 [n, T, H]. Rows at or past tokens_with_context (if it is not
negative) are the last state's. sinks float32 [H] are applied after the merge. out may be one of
outs. Returns out [T, H, Dv], or (out, lse [T, H]).)",
              RunMergeStates, Parameters(In("outs", &A::outs), In("lses", &A::lses)),
              std::tuple_cat(
                  Parameters(Number("tokens_with_context", &A::tokens_with_context, int64_t{-1}),
                             OptionalIn("sinks", &A::sinks),
                             Number("out_scale", &A::out_scale, 0.0), GivenOut()),
                  GivenLse()));
  }
  {
    using A = attention::ReduceSplitsArgs;
    BindOp<A>(
        module, "reduce_splits",
        R"(The partitions of paged_decode_partial as out [R, H, Dv] and lse float32 [R, H]; sinks
float32 [H] count here.)",
        Elements(&A::tmp_out),
        Parameters(In("max_logits", &A::max_logits), In("exp_sums", &A::exp_sums),
                   In("tmp_out", &A::tmp_out), Out("out", &A::out)),
        Parameters(OptionalIn("sinks", &A::sinks), OptionalOut("lse", &A::lse)));
  }
}

}  // namespace kvblocks::python
