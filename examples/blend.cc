// CacheBlend: prompts of chunks that were prefilled apart, fused by recomputing part of their
// tokens, against their full prefill. The model is small and random: what counts is how the error
// falls with the share of recomputed tokens, and what choosing those that deviate most is worth.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "kvblocks/attention.h"

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
  absl::Status Run(const Checked<FuseKvArgs>& call) const override { return Cpu().Run(call); }
  absl::Status Run(const Checked<RotateKeysArgs>& call) const override { return Cpu().Run(call); }
  absl::Status Run(const Checked<VarlenSelfAttentionArgs>& call) const override {
    return Cpu().Run(call);
  }
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

double RelativeL2(absl::Span<const double> a, absl::Span<const double> b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

constexpr int kNumPrompts = 4, kNumChunks = 4;
constexpr int64_t kChunkTokens = 40, kQuestionTokens = 12;
constexpr int32_t kBos = 0;

// Chunks, each prefilled alone behind a BOS token, a question, and what all of it gives at once.
struct Prompt {
  std::vector<PrefilledPrompt> chunks;
  std::vector<int32_t> question;
  std::vector<int32_t> ids;
  std::vector<double> rows;    // final hidden rows of the question
  std::vector<double> logits;  // of the last
};

// The rows of the question, and the logits of the last, out of final hidden rows.
void Answer(const SmallTransformer& model, absl::Span<const float> hidden,
            std::vector<double>* rows, std::vector<double>* logits) {
  const size_t width = static_cast<size_t>(model.config().hidden_size);
  const absl::Span<const float> question = hidden.last(kQuestionTokens * width);
  rows->assign(question.begin(), question.end());
  *logits = model.Logits(hidden.last(width));
}

Prompt MakePrompt(const SmallTransformer& model, uint64_t seed) {
  std::mt19937_64 random(seed);
  Prompt prompt;
  prompt.ids = {kBos};
  for (int c = 0; c < kNumChunks; ++c) {
    std::vector<int32_t> ids = RandomTokens(random, kChunkTokens);
    prompt.ids.insert(prompt.ids.end(), ids.begin(), ids.end());
    ids.insert(ids.begin(), kBos);
    prompt.chunks.push_back(OrExit(model.Prefill(Cpu(), {}, ids)));
  }
  prompt.question = RandomTokens(random, kQuestionTokens);
  prompt.ids.insert(prompt.ids.end(), prompt.question.begin(), prompt.question.end());
  Answer(model, OrExit(model.Prefill(Cpu(), {}, prompt.ids)).hidden, &prompt.rows, &prompt.logits);
  return prompt;
}

struct Errors {
  double rows = 0, logits = 0;
  int64_t recomputed = 0;
};

Errors Blend(const SmallTransformer& model, const AttentionOps& ops, const Prompt& prompt,
             double ratio) {
  const int64_t width = model.config().hidden_size;
  BlendConfig config = model.blend_config();
  config.ratio = ratio;
  BlendSession session = OrExit(BlendSession::Create(config));
  for (const PrefilledPrompt& chunk : prompt.chunks) {
    OrExit(session.AddChunk(ViewsOf(chunk, model.config(), /*num_leading_tokens=*/1).chunk));
  }
  OrExit(session.Plan(prompt.question, prompt.ids));

  const ExecContext context;
  const std::vector<float> embeddings = model.Embed(prompt.ids);
  const BlendSession* const sessions[] = {&session};
  const BlendResult result =
      OrExit(RunBlend(ops, context, sessions,
                      ViewOf(absl::MakeConstSpan(embeddings), {session.num_tokens(), width}),
                      model.Model(ops, context)));
  std::vector<double> rows, logits;
  Answer(model, {result.hidden.as<float>(), static_cast<size_t>(result.hidden.num_elements())},
         &rows, &logits);
  return {RelativeL2(rows, prompt.rows), RelativeL2(logits, prompt.logits),
          result.hidden.extent[0]};
}

}  // namespace

int main() {
  const RandomSelection random_ops;
  const SmallTransformer model({});
  std::vector<Prompt> prompts;
  for (int p = 0; p < kNumPrompts; ++p) prompts.push_back(MakePrompt(model, p + 1));

  std::printf("%d prompts of %d chunks of %d tokens and a question of %d, %d layers.\n",
              kNumPrompts, kNumChunks, static_cast<int>(kChunkTokens),
              static_cast<int>(kQuestionTokens), model.config().num_layers);
  std::printf(
      "Mean relative L2 error against the full prefill: rows of the question, last logits.\n");
  std::printf("%36s %20s\n", "most deviating", "any tokens");
  std::printf("%8s %8s %9s %8s %11s %8s\n", "ratio", "tokens", "rows", "logits", "rows", "logits");
  for (const double ratio : {0.0, 0.05, 0.16, 0.3, 0.5, 1.0}) {
    Errors deviating, any;
    for (const Prompt& prompt : prompts) {
      for (Errors* sum : {&deviating, &any}) {
        const Errors one = Blend(model, sum == &any ? random_ops : Cpu(), prompt, ratio);
        sum->rows += one.rows / kNumPrompts;
        sum->logits += one.logits / kNumPrompts;
        sum->recomputed = one.recomputed;
      }
    }
    std::printf("%8.2f %8d %9.4f %8.4f %11.4f %8.4f\n", ratio,
                static_cast<int>(deviating.recomputed), deviating.rows, deviating.logits, any.rows,
                any.logits);
  }
}
