#include "kvblocks/specs/encoder_attention_spec.h"

#include "kvblocks/specs/spec_checks.h"

namespace kvblocks {
namespace {

// Fills in head_size_v and gives the page size.
template <typename Options>
absl::StatusOr<int64_t> CheckOptions(Options& o) {
  if (!o.head_size_v.has_value()) o.head_size_v = o.head_size;
  absl::Status status = CheckKeyValueOptions(o);
  status.Update(CheckPositive("head_size_v", o.head_size_v));
  status.Update(CheckPackable("head_size", o.head_size, o.quant_mode));
  status.Update(CheckPackable("head_size_v", *o.head_size_v, o.quant_mode));
  if (!status.ok()) return status;
  return KeyValuePageBytes(o, *o.head_size_v, o.quant_mode);
}

}  // namespace

absl::StatusOr<CrossAttentionSpec> CrossAttentionSpec::Create(const Options& options) {
  Options normalised = options;
  const absl::StatusOr<int64_t> page = CheckOptions(normalised);
  if (!page.ok()) return page.status();
  return CrossAttentionSpec(normalised, *page);
}

absl::StatusOr<EncoderOnlyAttentionSpec> EncoderOnlyAttentionSpec::Create(const Options& options) {
  Options normalised = options;
  const absl::StatusOr<int64_t> page = CheckOptions(normalised);
  if (!page.ok()) return page.status();
  return EncoderOnlyAttentionSpec(normalised, *page);
}

}  // namespace kvblocks
