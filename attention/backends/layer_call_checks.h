// What a layer refuses of a call before it looks at what kind of attention it is.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_LAYER_CALL_CHECKS_H_
#define KVBLOCKS_ATTENTION_BACKENDS_LAYER_CALL_CHECKS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/backends/attention_backend.h"
#include "kvblocks/attention/backends/layer_config.h"
#include "kvblocks/attention/metadata/common_metadata.h"
#include "kvblocks/attention/ops/exec_context.h"

namespace kvblocks::attention {

// That the views may be cut and shaped at all, and counts agree with each other. What they hold is
// for the operations to check.
absl::Status CheckLayerCall(const LayerConfig& layer, const ExecContext& context,
                            const LayerTensors& tensors, const CommonAttentionMetadata& metadata);

// For metadata of one of several ranks: that states of a rank's rows, merged, are the layer's attention.
absl::Status CheckRankCall(const LayerConfig& layer, const LayerTensors& tensors,
                           const CommonAttentionMetadata& metadata);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_LAYER_CALL_CHECKS_H_
