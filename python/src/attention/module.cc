// The extension module kvblocks._attention.

#include "python/src/attention/op_call.h"

NB_MODULE(_attention, module) {
  using namespace kvblocks::python;  // NOLINT
  module.doc() = "The compiled part of kvblocks.attention; use that.";
#ifdef KVBLOCKS_WITH_CUDA
  module.attr("has_cuda") = true;
#else
  module.attr("has_cuda") = false;
#endif
  BindTensor(module);
  BindKvCache(module);
  BindOpCall(module);
  BindAttentionRules(module);
  BindRowOps(module);
  BindBlockOps(module);
  BindDenseOps(module);
  BindStateOps(module);
  BindMlaOps(module);
  BindIndexOps(module);
  BindIndexerOps(module);
  BindMetadata(module);
  BindLayers(module);
}
