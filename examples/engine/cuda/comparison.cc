#include "examples/engine/cuda/comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checks/status_macros.h"
#include "examples/engine/cuda/cuda_place.h"
#include "examples/engine/cuda/cuda_runner.h"
#include "kvblocks/planning.h"

namespace kvblocks::engine {
namespace {

constexpr int64_t kCompared = 12;  // tokens of each request

// Logits and tokens by request and place.
struct Sampled {
  std::map<std::pair<int64_t, int64_t>, std::vector<float>> logits;
  std::vector<sim::TraceRequest> requests;
  RequestAttentions asks;

  RunnerOptions Options() {
    RunnerOptions options;
    options.requests = asks;
    options.on_logits = [this](const sim::SimRequest& request, int64_t index,
                               absl::Span<const float> row) {
      logits[{request.spec.row, index}].assign(row.begin(), row.end());
    };
    return options;
  }
};

Settings SettingsOf(DataType cache) {
  Settings settings;
  settings.caches.model_dtype = cache;
  settings.scheduler.max_num_batched_tokens = 64;
  settings.scheduler.max_num_seqs = 16;
  settings.max_model_len = 1024;
  return settings;
}

// Of the first and the last documents tokens are sampled in steps of their own, too.
RequestAttentions MasksFor(const std::vector<int64_t>& lengths) {
  RequestAttentions masks;
  masks["2"].documents = {lengths[2] / 2, lengths[2] / 3};
  masks["3"].documents = {lengths[3]};
  for (int64_t i = 0; i < lengths[5]; ++i) {
    std::string& row = masks["5"].mask.emplace_back();
    for (int64_t j = 0; j <= i; ++j) row += i == j || (3 * i + 5 * j) % 7 > 2 ? '1' : '0';
  }
  return masks;
}

double MarginOf(std::vector<float> logits) {
  std::nth_element(logits.begin(), logits.begin() + 1, logits.end(), std::greater<float>());
  return double{logits[0]} - logits[1];
}

}  // namespace

Golden RandomPrompts(const std::vector<int64_t>& lengths, int64_t vocabulary) {
  std::mt19937 random(7);
  Golden golden;
  for (size_t r = 0; r < lengths.size(); ++r) {
    std::vector<int64_t> prompt = r % 2 == 1 ? golden.prompts.back() : std::vector<int64_t>();
    prompt.resize(std::min(prompt.size(), static_cast<size_t>(lengths[r] / 2)));
    while (static_cast<int64_t>(prompt.size()) < lengths[r]) {
      prompt.push_back(static_cast<int64_t>(random() % vocabulary));
    }
    golden.prompts.push_back(std::move(prompt));
    golden.tokens.emplace_back(1);
  }
  return golden;
}

Model RandomModel(int64_t num_layers, int64_t hidden, int64_t num_heads, int64_t num_kv_heads,
                  int64_t head_size, bool head_norms, uint32_t seed) {
  ModelConfig config;
  ModelFacts& facts = config.facts;
  facts = Catalogue::BuiltIn().FindModel(head_norms ? "qwen3-32b" : "llama-3.1-8b").value();
  facts.name = "random";
  facts.tied_embeddings = false;
  facts.layer_pattern.assign(static_cast<size_t>(num_layers), 'F');
  facts.hidden_size = hidden;
  facts.intermediate_size = 2 * hidden;
  facts.num_heads = num_heads;
  facts.num_kv_heads = num_kv_heads;
  facts.head_size = head_size;
  facts.vocab_size = 512;
  for (int64_t i = 0; i < head_size / 2; ++i) {
    config.rotary.frequencies.push_back(
        std::pow(10000.0f, -2 * static_cast<float>(i) / static_cast<float>(head_size)));
  }
  std::mt19937 random(seed);
  const auto draw = [&random](size_t count, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    std::vector<float> values(count);
    for (float& value : values) value = RoundToBf16(normal(random));
    return values;
  };
  // Logits come out with a deviation of about 2, like those of a trained model.
  const auto matrix = [&draw](int64_t in, int64_t out, float gain = 1) {
    return Linear{
        .in = in,
        .out = out,
        .weight = draw(static_cast<size_t>(in * out), 0, gain / std::sqrt(static_cast<float>(in)))};
  };
  const auto norm = [&draw](int64_t size) { return draw(static_cast<size_t>(size), 1, 0.1f); };
  Weights weights;
  weights.embedding = matrix(hidden, facts.vocab_size, std::sqrt(static_cast<float>(hidden)));
  weights.head = matrix(hidden, facts.vocab_size, 2);
  weights.norm = norm(hidden);
  const int64_t queries = num_heads * head_size, keys = num_kv_heads * head_size;
  for (int64_t i = 0; i < num_layers; ++i) {
    LayerWeights& layer = weights.layers.emplace_back();
    layer.attention_norm = norm(hidden);
    layer.mlp_norm = norm(hidden);
    if (head_norms) {
      layer.q_norm = norm(head_size);
      layer.k_norm = norm(head_size);
    }
    layer.q = matrix(hidden, queries);
    layer.k = matrix(hidden, keys);
    layer.v = matrix(hidden, keys);
    layer.o = matrix(queries, hidden);
    layer.mlp = {.gate = matrix(hidden, facts.intermediate_size),
                 .up = matrix(hidden, facts.intermediate_size),
                 .down = matrix(facts.intermediate_size, hidden)};
  }
  return Model::Of(std::move(config), std::move(weights));
}

std::string Comparison::Text() const {
  return absl::StrFormat(
      "%d tokens compared, %d wrong, %d different with a small margin; logits differ by at most "
      "%.4f, %.2f %% of what they are; %d steps, %d of them graphs",
      num_tokens, num_wrong, num_excused, max_error, 100 * rms_error, num_steps, num_graph_steps);
}

Settings OnGpu() {
  Settings settings;
  settings.make_place =
      [](const ModelFacts& facts,
         const sim::SimulationConfig& config) -> absl::StatusOr<std::unique_ptr<AttentionPlace>> {
    return CudaPlace::Create(facts, config);
  };
  return settings;
}

absl::StatusOr<Comparison> CompareWithCpu(const Model& model, Products& products, double margin,
                                          bool masked) {
  const ModelFacts& facts = model.config().facts;
  // Chunks of prompts beside decodes, prefix hits, and one prompt of a single token.
  const std::vector<int64_t> lengths = {1, 70, 140, 30, 17, 64, 100, 5, 33, 200, 16, 48};
  Comparison out;
  Sampled cpu, gpu;
  if (masked) cpu.asks = gpu.asks = MasksFor(lengths);
  const Golden prompts = RandomPrompts(lengths, facts.vocab_size);
  Settings on_cpu = SettingsOf(DataType::kFloat32);
  on_cpu.runner = cpu.Options();
  KVBLOCKS_ASSIGN_OR_RETURN(Served served_by_cpu,
                            TryServe(model, on_cpu, TraceOf(prompts, kCompared)));
  cpu.requests = std::move(served_by_cpu.requests);
  {
    KVBLOCKS_ASSIGN_OR_RETURN(const Serving serve,
                              PlanServing(facts, SettingsOf(DataType::kBFloat16)));
    KVBLOCKS_ASSIGN_OR_RETURN(const DeviceWeights weights,
                              DeviceWeights::Upload(model.config(), model.weights()));
    KVBLOCKS_ASSIGN_OR_RETURN(const auto runner,
                              CudaRunner::Create(model.config(), weights, products, serve.plan,
                                                 serve.config, gpu.Options()));
    KVBLOCKS_RETURN_IF_ERROR(runner->WarmUp());
    KVBLOCKS_ASSIGN_OR_RETURN(Served served, ServeBy(*runner, facts.vocab_size, serve.plan,
                                                     serve.config, TraceOf(prompts, kCompared)));
    gpu.requests = std::move(served.requests);
    out.num_steps = served.result.scheduler.num_steps;
    out.num_graph_steps = runner->num_graph_steps();
  }
  double errors = 0, squares = 0;
  for (size_t r = 0; r < lengths.size(); ++r) {
    const auto& wanted = cpu.requests[r].output_ids;
    const auto& got = gpu.requests[r].output_ids;
    if (wanted.size() != static_cast<size_t>(kCompared) || got.size() != wanted.size()) {
      return absl::InternalError(absl::StrCat("request ", r, " has ", got.size(), " tokens and ",
                                              wanted.size(), " on the CPU, expected ", kCompared));
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      const std::pair<int64_t, int64_t> at(cpu.requests[r].row, i);
      const std::vector<float>&a = cpu.logits[at], &b = gpu.logits[at];
      if (a.size() != b.size() || a.size() < 2) {
        return absl::InternalError(absl::StrCat("request ", r, ", token ", i, ": no logits"));
      }
      for (size_t v = 0; v < a.size(); ++v) {
        const double error = std::abs(double{a[v]} - b[v]);
        errors += error * error;
        squares += double{a[v]} * a[v];
        // A NaN counts as far away.
        out.max_error = error <= out.max_error ? out.max_error : error;
        if (std::isnan(error)) out.max_error = HUGE_VAL;
      }
      ++out.num_tokens;
      if (wanted[i] == got[i]) continue;
      ++(MarginOf(a) <= margin ? out.num_excused : out.num_wrong);
      break;
    }
  }
  out.rms_error = std::sqrt(errors / squares);
  return out;
}

}  // namespace kvblocks::engine
