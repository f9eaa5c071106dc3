// AT-65, AT-66: DeepSeek V4's and V3.2's layers through the real block manager - prefix hits,
// chunks, decodes, preemption, blocks used again - against a dense float64 model, token by token.
// Against OpsUnderTest() of attention/testing/ops_suite.h, whatever the backend.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attention/testing/ops_suite.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/kv_cache_manager.h"
#include "tests/deepseek_v4/paged_stack.h"
#include "tests/deepseek_v4/stack_model.h"
#include "tests/group_specs.h"

namespace kvblocks::attention {
namespace {

// The operations under test; lists are built on the host, where the tensors are.
class BackendOfOps final : public AttentionBackend {
 public:
  const char* name() const override { return "UNDER_TEST"; }
  const AttentionOps& ops() const override { return OpsUnderTest(); }
  const BackendSupport& support() const override { return CpuReferenceBackend().support(); }
};

// A KV connector that takes every cache away after each layer and brings it back before the next
// call: what is not waited for, or not saved, is lost.
class SwappingHooks final : public LayerHooks {
 public:
  explicit SwappingHooks(std::string forgets = "none") : forgets_(std::move(forgets)) {}
  absl::Status WaitForLayer(const std::string& name, const ExecContext&) override {
    ++waits;
    const auto found = away_.find(name);
    if (found == away_.end() || name.find(forgets_) != std::string::npos) return absl::OkStatus();
    std::copy(found->second.bytes.begin(), found->second.bytes.end(), found->second.at);
    return absl::OkStatus();
  }
  absl::Status SaveLayer(const std::string& name, const ConstKvCacheView& cache,
                         const CommonAttentionMetadata& metadata,
                         const ExecContext& context) override {
    EXPECT_EQ(cache.layout == KvLayout::kMlaLatent || cache.v.absent(), true);
    return SaveBlocks(name, cache.k, metadata, context);
  }
  absl::Status SaveBlocks(const std::string& name, const ConstTensorView& blocks,
                          const CommonAttentionMetadata& metadata, const ExecContext&) override {
    ++saves;
    EXPECT_GT(metadata.num_reqs, 0);
    auto* const at = const_cast<std::byte*>(blocks.data);
    Away& away = away_[name];
    away.at = at;
    away.bytes.assign(at, at + *blocks.SpanBytes());
    std::fill_n(at, away.bytes.size(), std::byte{0xFF});
    return absl::OkStatus();
  }

  int64_t waits = 0, saves = 0;
  size_t num_caches() const { return away_.size(); }

 private:
  struct Away {
    std::byte* at = nullptr;
    std::vector<std::byte> bytes;
  };
  std::string forgets_;
  std::map<std::string, Away> away_;
};

// A conversation: a prompt, then so many decoded tokens, all known beforehand.
struct Conversation {
  std::vector<int32_t> tokens;
  int64_t prompt = 0;
};

std::vector<int32_t> Draw(std::mt19937_64& random, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(random() % 64));
  return tokens;
}
// The first `shared` tokens of another, then its own.
Conversation Talk(std::mt19937_64& random, const std::vector<int32_t>& other, int64_t shared,
                  int64_t prompt, int64_t outputs) {
  Conversation talk;
  talk.tokens.assign(other.begin(), other.begin() + shared);
  for (const int32_t token : Draw(random, prompt + outputs - shared)) talk.tokens.push_back(token);
  talk.prompt = prompt;
  return talk;
}

struct ServedCounts {
  int64_t steps = 0, hit_tokens = 0, decoded = 0, chunks = 0, preempted = 0, mixed_steps = 0;
  int64_t blocks_taken = 0;
  double worst = 0;  // difference of a hidden state
};

struct ServeOptions {
  int64_t num_blocks = 340, budget = 96, max_running = 3;
  int clear_states_at = -1;  // a step: the fault
  LayerHooks* hooks = nullptr;
};

// First come, first served, chunks of random lengths. Every token's final hidden state is compared
// with the dense model's.
class Engine {
 public:
  Engine(const StackModel& model, const ServeOptions& options, const DenseFaults& faults)
      : model_(model),
        options_(options),
        faults_(faults),
        stack_(&model, &backend_,
               {.num_blocks = options.num_blocks,
                .max_requests = options.max_running,
                .max_tokens = options.budget + options.max_running,
                .max_len = 1024,
                .hooks = options.hooks}) {
    KvCacheConfig config{.num_blocks = options.num_blocks};
    config.groups = {
        {.spec = testing::Mla(kTableBlocks[kRowsTable])},
        {.spec = testing::WindowMla(kTableBlocks[kWindowTable], model.config().window)},
        {.spec = testing::WindowMla(kTableBlocks[kC4StatesTable], kC4StateWindow)},
        {.spec = testing::WindowMla(kTableBlocks[kC128StatesTable], kC128StateWindow)}};
    KvCacheManagerOptions manager{.max_model_len = 1024};
    manager.hash_seed = "seed";
    manager.semantics.retention_interval = std::nullopt;
    manager_ = KvCacheManager::Create(config, manager).value();
  }

