// EngineVersion: the release of vLLM whose rules apply where releases differ.
//
// In order, so that a rule that came with a release holds from it on.

#ifndef KVBLOCKS_SPECS_ENGINE_VERSION_H_
#define KVBLOCKS_SPECS_ENGINE_VERSION_H_

namespace kvblocks {

enum class EngineVersion { kVllm025, kVllm033 };

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_ENGINE_VERSION_H_
