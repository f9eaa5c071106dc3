// PrefixContent as Python sees it, and the arguments that requests have in common with it.

#ifndef KVBLOCKS_PYTHON_SRC_CONTENT_H_
#define KVBLOCKS_PYTHON_SRC_CONTENT_H_

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "python/src/binding.h"

namespace kvblocks::python {

struct PyContent {
  PrefixContent core;
  size_t hash_bytes() const { return core.hashing()->hasher.digest_size(); }
};

// Identifier, offset, length.
using FeatureTuple = std::tuple<std::string, int64_t, int64_t>;

// The parameters that requests and PrefixContent have in common; `at` finds PrefixContent::Options.
template <typename At>
auto LoraParameters(At at) {
  return Parameters(Text("lora_name", KVBLOCKS_OF(at, lora_name), ""),
                    Text("lora_path", KVBLOCKS_OF(at, lora_path), ""));
}
template <typename At>
auto SaltAndFeatures(At at) {
  const auto take_features = [=](auto& args, const std::vector<FeatureTuple>& features) {
    for (const auto& [identifier, offset, length] : features) {
      at(args).features.push_back({identifier, offset, length});
    }
  };
  return Parameters(
      Text("cache_salt", KVBLOCKS_OF(at, cache_salt), ""),
      Take<std::vector<FeatureTuple>>(nb::arg("features") = nb::tuple(), take_features));
}

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_CONTENT_H_
