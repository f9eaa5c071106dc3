// NamedSpec: one layer cache, that is one named thing that a model layer wants stored.
//
// A model layer may own several. Planners see layer caches only, never model layers, in an order of
// registration that every later result depends on.

#ifndef KVBLOCKS_SPECS_LAYER_CACHE_H_
#define KVBLOCKS_SPECS_LAYER_CACHE_H_

#include <string>

#include "kvblocks/specs/kv_cache_spec.h"

namespace kvblocks {

struct NamedSpec {
  std::string name;
  KvCacheSpec spec;
  bool is_draft = false;  // belongs to a speculative drafter

  friend bool operator==(const NamedSpec&, const NamedSpec&) = default;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_LAYER_CACHE_H_
