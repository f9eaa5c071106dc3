// A LookupExplanation as JSON, as kvb_request_explain_json hands it out. Fields have the names of
// the struct; what is absent there is absent here.

#ifndef KVBLOCKS_C_EXPLANATION_JSON_H_
#define KVBLOCKS_C_EXPLANATION_JSON_H_

#include <string>

#include "kvblocks/lookup_explanation.h"

namespace kvblocks::c {

std::string ExplanationJson(const LookupExplanation& explanation);

}  // namespace kvblocks::c

#endif  // KVBLOCKS_C_EXPLANATION_JSON_H_
