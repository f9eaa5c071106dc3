// EngineVersion: the release of vLLM whose rules apply where releases differ.

#ifndef KVBLOCKS_SPECS_ENGINE_VERSION_H_
#define KVBLOCKS_SPECS_ENGINE_VERSION_H_

namespace kvblocks {

enum class EngineVersion {
  kVllm025,  // 0.25, kept for comparisons with its recordings
  kVllm033,  // 0.33
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_ENGINE_VERSION_H_
