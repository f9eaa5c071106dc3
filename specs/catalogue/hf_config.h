// ModelFromHfConfig: a model's facts from the config.json that is published with its weights.
//
//   ModelFromHfConfig(text, "config.json")   // facts as the catalogue would have them
//
// Knows the architectures of the catalogue; another one is refused with the list of those known.
// What a configuration leaves out has the default of the architecture's published reference code;
// what it contradicts itself about is refused. The number of parameters is counted from the shapes,
// without biases, norms and anything beside the text model: an estimate, within 3 % of the
// published counts for the catalogue's models.
//
// The text may come from anywhere: size and depth are limited, and every number is checked before
// it is used. Messages read "SOURCE: FIELD: got VALUE, expected WHAT".

#ifndef KVBLOCKS_SPECS_CATALOGUE_HF_CONFIG_H_
#define KVBLOCKS_SPECS_CATALOGUE_HF_CONFIG_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "kvblocks/specs/catalogue/model_facts.h"

namespace kvblocks {

// `source_name` becomes the model's name. A result passes Validate().
absl::StatusOr<ModelFacts> ModelFromHfConfig(std::string_view json_text,
                                             std::string_view source_name);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_HF_CONFIG_H_
