// BlendRows: how many rows each request of a batch has in each layer, which follows from lengths
// and ratios alone, and the integers that a run needs on its device. For RunBlend.
//
// Rows of a request stay ascending by position. A layer projects the rows that attended in the one
// before. Cost: O(T + layers * R).

#ifndef KVBLOCKS_ATTENTION_BLEND_BLEND_ROWS_H_
#define KVBLOCKS_ATTENTION_BLEND_BLEND_ROWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/cache_blend.h"
#include "kvblocks/tensor_view.h"

namespace kvblocks::attention {

// Neighbouring requests that all keep their rows in a layer, or one that selects.
struct BlendRun {
  int64_t first_request = 0, end_request = 0;
  bool selects = false;
};

class BlendRows {
 public:
  // REQUIRES: sessions that fit the metadata, one per request, or null.
  BlendRows(const BlendConfig& config, const CommonAttentionMetadata& metadata,
            absl::Span<const BlendSession* const> sessions);

  int64_t num_requests() const { return static_cast<int64_t>(sessions_.size()); }
  const BlendSession* session(int64_t b) const { return sessions_[b]; }
  BlendBounds bounds() const { return bounds_; }

  // Row at which a request begins, among those that a layer projects, or of those that attend in
  // it; b = num_requests: how many there are.
  int32_t projected(int layer, int64_t b) const {
    return layer == 0 ? first(b) : attends(layer - 1, b);
  }
  int32_t attends(int layer, int64_t b) const { return starts_[Row(layer + 1) + b]; }
  // Before any layer.
  int32_t first(int64_t b) const { return starts_[b]; }
  int64_t num_projected(int layer, int64_t b) const {
    return projected(layer, b + 1) - projected(layer, b);
  }
  int64_t num_attending(int layer, int64_t b) const {
    return attends(layer, b + 1) - attends(layer, b);
  }
  int32_t max_attending(int layer) const { return max_rows_[layer]; }
  // Projected rows of a session whose tokens a chunk has, too; they come first.
  int64_t num_candidates(int layer, int64_t b) const {
    return num_projected(layer, b) - (session(b)->num_rows() - session(b)->num_old_rows());
  }
  bool SelectsIn(int layer, int64_t b) const {
    return num_attending(layer, b) < num_projected(layer, b);
  }
  // Whether old rows are what the cache shall have of some tokens.
  bool ReusesIn(int layer, int64_t b) const {
    return session(b) != nullptr && num_projected(layer, b) < first(b + 1) - first(b);
  }
  // All requests, in order; empty if none selects.
  std::vector<BlendRun> RunsOf(int layer) const;
  // Whether some request is masked as published.
  bool has_compat_masks() const { return has_compat_masks_; }

  // For the device, and views of its parts there.
  const std::vector<int32_t>& integers() const { return integers_; }
  ConstTensorView numbers(const ConstTensorView& integers) const;  // 0, 1, 2, ...
  ConstTensorView positions(const ConstTensorView& integers) const;
  ConstTensorView origins(const ConstTensorView& integers) const;
  ConstTensorView rotated_for(const ConstTensorView& integers) const;
  ConstTensorView query_start_loc(const ConstTensorView& integers, int layer) const;

 private:
  int64_t Row(int64_t stage) const { return stage * (num_requests() + 1); }

  std::vector<const BlendSession*> sessions_;
  BlendBounds bounds_;
  bool has_compat_masks_ = false;
  std::vector<int32_t> starts_;    // [1 + layers, R + 1]
  std::vector<int32_t> max_rows_;  // per layer
  int64_t num_numbers_ = 0;
  std::vector<int32_t> integers_;
};

// Rows [begin, end) of a view. REQUIRES: they are there.
template <typename View>
View RowsOfView(View view, int64_t begin, int64_t end) {
  view.data += begin * view.stride[0] * ElementBytes(view.dtype);
  view.extent[0] = end - begin;
  return view;
}

// --- What RunBlend refuses of a step before anything runs: what does not fit together in sessions,
// metadata and caches. What single operations refuse, they say themselves. Cost: O(requests +
// chunks * layers).

absl::Status CheckBlendStep(const ExecContext& context, const BlendConfig& config,
                            const BlendStep& step, const BlendModel& model);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_BLEND_ROWS_H_
