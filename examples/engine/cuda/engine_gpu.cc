// engine_gpu: the engine on an NVIDIA GPU, checked against the engine on the CPU, and timed.
//
//   engine_gpu check [FOLDER...]     checkpoints, and random models with the heads of fast kernels
//   engine_gpu speed --model=llama-3.1-8b --requests=1,16,64,256 --context=1024
//
// Exit status: 0 all well, 1 a check failed, 2 bad arguments or no device.

#include "examples/engine/cuda/engine_gpu.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "attention/cuda/kernels/runtime.h"
#include "examples/engine/cuda/comparison.h"
#include "examples/engine/cuda/cublas_products.h"

namespace kvblocks::engine {
namespace {

// A token may differ where the CPU's two best logits are as close as this.
constexpr double kMargin = 0.05;

bool Report(const std::string& name, const absl::StatusOr<Comparison>& comparison) {
  if (!comparison.ok()) {
    std::printf("check %s: FAILED: %s\n", name.c_str(), comparison.status().ToString().c_str());
    return false;
  }
  const bool good = comparison->num_wrong == 0 && std::isfinite(comparison->max_error) &&
                    comparison->num_graph_steps > 0;
  std::printf("check %s: %s: %s\n", name.c_str(), good ? "ok" : "FAILED",
              comparison->Text().c_str());
  std::fflush(stdout);
  return good;
}

bool CheckAll(Products& products, const std::vector<std::string>& folders) {
  bool good = true;
  for (const std::string& folder : folders) {
    const auto model = Model::Load(folder);
    good &= Report(folder, model.ok() ? CompareWithCpu(*model, products, kMargin)
                                      : absl::StatusOr<Comparison>(model.status()));
  }
  struct Shape {
    const char* name;
    int64_t heads, kv_heads, head_size;
    bool head_norms;
  };
  for (const Shape& shape : {Shape{"random, 8 of 2 heads of 64", 8, 2, 64, false},
                             Shape{"random, 8 of 2 heads of 128", 8, 2, 128, false},
                             Shape{"random, 8 of 1 heads of 128, with norms", 8, 1, 128, true}}) {
    const Model model = RandomModel(/*num_layers=*/4, /*hidden=*/512, shape.heads, shape.kv_heads,
                                    shape.head_size, shape.head_norms, /*seed=*/11);
    good &= Report(shape.name, CompareWithCpu(model, products, kMargin));
  }
  return good;
}

int Main(int argc, char** argv) {
  CLI::App program("the engine on an NVIDIA GPU, checked against the CPU, and timed");
  program.require_subcommand(1);
  std::vector<std::string> folders;
  CLI::App* const check = program.add_subcommand("check", "tokens and logits against the CPU's");
  check->add_option("FOLDER", folders, "with config.json and model*.safetensors");
  SpeedOptions options;
  CLI::App* const speed = program.add_subcommand("speed", "steps with random weights");
  speed->add_option("--model", options.model, "of the catalogue");
  speed->add_option("--requests", options.requests, "that decode at once")->delimiter(',');
  speed->add_option("--context", options.context, "tokens of each prompt");
  speed->add_option("--prefill", options.prefill_tokens, "tokens of the prefill");
  CLI11_PARSE(program, argc, argv);

  int num_devices = 0;
  if (const auto error = attention::cuda::CountDevices(&num_devices); num_devices == 0) {
    std::fprintf(stderr, "engine_gpu: no device: %s\n", attention::cuda::ErrorName(error));
    return 2;
  }
  attention::cuda::DeviceProperties device;
  (void)attention::cuda::PropertiesOf(0, &device);
  std::printf("device %s, compute capability %d, %d multiprocessors, %.1f GB\n", device.name,
              device.compute_capability, device.num_multiprocessors,
              static_cast<double>(device.total_bytes) * 1e-9);
  const auto products = CublasProducts::Create();
  if (!products.ok()) {
    std::fprintf(stderr, "engine_gpu: %s\n", products.status().ToString().c_str());
    return 2;
  }
  if (check->parsed()) return CheckAll(**products, folders) ? 0 : 1;
  const absl::Status status = MeasureSpeed(**products, options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "engine_gpu: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace kvblocks::engine

int main(int argc, char** argv) { return kvblocks::engine::Main(argc, argv); }
