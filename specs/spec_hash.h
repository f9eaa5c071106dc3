// Hashing of optional fields for the spec values: an unset field differs from every value, zero
// included.

#ifndef KVBLOCKS_SPECS_SPEC_HASH_H_
#define KVBLOCKS_SPECS_SPEC_HASH_H_

#include <optional>
#include <utility>

namespace kvblocks {

template <typename H, typename... T>
H CombineOptionals(H h, const std::optional<T>&... fields) {
  return H::combine(std::move(h), fields.has_value()..., fields.value_or(T())...);
}

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_SPEC_HASH_H_
