// Which backend serves a configuration: the first by priority that has no reason against it.
//
// If there is none, the NotFound names the configuration once and every backend with all its
// reasons:
//   no backend for {op=decode, q=bf16, kv=int8, D=72, BS=16, sm_90}: CUDA_HOPPER: [head size 72 not
//   in {64, 128}]; CPU_REFERENCE: [tensors are on cuda:0]
// A forced backend is the only one asked, and the text is the same for that one.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_BACKEND_SELECTION_H_
#define KVBLOCKS_ATTENTION_BACKENDS_BACKEND_SELECTION_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/backends/attention_backend.h"
#include "kvblocks/attention/backends/backend_config.h"
#include "kvblocks/attention/backends/backend_registry.h"

namespace kvblocks::attention {

// `forced`: the name of the only backend to ask; empty: all. Cost: O(backends * tables).
absl::StatusOr<const AttentionBackend*> SelectBackend(const BackendRegistry& registry,
                                                      const BackendConfig& config,
                                                      const std::string& forced = "");

// SelectBackend that remembers decisions, refusals included, until a backend is registered.
// Thread-safe. Cost of a known configuration: one look-up.
class BackendSelector {
 public:
  // `registry` must outlive this.
  explicit BackendSelector(const BackendRegistry* registry) : registry_(registry) {}

  absl::StatusOr<const AttentionBackend*> Select(const BackendConfig& config,
                                                 const std::string& forced = "");
  int64_t num_decisions() const;

 private:
  using Key = std::pair<BackendConfig, std::string>;
  const BackendRegistry* registry_;
  mutable std::mutex mutex_;
  int64_t generation_ = -1;  // guarded by mutex_
  absl::flat_hash_map<Key, absl::StatusOr<const AttentionBackend*>> decisions_;  // likewise
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_BACKEND_SELECTION_H_
