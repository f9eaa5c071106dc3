// What is known of a model while its configuration is read. For the readers of this folder only.

#ifndef KVBLOCKS_SPECS_CATALOGUE_HF_MODEL_H_
#define KVBLOCKS_SPECS_CATALOGUE_HF_MODEL_H_

#include "specs/catalogue/model_facts.h"
#include "specs/catalogue/param_count.h"
#include "specs/data_type.h"

namespace kvblocks {

struct HfModel {
  ModelFacts facts;
  ParamShape shape;
  DataType dtype = DataType::kBFloat16;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_HF_MODEL_H_
