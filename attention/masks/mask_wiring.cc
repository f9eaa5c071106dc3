#include "kvblocks/attention_masks.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>
#include <vector>

#include "checks/status_macros.h"
#include "kvblocks/check.h"

namespace kvblocks::attention {
namespace {

constexpr int64_t kTemplateSize = 2048;
// Whole masks are sized by powers of two, so that they are not made anew every step.
constexpr int64_t kSmallestCustomMask = 256;

absl::StatusOr<MaskRule> RuleOf(const AttentionMaskBuilder& builder,
                                const CustomMaskConfig& config) {
  switch (config.type) {
    case CustomMaskConfig::Type::kSparse:
      return StridedRule(config.parameter);
    case CustomMaskConfig::Type::kWindow:
      return WindowRule(config.parameter);
    case CustomMaskConfig::Type::kCustom:
      break;
  }
  return builder.RuleOf(config.name,
                        config.params.empty() ? std::nullopt : std::optional(config.params));
}

// The rows of the step's new tokens.
absl::StatusOr<std::vector<MaskRows>> RowsOf(const CommonAttentionMetadata& metadata) {
  const absl::Span<const int32_t> starts = metadata.host_query_start_loc;
  const absl::Span<const int32_t> lengths = metadata.host_seq_lens;
  const size_t num_reqs = static_cast<size_t>(std::max(0, metadata.num_reqs));
  if (starts.size() <= num_reqs || lengths.size() < num_reqs) {
    return InvalidArgument("AttachMasks: host_query_start_loc has ", starts.size(),
                           " entries and host_seq_lens ", lengths.size(), "; a custom mask for ",
                           metadata.max_seq_len, " positions and ", num_reqs, " requests needs ",
                           num_reqs + 1, " and ", num_reqs);
  }
  std::vector<MaskRows> rows(num_reqs);
  for (size_t b = 0; b < num_reqs; ++b) {
    const int64_t num_rows = int64_t{starts[b + 1]} - starts[b];
    if (num_rows < 0 || num_rows > lengths[b]) {
      return InvalidArgument("AttachMasks: request ", b, " has ", num_rows,
                             " new tokens and length ", lengths[b], "; 0 to its length");
    }
    rows[b] = {lengths[b] - num_rows, num_rows, lengths[b]};
  }
  return rows;
}

absl::StatusOr<MaskRef> CustomMask(AttentionMaskBuilder& builder, const MaskNeeds& needs,
                                   const CommonAttentionMetadata& metadata) {
  const CustomMaskConfig& config = needs.custom;
  const int64_t longest = std::max<int64_t>(metadata.max_seq_len, needs.max_seq_len);
  const bool whole = longest <= kLongestWholeMask;
  const int64_t size = static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max(kSmallestCustomMask, longest))));
  if (config.type == CustomMaskConfig::Type::kCustom && whole) {
    CustomMaskSpec spec{.name = config.name, .rows = size, .columns = size};
    if (!config.params.empty()) spec.params = config.params;
    return builder.Custom(spec);
  }
  if (config.type != CustomMaskConfig::Type::kCustom && config.parameter < 1) {
    return InvalidArgument("AttachMasks: parameter of the custom mask is ", config.parameter,
                           "; a window or stride must be at least 1");
  }
  if (config.type != CustomMaskConfig::Type::kCustom && !metadata.causal) {
    return InvalidArgument(
        "AttachMasks: window and sparse masks are causal, the step is not; register a custom mask");
  }
  if (!whole) {
    KVBLOCKS_ASSIGN_OR_RETURN(const MaskRule rule, RuleOf(builder, config));
    KVBLOCKS_ASSIGN_OR_RETURN(const std::vector<MaskRows> rows, RowsOf(metadata));
    return builder.Bits(rule, rows);
  }
  if (config.type == CustomMaskConfig::Type::kSparse) {
    return builder.Strided(config.parameter, size, {});
  }
  return builder.SlidingWindow({.window = config.parameter, .size = size});
}

}  // namespace

absl::Status AttachMasks(AttentionMaskBuilder& builder, const MaskNeeds& needs,
                         CommonAttentionMetadata* metadata) {
  MaskRef standard, window, custom;
  if (needs.window < 0) {
    return InvalidArgument("AttachMasks: window is ", needs.window,
                           "; it must be at least 1, or 0 for none");
  }
  if (needs.explicit_masks && metadata->causal) {
    absl::StatusOr<MaskRef> made =
        needs.pooling ? builder.Causal(kTemplateSize, {}) : builder.SplitFuse();
    if (!made.ok()) return made.status();
    standard = *std::move(made);
    standard.form = MaskForm::kTemplate;
    if (needs.window > 0) {
      made = builder.SlidingWindow({.window = needs.window,
                                    .size = kTemplateSize,
                                    .element = {DType::kI8, MaskEncoding::kMarker},
                                    .form = MaskForm::kTemplate,
                                    .pre_tokens = needs.window - 1});
      if (!made.ok()) return made.status();
      window = *std::move(made);
    }
  }
  // A registered mask says itself what is hidden, causal step or not.
  if (needs.custom.enabled) {
    KVBLOCKS_ASSIGN_OR_RETURN(MaskRef made, CustomMask(builder, needs, *metadata));
    custom = std::move(made);
  }
  if (metadata->sink_rows > 0) {
    if (needs.custom.enabled && needs.custom.type != CustomMaskConfig::Type::kCustom) {
      return InvalidArgument("AttachMasks: tables begin with ", metadata->sink_rows,
                             " sink rows, which window and sparse masks hide; register a mask");
    }
    if (!needs.custom.enabled && needs.window > 0) {
      KVBLOCKS_ASSIGN_OR_RETURN(const std::vector<MaskRows> rows, RowsOf(*metadata));
      KVBLOCKS_ASSIGN_OR_RETURN(
          MaskRef made, builder.Bits(SinkWindowRule(metadata->sink_rows, needs.window), rows));
      custom = std::move(made);
    }
  }
  metadata->attn_mask = std::move(standard);
  metadata->swa_mask = std::move(window);
  metadata->custom_mask = std::move(custom);
  return absl::OkStatus();
}

ExplicitMask ChooseMask(const CommonAttentionMetadata& metadata, int64_t window) {
  if (!metadata.custom_mask.null()) {
    ExplicitMask mask = metadata.custom_mask.ToExplicit(/*sparse_mode=*/1);
    mask.rows_are_absolute = mask.form != MaskForm::kRaggedBits;  // those are the step's rows
    return mask;
  }
  if (window > 0 && !metadata.swa_mask.null()) {
    return metadata.swa_mask.ToExplicit(/*sparse_mode=*/4, window - 1, 0);
  }
  if (!metadata.attn_mask.null()) return metadata.attn_mask.ToExplicit(/*sparse_mode=*/3);
  return {};
}

}  // namespace kvblocks::attention
