// How long steps take, with weights made on the device.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/cuda/check/bench_kernels.h"
#include "attention/cuda/cuda_call.h"
#include "checks/status_macros.h"
#include "examples/engine/cuda/comparison.h"
#include "examples/engine/cuda/cuda_place.h"
#include "examples/engine/cuda/cuda_runner.h"
#include "examples/engine/cuda/device_weights.h"
#include "examples/engine/cuda/engine_gpu.h"
#include "kvblocks/planning.h"

namespace kvblocks::engine {
namespace {

namespace cuda = attention::cuda;
using cuda::StatusOf;

constexpr int kTimedSteps = 24, kWarmSteps = 4, kPartRounds = 10;

cuda::LaunchContext ContextOfDevice() {
  cuda::DeviceProperties device;
  (void)cuda::PropertiesOf(0, &device);
  cuda::LaunchContext context;
  context.num_multiprocessors = device.num_multiprocessors;
  context.compute_capability = device.compute_capability;
  return context;
}

// Bytes per second of a kernel that only reads: of several tries the best.
absl::StatusOr<double> ReadRate() {
  constexpr int64_t kBytes = int64_t{8} << 30;
  constexpr int kTries = 8;
  KVBLOCKS_ASSIGN_OR_RETURN(const DeviceArray memory, DeviceArray::Create("reads", kBytes));
  KVBLOCKS_ASSIGN_OR_RETURN(const DeviceArray sink, DeviceArray::Create("a sink", 16));
  const cuda::LaunchContext context = ContextOfDevice();
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    KVBLOCKS_ASSIGN_OR_RETURN(const double ms, TimeOnDevice(nullptr, [&] {
                                return StatusOf(
                                    "reads", cuda::LaunchReadAll(context, memory.as<void>(), kBytes,
                                                                 sink.as<uint32_t>()));
                              }));
    best = std::max(best, static_cast<double>(kBytes) / ms * 1e3);
  }
  return best;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// Of a run's steps: those in which all requests decode, and the largest one.
class StepTimes final : public sim::EngineObserver {
 public:
  StepTimes(CudaRunner* runner, int64_t num_requests)
      : runner_(runner), num_requests_(num_requests) {}

  void OnStepScheduled(const sim::StepRecord& step) override {
    const CudaRunner::LastStep& last = runner_->last_step();
    if (!runner_->status().ok() || step.scheduled.empty()) return;
    if (last.num_tokens >= largest.num_tokens) largest = last;
    if (!last.is_graph || last.num_tokens != num_requests_ || done()) return;
    if (++num_decodes_ <= kWarmSteps) return;
    decode_us.push_back(last.total_us);
    build_us.push_back(last.build_us);
    upload_us.push_back(last.upload_us - last.build_us);
    issue_us.push_back(last.issue_us);
    context = 0;
    for (const sim::ScheduledRecord& record : step.scheduled) context += record.num_context + 1;
    if (!done()) return;
    // The last one that counts: what comes behind may be wrong.
    for (const CudaRunner::Part parts :
         {CudaRunner::kAll, CudaRunner::kAttention, CudaRunner::kProducts, CudaRunner::kRest,
          CudaRunner::kQkv, CudaRunner::kOut, CudaRunner::kGateUp, CudaRunner::kDown,
          CudaRunner::kHead}) {
      const auto ms = runner_->TimePart(parts, kPartRounds);
      status.Update(ms.status());
      part_ms.push_back(ms.ok() ? *ms : 0);
    }
  }

  bool done() const { return static_cast<int>(decode_us.size()) == kTimedSteps; }

  CudaRunner::LastStep largest;
  std::vector<double> decode_us, build_us, upload_us, issue_us;
  std::vector<double> part_ms;  // all, attention, products, rest, products one by one
  int64_t context = 0;          // tokens of all requests, at the end
  absl::Status status;

