// What RunBlend refuses of a step before anything runs: what does not fit together in sessions, metadata
// and caches. What single operations refuse, they say themselves. Cost: O(requests + chunks * layers).

#ifndef KVBLOCKS_ATTENTION_BLEND_BLEND_CHECKS_H_
#define KVBLOCKS_ATTENTION_BLEND_BLEND_CHECKS_H_

#include "absl/status/status.h"
#include "kvblocks/attention/blend/blend_run.h"

namespace kvblocks::attention {

absl::Status CheckBlendStep(const ExecContext& context, const BlendConfig& config,
                            const BlendStep& step, const BlendModel& model);

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BLEND_BLEND_CHECKS_H_
