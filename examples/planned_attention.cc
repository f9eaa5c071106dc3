// From a plan to outputs: one layer of full attention and three with a window share a pool in each
// of the three layouts. The planner says where their pages lie, PlannedMemory makes tensors of it,
// the manager gives out blocks, and the layers attend. The numbers are the same whatever the
// layout.
#include <cmath>
#include <cstdio>
#include <vector>

#include "kvblocks/kv_cache.h"
#include "kvblocks/planned_memory.h"

using namespace kvblocks;
using namespace kvblocks::attention;

constexpr int64_t kHeads = 4, kDim = 32, kPrompt = 70, kTokens = 80;

std::vector<float> Some(int64_t count, double seed) {  // stands for a projection of the model
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(seed * double(i + 1));
  return values;
}

// The sum of all outputs of a request of kTokens, or NaN; prints where the plan puts the layers.
double Attend(const std::vector<LayerCache>& caches, PoolLayout layout, bool prints) {
  const PlanResult planned = MakePlan(caches, {.layout = layout,
                                               .limits = {.max_model_len = 128,
                                                          .max_in_flight_tokens = 128},
                                               .available_bytes = {1 << 20}});
  if (!planned.ok()) return NAN;
  const Plan& plan = *planned.plan;
  const auto memory = PlannedMemory::Create(plan, {});  // or {.tensors = yours}
  const auto manager = KvCacheManager::Create(plan.config, {.max_model_len = 128});
  if (!memory.ok() || !manager.ok()) return NAN;
  for (const LayerMemory& layer : memory->layers()) {
    if (!prints) break;
    std::printf("  %-8s group %d, tensor %d, byte %lld, block stride %lld bytes\n",
                layer.name.c_str(), layer.group, layer.tensor, (long long)layer.place.offset,
                (long long)layer.place.block_stride);
  }
  const std::vector<TokenId> prompt(kPrompt, /*token=*/7);
  auto request = (*manager)->NewRequest({.id = "request", .content = {.token_ids = prompt}});
  if (!request.ok()) return NAN;

  double sum = 0;
  for (int64_t computed = 0, tokens = kPrompt; computed < kTokens; computed += tokens, tokens = 1) {
    const TokenId sampled = 7;
    if (computed > 0 && !(*request)->AppendOutputTokens({&sampled, 1}).ok()) return NAN;
    const auto slots = (*manager)->AllocateSlots(**request, {.num_new_tokens = tokens});
    if (!slots.ok() || !slots->has_value()) return NAN;
    for (const LayerMemory& layer : memory->layers()) {
      const KvCacheSpec& spec = plan.layers[size_t(layer.layer)].declared;
      const int64_t kv_heads = spec.num_kv_heads();
      const auto impl = CpuBackend().MakeImpl({.num_heads = kHeads,
                                               .num_kv_heads = kv_heads,
                                               .head_size = kDim,
                                               .window = spec.sliding_window().value_or(0)});
      // An engine makes one builder for all groups; KvGroupOf knows the layout's block numbers.
      auto builder = CpuBackend().MakeMetadataBuilder({.groups = {memory->KvGroupOf(layer)},
                                                       .max_num_reqs = 1,
                                                       .max_num_tokens = 128,
                                                       .max_seq_len = 128});
      if (!impl.ok() || !builder.ok()) return NAN;
      const RequestInput input = {.num_computed_tokens = computed, .num_scheduled_tokens = tokens};
      const absl::Span<const int32_t> table = (*manager)->GetBlocks(**request, layer.group);
      if (!builder->Build({.requests = {&input, 1}, .block_ids = {&table, 1}}).ok()) return NAN;
      const auto q = Some(tokens * kHeads * kDim, 0.7), k = Some(tokens * kv_heads * kDim, 0.3),
                 v = Some(tokens * kv_heads * kDim, 0.1 + 0.01 * double(computed));
      std::vector<float> out(q.size());
      const absl::Status status =
          (*impl)->Forward({},
                           {.q = ViewOf(absl::MakeConstSpan(q), {tokens, kHeads, kDim}),
                            .k = ViewOf(absl::MakeConstSpan(k), {tokens, kv_heads, kDim}),
                            .v = ViewOf(absl::MakeConstSpan(v), {tokens, kv_heads, kDim}),
                            .cache = layer.cache,
                            .out = ViewOf(absl::MakeSpan(out), {tokens, kHeads, kDim})},
                           &builder->metadata());
      if (!status.ok()) return NAN;
      for (const float value : out) sum += value;
    }
    (*request)->set_num_computed_tokens(computed + tokens);
  }
  return sum;
}

// A layer of full attention and three with a window. Rows in a format with scales of its own are
// attended to through the same calls.
std::vector<LayerCache> Model(DataType dtype, QuantMode mode) {
  const auto full = FullAttentionSpec::Create(
      {.block_size = 16, .num_kv_heads = 2, .head_size = kDim, .dtype = dtype, .quant_mode = mode});
  const auto window = SlidingWindowSpec::Create({.block_size = 16,
                                                 .num_kv_heads = 1,
                                                 .head_size = kDim,
                                                 .sliding_window = 24,
                                                 .dtype = dtype,
                                                 .quant_mode = mode});
  return {{.name = "full", .spec = *full},
          {.name = "window.0", .spec = *window},
          {.name = "window.1", .spec = *window},
          {.name = "window.2", .spec = *window}};
}

int main() {
  double sums[3][2];
  for (const PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    std::printf("%s\n", std::string(LayoutName(layout)).c_str());
    double* const sum = sums[static_cast<int>(layout)];
    sum[0] = Attend(Model(DataType::kFloat32, QuantMode::kNone), layout, /*prints=*/true);
    sum[1] = Attend(Model(DataType::kInt8, QuantMode::kInt8PerTokenHead), layout, false);
    std::printf("  sum of outputs %.2f, with int8_per_token_head rows %.2f\n", sum[0], sum[1]);
    for (const int rows : {0, 1}) {
      if (!(std::abs(sum[rows] - sums[0][rows]) < 1e-6)) return 1;
    }
  }
}
