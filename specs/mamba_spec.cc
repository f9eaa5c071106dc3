#include "kvblocks/specs/mamba_spec.h"

#include "kvblocks/specs/checked_int64.h"
#include "kvblocks/specs/field_error.h"
#include "kvblocks/specs/page_bytes.h"
#include "kvblocks/specs/row_codec.h"

namespace kvblocks {
namespace {

constexpr MambaCacheMode kModes[] = {MambaCacheMode::kNone, MambaCacheMode::kAlign,
                                     MambaCacheMode::kAll};

// A tensor is one plain vector of as many values as its shape has.
absl::Status AddState(const MambaState& state, CheckedInt64& bytes) {
  CheckedInt64 values(1);
  for (size_t i = 0; i < state.shape.size(); ++i) {
    absl::Status status = CheckPositive("shape[" + std::to_string(i) + "]", state.shape[i]);
    if (!status.ok()) return status;
    values = values * state.shape[i];
  }
  if (!values.value().has_value()) {
    return FieldError("shape", "more than 9223372036854775807 values", "a state that fits 63 bits");
  }
  bytes = bytes + CodecOf(RowFormat::kPlain).VectorBytes(*values.value(), state.dtype);
  return absl::OkStatus();
}

}  // namespace

std::string_view MambaCacheModeName(MambaCacheMode mode) {
  switch (mode) {
    case MambaCacheMode::kNone:
      return "none";
    case MambaCacheMode::kAlign:
      return "align";
    case MambaCacheMode::kAll:
      return "all";
  }
  return "unknown";
}

absl::StatusOr<MambaCacheMode> ParseMambaCacheMode(std::string_view name) {
  for (const MambaCacheMode mode : kModes) {
    if (MambaCacheModeName(mode) == name) return mode;
  }
  return FieldError("cache_mode", '"' + std::string(name) + '"', "one of none, align, all");
}

absl::StatusOr<MambaSpec> MambaSpec::Create(const Options& options) {
  absl::Status status = CheckPositive("block_size", options.block_size);
  status.Update(CheckPositive("page_size_padded", options.page_size_padded));
  if (!status.ok()) return status;
  if (options.num_speculative_blocks < 0) {
    return FieldError("num_speculative_blocks", std::to_string(options.num_speculative_blocks),
                      "at least 0");
  }
  if (options.states.empty()) return FieldError("states", "none", "at least one");
  CheckedInt64 bytes(0);
  for (size_t i = 0; i < options.states.size(); ++i) {
    status = AddState(options.states[i], bytes);
    if (!status.ok()) return WithFieldPrefix(status, "states[" + std::to_string(i) + "]");
  }
  if (bytes.overflowed()) {
    return FieldError("states", "a state of more than 9223372036854775807 bytes",
                      "a state that fits 63 bits");
  }
  const absl::StatusOr<int64_t> page =
      PageBytes(bytes, options.page_size_padded, /*alignment=*/std::nullopt);
  if (!page.ok()) return page.status();
  return MambaSpec(options, *page);
}

std::string ToString(const std::vector<MambaState>& states) {
  std::string text;
  for (const MambaState& state : states) {
    if (!text.empty()) text.append("+");
    for (const int64_t dimension : state.shape) {
      text.append(std::to_string(dimension)).append("x");
    }
    text.append(DataTypeName(state.dtype));
  }
  return text;
}

}  // namespace kvblocks
