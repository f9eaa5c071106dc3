// A layer on a GPU gets the backend CUDA, which links without one.
#include <cstdio>

#include "kvblocks/attention.h"
#include "kvblocks/attention_cuda.h"

int main() {
  using namespace kvblocks::attention;
  BackendRegistry registry;
  const absl::Status registered = RegisterCudaBackend(registry);
  BackendConfig config;
  config.device = {DeviceKind::kCuda, 0};
  config.compute_capability = 90;
  const auto selected = SelectBackend(registry, config);
  std::printf("cuda: %s %s\n", registered.ToString().c_str(),
              selected.ok() ? (*selected)->name() : selected.status().ToString().c_str());
  return registered.ok() && selected.ok() && *selected == &CudaBackend() ? 0 : 1;
}
