// engine_gpu: the engine on an NVIDIA GPU, checked against the engine on the CPU, and timed.
//
//   engine_gpu check [FOLDER...]     checkpoints, and random models with the heads of fast kernels
//   engine_gpu speed --model=llama-3.1-8b --requests=1,16,64,256 --context=1024
//   engine_gpu serve TRACE --model=llama-3.1-8b --num-blocks=20000 --steps=steps.csv
//
// serve takes kvsim replay's options (serve_command.h). Exit status: 0 all well, 1 a check failed,
// 2 bad arguments or no device.

#include "examples/engine/cuda/engine_gpu.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "attention/cuda/kernels/runtime.h"
#include "checks/status_macros.h"
#include "examples/engine/blender.h"
#include "examples/engine/cuda/comparison.h"
#include "examples/engine/cuda/cublas_products.h"
#include "examples/engine/cuda/cuda_place.h"
#include "examples/engine/cuda/cuda_runner.h"
#include "examples/engine/serve_command.h"

namespace kvblocks::engine {
namespace {

// A token may differ where the CPU's two best logits are as close as this.
constexpr double kMargin = 0.05;

bool Failed(const std::string& name, const absl::Status& status) {
  std::printf("check %s: FAILED: %s\n", name.c_str(), status.ToString().c_str());
  return false;
}

bool Report(const std::string& name, const absl::StatusOr<Comparison>& comparison) {
  if (!comparison.ok()) return Failed(name, comparison.status());
  const bool good = comparison->num_wrong == 0 && std::isfinite(comparison->max_error) &&
                    comparison->num_graph_steps > 0;
  std::printf("check %s: %s: %s\n", name.c_str(), good ? "ok" : "FAILED",
              comparison->Text().c_str());
  std::fflush(stdout);
  return good;
}

// The reference's answers, by the model on the host and caches and attention in float32 here.
bool CheckGolden(const std::string& name, const Model& model, const Golden& golden,
                 Settings settings) {
  const auto outcome = ServeGolden(model, std::move(settings), golden);
  if (!outcome.ok()) return Failed(name, outcome.status());
  const bool good = outcome->num_wrong_tokens == 0 && outcome->max_error < kTolerance &&
                    outcome->served.result.num_finished == golden.num_requests();
  std::printf("check %s: %s: %lld requests, %lld wrong tokens, logits differ by at most %.1e\n",
              name.c_str(), good ? "ok" : "FAILED", static_cast<long long>(golden.num_requests()),
              static_cast<long long>(outcome->num_wrong_tokens), outcome->max_error);
  std::fflush(stdout);
  return good;
}

bool CheckFolder(Products& products, const std::string& folder) {
  const auto model = Model::Load(folder);
  if (!model.ok()) return Failed(folder, model.status());
  bool good = true;
  if (std::filesystem::exists(folder + "/golden.safetensors")) {
    const Golden golden = Golden::Read(folder);
    good &= CheckGolden(folder + ", golden", *model, golden, OnGpu());
    Settings chunks = OnGpu();
    chunks.scheduler.max_num_batched_tokens = chunks.scheduler.max_num_seqs = 7;
    chunks.num_drafts = 3;
    good &= CheckGolden(folder + ", golden, chunks of 7 and drafts", *model, golden, chunks);
    if (Golden::HasMasks(folder)) {
      good &=
          CheckGolden(folder + ", golden with masks", *model, Golden::ReadMasked(folder), OnGpu());
    }
    Settings blends = OnGpu();
    blends.runner.blend_ratio = 1;
    if (Blender::Check(*model).ok()) {
      good &= CheckGolden(folder + ", golden by blends", *model, golden.Blended(), blends);
    }
  }
  if (!DeviceWeights::Check(model->config(), model->weights()).ok()) return good;
  for (const bool masked : {false, true}) {
    good &= Report(folder + (masked ? ", bf16 with masks" : ", bf16"),
                   CompareWithCpu(*model, products, kMargin, masked));
  }
  return good;
}

bool CheckAll(Products& products, const std::vector<std::string>& folders) {
  bool good = true;
  for (const std::string& folder : folders) good &= CheckFolder(products, folder);
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
    for (const bool masked : {false, true}) {
      good &= Report(absl::StrCat(shape.name, masked ? ", with masks" : ""),
                     CompareWithCpu(model, products, kMargin, masked));
    }
  }
  return good;
}

absl::StatusOr<Served> ServeWith(CudaRunner& runner, const ToServe& serve,
                                 std::unique_ptr<sim::TraceReader> trace) {
  if (serve.options.threads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads: got ", serve.options.threads, ", expected 0: the GPU computes"));
  }
  KVBLOCKS_RETURN_IF_ERROR(runner.WarmUp());
  return ServeBy(runner, serve.facts->vocab_size, *serve.plan, serve.config, std::move(trace),
                 serve.observers, serve.tiers);
}

// With the weights beside the model's config.json, or, for one of the catalogue, with random ones.
// What CudaRunner does not compute the host does, all but caches and attention.
absl::StatusOr<Served> ServeByGpu(Products& products, const ToServe& serve,
                                  std::unique_ptr<sim::TraceReader> trace) {
  RunnerOptions options = serve.options;
  absl::string_view folder = serve.model_name;
  if (absl::ConsumeSuffix(&folder, "config.json")) {
    KVBLOCKS_ASSIGN_OR_RETURN(const Model model, Model::Load(absl::StrCat(folder, ".")));
    const absl::Status dense = std::any_of(options.requests.begin(), options.requests.end(),
                                           [](const auto& one) { return one.second.blends(); })
                                   ? absl::UnimplementedError("requests with chunks")
                                   : DeviceWeights::Check(model.config(), model.weights());
    if (!dense.ok()) {
      std::fprintf(stderr, "engine_gpu: the host computes all but caches and attention: %s\n",
                   std::string(dense.message()).c_str());
      KVBLOCKS_ASSIGN_OR_RETURN(const auto place,
                                CudaPlace::Create(model.config().facts, serve.config));
      return Serve(model, *serve.plan, serve.config, std::move(trace), options, serve.observers,
                   serve.tiers, place.get());
    }
    KVBLOCKS_ASSIGN_OR_RETURN(const DeviceWeights weights,
                              DeviceWeights::Upload(model.config(), model.weights()));
    KVBLOCKS_ASSIGN_OR_RETURN(const auto runner,
                              CudaRunner::Create(model.config(), weights, products, *serve.plan,
                                                 serve.config, std::move(options)));
    return ServeWith(*runner, serve, std::move(trace));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(const RandomDeviceModel model, MakeRandomModel(*serve.facts));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto runner,
                            CudaRunner::Create(model.config, model.weights, products, *serve.plan,
                                               serve.config, std::move(options)));
  return ServeWith(*runner, serve, std::move(trace));
}

int Main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "serve") {
    return ServeMain(argc, argv, "engine_gpu", "serves token ids with a model on an NVIDIA GPU",
                     [](const ToServe& serve,
                        std::unique_ptr<sim::TraceReader> trace) -> absl::StatusOr<Served> {
                       KVBLOCKS_ASSIGN_OR_RETURN(const auto products, CublasProducts::Create());
                       return ServeByGpu(*products, serve, std::move(trace));
                     });
  }
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
