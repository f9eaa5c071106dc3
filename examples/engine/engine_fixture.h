// What tests of whole models share: a model's golden answers, and how it is served.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_ENGINE_FIXTURE_H_
#define KVBLOCKS_EXAMPLES_ENGINE_ENGINE_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/engine/engine.h"
#include "examples/engine/safetensors.h"
#include "gtest/gtest.h"
#include "kvblocks/planning.h"
#include "sim/testing/replay.h"
#include "sim/tiers/tier_text.h"

namespace kvblocks::engine {

constexpr int64_t kRequests = 64, kMasked = 16, kOutputs = 8;
constexpr double kTolerance = 1e-4;  // of a logit

struct Golden {
  std::vector<std::vector<int64_t>> prompts;
  std::vector<std::vector<uint32_t>> tokens;
  std::vector<float> first_logits, last_logits;  // [requests, vocabulary]
  RequestAttentions attention;  // of requests behind the first 64: the first prompts through masks

  static Golden Read(const std::string& folder) {
    const Safetensors file = Safetensors::Open({folder + "/golden.safetensors"}).value();
    const std::vector<int64_t> shape = file.ShapeOf("prompts").value();
    const auto prompts = file.Ints("prompts", shape).value();
    const auto lengths = file.Ints("prompt_lens", {shape[0]}).value();
    Golden golden;
    for (int64_t r = 0; r < shape[0]; ++r) {
      const auto row = prompts.begin() + r * shape[1];
      golden.prompts.emplace_back(row, row + lengths[static_cast<size_t>(r)]);
    }
    golden.AddAnswers(file, "", shape[0]);
    return golden;
  }
  // With the masks that the tool has drawn.
  static Golden ReadMasked(const std::string& folder) {
    const Safetensors file = Safetensors::Open({folder + "/golden.safetensors"}).value();
    Golden golden = Read(folder);
    const auto documents = file.Ints("documents", {kMasked / 2, 3}).value();
    const auto custom = file.Ints("custom", {kMasked / 2, 2}).value();
    for (int64_t r = 0; r < kMasked; ++r) {
      golden.prompts.push_back(golden.prompts[static_cast<size_t>(r)]);
      RequestAttention& asks = golden.attention[absl::StrCat(kRequests + r)];
      if (r < kMasked / 2) {
        asks.documents.assign(documents.begin() + 3 * r, documents.begin() + 3 * (r + 1));
        continue;
      }
      const auto rule = custom.begin() + 2 * (r - kMasked / 2);
      for (int64_t i = 0; i < static_cast<int64_t>(golden.prompts.back().size()); ++i) {
        std::string& row = asks.mask.emplace_back();
        for (int64_t j = 0; j <= i; ++j) {
          row += i == j || (rule[0] * i + rule[1] * j) % 7 > 2 ? '1' : '0';
        }
      }
    }
    golden.AddAnswers(file, "masked_", kMasked);
    return golden;
  }

  int64_t num_requests() const { return static_cast<int64_t>(prompts.size()); }

 private:
  void AddAnswers(const Safetensors& file, const std::string& prefix, int64_t count) {
    const auto ids = file.Ints(prefix + "tokens", {count, kOutputs}).value();
    for (auto row = ids.begin(); row != ids.end(); row += kOutputs) {
      tokens.emplace_back(row, row + kOutputs);
    }
    for (auto [name, to] :
         {std::pair("first_logits", &first_logits), {"last_logits", &last_logits}}) {
      const auto values = file.Floats(prefix + name, file.ShapeOf(prefix + name).value()).value();
      to->insert(to->end(), values.begin(), values.end());
    }
  }
};

// How requests are served. The defaults hold all of them at once.
struct Settings {
  LayerCacheOptions caches = {.block_size = 16, .model_dtype = DataType::kFloat32};
  PlanOptions plan = {.num_blocks_override = 2000};
  sim::SchedulerOptions scheduler;
  const char* engine = "vllm-0.33";
  bool caching = true;
  bool quantised_index = false;  // of DeepSeek V3.2: rows as engines store them, in 8 bits
  int64_t concurrency = 0, num_drafts = 0, max_model_len = 160;
  std::string tiers;  // as kvsim takes them; empty: none
  sim::LoadMode load_mode = sim::LoadMode::kAsync;
  RunnerOptions runner;

