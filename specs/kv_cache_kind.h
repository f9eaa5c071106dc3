// Kinds of layer caches that a program adds to those of kv_cache_spec.h.
//
// Such a kind has a name, says which of them it is managed like (which tokens a request must
// keep, and what part of a prefix can be reused) and, where its pages have a size of their own, how
// many bytes one has:
//
//   const auto dilated = RegisterKvCacheKind(
//       {.name = "dilated_attention", .managed_like = KvCacheSpecKind::kSlidingWindow});
//   const auto spec = KvCacheSpec::Create(**dilated, {..., .sliding_window = taps * dilation});
//
// How many tokens back a query looks is the spec's sliding_window (or attention_chunk_size). Pool,
// planner, simulator and configuration files (spec { custom_kind: "dilated_attention"
// sliding_window { ... } }) then take specs of the kind. A rule that none of them has takes a
// manager of its own: SingleTypeManager::RegisterFactory.
// examples/custom_attention_kind.cc shows both.
//
// Kinds are registered for the life of the process; any thread may register and look up.

#ifndef KVBLOCKS_SPECS_KV_CACHE_KIND_H_
#define KVBLOCKS_SPECS_KV_CACHE_KIND_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/specs/kv_cache_spec.h"

namespace kvblocks {

struct KvCacheKind {
  std::string name = {};  // of a-z, 0-9 and _; beginning with a letter; unlike the built-in ones
  KvCacheSpecKind managed_like = KvCacheSpecKind::kFullAttention;
  // Bytes of one block's page before alignment and padding, at least 1. Default: as many as the
  // kind that it is managed like has.
  std::function<absl::StatusOr<int64_t>(const KvCacheSpecOptions&)> page_bytes = nullptr;
};

// Refuses a name that is malformed or taken. The kind stays where it is for ever.
absl::StatusOr<const KvCacheKind*> RegisterKvCacheKind(KvCacheKind kind);

// Null if there is none of this name.
const KvCacheKind* FindKvCacheKind(std::string_view name);

// "one of a, b" or "none is registered", for messages about an unknown kind.
std::string RegisteredKinds();

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_KV_CACHE_KIND_H_
