// T-6, random part: arguments spoilt at random are refused by every backend, in the words of the
// check, with nothing written; or they are harmless, and the operation runs. Under ASan and UBSan
// it shows that no nonsense in shapes, strides, types or parameters makes an operation read or
// compute what it must not.

#include <limits>
#include <string>

#include "attention/ops/visit_views.h"
#include "attention/testing/valid_args.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_ops.h"
#include "rapidcheck/gtest.h"

namespace kvblocks::attention {
namespace {

int64_t Number(int64_t low, int64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, high + 1));
}

// Spoils a view so that whatever is still readable lies in its slack: small extents and strides, or
// such that nothing may be read (no data, another device, more bytes than there are).
template <typename View>
void Spoil(View& view) {
  const int dim = static_cast<int>(Number(0, kMaxRank - 1));
  switch (Number(0, 11)) {
    case 0:
    case 1:
      view.extent[dim] = Number(-1, 5);
      break;
    case 2:
    case 3:
      view.stride[dim] = Number(-1, 16);
      break;
    case 4:
      view.extent[dim] = (int64_t{1} << 62) + Number(-1, 1);
      break;
    case 5:
      view.stride[dim] = INT64_MAX - Number(0, 3);
      break;
    case 6:
      view.rank = static_cast<int8_t>(Number(-2, 8));
      break;
    case 7:
      view.dtype = static_cast<DType>(Number(0, kNumDTypes));
      break;
    case 8:
      view.data = nullptr;
      break;
    case 9:
      view = {};
      break;
    case 10:
      view.device = {DeviceKind::kCuda, 0};
      view.extent[dim] = Number(0, int64_t{1} << 40);
      break;
    default:
      if (view.data != nullptr) view.data += Number(0, 8);
      break;
  }
}

void SpoilNumbers(AttnParams& params) {
  const float floats[] = {0,
                          -1,
                          1,
                          1e30f,
                          std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()};
  const int64_t integers[] = {INT64_MIN, -2, -1, 0, 1, 4, 7, INT64_MAX};
  const auto integer = [&] { return integers[Number(0, 7)]; };
  switch (Number(0, 9)) {
    case 0:
      params.scale = floats[Number(0, 5)];
      break;
    case 1:
      params.soft_cap = floats[Number(0, 5)];
      break;
    case 2:
      params.window_left = integer();
      break;
    case 3:
      params.window_right = integer();
      params.causal = Number(0, 1) == 1;
      break;
    case 4:
      params.chunk = integer();
      break;
    case 5:
      params.block_sparse = {
          static_cast<int32_t>(Number(-1, 3)), static_cast<int32_t>(Number(0, 3)), integer(),
          static_cast<int32_t>(Number(-3, 3)), static_cast<int32_t>(Number(-1, 2))};
      break;
    case 6:
      params.split = {static_cast<SplitPolicy::Kind>(Number(0, 4)), integer()};
      break;
    case 7:
      params.mask.sparse_mode = static_cast<int32_t>(Number(-1, 5));
      params.mask.pre_tokens = integer();
      params.mask.next_tokens = integer();
      break;
    case 8:
      params.mask.form = static_cast<MaskForm>(Number(0, 6));
      params.mask.encoding = static_cast<MaskEncoding>(Number(0, 3));
      params.mask.rows_are_absolute = Number(0, 1) == 1;
      break;
    default:
      params.causal = false;
      break;
  }
}

template <typename Args, typename Run>
void SpoiltArgumentsAreHarmless(Run run) {
  TensorStore store(/*slack=*/1 << 15);
  Args args = Valid<Args>(store);
  if (AttnParams* params = ParamsOf(args); params != nullptr) {
    // Something of everything, so that there is more to spoil.
    if (Number(0, 2) == 0) {
      params->mask.form = MaskForm::kShared;
      params->mask.tensor = store.Input(DType::kI8, {8, 8});
    }
    if (Number(0, 2) == 0) params->sinks = store.Floats({0, 1, 2, 3});
    if (Number(0, 2) == 0) params->scales.k = store.Floats({1, 1});
    for (int64_t n = Number(0, 2); n > 0; --n) SpoilNumbers(*params);
  }
  int64_t num_views = 0;
  VisitViews(args, [&](auto&) { ++num_views; });
  for (int64_t n = Number(0, 3); n > 0; --n) {
    int64_t chosen = Number(0, num_views - 1);
    VisitViews(args, [&](auto& view) {
      if (chosen-- == 0) Spoil(view);
    });
  }
  const absl::Status refused = Check({}, args);
  RC_ASSERT(store.OutputsUntouched());
  const ExecContext context;
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    const absl::Status status = run(backend->ops(), context, args);
    if (refused.ok()) {
      // Codes of a combination that is not built are the backend's own.
      RC_ASSERT(status.ok() || status.code() == absl::StatusCode::kUnimplemented);
    } else {
      RC_ASSERT(status == refused);
      RC_ASSERT(store.OutputsUntouched());
    }
  }
}

// Tensors of another device are not looked into, whatever the context says.
template <typename Args, typename Run>
void OtherDevicesAreRefused(Run run) {
  TensorStore store;
  Args args = Valid<Args>(store);
  ExecContext context;
  context.device = {DeviceKind::kCuda, 0};
  VisitViews(args, [&](auto& view) {
    if (view.absent()) return;
    view.device = context.device;
    view.data = reinterpret_cast<decltype(view.data)>(uintptr_t{4096});  // nothing there
  });
  for (const AttentionBackend* backend : DefaultBackendRegistry().backends()) {
    const absl::Status status = run(backend->ops(), context, args);
    RC_ASSERT(status.code() == absl::StatusCode::kInvalidArgument);
    RC_ASSERT(status.message().find("cuda:0") != std::string::npos);
  }
}

#define SPOILT_ARGUMENTS_ARE_HARMLESS(Op)                                              \
  RC_GTEST_PROP(SpoiltArgumentsTest, Op, ()) {                                         \
    const auto run = [](const AttentionOps& ops, const ExecContext& context,           \
                        const Op##Args& args) { return ops.Op(context, args); };       \
    for (int round = 0; round < 5; ++round) SpoiltArgumentsAreHarmless<Op##Args>(run); \
    OtherDevicesAreRefused<Op##Args>(run);                                             \
  }

KVBLOCKS_ATTENTION_OPS(SPOILT_ARGUMENTS_ARE_HARMLESS)

}  // namespace
}  // namespace kvblocks::attention