 private:
  CudaRunner* const runner_;
  const int64_t num_requests_;
  int num_decodes_ = 0;
};

class Bench {
 public:
  Bench(const ModelConfig& model, const DeviceWeights& weights, CudaRunner* runner,
        const Serving* serve, double read_rate)
      : model_(model), weights_(weights), runner_(runner), serve_(serve), read_rate_(read_rate) {}

  absl::Status Decode(int64_t requests, int64_t context) {
    // Who comes first decodes while the others' prompts are computed.
    const int64_t budget = serve_->config.scheduler.max_num_batched_tokens;
    const int64_t outputs =
        requests * context / std::max<int64_t>(1, budget - requests) + kWarmSteps + kTimedSteps + 8;
    StepTimes times(runner_, requests);
    KVBLOCKS_RETURN_IF_ERROR(Serve(requests, context, outputs, times));
    if (!times.done()) {
      return absl::InternalError(absl::StrCat(requests, " requests: only ", times.decode_us.size(),
                                              " steps had all of them decoding"));
    }
    KVBLOCKS_RETURN_IF_ERROR(times.status);
    const ModelFacts& facts = model_.facts;
    const auto weights = static_cast<double>(weights_.BytesPerStep());
    const double cache =
        static_cast<double>(times.context) * 4.0 *
        static_cast<double>(facts.num_layers() * facts.num_kv_heads * facts.head_size);
    const double ms = Median(times.decode_us) * 1e-3, least = (weights + cache) / read_rate_ * 1e3;
    std::printf(
        "decode %lld requests of %lld: %.1f tokens/s, step %.3f ms (device %.3f, host issues in "
        "%.1f us: metadata %.1f, uploads %.1f), weights %.2f GB, cache %.2f GB, at the read rate "
        "%.3f ms: %.1f %% of it; alone: attention %.3f ms, products %.3f (qkv %.3f, o %.3f, gate "
        "and up %.3f, down %.3f, head %.3f), rest %.3f\n",
        static_cast<long long>(requests), static_cast<long long>(context),
        static_cast<double>(requests) / ms * 1e3, ms, times.part_ms[0], Median(times.issue_us),
        Median(times.build_us), Median(times.upload_us), weights * 1e-9, cache * 1e-9, least,
        100 * least / ms, times.part_ms[1], times.part_ms[2], times.part_ms[4], times.part_ms[5],
        times.part_ms[6], times.part_ms[7], times.part_ms[8], times.part_ms[3]);
    return absl::OkStatus();
  }

  absl::Status Prefill(int64_t tokens) {
    CudaRunner::LastStep best;
    for (int i = 0; i < 3; ++i) {
      StepTimes times(runner_, /*num_requests=*/-1);
      KVBLOCKS_RETURN_IF_ERROR(Serve(1, tokens, 2, times));
      if (best.num_tokens == 0 || times.largest.total_us < best.total_us) best = times.largest;
    }
    // Two operations per weight and token, the head's but once; attention 4 per query, key and
    // value, half of them by causality.
    const ModelFacts& facts = model_.facts;
    const DeviceArray& head = weights_.head.absent() ? weights_.embedding : weights_.head;
    const auto n = static_cast<double>(best.num_tokens);
    const double products =
        n * static_cast<double>(weights_.BytesPerStep() - head.bytes());  // 2 bytes, 2 operations
    const double attention =
        2 * n * n * static_cast<double>(facts.num_layers() * facts.num_heads * facts.head_size);
    std::printf(
        "prefill of %lld tokens in one step: %.2f ms (host issues in %.2f), %.0f tokens/s, "
        "%.1f TFLOP/s (products %.1f TFLOP, attention %.1f)\n",
        static_cast<long long>(best.num_tokens), best.total_us * 1e-3, best.issue_us * 1e-3,
        n / best.total_us * 1e6, (products + attention) / best.total_us * 1e-6, products * 1e-12,
        attention * 1e-12);
    return absl::OkStatus();
  }

