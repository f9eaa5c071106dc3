// Golden: the answers of a reference to the prompts of a tiny model, and how the engine is served
// with them. tools/engine_models.py makes both.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_GOLDEN_H_
#define KVBLOCKS_EXAMPLES_ENGINE_GOLDEN_H_

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "examples/engine/engine.h"
#include "examples/engine/safetensors.h"
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
  RequestAttentions attention;                   // what some ask for, by row
  std::vector<std::vector<int64_t>> waits_for;   // by row, or empty

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
  static bool HasMasks(const std::string& folder) {
    return Safetensors::Open({folder + "/golden.safetensors"}).value().Has("documents");
  }
  // The first prompts again behind all of them, with the masks that the tool has drawn.
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

  // Prompts of two chunks and a rest that are blended, once the chunks were answered on their own.
  // Of chunks no answer is known.
  Golden Blended() const {
    Golden blended;
    const size_t vocabulary = first_logits.size() / prompts.size();
    const auto add = [&](auto begin, auto end) -> RequestAttention& {
      blended.prompts.emplace_back(begin, end);
      const size_t count = blended.prompts.size();
      blended.tokens.emplace_back(), blended.waits_for.emplace_back();
      blended.first_logits.resize(count * vocabulary);
      blended.last_logits.resize(count * vocabulary);
      return blended.attention[absl::StrCat(count - 1)];
    };
    for (size_t r = 0; r < prompts.size(); ++r) {
      if (prompts[r].size() < 40) continue;
      const auto begin = prompts[r].begin();
      const auto length = static_cast<int64_t>(prompts[r].size()) / 3;
      for (int64_t c = 0; c < 2; ++c) add(begin + c * length, begin + (c + 1) * length).keep = true;
      add(begin, prompts[r].end()).chunks = {length, length};
      const int64_t row = blended.num_requests() - 1;
      blended.waits_for.back() = {row - 2, row - 1};
      blended.tokens.back() = tokens[r];
      for (auto [from, to] : {std::pair(&first_logits, &blended.first_logits),
                              {&last_logits, &blended.last_logits}}) {
        std::copy_n(from->begin() + static_cast<int64_t>(r * vocabulary), vocabulary,
                    to->end() - static_cast<int64_t>(vocabulary));
      }
    }
    return blended;
  }

  // Of the requests only every `step`th, from the last one on. REQUIRES: none waits for another.
  void KeepEvery(int64_t step) {
    Golden all = std::exchange(*this, {});
    const size_t vocabulary = all.first_logits.size() / all.prompts.size();
    for (auto r = static_cast<size_t>((all.num_requests() - 1) % step); r < all.prompts.size();
         r += static_cast<size_t>(step)) {
      const auto asks = all.attention.find(absl::StrCat(r));
      if (asks != all.attention.end()) attention[absl::StrCat(prompts.size())] = asks->second;
      prompts.push_back(std::move(all.prompts[r])), tokens.push_back(std::move(all.tokens[r]));
      for (auto [from, to] :
           {std::pair(&all.first_logits, &first_logits), {&all.last_logits, &last_logits}}) {
        const auto row = from->begin() + static_cast<int64_t>(r * vocabulary);
        to->insert(to->end(), row, row + static_cast<int64_t>(vocabulary));
      }
    }
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
  // Of caches and attention; empty: the host.
  std::function<absl::StatusOr<std::unique_ptr<AttentionPlace>>(const ModelFacts&,
                                                                const sim::SimulationConfig&)>
      make_place;

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
    request.output_length = golden.tokens[static_cast<size_t>(r)].empty() ? 1 : num_outputs;
    if (!golden.waits_for.empty()) request.waits_for = golden.waits_for[static_cast<size_t>(r)];
  }
  return std::make_unique<sim::VectorTraceReader>(info, std::move(requests));
}

