// Catalogue: facts about devices and models that step times are computed from.
//
// A catalogue of common ones is part of the binary. A file in the same form (protobuf text,
// catalogue.proto) adds to it or replaces entries by name; every field of a found entry may be
// changed before it is used.

#ifndef KVBLOCKS_SIM_COST_CATALOGUE_H_
#define KVBLOCKS_SIM_COST_CATALOGUE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblocks::sim {

struct DeviceFacts {
  std::string name;
  double bf16_tflops = 0;
  double memory_gb_per_s = 0;
  double memory_gb = 0;
  double link_gb_per_s = 0;
};

struct ModelFacts {
  std::string name;
  int64_t full_layers = 0;
  int64_t window_layers = 0;
  int64_t window = 0;  // of the window layers
  int64_t hidden_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  int64_t vocab_size = 0;
  double params_b = 0;
  double active_params_b = 0;
  bool tied_embeddings = false;
  double bytes_per_param = 2;
  // Mixture of experts; num_experts 0: dense.
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;
  int64_t expert_intermediate_size = 0;
  int64_t moe_layers = 0;
  double bytes_per_expert_param = 2;

  int64_t num_layers() const { return full_layers + window_layers; }
  double embedding_params_b() const;
  double routed_params_b() const;
  double weight_bytes() const;
};

// InvalidArgument names the entry, the field, the value and the limit.
absl::Status Validate(const DeviceFacts& device);
absl::Status Validate(const ModelFacts& model);

class Catalogue {
 public:
  Catalogue() = default;

  static const Catalogue& BuiltIn();

  // Adds the entries of a text, replacing those of the same name. `source` names it in messages. On
  // an error nothing changes.
  absl::Status Merge(std::string_view text, std::string_view source);

  // NotFound lists the names there are.
  absl::StatusOr<DeviceFacts> FindDevice(std::string_view name) const;
  absl::StatusOr<ModelFacts> FindModel(std::string_view name) const;

  const std::map<std::string, DeviceFacts, std::less<>>& devices() const { return devices_; }
  const std::map<std::string, ModelFacts, std::less<>>& models() const { return models_; }

 private:
  std::map<std::string, DeviceFacts, std::less<>> devices_;
  std::map<std::string, ModelFacts, std::less<>> models_;
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_CATALOGUE_H_
