// Planning inside the process: what the C interface answers, as text.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <string>

#include "kvblocks/c/kvblocks.h"
#include "python/src/binding.h"

namespace kvblocks::python {
namespace {

std::string PlanJson(const std::string& options, const std::optional<std::string>& hf_config) {
  char* json = nullptr;
  kvb_status status;
  {
    const nb::gil_scoped_release released;
    status = kvb_plan_json(options.data(), options.size(), hf_config ? hf_config->data() : nullptr,
                           hf_config ? hf_config->size() : 0, &json);
  }
  if (status != KVB_OK) {
    Raise(status == KVB_NOT_FOUND ? "NotFoundError" : "InvalidArgumentError", kvb_last_error());
  }
  std::string text = json;
  kvb_string_free(json);
  return text;
}

}  // namespace

void BindPlanning(nb::module_& module) {
  module.def("plan_json", &PlanJson, nb::arg("options"), nb::arg("hf_config") = nb::none(),
             "kvb_plan_json of the C interface; kvblocks.make_plan calls it.");
}

}  // namespace kvblocks::python
