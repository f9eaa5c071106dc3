// The architectures that ModelFromHfConfig knows, and how each writes down its layers.
//
// A family reads what is its own: which layers attend how, experts, latent rows, states. What all
// of them share (sizes, heads, embeddings) is read before. For hf_config.cc only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_HF_FAMILIES_H_
#define KVBLOCKS_SPECS_CATALOGUE_HF_FAMILIES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "kvblocks/specs/catalogue/config_fields.h"
#include "kvblocks/specs/catalogue/hf_model.h"

namespace kvblocks {

struct HfFamily {
  std::string_view model_type;    // of the whole or of its text_config
  std::string_view architecture;  // where model_type is missing
  std::string_view family;        // the catalogue's name
  bool tied_embeddings = false;   // by default
  int64_t head_dim = 0;           // by default; 0: hidden_size / num_attention_heads
  void (*read)(ConfigFields& fields, HfModel& model) = nullptr;
};

// Null if there is none.
const HfFamily* FindFamilyByType(std::string_view model_type);
const HfFamily* FindFamilyByArchitecture(std::string_view architecture);

// "deepseek_v2, deepseek_v3, ...".
std::string KnownModelTypes();

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_HF_FAMILIES_H_