 private:
  absl::Status Serve(int64_t requests, int64_t context, int64_t outputs, StepTimes& times) {
    const int64_t vocabulary = model_.facts.vocab_size;
    const std::vector<int64_t> lengths(static_cast<size_t>(requests), context);
    const auto served = ServeBy(*runner_, vocabulary, serve_->plan, serve_->config,
                                TraceOf(RandomPrompts(lengths, vocabulary), outputs), {&times});
    return served.status();
  }

  const ModelConfig& model_;
  const DeviceWeights& weights_;
  CudaRunner* const runner_;
  const Serving* const serve_;
  const double read_rate_;
};

}  // namespace

absl::StatusOr<RandomDeviceModel> MakeRandomModel(const ModelFacts& facts) {
  RandomDeviceModel made;
  made.config.facts = facts;
  const auto size = static_cast<float>(facts.head_size);
  for (int64_t i = 0; i < facts.head_size / 2; ++i) {
    made.config.rotary.frequencies.push_back(
        std::pow(500'000.0f, -2 * static_cast<float>(i) / size));
  }
  const cuda::LaunchContext context = ContextOfDevice();
  uint32_t seed = 0;
  KVBLOCKS_ASSIGN_OR_RETURN(
      made.weights, DeviceWeights::Random(
                        made.config, /*head_norms=*/facts.family == "qwen3",
                        [&](const DeviceArray& to, int64_t count, float deviation) {
                          return StatusOf("weights", cuda::LaunchFillNormal(
                                                         context, to.as<void>(), count,
                                                         cuda::Element::kBF16, ++seed, deviation));
                        }));
  KVBLOCKS_RETURN_IF_ERROR(StatusOf("weights", cuda::Synchronize(nullptr)));
  return made;
}

absl::Status MeasureSpeed(Products& products, const SpeedOptions& options) {
  KVBLOCKS_ASSIGN_OR_RETURN(const double read_rate, ReadRate());
  std::printf("model %s, measured read rate %.1f GB/s\n", options.model.c_str(), read_rate * 1e-9);
  KVBLOCKS_ASSIGN_OR_RETURN(const ModelFacts facts, Catalogue::BuiltIn().FindModel(options.model));
  KVBLOCKS_ASSIGN_OR_RETURN(const RandomDeviceModel random, MakeRandomModel(facts));
  const ModelConfig& model = random.config;
  const DeviceWeights& weights = random.weights;

  constexpr int64_t kMostOutputs = 80;
  const int64_t most = options.requests.empty()
                           ? 1
                           : *std::max_element(options.requests.begin(), options.requests.end());
  Settings settings;
  settings.caches.model_dtype = DataType::kBFloat16;
  settings.scheduler.max_num_batched_tokens = options.prefill_tokens;
  settings.scheduler.max_num_seqs = std::max<int64_t>(most, 1);
  settings.max_model_len = std::max(options.context, options.prefill_tokens) + kMostOutputs;
  settings.plan.num_blocks_override =
      1 +
      std::max(most * ((options.context + kMostOutputs) / 16 + 1), settings.max_model_len / 16 + 1);
  settings.caching = false;
  KVBLOCKS_ASSIGN_OR_RETURN(const Serving serve, PlanServing(model.facts, settings));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto runner, CudaRunner::Create(model, weights, products,
                                                                  serve.plan, serve.config, {}));
  Bench bench(model, weights, runner.get(), &serve, read_rate);
  absl::Status first;
  const auto keep = [&first](const std::string& name, const absl::Status& status) {
    if (!status.ok()) std::printf("%s: FAILED: %s\n", name.c_str(), status.ToString().c_str());
    std::fflush(stdout);
    first.Update(status);
  };
  for (const int64_t requests : options.requests) {
    keep(absl::StrCat("decode ", requests), bench.Decode(requests, options.context));
  }
  keep("prefill", bench.Prefill(options.prefill_tokens));
  return first;
}

}  // namespace kvblocks::engine
