// The engine's tokens and logits are those of the reference, however requests are batched, cut,
// cached, preempted and laid out. The models are tiny and random; tools/engine_models.py makes them
// and their answers.

#include "examples/engine/engine.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/engine/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/planning.h"
#include "sim/testing/replay.h"
#include "sim/tiers/tier_text.h"

namespace kvblocks::engine {
namespace {

using attention::KvLayout;
using ::testing::HasSubstr;

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
    const auto lengths = file.Ints("prompt_lens", {kRequests}).value();
    Golden golden;
    for (int64_t r = 0; r < kRequests; ++r) {
      const auto row = prompts.begin() + r * shape[1];
      golden.prompts.emplace_back(row, row + lengths[static_cast<size_t>(r)]);
    }
    golden.AddAnswers(file, "", kRequests);
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

std::unique_ptr<sim::TraceReader> TraceOf(const Golden& golden, int64_t num_outputs = kOutputs) {
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

absl::StatusOr<Served> TryServe(const Model& model, Settings settings,
                                std::unique_ptr<sim::TraceReader> trace,
                                const std::vector<sim::EngineObserver*>& observers = {}) {
  auto caches = LayerCaches(model.config().facts, settings.caches);
  if (!caches.ok()) return caches.status();
  for (LayerCache& cache : *caches) {
    if (!cache.name.ends_with(".indexer") || settings.quantised_index) continue;
    cache.spec = *MlaAttentionSpec::Create({.block_size = cache.spec.block_size(),
                                            .head_size = model.config().facts.indexer->head_dim,
                                            .dtype = DataType::kFloat32});
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

TEST_P(EngineTest, OneRequestAtATime) {
  Settings settings;
  settings.caching = false;
  settings.concurrency = 1;
  const Outcome outcome = ExpectGolden(settings);
  EXPECT_EQ(outcome.served.result.prefix_cache.hits, 0);
  EXPECT_EQ(outcome.served.result.scheduler.num_steps, kRequests * kOutputs);
}

TEST_P(EngineTest, BatchedWithPrefixHits) {
  const Outcome outcome = ExpectGolden({});
  EXPECT_GT(outcome.served.result.prefix_cache.hits, 500);
  EXPECT_LT(outcome.served.result.scheduler.num_steps, kRequests);
}

TEST_P(EngineTest, Asynchronous) {
  Settings settings;
  settings.scheduler.async = true;
  ExpectGolden(settings);
}

TEST_P(EngineTest, PromptsInChunks) {
  for (const int64_t chunk : {7, 64}) {
    SCOPED_TRACE(chunk);
    Settings settings;
    settings.scheduler.max_num_batched_tokens = chunk;
    settings.scheduler.max_num_seqs = std::min<int64_t>(chunk, 32);
    ExpectGolden(settings);
    settings.scheduler.max_num_batched_tokens = 512;
    settings.scheduler.long_prefill_token_threshold = chunk;
    ExpectGolden(settings);
  }
}

TEST_P(EngineTest, PreemptedAndResumed) {
  Settings settings;
  settings.caches.block_size = 4;
  // Enough for the longest request, and hardly for two of them.
  const bool has_windows = model_.config().facts.has(LayerKind::kSliding);
  settings.plan.num_blocks_override = has_windows ? 84 : 60;
  const Outcome outcome = ExpectGolden(settings);
  EXPECT_GT(outcome.served.result.scheduler.num_preemptions, 0);
  EXPECT_GT(outcome.served.result.scheduler.num_recomputed, 0);
  EXPECT_GT(outcome.served.result.prefix_cache.hits, 100);
}

// Random models repeat themselves soon, so that drafts of n-grams are accepted.
TEST_P(EngineTest, DraftsChangeNoToken) {
  Settings settings;
  settings.num_drafts = 3;
  ExpectGolden(settings);
  settings.max_model_len = 256;
  const Served drafted = TryServe(model_, settings, TraceOf(golden_, 64)).value();
  settings.num_drafts = 0;
  const Served plain = TryServe(model_, settings, TraceOf(golden_, 64)).value();
  int64_t num_accepted = 0;
  for (size_t r = 0; r < plain.requests.size(); ++r) {
    EXPECT_EQ(drafted.requests[r].output_ids, plain.requests[r].output_ids) << r;
    for (const uint32_t accepted : drafted.requests[r].accepted_drafts) num_accepted += accepted;
  }
  EXPECT_GT(num_accepted, 100);
  EXPECT_GT(drafted.result.scheduler.num_rejected_drafts, 100);
}

// Blocks that the small pool has evicted come back from host memory.
TEST_P(EngineTest, LoadedFromATierBehindThePool) {
  for (const sim::LoadMode mode :
       {sim::LoadMode::kAsync, sim::LoadMode::kSync, sim::LoadMode::kLayerwise}) {
    for (const bool async : {false, true}) {
      Settings settings;
      settings.caches.block_size = 4;
      settings.plan.num_blocks_override = 120;
      settings.scheduler.async = async;
      settings.tiers = "host:2000chunks:read=1GB/s:chunk=2";
      settings.load_mode = mode;
      const Outcome outcome = ExpectGolden(settings);
      EXPECT_GT(outcome.served.result.scheduler.num_external, 100);
    }
  }
}

TEST_P(EngineTest, EveryLayout) {
  const bool is_latent = model_.config().facts.latent.has_value();
  for (const PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    for (const KvLayout kv_layout : {KvLayout::kNhd, KvLayout::kHnd}) {
      if (is_latent && kv_layout == KvLayout::kHnd) continue;  // rows have no heads
      for (const int64_t kernel_blocks : {1, 2}) {
        // Pages of an indexer and its layer are of two sizes, and their halves have other numbers.
        if (model_.config().facts.indexer && layout == PoolLayout::kNative && kernel_blocks > 1) {
          continue;
        }
        SCOPED_TRACE(absl::StrCat(std::string(LayoutName(layout)), ", ", attention::Name(kv_layout),
                                  ", ", kernel_blocks));
        Settings settings;
        settings.plan.layout = layout;
        settings.runner.kv_layout = kv_layout;
        settings.runner.kernel_blocks = kernel_blocks;
        ExpectGolden(settings);
      }
    }
  }
  Settings settings;
  settings.plan.policy = PlanPolicy::kUpstream;
  ExpectGolden(settings);
  settings.plan.hybrid = false;
  ExpectGolden(settings);
}

// Rows of fewer bits: logits behind the prompts, whose tokens are the same, are near the
// reference's. Those of a wrong cache would be as far from it as another prompt's, 1.4 times their
// size. Where a router or an indexer chooses, a few tokens get other experts or rows, and are far
// off.
TEST_P(EngineTest, QuantisedCachesWithinTheirBounds) {
  const ModelFacts& facts = model_.config().facts;
  const bool is_latent = facts.latent.has_value(), chooses = facts.experts.has_value();
  struct {
    const char* dtype;
    double bound;
  } const formats[] = {{"bfloat16", chooses ? 0.1 : 0.01},
                       {"fp8", chooses ? 0.35 : 0.15},
                       {"fp8_per_token_head", chooses ? 0.35 : 0.15}};
  for (const auto& format : formats) {
    if (is_latent && std::string(format.dtype) == "fp8_per_token_head") continue;
    // Of V3.2 it is DeepSeek's own format, for rows of 576 values.
    if (facts.indexer && std::string(format.dtype) == "fp8") continue;
    SCOPED_TRACE(format.dtype);
    Settings settings;
    settings.caches.cache_dtype = format.dtype;
    const Outcome outcome = Run(settings);
    RecordProperty(format.dtype, absl::StrCat(outcome.rms_error));
    EXPECT_LT(outcome.rms_error, format.bound);
    EXPECT_GT(outcome.max_error, kTolerance);  // else it stored something else
  }
  if (!facts.indexer) return;
  // Index keys of 8 bits choose other rows, though not just any: those would be 1.2 off.
  Settings settings;
  settings.quantised_index = true;
  const Outcome outcome = Run(settings);
  RecordProperty("index_rows", absl::StrCat(outcome.rms_error));
  EXPECT_LT(outcome.rms_error, 0.6);
  EXPECT_GT(outcome.max_error, kTolerance);
}

// What a request answered is found by one that continues it.
TEST_P(EngineTest, OutputsAreHit) {
  Hits hits;
  sim::TraceInfo info;
  info.block_tokens = 1;
  std::vector<sim::TraceRequest> requests(2);
  for (int64_t r = 0; r < 2; ++r) {
    requests[static_cast<size_t>(r)].row = r;
    requests[static_cast<size_t>(r)].content_ids = golden_.prompts[0];
    requests[static_cast<size_t>(r)].output_length = kOutputs;
  }
  requests[1].waits_for = {0};
  for (const uint32_t token : golden_.tokens[0]) requests[1].content_ids.push_back(token);
  for (sim::TraceRequest& request : requests) {
    request.input_length = static_cast<int64_t>(request.content_ids.size());
  }
  Settings settings;
  settings.caches.block_size = 4;
  settings.engine = "vllm-0.25";  // which keeps windows for reuse not at the end of prompts alone
  const auto served =
      TryServe(model_, settings, std::make_unique<sim::VectorTraceReader>(info, requests), {&hits});
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_EQ(served->requests[0].output_ids, golden_.tokens[0]);
  // All but the last token, in blocks of 4.
  EXPECT_EQ(hits.tokens[1], (requests[1].input_length - 1) / 4 * 4);
}

TEST_P(EngineTest, SamplesBySeed) {
  const auto sample = [&](float temperature, uint64_t seed) {
    Settings settings;
    settings.runner.temperature = temperature;
    settings.runner.seed = seed;
    std::vector<std::vector<uint32_t>> tokens;
    const Served served = TryServe(model_, settings, TraceOf(golden_)).value();
    for (const sim::TraceRequest& request : served.requests) {
      tokens.push_back(request.output_ids);
    }
    return tokens;
  };
  EXPECT_EQ(sample(1e-4f, 1), golden_.tokens);
  EXPECT_EQ(sample(1, 1), sample(1, 1));
  EXPECT_NE(sample(1, 1), sample(1, 2));
}

TEST_P(EngineTest, RefusesTokensThatTheModelLacks) {
  Golden golden = golden_;
  golden.prompts[3].back() = model_.config().facts.vocab_size;
  const auto served = TryServe(model_, {}, TraceOf(golden));
  EXPECT_EQ(served.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(served.status().message().find("request 3: got token"), std::string::npos)
      << served.status();
}

// The first prompts a second time, through masks, beside all without.
using MaskTest = EngineTest;

TEST_P(MaskTest, DocumentsAndFreeMasks) {
  const Golden golden = Golden::ReadMasked(Folder());
  Settings settings;
  settings.caching = false;
  ExpectGolden(settings, golden);
  settings.caching = true;
  settings.caches.block_size = 4;
  ExpectGolden(settings, golden);
  settings.plan.hybrid = false;
  ExpectGolden(settings, golden);
  settings.plan.hybrid = true;
  settings.num_drafts = 3;
  ExpectGolden(settings, golden);
  settings.num_drafts = 0;
  settings.scheduler.max_num_batched_tokens = 7;
  settings.scheduler.max_num_seqs = 7;
  ExpectGolden(settings, golden);
  settings.scheduler = Settings().scheduler;
  settings.plan.num_blocks_override = model_.config().facts.has(LayerKind::kSliding) ? 84 : 60;
  EXPECT_GT(ExpectGolden(settings, golden).served.result.scheduler.num_preemptions, 0);
}

TEST_P(MaskTest, HitsAreThoseOfTheSameMask) {
  Golden golden = Golden::ReadMasked(Folder());
  const auto size = static_cast<size_t>(model_.config().facts.vocab_size);
  for (int64_t r = kRequests; r < kRequests + kMasked; ++r) {
    const auto row = static_cast<size_t>(r);
    golden.attention[absl::StrCat(r + kMasked)] = golden.attention[absl::StrCat(r)];
    golden.prompts.push_back(golden.prompts[row]);
    golden.tokens.push_back(golden.tokens[row]);
    for (std::vector<float>* logits : {&golden.first_logits, &golden.last_logits}) {
      const std::vector<float> all = *logits;
      const auto own = all.begin() + static_cast<int64_t>(row * size);
      logits->insert(logits->end(), own, own + static_cast<int64_t>(size));
    }
  }
  Settings settings;
  settings.caches.block_size = 4;
  settings.concurrency = 1;
  Hits hits;
  ExpectGolden(settings, golden, {&hits});
  for (int64_t r = kRequests; r < kRequests + kMasked; ++r) {
    const auto length = static_cast<int64_t>(golden.prompts[static_cast<size_t>(r)].size());
    EXPECT_EQ(hits.tokens[r], 0) << r;
    EXPECT_EQ(hits.tokens[r + kMasked], (length - 1) / 4 * 4) << r;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, MaskTest,
                         ::testing::Values("llama", "gemma3", "gpt_oss", "deepseek_v2_lite"),
                         [](const auto& param) { return std::string(param.param); });

// Prompts of two chunks and a rest that are blended, once the chunks were answered on their own.
using BlendTest = EngineTest;

TEST_P(BlendTest, AllComputedAgainIsTheFullPrefill) {
  std::vector<sim::TraceRequest> requests;
  RequestAttentions asks;
  const auto add = [&](std::vector<int64_t> ids, int64_t num_outputs) -> sim::TraceRequest& {
    sim::TraceRequest& request = requests.emplace_back();
    request.row = static_cast<int64_t>(requests.size()) - 1;
    request.id = absl::StrCat(request.row);
    request.input_length = static_cast<int64_t>(ids.size());
    request.output_length = num_outputs;
    request.content_ids = std::move(ids);
    return request;
  };
  std::map<int64_t, size_t> prompt_of;  // by row
  for (size_t r = 0; r < golden_.prompts.size(); ++r) {
    const std::vector<int64_t>& prompt = golden_.prompts[r];
    if (prompt.size() < 40) continue;
    const int64_t length = static_cast<int64_t>(prompt.size()) / 3;
    std::vector<int64_t> chunks;
    for (int64_t c = 0; c < 2; ++c) {
      const auto begin = prompt.begin() + c * length;
      chunks.push_back(add({begin, begin + length}, 1).row);
      asks[requests.back().id].keep = true;
    }
    sim::TraceRequest& whole = add(prompt, kOutputs);
    whole.waits_for = chunks;
    asks[whole.id].chunks = {length, length};
    prompt_of[whole.row] = r;
  }
  ASSERT_GT(prompt_of.size(), 30);
  struct Measured {
    double max_error = 0, rms_error = 0;
    int64_t num_wrong_tokens = 0, num_recomputed = 0, num_preemptions = 0;
  };
  const auto serve = [&](double ratio, Settings settings) {
    Measured measured;
    double squares = 0, error_squares = 0;
    settings.runner.requests = asks;
    settings.runner.blend_ratio = ratio;
    settings.runner.on_blend = [&](absl::Span<const attention::BlendLayerReport> layers) {
      measured.num_recomputed += layers.back().recomputed_rows;
    };
    settings.runner.on_logits = [&](const sim::SimRequest& request, int64_t index,
                                    absl::Span<const float> logits) {
      const auto found = prompt_of.find(request.spec.row);
      if (found == prompt_of.end() || index != 0) return;
      for (size_t i = 0; i < logits.size(); ++i) {
        const double error =
            std::abs(logits[i] - golden_.first_logits[found->second * logits.size() + i]);
        measured.max_error = std::max(measured.max_error, error);
        squares += double{logits[i]} * logits[i], error_squares += error * error;
      }
    };
    sim::TraceInfo info;
    info.block_tokens = 1;
    const auto served =
        TryServe(model_, settings, std::make_unique<sim::VectorTraceReader>(info, requests));
    EXPECT_TRUE(served.ok()) << served.status();
    if (!served.ok()) return measured;
    for (const auto& [row, r] : prompt_of) {
      const auto& output = served->requests[static_cast<size_t>(row)].output_ids;
      for (size_t i = 0; i < golden_.tokens[r].size(); ++i) {
        measured.num_wrong_tokens += output[i] != golden_.tokens[r][i];
      }
    }
    measured.rms_error = std::sqrt(error_squares / squares);
    measured.num_preemptions = served->result.scheduler.num_preemptions;
    return measured;
  };
  const auto expect_golden = [&](const Settings& settings) {
    const Measured all = serve(1, settings);
    EXPECT_EQ(all.num_wrong_tokens, 0);
    EXPECT_LT(all.max_error, kTolerance);
    EXPECT_GT(all.num_recomputed, 200);
    return all;
  };
  Settings settings;
  settings.caches.block_size = 4;
  expect_golden(settings);
  settings.num_drafts = 3;
  expect_golden(settings);
  settings.num_drafts = 0;
  settings.plan.num_blocks_override = 60;
  EXPECT_GT(expect_golden(settings).num_preemptions, 0);
  settings.tiers = "host:2000chunks:read=1GB/s:chunk=2";
  expect_golden(settings);
  settings = {};
  settings.scheduler.max_num_batched_tokens = 64;  // cuts prompts: what is left of them is blended
  expect_golden(settings);

  // The fewer are computed again, the farther logits are from the full prefill's.
  settings = {};
  int64_t num_recomputed = -1;
  for (const auto& [ratio, bound] :
       {std::pair(0.0, 0.25), {0.16, 0.16}, {0.5, 0.02}, {0.8, 0.005}}) {
    const Measured some = serve(ratio, settings);
    RecordProperty(absl::StrCat("ratio_", ratio), absl::StrCat(some.rms_error));
    EXPECT_LT(some.rms_error, bound) << ratio;
    EXPECT_GT(some.max_error, kTolerance) << ratio;
    EXPECT_GT(some.num_recomputed, num_recomputed);
    num_recomputed = some.num_recomputed;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BlendTest, ::testing::Values("qwen3"),
                         [](const auto& param) { return std::string(param.param); });

using RefusalTest = EngineTest;

TEST_P(RefusalTest, WhatIsAskedOfAttentionMustFit) {
  const auto refusal = [&](const std::string& id, RequestAttention asks) {
    Settings settings;
    settings.runner.requests[id] = std::move(asks);
    return std::string(TryServe(model_, settings, TraceOf(golden_)).status().message());
  };
  const auto length = static_cast<int64_t>(golden_.prompts[5].size());
  EXPECT_EQ(refusal("5", {.documents = {length, 1}}),
            absl::StrCat("request 5: documents: got [", length,
                         ", 1], expected lengths of at least 1 that add up to at most ", length,
                         ", for a prompt of ", length, " tokens"));
  EXPECT_THAT(refusal("5", {.documents = {0}}), HasSubstr("documents: got [0], expected lengths"));
  EXPECT_THAT(refusal("5", {.documents = {INT64_MAX, INT64_MAX}}), HasSubstr("expected lengths"));
  EXPECT_THAT(refusal("5", {.chunks = {length}}), HasSubstr("add up to at most"));
  EXPECT_THAT(refusal("5", {.documents = {1}, .keep = true}), HasSubstr("expected one"));
  EXPECT_THAT(refusal("5", {.mask = {"1"}}), HasSubstr("mask: got 1 rows, expected one for each"));
  std::vector<std::string> mask(static_cast<size_t>(length), "1");
  EXPECT_THAT(refusal("5", {.mask = mask}), HasSubstr("got row 1 of 1 characters, expected 2"));
  EXPECT_THAT(refusal("none", {.documents = {1}}), HasSubstr("request none: something is asked"));
}

TEST_P(RefusalTest, ChunksAreOfModelsThatCanBeBlended) {
  for (const auto& [name, why] : {std::pair("llama", "stretched positions"),
                                  {"gemma3", "windows"},
                                  {"deepseek_v3", "latent rows"}}) {
    Settings settings;
    settings.runner.requests["0"].keep = true;
    const Model other = Model::Load(absl::StrCat("examples/engine/testdata/", name)).value();
    const auto served = TryServe(other, settings, TraceOf(golden_));
    EXPECT_EQ(served.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(served.status().message()), HasSubstr(why));
  }
}

TEST_P(RefusalTest, SparseLayersHaveNoMasks) {
  Settings settings;
  settings.runner.requests["0"].documents = {1};
  const Model sparse = Model::Load("examples/engine/testdata/deepseek_v32").value();
  const auto served = TryServe(sparse, settings, TraceOf(golden_));
  EXPECT_THAT(std::string(served.status().message()), HasSubstr("sparse MLA has none"));
}

INSTANTIATE_TEST_SUITE_P(Qwen3, RefusalTest, ::testing::Values("qwen3"));

INSTANTIATE_TEST_SUITE_P(Models, EngineTest,
                         ::testing::Values("llama", "qwen3", "gemma3", "gemma2", "gpt_oss",
                                           "deepseek_v2_lite", "deepseek_v3", "deepseek_v32"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace kvblocks::engine
