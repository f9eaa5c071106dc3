// LayerHooks: what a KV connector hangs around the attention of each layer.
//
// Called by layers, per layer and step: WaitForLayer before the first access to the layer's cache,
// SaveLayer after its stores and attention are done or enqueued, and only if they succeeded. Sparse layers
// have several caches (SparseCacheNames): each is waited for by its name before the first access to any,
// and saved, index keys and states of compressors by SaveBlocks, with the metadata of its own group.
// None is called without batch metadata (profiling) or without connector metadata. A wait that fails
// ends the layer with its status before anything runs, a save that fails before the next.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_LAYER_HOOKS_H_
#define KVBLOCKS_ATTENTION_BACKENDS_LAYER_HOOKS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/attention/cache/kv_cache_view.h"
#include "kvblocks/attention/metadata/common_metadata.h"
#include "kvblocks/attention/ops/exec_context.h"
#include "kvblocks/attention/tensor/tensor_view.h"

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
  // Of caches that are no keys and values: [block numbers, ...].
  virtual absl::Status SaveBlocks(const std::string& cache, const ConstTensorView& /*blocks*/,
                                  const CommonAttentionMetadata& /*metadata*/,
                                  const ExecContext& /*context*/) {
    return absl::UnimplementedError(
        absl::StrCat("SaveBlocks: these hooks do not save ", cache,
                     ", whose blocks are index keys or states; override SaveBlocks"));
  }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_LAYER_HOOKS_H_