  ServedCounts Serve(const std::vector<Conversation>& talks) {
    for (const Conversation& talk : talks) {
      Running& waiting = waiting_.emplace_back();
      waiting.talk = &talk;
      waiting.expected = DenseForward(model_, talk.tokens, faults_);
    }
    std::reverse(waiting_.begin(), waiting_.end());
    while (!waiting_.empty() || !running_.empty()) {
      Schedule();
      if (::testing::Test::HasFatalFailure() || counts_.steps > 4000) {
        ADD_FAILURE() << "no end after " << counts_.steps << " steps";
        break;
      }
    }
    return counts_;
  }

 private:
  struct Running {
    const Conversation* talk = nullptr;
    std::vector<std::vector<double>> expected;
    std::unique_ptr<Request> request;
    int64_t scheduled = 0;
    int64_t computed() const { return request->num_computed_tokens(); }
  };

  bool Allocate(Running& r, int64_t count, const ComputedBlocks* hits) {
    auto slots =
        manager_->AllocateSlots(*r.request, {.num_new_tokens = count, .computed_blocks = hits});
    EXPECT_TRUE(slots.ok()) << slots.status();
    if (!slots.ok() || !slots->has_value()) return false;
    counts_.blocks_taken += (*slots)->num_blocks();
    r.scheduled = count;
    return true;
  }
  void Preempt() {
    EXPECT_TRUE(manager_->Free(*running_.back().request).ok());
    running_.back().request = nullptr;
    waiting_.push_back(std::move(running_.back()));
    running_.pop_back();
    ++counts_.preempted;
  }

  void Schedule() {
    manager_->NewStepStarts();
    int64_t budget = options_.budget;
    for (size_t i = 0; i < running_.size(); ++i) {
      const int64_t left = running_[i].request->num_tokens() - running_[i].computed();
      const int64_t count = std::min({left, budget, 1 + static_cast<int64_t>(random_() % 70)});
      running_[i].scheduled = 0;
      while (count > 0 && i < running_.size() && !Allocate(running_[i], count, nullptr)) Preempt();
      if (i < running_.size()) budget -= running_[i].scheduled;
    }
    while (budget > 0 && !waiting_.empty() &&
           static_cast<int64_t>(running_.size()) < options_.max_running) {
      Running& next = waiting_.back();
      const auto prompt = next.talk->tokens.begin();
      next.request = manager_
                         ->NewRequest({.id = "r" + std::to_string(num_requests_++),
                                       .content = {.token_ids = std::vector<TokenId>(
                                                       prompt, prompt + next.talk->prompt)}})
                         .value();
      const ComputedBlocks hits = manager_->GetComputedBlocks(*next.request).value();
      const int64_t count = std::min(next.talk->prompt - hits.num_tokens(), budget);
      if (!Allocate(next, count, &hits)) break;
      next.request->set_num_computed_tokens(hits.num_tokens());
      counts_.hit_tokens += hits.num_tokens();
      budget -= count;
      running_.push_back(std::move(next));
      waiting_.pop_back();
    }
    ASSERT_FALSE(running_.empty());
    if (counts_.steps++ == options_.clear_states_at) stack_.ClearStates();
    RunStep();
  }

