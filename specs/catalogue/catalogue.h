// Catalogue: facts about common models and devices, by name.
//
// A catalogue is part of the binary. A file in the same form (protobuf text, catalogue.proto) adds
// to it or replaces entries by name; every field of a found entry may be changed before it is used.
//
//   const auto model = Catalogue::BuiltIn().FindModel("gemma-3-27b");
//
// Every entry passes Validate(). Look-ups walk a map of a few dozen names.

#ifndef KVBLOCKS_SPECS_CATALOGUE_CATALOGUE_H_
#define KVBLOCKS_SPECS_CATALOGUE_CATALOGUE_H_

#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/specs/catalogue/model_facts.h"

namespace kvblocks {

class Catalogue {
 public:
  Catalogue() = default;

  static const Catalogue& BuiltIn();

  // Adds the entries of a text, replacing those of the same name. `source` names it in messages. On
  // an error nothing changes.
  absl::Status Merge(std::string_view text, std::string_view source);

  // By name, by the beginning of exactly one name ("h200" for "h200-sxm"), and models also by their
  // id at Hugging Face ("Qwen/Qwen3-8B", in any case). NotFound lists the names there are, or those
  // that begin like it.
  absl::StatusOr<DeviceFacts> FindDevice(std::string_view name) const;
  absl::StatusOr<ModelFacts> FindModel(std::string_view name) const;

  const std::map<std::string, DeviceFacts, std::less<>>& devices() const { return devices_; }
  const std::map<std::string, ModelFacts, std::less<>>& models() const { return models_; }

 private:
  std::map<std::string, DeviceFacts, std::less<>> devices_;
  std::map<std::string, ModelFacts, std::less<>> models_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_CATALOGUE_H_
