// The extension module kvblocks._core.

#include "kvblocks/version.h"
#include "python/src/binding.h"

NB_MODULE(_core, module) {
  using namespace kvblocks::python;  // NOLINT
  module.doc() = "The compiled part of kvblocks; use the package.";
  module.attr("__version__") = KVBLOCKS_VERSION;
  BindSpecs(module);
  BindManager(module);
  BindContent(module);
  BindRequest(module);
  BindTables(module);
  BindBatch(module);
  BindPool(module);
  BindReports(module);
  BindEvents(module);
  BindPlanning(module);
  nb::module_ vllm = module.def_submodule("vllm_native");
  BindVllm(vllm);
}
