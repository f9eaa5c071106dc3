// Extra keys: what besides the tokens makes the content of a block - adapter, images, salt,
// embeddings.
//
// Per block, in this order: the LoRA name; one entry per multimodal feature that reaches into the
// block, with the feature's offset relative to the block's start (negative if it began earlier);
// the cache salt, in the block that starts at token 0 only, since the hash chain carries it on; the
// digest of the block's prompt embeddings. No entry at all is "none".

#ifndef KVBLOCKS_BLOCK_POOL_EXTRA_KEYS_H_
#define KVBLOCKS_BLOCK_POOL_EXTRA_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace kvblocks {

// An image, a sound, ...: `length` placeholder tokens from `offset` on, whose content `identifier`
// names.
struct MultimodalFeature {
  std::string identifier = {};
  int64_t offset = 0;
  int64_t length = 0;

  friend bool operator==(const MultimodalFeature&, const MultimodalFeature&) = default;
};

struct ExtraKey {
  enum class Kind : uint8_t { kLora = 1, kMultimodal = 2, kSalt = 3, kPromptEmbedding = 4 };

  Kind kind = Kind::kLora;
  std::string value = {};
  int64_t offset = 0;  // kMultimodal only

  friend bool operator==(const ExtraKey&, const ExtraKey&) = default;
};
using ExtraKeys = std::vector<ExtraKey>;

// InvalidArgument for a feature of no length, a negative offset, or features that are unsorted or
// overlap.
absl::Status ValidateFeatures(absl::Span<const MultimodalFeature> features);

// An injective byte form, for hashing. Never called for an empty list: that is "none".
std::string EncodeExtraKeys(const ExtraKeys& keys);

}  // namespace kvblocks

#endif  // KVBLOCKS_BLOCK_POOL_EXTRA_KEYS_H_
