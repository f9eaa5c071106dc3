#include "kvblocks/kv_cache_spec.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "checks/field_error.h"

namespace kvblocks {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, KvCacheKind, std::less<>> kinds;  // nodes stay where they are
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

bool IsKindName(std::string_view name) {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !name.empty() && is_letter(name[0]) && std::ranges::all_of(name, [&](char c) {
    return is_letter(c) || c == '_' || (c >= '0' && c <= '9');
  });
}

}  // namespace

absl::StatusOr<const KvCacheKind*> RegisterKvCacheKind(KvCacheKind kind) {
  const std::string got = '"' + kind.name + '"';
  if (!IsKindName(kind.name)) {
    return FieldError("name", got, "letters a to z, digits and _, a letter first");
  }
  for (int i = 0; i < kNumSpecKinds; ++i) {
    if (kind.name == KindName(static_cast<KvCacheSpecKind>(i))) {
      return FieldError("name", got, "a name that no built-in kind has");
    }
  }
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  std::string name = kind.name;
  const auto [entry, is_new] = registry.kinds.try_emplace(std::move(name), std::move(kind));
  if (!is_new) return FieldError("name", got, "a name that is not registered yet");
  return &entry->second;
}

const KvCacheKind* FindKvCacheKind(std::string_view name) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  const auto entry = registry.kinds.find(name);
  return entry == registry.kinds.end() ? nullptr : &entry->second;
}

std::string RegisteredKinds() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  std::string names;
  for (const auto& [name, kind] : registry.kinds) {
    names.append(names.empty() ? "one of " : ", ").append(name);
  }
  return names.empty() ? "a registered kind (this program has none)" : names;
}

}  // namespace kvblocks
