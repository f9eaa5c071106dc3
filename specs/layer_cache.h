// LayerCache: one named thing that a model layer wants stored, on one worker - what the catalogue
// lists and the planner takes.
//
// A model layer may own several (a DeepSeek-V4 layer owns up to five). The order in which caches
// are listed is their registration order, and every result of planning is a function of it.

#ifndef KVBLOCKS_SPECS_LAYER_CACHE_H_
#define KVBLOCKS_SPECS_LAYER_CACHE_H_

#include <string>

#include "kvblocks/specs/kv_cache_spec.h"

namespace kvblocks {

struct LayerCache {
  std::string name;  // the same name on two workers is one cache that both of them hold a part of
  KvCacheSpec spec;
  bool is_draft = false;  // belongs to a speculative drafter
  int worker = 0;         // pipeline stage or tensor-parallel rank that holds it, from 0

  friend bool operator==(const LayerCache&, const LayerCache&) = default;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_LAYER_CACHE_H_
