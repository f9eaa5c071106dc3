#include "kvblocks/attention/blend/blend_rows.h"

#include <algorithm>
#include <numeric>

namespace kvblocks::attention {

BlendRows::BlendRows(const BlendConfig& config, const CommonAttentionMetadata& metadata,
                     absl::Span<const BlendSession* const> sessions)
    : sessions_(sessions.begin(), sessions.end()) {
  const auto given = metadata.host_query_start_loc;
  const int64_t num_tokens = metadata.num_actual_tokens;
  bounds_.max_num_reqs = num_requests();
  bounds_.max_num_tokens = num_tokens;
  for (int64_t b = 0; b < num_requests(); ++b) {
    bounds_.max_seq_len = std::max<int64_t>(bounds_.max_seq_len, metadata.host_seq_lens[b]);
    has_compat_masks_ |=
        session(b) != nullptr && session(b)->config().mask == BlendMask::kCompatBottomRight;
  }

  starts_.assign(given.begin(), given.begin() + num_requests() + 1);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    int32_t at = 0, most = 0;
    for (int64_t b = 0; b < num_requests(); ++b) {
      const int32_t rows = session(b) == nullptr
                               ? given[b + 1] - given[b]
                               : static_cast<int32_t>(session(b)->NumAttendedRows(layer));
      starts_.push_back(at);
      at += rows;
      most = std::max(most, rows);
    }
    starts_.push_back(at);
    max_rows_.push_back(most);
  }

  num_numbers_ = std::max(num_tokens, bounds_.max_seq_len);
  integers_.resize(num_numbers_ + 3 * num_tokens);
  std::iota(integers_.begin(), integers_.begin() + num_numbers_, 0);
  int32_t* const positions = integers_.data() + num_numbers_;
  int32_t* const origins = positions + num_tokens;
  int32_t* const rotated = origins + num_tokens;
  for (int64_t b = 0; b < num_requests(); ++b) {
    const int32_t begin = given[b], rows = given[b + 1] - begin;
    std::iota(positions + begin, positions + begin + rows, metadata.host_seq_lens[b] - rows);
    std::iota(origins + begin, origins + begin + rows, 0);
    if (session(b) == nullptr) continue;
    int32_t* to = rotated + begin;
    for (const BlendPiece& piece : session(b)->pieces()) {
      to = std::copy(piece.rotated_for.begin(), piece.rotated_for.end(), to);
    }
  }
  integers_.insert(integers_.end(), starts_.begin(), starts_.end());
}

std::vector<BlendRun> BlendRows::RunsOf(int layer) const {
  std::vector<BlendRun> runs;
  bool any = false;
  for (int64_t b = 0; b < num_requests(); ++b) {
    const bool selects = SelectsIn(layer, b);
    any |= selects;
    if (selects || runs.empty() || runs.back().selects) {
      runs.push_back({b, b + 1, selects});
    } else {
      runs.back().end_request = b + 1;
    }
  }
  if (!any) runs.clear();
  return runs;
}

ConstTensorView BlendRows::numbers(const ConstTensorView& integers) const {
  return RowsOfView(integers, 0, num_numbers_);
}
ConstTensorView BlendRows::positions(const ConstTensorView& integers) const {
  return RowsOfView(integers, num_numbers_, num_numbers_ + bounds_.max_num_tokens);
}
ConstTensorView BlendRows::origins(const ConstTensorView& integers) const {
  const int64_t begin = num_numbers_ + bounds_.max_num_tokens;
  return RowsOfView(integers, begin, begin + bounds_.max_num_tokens);
}
ConstTensorView BlendRows::rotated_for(const ConstTensorView& integers) const {
  const int64_t begin = num_numbers_ + 2 * bounds_.max_num_tokens;
  return RowsOfView(integers, begin, begin + bounds_.max_num_tokens);
}
ConstTensorView BlendRows::query_start_loc(const ConstTensorView& integers, int layer) const {
  const int64_t begin = num_numbers_ + 3 * bounds_.max_num_tokens + Row(layer + 1);
  return RowsOfView(integers, begin, begin + num_requests() + 1);
}

}  // namespace kvblocks::attention
