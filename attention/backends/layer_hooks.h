// LayerHooks: what a KV connector hangs around the attention of each layer.
//
// Called by AttentionLayer, per layer and step: WaitForLayer before the first access to the layer's cache, SaveLayer after
// its stores and attention are done or enqueued, and only if they succeeded. Neither is called
// without batch metadata (profiling) or without connector metadata. A WaitForLayer that fails ends
// the layer with its status before anything runs.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_LAYER_HOOKS_H_
#define KVBLOCKS_ATTENTION_BACKENDS_LAYER_HOOKS_H_

#include <string>

#include "absl/status/status.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/metadata/common_metadata.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention {

class LayerHooks {
 public:
  virtual ~LayerHooks() = default;
  // Orders later work on the context's stream behind the load of the layer's blocks. May block the
  // host only outside of graph capture.
  virtual absl::Status WaitForLayer(const std::string& layer, const ExecContext& context) = 0;
  virtual absl::Status SaveLayer(const std::string& layer, const ConstKvCacheView& cache,
                                 const CommonAttentionMetadata& metadata,
                                 const ExecContext& context) = 0;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_LAYER_HOOKS_H_
