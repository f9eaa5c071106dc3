#include "kvblocks/specs/planning/state_alignment.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "kvblocks/checks/checked_int64.h"

namespace kvblocks {
namespace {

absl::Status TooLarge() { return absl::InvalidArgumentError("the block would exceed 63 bits"); }

// The least common multiple. An overflow stays one.
CheckedInt64 Lcm(CheckedInt64 a, int64_t b) {
  return a.overflowed() ? a : a * (b / std::gcd(*a.value(), b));
}

// Rings have as many rows as they have, and hidden states take what block the others have.
bool GrowsByToken(const KvCacheSpec& spec) {
  return spec.kind() != KvCacheSpecKind::kRing && spec.kind() != KvCacheSpecKind::kHiddenState;
}

struct AttentionAndStates {
  CheckedInt64 bytes_per_token = 1;  // least common multiple over the formats
  int64_t block_size = 0;            // the largest configured
  int64_t state_bytes = 0;           // the largest, without padding
  bool state_at_every_block = false;
  bool any_attention = false;
};

AttentionAndStates Survey(std::span<const LayerCache> caches) {
  AttentionAndStates found;
  for (const LayerCache& cache : caches) {
    const absl::StatusOr<KvCacheSpec> plain = cache.spec.WithPageSizePadded(std::nullopt);
    const KvCacheSpec& spec = plain.ok() ? *plain : cache.spec;
    if (const auto* mamba = spec.get_if<MambaSpec>()) {
      found.state_bytes = std::max(found.state_bytes, spec.page_bytes());
      found.state_at_every_block |= mamba->options().cache_mode == MambaCacheMode::kAll;
      continue;
    }
    if (!GrowsByToken(spec)) continue;
    found.any_attention = true;
    found.block_size = std::max(found.block_size, spec.block_size());
    found.bytes_per_token =
        Lcm(found.bytes_per_token, CeilDiv(spec.page_bytes(), spec.block_size()));
  }
  return found;
}

absl::StatusOr<KvCacheSpec> Aligned(const KvCacheSpec& spec, int64_t block_size,
                                    int64_t page_bytes) {
  if (!GrowsByToken(spec)) return spec;
  const auto* mamba = spec.get_if<MambaSpec>();
  if (mamba == nullptr) {
    absl::StatusOr<KvCacheSpec> plain = spec.WithPageSizePadded(std::nullopt);
    return plain.ok() ? plain->WithBlockSize(block_size) : plain;
  }
  absl::StatusOr<KvCacheSpec> padded = spec.WithPageSizePadded(page_bytes);
  if (!padded.ok() || mamba->options().cache_mode != MambaCacheMode::kAlign) return padded;
  return padded->WithBlockSize(block_size);
}

}  // namespace

int64_t StateBlockSize(int64_t state_bytes, int64_t attention_bytes_per_token, int64_t unit) {
  const auto unit_bytes = (CheckedInt64(unit) * attention_bytes_per_token).value();
  return unit * CeilDiv(state_bytes, unit_bytes.value_or(state_bytes));
}

std::optional<std::vector<KvCacheSpec>> AlignStates(std::span<const LayerCache> caches,
                                                    int64_t smallest_kernel_block,
                                                    int64_t state_chunk_tokens,
                                                    std::vector<PlanError>* errors) {
  std::vector<KvCacheSpec> specs;
  for (const LayerCache& cache : caches) specs.push_back(cache.spec);
  const AttentionAndStates found = Survey(caches);
  if (found.state_bytes == 0 || !found.any_attention) return specs;
  CheckedInt64 unit = std::max(found.block_size, smallest_kernel_block);
  if (found.state_at_every_block) unit = Lcm(unit, state_chunk_tokens);
  std::optional<int64_t> block_size;
  std::optional<int64_t> page_bytes;
  if (!unit.overflowed() && !found.bytes_per_token.overflowed()) {
    block_size = StateBlockSize(found.state_bytes, *found.bytes_per_token.value(), *unit.value());
    page_bytes = (CheckedInt64(*block_size) * found.bytes_per_token).value();
  }
  bool ok = true;
  for (size_t i = 0; i < specs.size(); ++i) {
    absl::StatusOr<KvCacheSpec> aligned = page_bytes.has_value()
                                              ? Aligned(specs[i], *block_size, *page_bytes)
                                              : absl::StatusOr<KvCacheSpec>(TooLarge());
    if (aligned.ok()) {
      specs[i] = *std::move(aligned);
      continue;
    }
    ok = false;
    errors->push_back(
        {.code = PlanErrorCode::kPagesDoNotEqualise,
         .message = "layer \"" + caches[i].name + "\" with pages of " +
                    std::to_string(specs[i].page_bytes()) +
                    " bytes cannot take the block that the largest state of " +
                    std::to_string(found.state_bytes) +
                    " bytes asks for: " + std::string(aligned.status().message()) +
                    "; use the native layout, in which states do not dictate the block",
         .layers = {caches[i].name},
         .needed = found.state_bytes,
         .available = specs[i].page_bytes()});
    if (!page_bytes.has_value()) break;
  }
  if (!ok) return std::nullopt;
  return specs;
}

}  // namespace kvblocks
