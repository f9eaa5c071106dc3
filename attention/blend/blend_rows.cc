#include "attention/blend/blend_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <string>

#include "attention/ops/arg_checker.h"
#include "checks/ceil_div.h"
#include "checks/status_macros.h"
#include "kvblocks/cache_blend.h"
#include "kvblocks/check.h"

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

namespace {

template <typename... Text>
absl::Status Refuse(const Text&... text) {
  return InvalidArgument("RunBlend: ", text...);
}

absl::Status CheckSession(const BlendConfig& config, const BlendStep& step, DeviceId device,
                          int64_t b) {
  const BlendSession& session = *step.sessions[b];
  if (!session.planned()) {
    return FailedPrecondition("RunBlend: session ", b, " is not planned; call Plan first");
  }
  const BlendConfig& own = session.config();
  if (config.num_layers != own.num_layers || config.num_heads != own.num_heads ||
      config.num_kv_heads != own.num_kv_heads || config.head_dim != own.head_dim ||
      config.hidden_size != own.hidden_size || config.dtype != own.dtype ||
      config.theta != own.theta || config.rotary_dim != own.rotary_dim ||
      config.pairs != own.pairs) {
    return Refuse("session ", b, " is of another model than the run; run them separately");
  }
  const int64_t length = step.metadata->host_seq_lens[b];
  const int64_t rows =
      step.metadata->host_query_start_loc[b + 1] - step.metadata->host_query_start_loc[b];
  if (length != session.num_tokens() || length - rows != session.num_computed_tokens()) {
    return Refuse("request ", b, " of the metadata has ", length - rows,
                               " computed tokens of ", length, ", session ", b, " ",
                               session.num_computed_tokens(), " of ", session.num_tokens(),
                               "; a session runs in one step, behind what was computed when it was "
                               "made");
  }
  if (step.num_registered_tokens[b] > session.num_computed_tokens()) {
    return FailedPrecondition(
        "RunBlend: request ", b, " of the metadata has ", step.num_registered_tokens[b],
        " tokens in the prefix cache, of which session ", b, " writes those behind the first ",
        session.num_computed_tokens(),
        "; other requests would hit them: evict its blocks and make the request with "
        "skip_writing_prefix_cache");
  }
  for (size_t i = 0; i < session.pieces().size(); ++i) {
    for (int layer = 0; layer < config.num_layers; ++layer) {
      for (const ConstTensorView* rows_of :
           {&session.pieces()[i].k[layer], &session.pieces()[i].v[layer]}) {
        if (rows_of->device == device || (rows_of->device.on_host() && device.on_host())) continue;
        return Refuse("session ", b, " has rows of a chunk in layer ", layer, " on ",
                                   Name(rows_of->device), "; the run is on ", Name(device));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBlendStep(const ExecContext& context, const BlendConfig& config,
                            const BlendStep& step, const BlendModel& model) {
  if (model.project == nullptr || model.attend == nullptr || model.finish == nullptr) {
    return Refuse("the model lacks project, attend or finish");
  }
  if (step.metadata == nullptr) return Refuse("the step has no metadata");
  const CommonAttentionMetadata& metadata = *step.metadata;
  const auto requests = static_cast<size_t>(metadata.num_reqs);
  if (metadata.host_query_start_loc.size() != requests + 1 ||
      metadata.host_seq_lens.size() != requests) {
    return Refuse("the metadata has ", metadata.host_query_start_loc.size(),
                               " starts and ", metadata.host_seq_lens.size(),
                               " lengths on the host; its ", requests, " requests need ",
                               requests + 1, " and ", requests);
  }
  if (!metadata.causal || metadata.chunk > 0 || !metadata.custom_mask.null()) {
    return Refuse(
        "the metadata is not causal, or of pieces, or has a custom mask; selected rows see the "
        "keys up to their position");
  }
  if (step.sessions.size() != requests) {
    return Refuse("there are ", step.sessions.size(), " sessions; the metadata has ",
                               requests, " requests, each with its own or null");
  }
  const bool blends = std::any_of(step.sessions.begin(), step.sessions.end(),
                                  [](const BlendSession* session) { return session != nullptr; });
  if (blends && step.num_registered_tokens.size() != requests) {
    return Refuse("num_registered_tokens has ", step.num_registered_tokens.size(),
                               " entries; the metadata has ", requests,
                               " requests: tell of each what the prefix cache has of it");
  }
  if (static_cast<int64_t>(step.layers.size()) != config.num_layers) {
    return Refuse("there are caches of ", step.layers.size(),
                               " layers; the model has ", config.num_layers);
  }
  const int64_t num_tokens = metadata.num_actual_tokens;
  if (metadata.host_query_start_loc[0] != 0 ||
      metadata.host_query_start_loc[requests] != num_tokens) {
    return Refuse(
        "the requests of the metadata have rows ", metadata.host_query_start_loc[0], " to ",
        metadata.host_query_start_loc[requests], "; num_actual_tokens is ", num_tokens);
  }
  for (size_t b = 0; b < requests; ++b) {
    const int64_t rows =
        int64_t{metadata.host_query_start_loc[b + 1]} - metadata.host_query_start_loc[b];
    if (rows < 0 || rows > metadata.host_seq_lens[b]) {
      return Refuse("request ", b, " of the metadata has ", rows, " new tokens of ",
                                 metadata.host_seq_lens[b]);
    }
    if (step.sessions[b] == nullptr) continue;
    KVBLOCKS_RETURN_IF_ERROR(CheckSession(config, step, context.device, static_cast<int64_t>(b)));
  }
  ArgChecker check(context, "RunBlend");
  if (!check.View("hidden", step.hidden, config.dtype) ||
      !check.View("slot_mapping", metadata.slot_mapping, DType::kI64)) {
    return check.status();
  }
  if (step.hidden.rank != 2 || step.hidden.extent[0] != num_tokens ||
      step.hidden.extent[1] != config.hidden_size) {
    return Refuse("hidden is ", step.hidden.DebugString(), "; it must be ",
                               Name(config.dtype), "[", num_tokens, ", ", config.hidden_size, "]");
  }
  if (metadata.slot_mapping.rank != 1 || metadata.slot_mapping.extent[0] < num_tokens) {
    return Refuse("slot_mapping is ", metadata.slot_mapping.DebugString(),
                               "; it must have the step's ", num_tokens, " tokens");
  }
  if (!context.device.on_host()) {
    if (step.work.absent()) {
      return Refuse("the step has no work memory; on a device provide BlendWorkBytes");
    }
    if (step.upload == nullptr) {
      return Refuse("the step cannot upload; on a device it must");
    }
  }
  return absl::OkStatus();
}

namespace {

constexpr int64_t kAlignment = 256;

// Calls visit(view, dtype, extents) for all tensors, in the order in which they lie.
template <typename Visit>
void VisitWork(const BlendConfig& config, const BlendBounds& bounds, BlendWork& work,
               const Visit& visit) {
  const int64_t tokens = bounds.max_num_tokens;
  const DType dtype = config.dtype;
  for (BlendRowTensors& rows : work.rows) {
    visit(rows.hidden, dtype, {tokens, config.hidden_size});
    visit(rows.q, dtype, {tokens, config.num_heads, config.head_dim});
    visit(rows.positions, DType::kI32, {tokens});
    visit(rows.slots, DType::kI64, {tokens});
    visit(rows.origins, DType::kI32, {tokens});
  }
  for (TensorView* view : {&work.k_new, &work.v_new, &work.k_old, &work.v_old, &work.picked}) {
    visit(*view, dtype, {tokens, config.num_kv_heads, config.head_dim});
  }
  visit(work.attention, dtype, {tokens, config.num_heads, config.head_dim});
  visit(work.selected, DType::kI32, {tokens});
  visit(work.limits, DType::kI32, {tokens});
  // Numbers from 0, positions, origins and what chunks are rotated for; where requests begin,
  // before any selection and behind that of every layer.
  visit(work.integers, DType::kI32,
        {std::max(tokens, bounds.max_seq_len) + 3 * tokens +
         (int64_t{config.num_layers} + 1) * (bounds.max_num_reqs + 1)});
}

}  // namespace

absl::StatusOr<int64_t> BlendWorkBytes(const BlendConfig& config, const BlendBounds& bounds) {
  KVBLOCKS_RETURN_IF_ERROR(CheckBlendModel(config));
  for (const int64_t bound : {bounds.max_num_reqs, bounds.max_num_tokens, bounds.max_seq_len}) {
    if (bound < 0 || bound > INT32_MAX) {
      return InvalidArgument("BlendWorkBytes: a bound is ", bound, "; 0 to 2^31 - 1");
    }
  }
  BlendWork work;
  int64_t bytes = 0;
  bool fits = true;
  VisitWork(config, bounds, work,
            [&](TensorView&, DType dtype, std::initializer_list<int64_t> extents) {
              int64_t size = ElementBytes(dtype);
              for (const int64_t extent : extents) {
                fits = fits && !__builtin_mul_overflow(size, extent, &size);
              }
              fits = fits && size <= INT64_MAX - kAlignment &&
                     !__builtin_add_overflow(bytes, RoundUp(size, kAlignment), &bytes);
            });
  if (!fits) return InvalidArgument("BlendWorkBytes: more than 2^63 bytes; lower the bounds");
  return bytes;
}

absl::StatusOr<BlendWork> MakeBlendWork(const BlendConfig& config, const BlendBounds& bounds,
                                        const TensorView& memory) {
  KVBLOCKS_ASSIGN_OR_RETURN(const int64_t needed, BlendWorkBytes(config, bounds));
  if (memory.dtype != DType::kU8 || memory.rank != 1 || !memory.contiguous() ||
      reinterpret_cast<uintptr_t>(memory.data) % 16 != 0) {
    return InvalidArgument("MakeBlendWork: the memory to work in is ", memory.DebugString(),
                           "; dense u8[n], aligned to 16 bytes");
  }
  if (memory.extent[0] < needed) {
    return ResourceExhausted("MakeBlendWork: a batch of ", bounds.max_num_tokens,
                             " new tokens works in ", needed, " bytes; the memory has ",
                             memory.extent[0], "; provide BlendWorkBytes");
  }
  BlendWork work;
  std::byte* at = memory.data;
  VisitWork(config, bounds, work,
            [&](TensorView& view, DType dtype, std::initializer_list<int64_t> extents) {
              view = TensorView::Contiguous(at, dtype, extents, memory.device);
              at += RoundUp(view.num_elements() * ElementBytes(dtype), kAlignment);
            });
  return work;
}

}  // namespace kvblocks::attention
