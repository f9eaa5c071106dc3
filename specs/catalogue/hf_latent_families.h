// How configurations of models with latent or compressed rows write down their layers. For the
// families of this folder only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_HF_LATENT_FAMILIES_H_
#define KVBLOCKS_SPECS_CATALOGUE_HF_LATENT_FAMILIES_H_

#include "kvblocks/specs/catalogue/config_fields.h"
#include "kvblocks/specs/catalogue/hf_model.h"

namespace kvblocks {

void ReadDeepseek(ConfigFields& fields, HfModel& model);    // V2, V3, Kimi K2
void ReadDeepseek32(ConfigFields& fields, HfModel& model);  // and an indexer
void ReadDeepseek4(ConfigFields& fields, HfModel& model);   // compressed rows
void ReadDeepseek41(ConfigFields& fields, HfModel& model);  // of few layers, read by the others

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_HF_LATENT_FAMILIES_H_
