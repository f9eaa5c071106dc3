// PrefixContent as Python sees it, and the arguments that requests have in common with it.

#ifndef KVBLOCKS_PYTHON_SRC_CONTENT_H_
#define KVBLOCKS_PYTHON_SRC_CONTENT_H_

#include <cstdint>
#include <optional>
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

PrefixContent::Options ContentOptions(nb::handle token_ids, std::string lora_name,
                                      std::string lora_path, std::string cache_salt,
                                      const std::vector<FeatureTuple>& features);

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_CONTENT_H_
