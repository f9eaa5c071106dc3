#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/managers/chunked_local_attention_manager.h"
#include "kvblocks/managers/cross_attention_manager.h"
#include "kvblocks/managers/full_attention_manager.h"
#include "kvblocks/managers/mamba_manager.h"
#include "kvblocks/managers/single_type_manager.h"
#include "kvblocks/managers/sliding_window_manager.h"
#include "kvblocks/specs/kv_cache_kind.h"

namespace kvblocks {
namespace {

struct Factories {
  std::mutex mutex;
  absl::flat_hash_map<const KvCacheKind*, SingleTypeManager::Factory> of_kind;
};

Factories& TheFactories() {
  static Factories* const factories = new Factories;
  return *factories;
}

// Empty if the kind has none.
SingleTypeManager::Factory FactoryOf(const KvCacheKind* kind) {
  if (kind == nullptr) return nullptr;
  const std::lock_guard lock(TheFactories().mutex);
  const auto entry = TheFactories().of_kind.find(kind);
  return entry == TheFactories().of_kind.end() ? nullptr : entry->second;
}

}  // namespace

absl::Status SingleTypeManager::RegisterFactory(const KvCacheKind& kind, Factory factory) {
  const std::lock_guard lock(TheFactories().mutex);
  if (TheFactories().of_kind.try_emplace(&kind, std::move(factory)).second) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("kind ", kind.name, ": got a second manager, expected one"));
}

absl::StatusOr<std::unique_ptr<SingleTypeManager>> SingleTypeManager::Create(
    const KvCacheSpec& spec, const Options& options, BlockPool* pool) {
  if (const Factory own = FactoryOf(spec.registered_kind())) return own(spec, options, pool);
  using Pointer = std::unique_ptr<SingleTypeManager>;
  switch (spec.kind()) {
    case KvCacheSpecKind::kFullAttention:
    case KvCacheSpecKind::kMlaAttention:
    case KvCacheSpecKind::kSinkFullAttention: {
      auto sinks = pool->TakePermanentBlocks(spec.sink_length() / spec.block_size(), options.group);
      if (!sinks.ok()) return sinks.status();
      return Pointer(
          std::make_unique<FullAttentionManager>(spec, options, pool, *std::move(sinks)));
    }
    case KvCacheSpecKind::kSlidingWindow:
    case KvCacheSpecKind::kSlidingWindowMla:
      return Pointer(std::make_unique<SlidingWindowManager>(spec, options, pool));
    case KvCacheSpecKind::kChunkedLocalAttention:
      return Pointer(std::make_unique<ChunkedLocalAttentionManager>(spec, options, pool));
    case KvCacheSpecKind::kMamba:
      return Pointer(std::make_unique<MambaManager>(spec, options, pool));
    case KvCacheSpecKind::kCrossAttention:
      return Pointer(std::make_unique<CrossAttentionManager>(spec, options, pool));
    case KvCacheSpecKind::kEncoderOnlyAttention:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("group ", options.group, ": a spec kind without a block manager"));
}

}  // namespace kvblocks
