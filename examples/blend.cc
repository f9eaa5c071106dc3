// CacheBlend over the blocks of a KvCacheManager: chunks are prefilled alone and read out of the
// cache; prompts of a system's tokens, which are hit, some chunks and a question are then put
// together from them by recomputing part of their tokens, against the full prefill. The model is
// small and random: what counts is how the error falls with the share of recomputed tokens and what
// that costs, and what choosing the tokens that deviate most is worth.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvblocks/attention.h"
#include "kvblocks/kv_cache.h"

namespace {

using namespace kvblocks::attention;

// The CPU backend, but selecting as many tokens blindly.
class RandomSelection : public AttentionOps {
 public:
  const char* name() const override { return "CPU with random selection"; }
  absl::Status Run(const Checked<SelectHkvdArgs>& call) const override {
    const SelectHkvdArgs& args = call.args();
    const int64_t n = args.v_new.extent[0], prefix = n - args.suffix_len;
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(7);
    for (int64_t t = prefix - 1; t > 0; --t) std::swap(order[t], order[random() % (t + 1)]);
    const int64_t k = HkvdCount(n, args.suffix_len, args.ratio);
    std::sort(order.begin(), order.begin() + k);
    std::copy(order.begin(), order.begin() + k, args.imp.as<int32_t>());
    std::copy(order.begin() + prefix, order.end(), args.imp.as<int32_t>() + k);
    return absl::OkStatus();
  }
  absl::Status Run(const Checked<GatherRowsArgs>& call) const override { return Cpu().Run(call); }
  absl::Status Run(const Checked<RotateKeysArgs>& call) const override { return Cpu().Run(call); }
  absl::Status Run(const Checked<ReshapeAndCacheArgs>& call) const override {
    return Cpu().Run(call);
  }
  absl::Status Run(const Checked<PagedPrefillArgs>& call) const override { return Cpu().Run(call); }
};

void OrExit(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T OrExit(absl::StatusOr<T> value) {
  OrExit(value.status());
  return *std::move(value);
}

std::vector<int32_t> RandomTokens(std::mt19937_64& random, int64_t count) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(1 + random() % 127);
  return ids;
}

constexpr int kNumPrompts = 4, kNumChunks = 4;
constexpr int64_t kSystemTokens = 48, kChunkTokens = 40, kQuestionTokens = 12;
constexpr int64_t kBlockSize = 16, kNumBlocks = 64, kLongest = 256;
constexpr int32_t kBos = 0;

// A model over a paged cache whose blocks a manager gives out.
class Engine {
 public:
  Engine() {
    const SmallTransformerConfig& config = model.config();
    const auto spec =
        OrExit(kvblocks::FullAttentionSpec::Create({.block_size = kBlockSize,
                                                    .num_kv_heads = config.num_kv_heads,
                                                    .head_size = config.head_dim}));
    manager_ = OrExit(kvblocks::KvCacheManager::Create(
        {.num_blocks = kNumBlocks, .groups = {{.spec = spec}}}, {.max_model_len = kLongest}));
    builder_.emplace(
        OrExit(AttentionMetadataBuilder::Create({.groups = {{.manager_block_size = kBlockSize,
                                                             .kernel_block_size = kBlockSize,
                                                             .num_blocks = kNumBlocks}},
                                                 .max_num_reqs = 1,
                                                 .max_num_tokens = kLongest,
                                                 .max_seq_len = kLongest})));
    const int64_t block = kBlockSize * config.num_kv_heads * config.head_dim;
    memory_.resize(2 * config.num_layers * kNumBlocks * block);
    for (int i = 0; i < config.num_layers; ++i) {
      const auto view = [&](int half) {
        return ViewOf(absl::MakeSpan(memory_).subspan((2 * i + half) * kNumBlocks * block,
                                                      kNumBlocks * block),
                      {kNumBlocks, kBlockSize, config.num_kv_heads, config.head_dim});
      };
      layers_.push_back({KvCacheView(KvLayout::kNhd, view(0), view(1))});
    }
  }

