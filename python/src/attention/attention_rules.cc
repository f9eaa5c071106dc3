#include "python/src/attention/attention_rules.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvblocks::python {

using attention::MaskEncoding;
using attention::MaskForm;

namespace {

struct FormName {
  const char* name;
  MaskForm form;
};
constexpr FormName kForms[] = {{"shared", MaskForm::kShared},
                               {"per_request", MaskForm::kPerRequest},
                               {"per_head", MaskForm::kPerHead},
                               {"ragged_bits", MaskForm::kRaggedBits},
                               {"template", MaskForm::kTemplate}};
struct EncodingName {
  const char* name;
  MaskEncoding encoding;
};
constexpr EncodingName kEncodings[] = {{"additive", MaskEncoding::kAdditive},
                                       {"additive_finite", MaskEncoding::kAdditiveFinite},
                                       {"marker", MaskEncoding::kMarker}};

void InitMask(PyMask* self, Array array, std::optional<const char*> form,
              std::optional<const char*> encoding, int32_t sparse_mode,
              std::optional<int64_t> pre_tokens, std::optional<int64_t> next_tokens,
              bool rows_are_absolute) {
  PyMask mask;
  mask.array = nb::borrow(array);
  if (form) {
    mask.rules.form = EntryNamed(*form, kForms, &FormName::name, "Mask: form").form;
    mask.has_form = true;
  }
  if (encoding) {
    mask.rules.encoding =
        EntryNamed(*encoding, kEncodings, &EncodingName::name, "Mask: encoding").encoding;
    mask.has_encoding = true;
  }
  mask.rules.sparse_mode = sparse_mode;
  if (pre_tokens) mask.rules.pre_tokens = *pre_tokens;
  if (next_tokens) mask.rules.next_tokens = *next_tokens;
  mask.rules.rows_are_absolute = rows_are_absolute;
  if (array.is_none() && (sparse_mode != 0 || form || encoding || rows_are_absolute)) {
    Raise("InvalidArgumentError",
          "Mask: array is None; only sparse_mode=0 alone, which shows everything, has none");
  }
  new (self) PyMask(std::move(mask));
}

void InitBlockSparse(attention::BlockSparse* self, int32_t local_blocks, int32_t vert_stride,
                     int64_t block_size, int32_t head_sliding_step, int32_t tp_rank) {
  if (vert_stride < 2) {
    Raise("InvalidArgumentError", absl::StrCat("BlockSparse: vert_stride is ", vert_stride,
                                               "; at least 2, or leave block_sparse out"));
  }
  new (self)
      attention::BlockSparse{local_blocks, vert_stride, block_size, head_sliding_step, tp_rank};
}

// Lengths in host memory as they are there.
absl::Span<const int32_t> LengthsOf(const char* name, const ImportedArray& array) {
  const attention::TensorView& view = array.view;
  if (view.rank != 1 || view.dtype != attention::DType::kI32 || !view.device.on_host() ||
      !view.contiguous()) {
    Raise("InvalidArgumentError",
          absl::StrCat("SplitPlanner.plan: ", name, " is ", view.DebugString(),
                       "; contiguous int32 [R] in host memory"));
  }
  return {reinterpret_cast<const int32_t*>(view.data), static_cast<size_t>(view.extent[0])};
}

void Plan(PySplitPlanner& self, Array seq_lens, int64_t block_size, int64_t window,
          std::optional<int64_t> split_tokens, std::optional<int64_t> num_splits, int64_t tile,
          int64_t overhead, int32_t num_parts) {
  const OpCall call("SplitPlanner.plan", {nb::none(), nullptr, nullptr});
  Held held = {};
  const ImportedArray lengths = Import("SplitPlanner.plan", "seq_lens", seq_lens, &held);
  absl::Status status;
  try {
    attention::SplitPlanInput input;
    input.type.block_size = block_size;
    input.type.window = window;
    input.seq_lens = LengthsOf("seq_lens", lengths);
    input.policy = SplitFrom(call, split_tokens, num_splits);
    input.tile = tile;
    input.overhead = overhead;
    input.num_parts = num_parts;
    status = self.core.Plan(input);
  } catch (...) {
    Release(&held);
    throw;
  }
  Release(&held);
  if (!status.ok()) call.Refuse(status);
  self.has_plan = true;
}

const attention::SplitPlan& PlanOf(const PySplitPlanner& planner) {
  if (!planner.has_plan) Raise("InvalidArgumentError", "SplitPlanner: plan() was not called yet");
  return planner.core.plan();
}

}  // namespace

void FillMask(OpCall& call, nb::handle given, bool rows_are_absolute,
              attention::AttnParams* params) {
  if (given.is_none()) {
    if (rows_are_absolute) call.Refuse("mask_rows_are_absolute is given without mask");
    return;
  }
  attention::ExplicitMask& mask = params->mask;
  const PyMask* rules = nullptr;
  if (nb::isinstance<PyMask>(given)) {
    if (rows_are_absolute)
      call.Refuse("mask_rows_are_absolute is given beside a Mask, which has it");
    rules = nb::inst_ptr<PyMask>(given);
    mask = rules->rules;
    if (rules->array.is_none()) return;
  } else {
    mask.rows_are_absolute = rows_are_absolute;
  }
  mask.tensor = call.In("mask", rules == nullptr ? given : nb::handle(rules->array));
  // Bytes hide where they are not 0, floats are added.
  if (rules == nullptr || !rules->has_encoding) {
    mask.encoding = attention::IsComputeType(mask.tensor.dtype) ? MaskEncoding::kAdditive
                                                                : MaskEncoding::kMarker;
  }
  if (rules != nullptr && rules->has_form) return;
  switch (mask.tensor.rank) {
    case 2:
      mask.form = MaskForm::kShared;
      break;
    case 3:
      mask.form = MaskForm::kPerRequest;
      break;
    case 4:
      mask.form = MaskForm::kPerHead;
      break;
    default:
      call.Refuse(
          "mask must have 2 (rows, keys), 3 (requests first) or 4 dimensions (requests, heads), or "
          "be a Mask with a form");
  }
}

