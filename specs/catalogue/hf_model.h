// What is known of a model while its configuration is read. For the readers of this folder only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_HF_MODEL_H_
#define KVBLOCKS_SPECS_CATALOGUE_HF_MODEL_H_

#include "kvblocks/specs/catalogue/model_facts.h"
#include "kvblocks/specs/catalogue/param_count.h"

namespace kvblocks {

struct HfModel {
  ModelFacts facts;
  ParamShape shape;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_HF_MODEL_H_