  struct Output {
    BlendResult result;
    double milliseconds = 0;  // to the final hidden rows
  };
  // Prefills a prompt behind what the manager has of it. `make_session`, if given, says of the
  // number of computed tokens how chunks are to be blended; nobody may hit the blocks of such a
  // prompt, so `keep` is false. `look`, if given, sees the request's blocks before they are freed.
  using MakeSession = std::function<BlendSession(int64_t num_computed)>;
  using Look = std::function<void(absl::Span<const int32_t> blocks)>;
  Output Prefill(const AttentionOps& ops, const std::vector<int32_t>& ids, bool keep,
                 const MakeSession& make_session = {}, const Look& look = {}) {
    auto request = OrExit(manager_->NewRequest({.id = "request " + std::to_string(++num_requests_),
                                                .content = {.token_ids = ids},
                                                .skip_writing_prefix_cache = !keep}));
    const kvblocks::ComputedBlocks hits = OrExit(manager_->GetComputedBlocks(*request));
    const RequestInput input{
        .num_computed_tokens = hits.num_tokens(),
        .num_scheduled_tokens = static_cast<int64_t>(ids.size()) - hits.num_tokens()};
    if (!OrExit(manager_->AllocateSlots(
            *request, {.num_new_tokens = input.num_scheduled_tokens, .computed_blocks = &hits}))) {
      OrExit(absl::ResourceExhaustedError("the prompt does not fit the pool"));
    }
    const absl::Span<const int32_t> blocks = manager_->GetBlocks(*request, 0);
    OrExit(builder_->Build({.requests = {&input, 1}, .block_ids = {&blocks, 1}}));

    std::optional<BlendSession> session;
    if (make_session != nullptr) session = make_session(hits.num_tokens());
    const BlendSession* const sessions[] = {session ? &*session : nullptr};
    const std::vector<float> embeddings =
        model.Embed(absl::MakeConstSpan(ids).subspan(hits.num_tokens()));
    BlendStep step;
    step.metadata = &builder_->metadata();
    step.sessions = sessions;
    const int64_t registered = manager_->GetNumRegisteredTokens(*request, 0);
    step.num_registered_tokens = {&registered, 1};
    step.layers = layers_;
    step.hidden = ViewOf(absl::MakeConstSpan(embeddings),
                         {input.num_scheduled_tokens, model.config().hidden_size});
    Output output;
    const ExecContext context;
    BlendModel callbacks = model.Model(ops, context);
    std::chrono::steady_clock::time_point begin;
    callbacks.at = [&](BlendMoment moment, int) {
      const auto now = std::chrono::steady_clock::now();
      if (moment == BlendMoment::kRunBegins) begin = now;
      if (moment == BlendMoment::kHiddenRowsAreThere) {
        output.milliseconds = std::chrono::duration<double, std::milli>(now - begin).count();
      }
    };
    output.result = OrExit(RunBlend(ops, context, model.blend_config(), step, callbacks));
    if (look != nullptr) look(blocks);
    OrExit(manager_->Free(*request));
    return output;
  }

  // K, rotated for positions 0, 1, 2, ..., and V of a layer, read out of the cache.
  void Read(int layer, absl::Span<const int32_t> blocks, int32_t num_tokens, std::vector<float>* k,
            std::vector<float>* v) const {
    const SmallTransformerConfig& config = model.config();
    GatherCacheArgs args;
    args.cache = layers_[layer].cache;
    args.block_table = ViewOf(blocks, {1, static_cast<int64_t>(blocks.size())});
    args.seq_lens = args.lengths = ViewOf(absl::Span<const int32_t>(&num_tokens, 1));
    for (auto [values, out] : {std::pair(k, &args.out), {v, &args.out_v}}) {
      values->resize(num_tokens * config.num_kv_heads * config.head_dim);
      *out = ViewOf(absl::MakeSpan(*values), {1, num_tokens, config.num_kv_heads, config.head_dim});
    }
    OrExit(Cpu().GatherCache({}, args));
  }

  const SmallTransformer model{SmallTransformerConfig{}};