  Settings() {
    scheduler.max_num_batched_tokens = 512;
    scheduler.async = false;
  }
};

struct Outcome {
  Served served;
  double max_error = 0;  // of logits behind the prompt and of the last token
  double rms_error = 0;  // of those behind the prompts alone, as a share of the logits'
  int64_t num_wrong_tokens = 0;
};

inline std::unique_ptr<sim::TraceReader> TraceOf(const Golden& golden,
                                                 int64_t num_outputs = kOutputs) {
  sim::TraceInfo info;
  info.block_tokens = 1;
  std::vector<sim::TraceRequest> requests;
  for (int64_t r = 0; r < golden.num_requests(); ++r) {
    sim::TraceRequest& request = requests.emplace_back();
    request.row = r;
    request.id = absl::StrCat(r);
    request.content_ids = golden.prompts[static_cast<size_t>(r)];
    request.input_length = static_cast<int64_t>(request.content_ids.size());
    request.output_length = num_outputs;
  }
  return std::make_unique<sim::VectorTraceReader>(info, std::move(requests));
}

inline absl::StatusOr<Served> TryServe(const Model& model, Settings settings,
                                       std::unique_ptr<sim::TraceReader> trace,
                                       const std::vector<sim::EngineObserver*>& observers = {}) {
  if (model.config().facts.compressed) {
    settings.caches.block_size.reset();  // the model's own
    settings.plan.layout = PoolLayout::kSlab;
  }
  auto caches = LayerCaches(model.config().facts, settings.caches);
  if (!caches.ok()) return caches.status();
  for (LayerCache& cache : *caches) {
    if (!cache.name.ends_with(".indexer") || settings.quantised_index) continue;
    KvCacheSpecOptions options = cache.spec.options();
    options.head_size = model.config().facts.indexer->head_dim;
    options.dtype = DataType::kFloat32;
    cache.spec = *MlaAttentionSpec::Create(options);
  }
  sim::SimulationConfig config;
  config.scheduler = settings.scheduler;
  const absl::Status preset = sim::ApplyEnginePreset(settings.engine, &config);
  if (!preset.ok()) return preset;
  const absl::Status drafts = sim::ApplyDrafts({.num_draft_tokens = settings.num_drafts}, &config);
  if (!drafts.ok()) return drafts;
  config.manager.max_model_len = settings.max_model_len;
  config.manager.enable_caching = settings.caching;
  config.concurrency = settings.concurrency;
  config.check_invariants = true;
  settings.plan.limits = {.max_model_len = config.manager.max_model_len,
                          .max_in_flight_tokens = sim::MaxInFlightTokens(config)};
  settings.plan.available_bytes = {int64_t{1} << 30};
  const PlanResult planned = MakePlan(*caches, settings.plan);
  if (!planned.ok()) return absl::InvalidArgumentError(planned.errors.front().message);
  settings.runner.threads = 1;
  std::unique_ptr<sim::TierConnector> tiers;
  if (!settings.tiers.empty()) {
    sim::TierConnector::Options options;
    options.tiers = sim::ParseTiers(settings.tiers).value();
    options.mode = settings.load_mode;
    options.group_block_bytes.assign(planned.plan->groups.size(), 1024);
    tiers = sim::TierConnector::Create(options).value();
  }
  return Serve(model, *planned.plan, config, std::move(trace), settings.runner, observers,
               tiers.get());
}

// Of each request's last admission, by row.
class Hits final : public sim::EngineObserver {
 public:
  void OnAdmission(const sim::AdmissionRecord& record, sim::SimTime) override {
    tokens[record.request->spec.row] = record.num_hit_tokens;
  }
  std::map<int64_t, int64_t> tokens;
};

class EngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string Folder() { return absl::StrCat("examples/engine/testdata/", GetParam()); }

  Outcome Run(Settings settings) { return Run(std::move(settings), golden_); }
  Outcome Run(Settings settings, const Golden& golden,
              const std::vector<sim::EngineObserver*>& observers = {}) {
    Outcome outcome;
    settings.runner.requests = golden.attention;
    const auto vocabulary = static_cast<size_t>(model_.config().facts.vocab_size);
    double squares = 0, error_squares = 0;
    settings.runner.on_logits = [&](const sim::SimRequest& request, int64_t index,
                                    absl::Span<const float> logits) {
      if (index != 0 && index != kOutputs - 1) return;
      const auto& expected = index == 0 ? golden.first_logits : golden.last_logits;
      for (size_t i = 0; i < vocabulary; ++i) {
        const double error =
            std::abs(logits[i] - expected[static_cast<size_t>(request.spec.row) * vocabulary + i]);
        outcome.max_error = std::max(outcome.max_error, error);
        if (index == 0) squares += double{logits[i]} * logits[i], error_squares += error * error;
      }
    };
    auto served = TryServe(model_, settings, TraceOf(golden), observers);
    EXPECT_TRUE(served.ok()) << served.status();
    if (!served.ok()) return outcome;
    outcome.served = *std::move(served);
    outcome.rms_error = std::sqrt(error_squares / squares);
    EXPECT_EQ(outcome.served.result.num_finished, golden.num_requests());
    for (const sim::TraceRequest& request : outcome.served.requests) {
      const auto& expected = golden.tokens[static_cast<size_t>(request.row)];
      for (size_t i = 0; i < expected.size(); ++i) {
        outcome.num_wrong_tokens +=
            i >= request.output_ids.size() || request.output_ids[i] != expected[i];
      }
    }
    return outcome;
  }
  Outcome ExpectGolden(const Settings& settings) { return ExpectGolden(settings, golden_); }
  Outcome ExpectGolden(const Settings& settings, const Golden& golden,
                       const std::vector<sim::EngineObserver*>& observers = {}) {
    Outcome outcome = Run(settings, golden, observers);
    EXPECT_EQ(outcome.num_wrong_tokens, 0);
    EXPECT_LT(outcome.max_error, kTolerance);
    RecordProperty("max_error", absl::StrCat(outcome.max_error));
    return outcome;
  }

  const Model model_ = Model::Load(Folder()).value();
  const Golden golden_ = Golden::Read(Folder());
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_ENGINE_FIXTURE_H_