attention::SplitPolicy SplitFrom(const OpCall& call, std::optional<int64_t> split_tokens,
                                 std::optional<int64_t> num_splits) {
  if (split_tokens && num_splits)
    call.Refuse("split_tokens and num_splits are given; give one of them");
  if (split_tokens) return attention::SplitPolicy::Fixed(*split_tokens);
  if (!num_splits) return attention::SplitPolicy::Auto();
  return *num_splits == 1 ? attention::SplitPolicy::None()
                          : attention::SplitPolicy::Count(*num_splits);
}

void BindAttentionRules(nb::module_& module) {
  nb::class_<PyMask>(module, "Mask",
                     R"(How an array masks keys, where its dimensions and type do not say it.

form: "shared" [rows, keys], "per_request" [R, rows, keys], "per_head" [R or 1, H or 1, rows, keys];
"ragged_bits" uint8 [bytes]: a bit per row and key of each request in turn, 1 hides (pack_mask makes
them); "template": a causal [N, N] from which sparse modes make masks of any length. None goes by
the number of dimensions. encoding: "marker" (not 0 hides), "additive" (added to scores) or
"additive_finite" (float16, -10000 for hidden). None goes by the type: floats are added.)")
      .def("__init__", &InitMask, nb::arg("array").none(), nb::kw_only(),
           nb::arg("form") = nb::none(), nb::arg("encoding") = nb::none(),
           nb::arg("sparse_mode") = 1, nb::arg("pre_tokens") = nb::none(),
           nb::arg("next_tokens") = nb::none(), nb::arg("rows_are_absolute") = false,
           R"(sparse_mode, of S1 rows i over S2 keys j with o = S2 - S1: 0 the mask and the band
-pre_tokens <= j - i <= next_tokens, without an array everything; 1 the mask; of a template 2 is
j <= i, 3 is j <= i + o, 4 is i + o - pre_tokens <= j <= i + o + next_tokens. rows_are_absolute:
rows are positions.)")
      .def_ro("array", &PyMask::array);

  nb::class_<attention::BlockSparse>(module, "BlockSparse",
                                     R"(Which blocks of keys a head sees (Phi-3-small's rule).

With query block Q = p // block_size and key block B = j // block_size a key is seen if B > Q -
local_blocks, or if (B + offset) % vert_stride == 0. offset is (tp_rank * H + h) * head_sliding_step
+ 1 for steps of at least 0, else (tp_rank * Hkv + KV head) * -head_sliding_step + 1.)")
      .def("__init__", &InitBlockSparse, nb::kw_only(), nb::arg("local_blocks"),
           nb::arg("vert_stride"), nb::arg("block_size") = 64, nb::arg("head_sliding_step") = 0,
           nb::arg("tp_rank") = 0)
      .def_ro("local_blocks", &attention::BlockSparse::local_blocks)
      .def_ro("vert_stride", &attention::BlockSparse::vert_stride)
      .def_ro("block_size", &attention::BlockSparse::block_size)
      .def_ro("head_sliding_step", &attention::BlockSparse::head_sliding_step)
      .def_ro("tp_rank", &attention::BlockSparse::tp_rank);

  nb::class_<PySplitPlanner>(
      module, "SplitPlanner",
      R"(Cuts the keys of a decode batch into parts of equal work, on the host.

Keys are counted in tiles. A planner with a plan is an argument `plan` of paged_decode, for all
layers of the step; plan() makes the next one in the same memory, so not while a call uses the last.
On CUDA the plan travels with the call; DecodePlan is made there.)")
      .def(nb::init<int64_t, int64_t>(), nb::arg("max_num_reqs") = 0, nb::arg("max_num_parts") = 0,
           "Memory for plans within these bounds; larger ones allocate.")
      .def("plan", &Plan, nb::arg("seq_lens"), nb::kw_only(), nb::arg("block_size"),
           nb::arg("window") = 0, nb::arg("split_tokens") = nb::none(),
           nb::arg("num_splits") = nb::none(), nb::arg("tile") = 64, nb::arg("overhead") = 5,
           nb::arg("num_parts") = 1,
           R"(seq_lens int32 [R] in host memory; block_size of the cache; window: keys that a query
sees, itself included, 0 is all. split_tokens and num_splits as in paged_decode; without them
num_parts parts of about equal work, in tiles of `tile` keys, beginning a request being worth
`overhead` of them.)")
      .def_prop_ro(
          "tile", [](const PySplitPlanner& p) { return PlanOf(p).tile; }, "Keys per tile.")
      .def_prop_ro(
          "num_parts",
          [](const PySplitPlanner& p) { return static_cast<int64_t>(PlanOf(p).parts.size()); })
      .def_prop_ro(
          "ranges",
          [](const PySplitPlanner& p) {
            std::vector<std::tuple<int32_t, int32_t, int32_t>> ranges;
            for (const attention::SplitRange& range : PlanOf(p).ranges) {
              ranges.emplace_back(range.request, range.begin_tile, range.end_tile);
            }
            return ranges;
          },
          "(request, first tile, last tile + 1) of each piece, requests in order.")
      .def_prop_ro(
          "split_offsets",
          [](const PySplitPlanner& p) {
            const auto offsets = PlanOf(p).split_offsets;
            return std::vector<int32_t>(offsets.begin(), offsets.end());
          },
          "Of R + 1: ranges of request b are [b] to [b + 1].");
}

}  // namespace kvblocks::python
