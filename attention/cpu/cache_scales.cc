#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "attention/cache/element_rows.h"
#include "attention/cpu/host_ops.h"
#include "attention/cpu/host_scalars.h"
#include "attention/tensor/small_floats.h"
#include "checks/ceil_div.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kTokensPerItem = 64;

// The scales of one tensor [T, heads, dim] into `scales`, one element or [heads]. Returns whether
// every input was finite.
bool ComputeScales(const ExecContext& context, const ConstTensorView& input, float divisor,
                   const TensorView& scales) {
  const int64_t num_tokens = input.extent[0];
  const int64_t heads = input.extent[1];
  const int64_t dim = input.extent[2];
  const bool per_head = scales.num_elements() > 1;
  const int64_t num_scales = per_head ? heads : 1;
  const int num_threads = NumThreads(context.threads);
  // Maxima of each thread; a maximum does not depend on the order.
  std::vector<double> amax(num_threads * num_scales, 0);
  std::vector<double> rows(num_threads * dim);
  std::atomic<bool> all_finite = true;
  ParallelFor(context.threads, CeilDiv(num_tokens, kTokensPerItem),
              [&](int64_t item, int thread) {
                double* row = rows.data() + thread * dim;
                const int64_t end = std::min((item + 1) * kTokensPerItem, num_tokens);
                for (int64_t token = item * kTokensPerItem; token < end; ++token) {
                  for (int64_t head = 0; head < heads; ++head) {
                    double& most = amax[thread * num_scales + (per_head ? head : 0)];
                    LoadElements(input.dtype, input.At(token, head), input.stride[2], dim, row);
                    for (int64_t i = 0; i < dim; ++i) {
                      const double magnitude = std::abs(row[i]);
                      if (magnitude <= std::numeric_limits<double>::max()) {
                        most = std::max(most, magnitude);
                      } else {
                        all_finite.store(false, std::memory_order_relaxed);
                      }
                    }
                  }
                }
              });
  for (int64_t i = 0; i < num_scales; ++i) {
    double most = 0;
    for (int thread = 0; thread < num_threads; ++thread) {
      most = std::max(most, amax[thread * num_scales + i]);
    }
    // A scale has to be finite and positive, whatever the inputs are.
    const float scale =
        most == 0 ? 1
                  : static_cast<float>(std::clamp(
                        most / divisor, static_cast<double>(std::numeric_limits<float>::min()),
                        static_cast<double>(std::numeric_limits<float>::max())));
    std::memcpy(scales.data + i * scales.stride[0] * static_cast<int64_t>(sizeof(scale)), &scale,
                sizeof(scale));
  }
  return all_finite;
}

}  // namespace

absl::Status HostOps::Run(const Checked<ComputeKvScalesArgs>& call) const {
  const ExecContext& context = call.context();
  const ComputeKvScalesArgs& args = call.args();
  bool all_finite = true;
  const auto compute = [&](const ConstTensorView& input, float divisor, const TensorView& scales) {
    // Without tokens there is nothing to scale by; what the buffer holds stays.
    if (input.absent() || scales.absent() || input.empty()) return;
    all_finite = ComputeScales(context, input, divisor, scales) && all_finite;
  };
  compute(args.q, args.q_divisor, args.q_scale);
  compute(args.k, args.k_divisor, args.k_scale);
  compute(args.v, args.v_divisor, args.v_scale);
  if (!all_finite) Flag(context, kNonFiniteInput);
  return absl::OkStatus();
}

absl::Status HostOps::Run(const Checked<ScaleAndCacheArgs>& call) const {
  absl::Status status = ComputeKvScales(call.context(), call.args().scales);
  if (!status.ok() || call.args().scales.k.empty()) return status;
  return ReshapeAndCache(call.context(), call.args().write());
}

absl::Status HostOps::Run(const Checked<QuantizeQueriesArgs>& call) const {
  const QuantizeQueriesArgs& args = call.args();
  const int64_t heads = args.q.extent[1], dim = args.q.extent[2];
  const double scale = ScaleAt(args.scale, 0, 0);
  ParallelFor(call.context().threads, CeilDiv(args.q.extent[0], kTokensPerItem),
              [&](int64_t item, int) {
                std::vector<double> row(static_cast<size_t>(dim));
                const int64_t end = std::min((item + 1) * kTokensPerItem, args.q.extent[0]);
                for (int64_t token = item * kTokensPerItem; token < end; ++token) {
                  for (int64_t head = 0; head < heads; ++head) {
                    LoadElements(args.q.dtype, args.q.At(token, head), args.q.stride[2], dim,
                                 row.data());
                    for (int64_t d = 0; d < dim; ++d) {
                      StoreElement(args.codes.dtype, row[d] / scale, args.codes.At(token, head, d));
                    }
                  }
                }
              });
  return absl::OkStatus();
}

}  // namespace kvblocks::attention