struct Serving {
  Plan plan;
  sim::SimulationConfig config;
};
inline absl::StatusOr<Serving> PlanServing(const ModelFacts& facts, Settings settings) {
  if (facts.compressed) {
    settings.caches.block_size.reset();  // the model's own
    settings.plan.layout = PoolLayout::kSlab;
  }
  KVBLOCKS_ASSIGN_OR_RETURN(std::vector<LayerCache> caches, LayerCaches(facts, settings.caches));
  for (LayerCache& cache : caches) {
    if (!cache.name.ends_with(".indexer") || settings.quantised_index) continue;
    KvCacheSpecOptions options = cache.spec.options();
    options.head_size = facts.indexer->head_dim;
    options.dtype = DataType::kFloat32;
    cache.spec = *MlaAttentionSpec::Create(options);
  }
  Serving made;
  made.config.scheduler = settings.scheduler;
  KVBLOCKS_RETURN_IF_ERROR(sim::ApplyEnginePreset(settings.engine, &made.config));
  KVBLOCKS_RETURN_IF_ERROR(
      sim::ApplyDrafts({.num_draft_tokens = settings.num_drafts}, &made.config));
  made.config.manager.max_model_len = settings.max_model_len;
  made.config.manager.enable_caching = settings.caching;
  made.config.concurrency = settings.concurrency;
  settings.plan.limits = {.max_model_len = settings.max_model_len,
                          .max_in_flight_tokens = sim::MaxInFlightTokens(made.config)};
  settings.plan.available_bytes = {int64_t{1} << 40};
  PlanResult planned = MakePlan(caches, settings.plan);
  if (!planned.ok()) return absl::InvalidArgumentError(planned.errors.front().message);
  made.plan = *std::move(planned.plan);
  return made;
}

inline absl::StatusOr<Served> TryServe(const Model& model, Settings settings,
                                       std::unique_ptr<sim::TraceReader> trace,
                                       const std::vector<sim::EngineObserver*>& observers = {}) {
  KVBLOCKS_ASSIGN_OR_RETURN(Serving made, PlanServing(model.config().facts, settings));
  made.config.check_invariants = true;
  settings.runner.threads = 1;
  std::unique_ptr<sim::TierConnector> tiers;
  if (!settings.tiers.empty()) {
    sim::TierConnector::Options options;
    options.tiers = sim::ParseTiers(settings.tiers).value();
    options.mode = settings.load_mode;
    options.group_block_bytes.assign(made.plan.groups.size(), 1024);
    tiers = sim::TierConnector::Create(options).value();
  }
  std::unique_ptr<AttentionPlace> place;
  if (settings.make_place) {
    KVBLOCKS_ASSIGN_OR_RETURN(place, settings.make_place(model.config().facts, made.config));
  }
  return Serve(model, made.plan, made.config, std::move(trace), settings.runner, observers,
               tiers.get(), place.get());
}

// All prompts of a golden file.
inline absl::StatusOr<Outcome> ServeGolden(
    const Model& model, Settings settings, const Golden& golden,
    const std::vector<sim::EngineObserver*>& observers = {}) {
  Outcome outcome;
  settings.runner.requests = golden.attention;
  const auto vocabulary = static_cast<size_t>(model.config().facts.vocab_size);
  double squares = 0, error_squares = 0;
  settings.runner.on_logits = [&](const sim::SimRequest& request, int64_t index,
                                  absl::Span<const float> logits) {
    const auto row = static_cast<size_t>(request.spec.row);
    if ((index != 0 && index != kOutputs - 1) || golden.tokens[row].empty()) return;
    const auto& expected = index == 0 ? golden.first_logits : golden.last_logits;
    for (size_t i = 0; i < vocabulary; ++i) {
      const double error = std::abs(logits[i] - expected[row * vocabulary + i]);
      outcome.max_error = std::max(outcome.max_error, error);
      if (index == 0) squares += double{logits[i]} * logits[i], error_squares += error * error;
    }
  };
  KVBLOCKS_ASSIGN_OR_RETURN(outcome.served, TryServe(model, settings, TraceOf(golden), observers));
  outcome.rms_error = std::sqrt(error_squares / squares);
  for (const sim::TraceRequest& request : outcome.served.requests) {
    const auto& expected = golden.tokens[static_cast<size_t>(request.row)];
    for (size_t i = 0; i < expected.size(); ++i) {
      outcome.num_wrong_tokens +=
          i >= request.output_ids.size() || request.output_ids[i] != expected[i];
    }
  }
  return outcome;
}

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_GOLDEN_H_