  void RunStep() {
    std::vector<StackRequest> step;
    std::vector<Running*> taken;
    bool prefills = false, decodes = false;
    for (Running& r : running_) {
      if (r.scheduled == 0) continue;
      StackRequest& request = step.emplace_back();
      request.tokens = r.talk->tokens;
      request.computed = r.computed(), request.scheduled = r.scheduled;
      for (int table = 0; table < kNumTables; ++table) {
        request.tables[table] = manager_->GetBlocks(*r.request, table);
      }
      taken.push_back(&r);
      (r.computed() >= r.talk->prompt ? decodes : prefills) = true;
    }
    counts_.mixed_steps += prefills && decodes;
    const auto hidden = stack_.Step(step);
    ASSERT_TRUE(hidden.ok()) << hidden.status();
    size_t row = 0;
    std::vector<Running*> finished;
    for (Running* r : taken) {
      for (int64_t p = r->computed(); p < r->computed() + r->scheduled; ++p, ++row) {
        for (size_t i = 0; i < r->expected[p].size(); ++i) {
          const double off = std::abs((*hidden)[row][i] - r->expected[p][i]);
          if (!std::isnan(counts_.worst) && !(off <= counts_.worst)) counts_.worst = off;
        }
      }
      const int64_t computed = r->computed() + r->scheduled;
      (computed > r->talk->prompt ? counts_.decoded : counts_.chunks) += 1;
      r->request->set_num_computed_tokens(computed);
      if (computed < r->request->num_tokens()) continue;
      if (computed == static_cast<int64_t>(r->talk->tokens.size())) {
        finished.push_back(r);
      } else {
        ASSERT_TRUE(
            r->request->AppendOutputTokens({static_cast<TokenId>(r->talk->tokens[computed])}).ok());
      }
    }
    for (Running* r : finished) {
      ASSERT_TRUE(manager_->Free(*r->request).ok());
      r->talk = nullptr;
    }
    std::erase_if(running_, [](const Running& r) { return r.talk == nullptr; });
  }

