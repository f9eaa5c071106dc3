// BackendRegistry: the backends that there are, by name and in order of preference.
//
// Names are unique. The registry does not own backends, which usually live as long as the process.
// Thread-safe; registration is rare, look-up copies no backend. Cost: O(number of backends).

#ifndef KVBLOCKS_ATTENTION_BACKENDS_BACKEND_REGISTRY_H_
#define KVBLOCKS_ATTENTION_BACKENDS_BACKEND_REGISTRY_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/backends/attention_backend.h"

namespace kvblocks::attention {

// Lower is asked first; equal ones in order of registration.
inline constexpr int kCudaHopperPriority = 0;
inline constexpr int kCudaPortablePriority = 10;
inline constexpr int kCpuPriority = 20;
inline constexpr int kCpuReferencePriority = 30;

class BackendRegistry {
 public:
  BackendRegistry() = default;
  BackendRegistry(const BackendRegistry&) = delete;
  BackendRegistry& operator=(const BackendRegistry&) = delete;

  // AlreadyExists if the name is taken. `backend` must outlive the registry.
  absl::Status Register(const AttentionBackend* backend, int priority);
  // NotFound, listing the names that there are.
  absl::StatusOr<const AttentionBackend*> Find(const std::string& name) const;
  // By priority.
  std::vector<const AttentionBackend*> backends() const;
  // Grows with every registration: decisions made before may be out of date.
  int64_t generation() const;

 private:
  struct Entry {
    int priority;
    const AttentionBackend* backend;
  };
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // by priority; guarded by mutex_
};

// The process's registry, for registration at static time:
//   static const BackendRegistration registration(&backend, kCpuPriority);
BackendRegistry& GlobalBackendRegistry();

class BackendRegistration {
 public:
  BackendRegistration(const AttentionBackend* backend, int priority)
      : status_(GlobalBackendRegistry().Register(backend, priority)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_BACKEND_REGISTRY_H_