 private:
  std::unique_ptr<kvblocks::KvCacheManager> manager_;
  std::optional<AttentionMetadataBuilder> builder_;
  std::vector<float> memory_;
  std::vector<BlendLayer> layers_;
  int num_requests_ = 0;
};

// A chunk behind a BOS token, and what prefilling it alone left in the cache.
struct Chunk {
  std::vector<int32_t> ids, positions;
  std::vector<std::vector<float>> k, v;  // per layer
};

// The system's tokens, chunks, a question, and what all of it gives at once.
struct Prompt {
  std::vector<Chunk> chunks;
  std::vector<int32_t> question, ids;
  Engine::Output full;
};

Prompt MakePrompt(Engine& engine, const std::vector<int32_t>& system, uint64_t seed) {
  std::mt19937_64 random(seed);
  Prompt prompt;
  prompt.ids = system;
  const int num_layers = engine.model.config().num_layers;
  for (int c = 0; c < kNumChunks; ++c) {
    const std::vector<int32_t> ids = RandomTokens(random, kChunkTokens);
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    Chunk& chunk = prompt.chunks.emplace_back();
    chunk.ids = {kBos};
    chunk.ids.insert(chunk.ids.end(), ids.begin(), ids.end());
    chunk.positions.resize(chunk.ids.size());
    std::iota(chunk.positions.begin(), chunk.positions.end(), 0);
    chunk.k.resize(num_layers);
    chunk.v.resize(num_layers);
    engine.Prefill(Cpu(), chunk.ids, /*keep=*/false, {}, [&](absl::Span<const int32_t> blocks) {
      for (int layer = 0; layer < num_layers; ++layer) {
        engine.Read(layer, blocks, static_cast<int32_t>(chunk.ids.size()), &chunk.k[layer],
                    &chunk.v[layer]);
      }
    });
  }
  prompt.question = RandomTokens(random, kQuestionTokens);
  prompt.ids.insert(prompt.ids.end(), prompt.question.begin(), prompt.question.end());
  prompt.full = engine.Prefill(Cpu(), prompt.ids, /*keep=*/false);
  return prompt;
}

struct Measured {
  int64_t attended_rows = 0;  // of all layers
  int64_t computed_tokens = 0;
  BlendDeviation question;
  double milliseconds = 0;
};

Measured Blend(Engine& engine, const AttentionOps& ops, const std::vector<int32_t>& system,
               const Prompt& prompt, const std::vector<BlendCheck>& checks) {
  const SmallTransformerConfig& model = engine.model.config();
  Measured measured;
  const Engine::Output output =
      engine.Prefill(ops, prompt.ids, /*keep=*/false, [&](int64_t num_computed) {
        BlendConfig config = engine.model.blend_config();
        config.check_layers = checks;
        BlendSession session = OrExit(BlendSession::Create(config, num_computed));
        BlendChunk beginning;
        beginning.ids = system;  // in the cache: no K and V needed
        OrExit(session.AddChunk(beginning));
        for (const Chunk& chunk : prompt.chunks) {
          std::vector<ConstTensorView> k, v;
          for (int layer = 0; layer < model.num_layers; ++layer) {
            for (auto [views, values] : {std::pair(&k, &chunk.k), {&v, &chunk.v}}) {
              views->push_back(ViewOf(
                  absl::MakeConstSpan((*values)[layer]),
                  {static_cast<int64_t>(chunk.ids.size()), model.num_kv_heads, model.head_dim}));
            }
          }
          OrExit(session.AddChunk({.ids = chunk.ids,
                                   .k = k,
                                   .v = v,
                                   .rotated_for = chunk.positions,
                                   .num_leading_tokens = 1}));
        }
        OrExit(session.Plan(prompt.question, prompt.ids));
        measured.computed_tokens = num_computed;
        return session;
      });
  for (const BlendLayerReport& layer : output.result.layers) {
    measured.attended_rows += layer.attended_rows;
  }
  const int64_t rows = output.result.hidden.extent[0];
  measured.question = OrExit(
      CompareWithPrefill(OrExit(output.result.hidden.Slice(0, rows - kQuestionTokens, rows)),
                         OrExit(output.result.positions.Slice(0, rows - kQuestionTokens, rows)),
                         prompt.full.result.hidden, measured.computed_tokens));
  measured.milliseconds = output.milliseconds;
  return measured;
}

}  // namespace

int main() {
  const RandomSelection random_ops;
  Engine engine;
  std::mt19937_64 random(99);
  std::vector<int32_t> system = RandomTokens(random, kSystemTokens);
  system[0] = kBos;
  // From now on the manager has its blocks.
  engine.Prefill(Cpu(), system, /*keep=*/true);
  std::vector<Prompt> prompts;
  double full_milliseconds = 0;
  for (int p = 0; p < kNumPrompts; ++p) {
    prompts.push_back(MakePrompt(engine, system, p + 1));
    full_milliseconds += prompts.back().full.milliseconds / kNumPrompts;
  }

  std::printf(
      "%d prompts: %d tokens of the system, %d chunks of %d, a question of %d; %d layers.\n",
      kNumPrompts, static_cast<int>(kSystemTokens), kNumChunks, static_cast<int>(kChunkTokens),
      static_cast<int>(kQuestionTokens), engine.model.config().num_layers);
  std::printf("The rows of the question against those of the full prefill, %.1f ms: relative L2\n",
              full_milliseconds);
  std::printf(
      "error, mean and largest deviation, and the error with as many tokens of any kind.\n");
  std::printf("%-12s %6s %6s %8s %8s %8s %10s %6s\n", "ratio", "hit", "rows", "error", "mean",
              "largest", "any error", "ms");
  const std::pair<const char*, std::vector<BlendCheck>> schedules[] = {
      {"0.00", {{1, 0}}},   {"0.05", {{1, 0.05}}}, {"0.16", {{1, 0.16}}},
      {"0.50", {{1, 0.5}}}, {"1.00", {{1, 1}}},    {"0.50-0.16", {{1, 0.5}, {3, 0.16}}}};
  for (const auto& [name, checks] : schedules) {
    Measured deviating, any;
    for (const Prompt& prompt : prompts) {
      for (Measured* sum : {&deviating, &any}) {
        const Measured one =
            Blend(engine, sum == &any ? random_ops : Cpu(), system, prompt, checks);
        sum->attended_rows = one.attended_rows;
        sum->computed_tokens = one.computed_tokens;
        sum->question.relative += one.question.relative / kNumPrompts;
        sum->question.mean += one.question.mean / kNumPrompts;
        sum->question.largest = std::max(sum->question.largest, one.question.largest);
        sum->milliseconds += one.milliseconds / kNumPrompts;
      }
    }
    std::printf("%-12s %6d %6d %8.4f %8.4f %8.4f %10.4f %6.1f\n", name,
                static_cast<int>(deviating.computed_tokens),
                static_cast<int>(deviating.attended_rows), deviating.question.relative,
                deviating.question.mean, deviating.question.largest, any.question.relative,
                deviating.milliseconds);
  }
}