  const StackModel& model_;
  ServeOptions options_;
  DenseFaults faults_;
  BackendOfOps backend_;
  PagedStack stack_;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<Running> running_, waiting_;
  std::mt19937_64 random_{11};
  ServedCounts counts_;
  int num_requests_ = 0;
};

// Float32 against float64 through a few layers.
constexpr double kLimit = 2e-5;

ServedCounts Serve(const StackConfig& config, const std::vector<Conversation>& talks,
                   const ServeOptions& options = {}, const DenseFaults& faults = {}) {
  const StackModel model(config);
  return Engine(model, options, faults).Serve(talks);
}

StackConfig OfV32() {
  StackConfig config;
  config.layers = {LayerKind::kV32, LayerKind::kV32};
  config.topk = 20;
  return config;
}

TEST(DeepseekStackSuite, V4IsTheDenseModelTokenByToken) {
  std::mt19937_64 random(5);
  const Conversation first = Talk(random, {}, 0, 530, 6);
  const std::vector<Conversation> talks = {
      first, Talk(random, {}, 0, 150, 12), Talk(random, {}, 0, 9, 5),
      Talk(random, first.tokens, 300, 340, 70), Talk(random, first.tokens, 520, 545, 9)};
  const ServedCounts counts = Serve({}, talks);
  EXPECT_LT(counts.worst, kLimit);
  EXPECT_EQ(counts.hit_tokens, 256 + 512);
  EXPECT_GT(counts.mixed_steps, 0);
  EXPECT_GE(counts.decoded, 6 + 12 + 5 + 70 + 9 - 5);
  EXPECT_GT(counts.blocks_taken, 340);  // so some were used again
}

// Too few blocks: requests give theirs back and begin again, where they can with what is cached.
TEST(DeepseekStackSuite, V4SurvivesPreemption) {
  std::mt19937_64 random(6);
  const std::vector<Conversation> talks = {
      Talk(random, {}, 0, 140, 40), Talk(random, {}, 0, 130, 40), Talk(random, {}, 0, 20, 30)};
  const ServedCounts counts = Serve({}, talks, {.num_blocks = 48, .budget = 48});
  EXPECT_LT(counts.worst, kLimit);
  EXPECT_GT(counts.preempted, 0);
}

TEST(DeepseekStackSuite, V32IsTheDenseModelTokenByToken) {
  std::mt19937_64 random(7);
  const Conversation first = Talk(random, {}, 0, 270, 5);
  const std::vector<Conversation> talks = {first, Talk(random, {}, 0, 40, 6),
                                           Talk(random, {}, 0, 60, 6),
                                           Talk(random, first.tokens, 265, 290, 4)};
  const ServedCounts counts = Serve(OfV32(), talks);
  EXPECT_LT(counts.worst, kLimit);
  EXPECT_EQ(counts.hit_tokens, 256);
}

// Five caches of ratio 4, three of ratio 128, one of a window, each through the hooks of a
// connector.
TEST(DeepseekStackSuite, ConnectorsHooksGoAroundEveryCache) {
  std::mt19937_64 random(10);
  const std::vector<Conversation> talks = {Talk(random, {}, 0, 150, 3), Talk(random, {}, 0, 21, 4)};
  const auto worst = [&](const StackConfig& config, SwappingHooks& hooks) {
    return Serve(config, talks, {.num_blocks = 60, .hooks = &hooks}).worst;
  };
  SwappingHooks v4;
  EXPECT_LT(worst({}, v4), kLimit);
  EXPECT_EQ(v4.num_caches(), 1u + 5 + 3 + 5);
  EXPECT_EQ(v4.waits, v4.saves);
  SwappingHooks v32;
  EXPECT_LT(worst(OfV32(), v32), kLimit);
  EXPECT_EQ(v32.num_caches(), 2u * 2);
  EXPECT_EQ(v32.waits, v32.saves);
  // Each of them counts.
  for (const char* name : {"layer 0", "layer 1.compressed", "layer 1.index", "layer 1.states",
                           "layer 1.index_states", "layer 2.states"}) {
    SwappingHooks forgetful(name);
    EXPECT_FALSE(worst({}, forgetful) < 0.001) << name;
  }
}

// Rows as engines store them. A value that float32 rounds to another code than float64 shows, so
// the limit is that of a few of them.
constexpr double kCodeLimit = 2e-3;

StackConfig OfCodes(StackConfig config, int64_t latent, StoredAs as = StoredAs::kFp8) {
  config.stored_as = as;
  config.latent = latent, config.rotary = 64, config.index_dim = 128;
  return config;
}

TEST(DeepseekStackSuite, RowsOfCodesAreThoseOfTheDenseModel) {
  std::mt19937_64 random(9);
  const std::vector<Conversation> talks = {Talk(random, {}, 0, 140, 3), Talk(random, {}, 0, 21, 5)};
  EXPECT_LT(Serve(OfCodes({}, 448), talks).worst, kCodeLimit);
  EXPECT_LT(Serve(OfCodes(OfV32(), 512), talks).worst, kCodeLimit);
}

// Codes of 4 bits have larger gaps, and so do the rows of values that round to another one.
constexpr double kRecordLimit = 2e-2;

TEST(DeepseekStackSuite, RecordsAreThoseOfTheDenseModel) {
  std::mt19937_64 random(9);
  const std::vector<Conversation> talks = {Talk(random, {}, 0, 140, 3), Talk(random, {}, 0, 21, 5)};
  EXPECT_LT(Serve(OfCodes({}, 448, StoredAs::kRecords), talks).worst, kRecordLimit);
  EXPECT_LT(Serve(OfCodes(OfV32(), 512, StoredAs::kRecords), talks).worst, kRecordLimit);
}

// The comparison notices what it is for.
TEST(DeepseekStackSuite, FaultsAreNoticed) {
  std::mt19937_64 random(8);
  const std::vector<Conversation> talks = {Talk(random, {}, 0, 150, 4)};
  const auto worst = [&](const DenseFaults& faults, const ServeOptions& options = {}) {
    return Serve({}, talks, options, faults).worst;
  };
  EXPECT_LT(worst({}), kLimit);
  // Each is off by more than a hundredth.
  for (const DenseFaults& faults :
       {DenseFaults{.window_edge = 1}, DenseFaults{.window_edge = -1},
        DenseFaults{.swap_overlap = true}, DenseFaults{.ties_to_higher = true},
        DenseFaults{.ignore_sinks = true}, DenseFaults{.early_rows = true}}) {
    EXPECT_GT(worst(faults), 0.01);
  }
  EXPECT_GT(worst({}, {.clear_states_at = 1}), 0.01);
}

}  // namespace
}  // namespace kvblocks::attention
