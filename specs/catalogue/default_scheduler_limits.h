// DefaultSchedulerLimits: the scheduler's limits of a server that was given none (V-79).
//
// vLLM takes them from the device, since larger devices want larger steps:
//
//   const auto device = Catalogue::BuiltIn().FindDevice("h200");
//   DefaultSchedulerLimits({.device_memory_bytes = device->memory_bytes(),
//                           .device_name = device->name});  // 8192 tokens, 1024 requests
//
// What a user gives replaces the default of that field only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_DEFAULT_SCHEDULER_LIMITS_H_
#define KVBLOCKS_SPECS_CATALOGUE_DEFAULT_SCHEDULER_LIMITS_H_

#include <cstdint>
#include <string_view>

#include "kvblocks/specs/engine_version.h"

namespace kvblocks {

enum class EntryPoint {
  kServer,   // the OpenAI-compatible server
  kOffline,  // the Python class for batches of prompts
};

struct ServerDevice {
  int64_t device_memory_bytes = 0;    // of one device; 0 if unknown, which counts as small
  std::string_view device_name = "";  // as the driver or the catalogue calls it, in any case
  EntryPoint entry_point = EntryPoint::kServer;
  bool throughput_mode = false;  // performance mode "throughput" doubles both defaults
  EngineVersion version = EngineVersion::kVllm033;
};

struct SchedulerLimits {
  int64_t max_num_batched_tokens = 0;  // tokens per step
  int64_t max_num_seqs = 0;            // requests that run at once

  friend bool operator==(const SchedulerLimits&, const SchedulerLimits&) = default;
};

SchedulerLimits DefaultSchedulerLimits(const ServerDevice& server);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_DEFAULT_SCHEDULER_LIMITS_H_
