// How long planning takes: a small model and the largest published ones, under both policies.

#include <vector>

#include "benchmark/benchmark.h"
#include "kvblocks/plan.h"
#include "specs/planning/testing/sample_models.h"

namespace kvblocks {
namespace {

void BM_MakePlan(benchmark::State& state, const std::vector<LayerCache>& caches,
                 PlanOptions options) {
  options.limits = {.max_model_len = 131072, .max_in_flight_tokens = 8192};
  options.available_bytes = {int64_t{64} << 30};
  for (auto _ : state) {
    PlanResult result = MakePlan(caches, options);
    if (!result.ok()) state.SkipWithError(result.errors[0].message.c_str());
    benchmark::DoNotOptimize(result);
  }
  state.counters["caches"] = static_cast<double>(caches.size());
}

const PlanOptions kUpstream = {.policy = PlanPolicy::kUpstream};
const PlanOptions kAllLayouts = {};
const PlanOptions kNative = {.layout = PoolLayout::kNative};

BENCHMARK_CAPTURE(BM_MakePlan, llama_8b_upstream, Llama31_8b(), kUpstream);
BENCHMARK_CAPTURE(BM_MakePlan, llama_8b_exact, Llama31_8b(), kAllLayouts);
BENCHMARK_CAPTURE(BM_MakePlan, gemma_3_27b_exact, Gemma3_27b(), kAllLayouts);
BENCHMARK_CAPTURE(BM_MakePlan, deepseek_v4_pro_upstream, DeepseekV4(DeepseekV4ProPattern()),
                  kUpstream);
BENCHMARK_CAPTURE(BM_MakePlan, deepseek_v4_pro_exact, DeepseekV4(DeepseekV4ProPattern()),
                  kAllLayouts);
BENCHMARK_CAPTURE(BM_MakePlan, deepseek_v4_pro_native, DeepseekV4(DeepseekV4ProPattern()), kNative);

}  // namespace
}  // namespace kvblocks

BENCHMARK_MAIN();
