#include "kvblocks/block_pool/extra_keys.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

namespace kvblocks {
namespace {

template <typename T>
void AppendRaw(T value, std::string& out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

}  // namespace

absl::Status ValidateFeatures(absl::Span<const MultimodalFeature> features) {
  int64_t end = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    const MultimodalFeature& feature = features[i];
    if (feature.length <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("multimodal feature ", i, " has length ",
                                                     feature.length, ", expected at least 1"));
    }
    if (feature.offset < end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "multimodal feature ", i, " starts at token ", feature.offset, ", expected at least ",
          end, ": features must be sorted by offset and must not overlap"));
    }
    if (feature.length > std::numeric_limits<int64_t>::max() - feature.offset) {
      return absl::InvalidArgumentError(absl::StrCat("multimodal feature ", i, " of length ",
                                                     feature.length, " at token ", feature.offset,
                                                     " ends beyond the range of 64 bits"));
    }
    end = feature.offset + feature.length;
  }
  return absl::OkStatus();
}

std::string EncodeExtraKeys(const ExtraKeys& keys) {
  std::string out;
  AppendRaw<uint32_t>(static_cast<uint32_t>(keys.size()), out);
  for (const ExtraKey& key : keys) {
    AppendRaw<uint8_t>(static_cast<uint8_t>(key.kind), out);
    AppendRaw<int64_t>(key.offset, out);
    AppendRaw<uint64_t>(key.value.size(), out);
    out.append(key.value);
  }
  return out;
}

}  // namespace kvblocks
