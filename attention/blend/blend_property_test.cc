// Blended prefills against a dense one in float64 that knows no blocks, no operations and no row
// numbers: requests of several chunks behind hits of any length, several check layers, chunks whose
// keys are rotated or not, next to decodes and chunked prefills.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "attention/blend/testing/paged_model.h"
#include "attention/testing/dense_oracle.h"
#include "kvblocks/attention_cpu.h"
#include "kvblocks/cache_blend.h"
#include "tests/property/check_property.h"

namespace kvblocks::attention {
namespace {

constexpr int kLayers = 4;
constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 6, kWidth = 24;

using Vector = std::vector<double>;

// Heads of a vector turned by `by` positions; halves.
Vector Turned(Vector x, double by) {
  for (size_t head = 0; head < x.size() / kDim; ++head) {
    for (int i = 0; i < kDim / 2; ++i) {
      const double angle = by * std::pow(10000.0, -2.0 * i / kDim);
      double &a = x[head * kDim + i], &b = x[head * kDim + i + kDim / 2];
      const double turned = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = turned;
    }
  }
  return x;
}

// What is known of a token in a layer: K at its position, V.
struct Known {
  Vector k, v;
};
// A prompt as the naive blend sees it.
struct NaivePrompt {
  std::vector<int32_t> ids = {};
  int64_t num_computed = 0, chunk_end = 0;
  std::map<std::pair<int, int64_t>, Known> old = {};  // [layer, token]: of chunks
  BlendConfig config = {};
};
struct NaiveResult {
  std::map<int64_t, Vector> hidden;                // of the tokens that are left
  std::map<std::pair<int, int64_t>, Known> cache;  // [layer, token]
  bool close = false;                              // a choice that rounding may turn
};

// The model's layer for one token, in the float32 that its callbacks take.
struct Projected {
  Vector q, k, v;
};
Projected Project(const SmallTransformer& model, int layer, const Vector& hidden) {
  const std::vector<float> row(hidden.begin(), hidden.end());
  std::vector<float> q(kHeads * kDim), k(kKvHeads * kDim), v(kKvHeads * kDim);
  EXPECT_TRUE(model
                  .Project(layer, ViewOf(absl::MakeConstSpan(row), {1, kWidth}),
                           ViewOf(absl::MakeSpan(q), {1, kHeads, kDim}),
                           ViewOf(absl::MakeSpan(k), {1, kKvHeads, kDim}),
                           ViewOf(absl::MakeSpan(v), {1, kKvHeads, kDim}))
                  .ok());
  return {{q.begin(), q.end()}, {k.begin(), k.end()}, {v.begin(), v.end()}};
}
Vector Finish(const SmallTransformer& model, int layer, const Vector& attention,
              const Vector& hidden) {
  std::vector<float> row(hidden.begin(), hidden.end());
  const std::vector<float> attended(attention.begin(), attention.end());
  EXPECT_TRUE(model
                  .Finish(layer, ViewOf(absl::MakeConstSpan(attended), {1, kHeads, kDim}),
                          ViewOf(absl::MakeSpan(row), {1, kWidth}))
                  .ok());
  return {row.begin(), row.end()};
}

// Over the tokens up to `limit`.
Vector Attend(const Vector& q, const std::map<std::pair<int, int64_t>, Known>& cache, int layer,
              int64_t limit) {
  DenseRequest request;
  request.q_len = 1, request.kv_len = limit + 1;
  request.num_heads = kHeads, request.num_kv_heads = kKvHeads;
  request.key_dim = request.value_dim = kDim;
  request.q = q;
  for (int64_t j = 0; j <= limit; ++j) {
    const Known& row = cache.at({layer, j});
    request.k.insert(request.k.end(), row.k.begin(), row.k.end());
    request.v.insert(request.v.end(), row.v.begin(), row.v.end());
  }
  DenseParams params;
  params.scale = 1 / std::sqrt(static_cast<double>(kDim));
  params.causal = false;
  return DenseAttention(request, params).out;
}

double Distance(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

// `computed`: K and V of the tokens of the hit.
NaiveResult NaiveBlend(const SmallTransformer& model, const NaivePrompt& prompt,
                       const std::map<std::pair<int, int64_t>, Known>& computed) {
  const auto n = static_cast<int64_t>(prompt.ids.size());
  NaiveResult result;
  for (int64_t t = prompt.num_computed; t < n; ++t) {
    const std::vector<float> row = model.Embed({&prompt.ids[t], 1});
    result.hidden[t] = Vector(row.begin(), row.end());
  }
  const int64_t num_old = std::max<int64_t>(0, prompt.chunk_end - prompt.num_computed);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int64_t t = 0; t < prompt.num_computed; ++t) {
      result.cache[{layer, t}] = computed.at({layer, t});
    }
    for (int64_t t = prompt.num_computed; t < prompt.chunk_end; ++t) {
      result.cache[{layer, t}] = prompt.old.at({layer, t});
    }
    std::map<int64_t, Vector> queries;
    for (const auto& [t, hidden] : result.hidden) {
      Projected row = Project(model, layer, hidden);
      queries[t] = Turned(row.q, static_cast<double>(t));
      result.cache[{layer, t}] = {Turned(row.k, static_cast<double>(t)), row.v};
    }
    for (const BlendCheck& check : prompt.config.check_layers) {
      if (check.layer != layer) continue;
      std::vector<std::pair<double, int64_t>> ranked;
      for (const auto& [t, hidden] : result.hidden) {
        if (t >= prompt.chunk_end) continue;
        const Known &now = result.cache.at({layer, t}), &then = prompt.old.at({layer, t});
        ranked.emplace_back(
            prompt.config.rank_by_keys ? -Distance(now.k, then.k) : -Distance(now.v, then.v), t);
      }
      std::sort(ranked.begin(), ranked.end());
      const auto kept = static_cast<size_t>(check.ratio * static_cast<double>(num_old) + 1e-6);
      if (kept < ranked.size() && kept > 0) {
        const double last = -ranked[kept - 1].first, next = -ranked[kept].first;
        result.close |= last - next < 1e-4 * last + 1e-9;  // equal but for rounding
      }
      for (size_t i = kept; i < ranked.size(); ++i) result.hidden.erase(ranked[i].second);
    }
    const auto rows = static_cast<int64_t>(result.hidden.size());
    int64_t r = 0;
    for (auto& [t, hidden] : result.hidden) {
      const bool compat = prompt.config.mask == BlendMask::kCompatBottomRight;
      const int64_t limit = compat ? r + n - rows : t;
      hidden = Finish(model, layer, Attend(queries[t], result.cache, layer, limit), hidden);
      ++r;
    }
  }
  return result;
}

// A prefill of all tokens.
NaiveResult NaivePrefill(const SmallTransformer& model, const std::vector<int32_t>& ids) {
  return NaiveBlend(model, {.ids = ids, .config = {.num_layers = kLayers, .check_layers = {}}}, {});
}

std::vector<int32_t> RandomIds(std::mt19937_64& random, int64_t count) {
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % 100);
  return ids;
}

int64_t Below(std::mt19937_64& random, int64_t bound) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
}

// A session, the memory that it looks into, and the same for the naive blend.
struct RandomRequest {
  std::optional<BlendSession> session;
  std::deque<std::vector<float>> rows;
  NaivePrompt prompt;
};

RandomRequest RandomSession(const SmallTransformer& model, std::mt19937_64& random) {
  RandomRequest made;
  BlendConfig& config = made.prompt.config = model.blend_config();
  config.check_layers.clear();
  double ratio = 1;
  for (int layer = 0; layer < kLayers; ++layer) {
    // Before the first layer nothing deviates.
    const int64_t skipped = layer == 0 ? 5 : 1;
    if (Below(random, 1 + skipped) > 0 && (layer < kLayers - 1 || !config.check_layers.empty())) {
      continue;
    }
    ratio *= static_cast<double>(Below(random, 11)) / 10;
    config.check_layers.push_back({layer, ratio});
  }
  config.rank_by_keys = Below(random, 3) == 0;
  if (Below(random, 4) == 0) config.mask = BlendMask::kCompatBottomRight;
  if (Below(random, 3) == 0) config.store = BlendStore::kNewRows;
  struct Chunk {
    std::vector<int32_t> ids, rotated_for;
    int64_t leading = 0;
    NaiveResult prefill;
  };
  std::vector<Chunk> chunks(1 + Below(random, 3));
  for (Chunk& chunk : chunks) {
    chunk.ids = RandomIds(random, 1 + Below(random, 9));
    chunk.leading = Below(random, 2);
    chunk.prefill = NaivePrefill(model, chunk.ids);
    if (Below(random, 2) == 0) {
      const int64_t from = Below(random, 50);
      for (size_t t = 0; t < chunk.ids.size(); ++t) {
        chunk.rotated_for.push_back(static_cast<int32_t>(from + static_cast<int64_t>(t)));
      }
    }
    const int64_t first = &chunk == &chunks[0] ? 0 : chunk.leading;
    made.prompt.ids.insert(made.prompt.ids.end(), chunk.ids.begin() + first, chunk.ids.end());
  }
  made.prompt.chunk_end = static_cast<int64_t>(made.prompt.ids.size());
  const std::vector<int32_t> suffix = RandomIds(random, 1 + Below(random, 4));
  made.prompt.ids.insert(made.prompt.ids.end(), suffix.begin(), suffix.end());
  if (Below(random, 3) > 0) {
    made.prompt.num_computed = Below(random, static_cast<int64_t>(made.prompt.ids.size()));
  }

  made.session = *BlendSession::Create(config, made.prompt.num_computed);
  int64_t at = 0;
  for (const Chunk& chunk : chunks) {
    const auto n = static_cast<int64_t>(chunk.ids.size());
    const int64_t first = at == 0 ? 0 : chunk.leading;
    std::vector<ConstTensorView> k, v;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<float>& keys = made.rows.emplace_back();
      std::vector<float>& values = made.rows.emplace_back();
      for (int64_t t = 0; t < n; ++t) {
        // As prefilled, at position t.
        const Known& known = chunk.prefill.cache.at({layer, t});
        const double stands = chunk.rotated_for.empty() ? 0 : chunk.rotated_for[t];
        const Vector key = Turned(known.k, stands - static_cast<double>(t));
        keys.insert(keys.end(), key.begin(), key.end());
        values.insert(values.end(), known.v.begin(), known.v.end());
        if (t < first) continue;
        const int64_t position = at + t - first;
        made.prompt.old[{layer, position}] = {Turned(known.k, static_cast<double>(position - t)),
                                              known.v};
      }
      k.push_back(ViewOf(absl::MakeConstSpan(keys), {n, kKvHeads, kDim}));
      v.push_back(ViewOf(absl::MakeConstSpan(values), {n, kKvHeads, kDim}));
    }
    EXPECT_EQ(made.session->AddChunk({.ids = chunk.ids,
                                      .k = k,
                                      .v = v,
                                      .rotated_for = chunk.rotated_for,
                                      .num_leading_tokens = chunk.leading}),
              absl::OkStatus());
    at += n - first;
  }
  EXPECT_EQ(made.session->Plan(suffix, made.prompt.ids), absl::OkStatus());
  return made;
}

// What a cache that was loaded before the run has of chunks.
void Preload(PagedModel& paged, const std::vector<int32_t>& blocks, const NaivePrompt& prompt) {
  for (const auto& [place, known] : prompt.old) {
    const auto& [layer, t] = place;
    if (t < prompt.num_computed) continue;
    const int64_t slot = paged.SlotOf(blocks, t);
    const std::vector<float> k(known.k.begin(), known.k.end()), v(known.v.begin(), known.v.end());
    std::memcpy(paged.KeyAt(layer, slot), k.data(), k.size() * sizeof(float));
    std::memcpy(paged.ValueAt(layer, slot), v.data(), v.size() * sizeof(float));
  }
}

struct Tally {
  int64_t requests = 0, rows = 0, close = 0, hits = 0, checks = 0;
};

// An empty string, or what differs.
std::string RandomBatch(const AttentionOps& ops, uint64_t seed, Tally* tally) {
  std::mt19937_64 random(seed);
  const SmallTransformer model({.num_layers = kLayers,
                                .hidden_size = kWidth,
                                .num_heads = kHeads,
                                .num_kv_heads = kKvHeads,
                                .head_dim = kDim,
                                .ffn_size = 32,
                                .sharpness = 2,
                                .seed = seed % 5});
  PagedModel paged(model, {.block_size = 1 + Below(random, 6), .num_blocks = 300, .seed = seed});
  std::deque<RandomRequest> blends(1 + Below(random, 3));
  std::vector<StepRequest> requests, before;
  std::vector<NaivePrompt> prompts;
  for (RandomRequest& blend : blends) {
    blend = RandomSession(model, random);
    prompts.push_back(blend.prompt);
    tally->hits += blend.prompt.num_computed > 0;
    tally->checks += static_cast<int64_t>(blend.prompt.config.check_layers.size()) > 1;
    requests.push_back({.session = &*blend.session, .num_computed = blend.prompt.num_computed});
  }
  // Decodes, and chunks of a prompt.
  for (int64_t i = Below(random, 4); i > 0; --i) {
    NaivePrompt& prompt = prompts.emplace_back();
    prompt.ids = RandomIds(random, 2 + Below(random, 12));
    const auto n = static_cast<int64_t>(prompt.ids.size());
    prompt.num_computed = Below(random, 2) == 0 ? n - 1 : Below(random, n);
    prompt.config.check_layers.clear();
    requests.push_back({.ids = prompt.ids, .num_computed = prompt.num_computed});
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    StepRequest& request = requests[i];
    request.blocks = paged.TakeBlocks(static_cast<int64_t>(prompts[i].ids.size()));
    if (prompts[i].config.store == BlendStore::kNewRows) {
      Preload(paged, request.blocks, prompts[i]);
    }
    if (request.num_computed == 0) continue;
    before.push_back(
        {.ids = {prompts[i].ids.begin(), prompts[i].ids.begin() + request.num_computed},
         .blocks = request.blocks});
  }
  if (!before.empty()) {
    const auto computed = paged.Run(ops, {}, before);
    if (!computed.ok()) return std::string(computed.status().message());
  }
  const auto result = paged.Run(ops, {}, requests);
  if (!result.ok()) return std::string(result.status().message());

  for (size_t i = 0; i < requests.size(); ++i) {
    ++tally->requests;
    const NaivePrompt& prompt = prompts[i];
    const NaiveResult hit =
        NaivePrefill(model, {prompt.ids.begin(), prompt.ids.begin() + prompt.num_computed});
    NaiveResult expected = NaiveBlend(model, prompt, hit.cache);
    if (expected.close) {
      ++tally->close;
      continue;
    }
    const int64_t row = paged.RowOf(static_cast<int64_t>(i));
    const int32_t begin = result->row_start[row], end = result->row_start[row + 1];
    std::vector<int32_t> positions;
    for (const auto& [t, hidden] : expected.hidden) positions.push_back(static_cast<int32_t>(t));
    const int32_t* const actual = result->positions.as<int32_t>();
    if (positions != std::vector<int32_t>(actual + begin, actual + end)) {
      return absl::StrCat("request ", i, " has other rows");
    }
    const std::vector<float> rows = RowsOf(*result, row);
    size_t at = 0;
    for (const auto& [t, hidden] : expected.hidden) {
      ++tally->rows;
      for (const double value : hidden) {
        const double off = std::abs(rows[at++] - value);
        if (!(off < 2e-4 * std::max(1.0, std::abs(value)))) {
          return absl::StrCat("request ", i, ", token ", t, " is off by ", off);
        }
      }
    }
    for (const auto& [place, known] : expected.cache) {
      const auto& [layer, t] = place;
      const int64_t slot = paged.SlotOf(requests[i].blocks, t);
      const auto* const k = reinterpret_cast<const float*>(paged.KeyAt(layer, slot));
      const auto* const v = reinterpret_cast<const float*>(paged.ValueAt(layer, slot));
      for (size_t d = 0; d < known.k.size(); ++d) {
        if (!(std::abs(k[d] - known.k[d]) < 2e-4 * std::max(1.0, std::abs(known.k[d]))) ||
            !(std::abs(v[d] - known.v[d]) < 2e-4 * std::max(1.0, std::abs(known.v[d])))) {
          return absl::StrCat("request ", i, ", layer ", layer, " has other keys of token ", t);
        }
      }
    }
  }
  return "";
}

TEST(BlendPropertyTest, BatchesAreThoseOfADenseBlend) {
  for (const AttentionOps* ops : {&CpuReference(), &Cpu()}) {
    Tally tally;
    property::CheckProperty(
        300, [&](uint64_t seed) { RC_ASSERT(RandomBatch(*ops, seed, &tally) == ""); });
    property::ExpectOccurred("rows compared", tally.rows, 3000);
    property::ExpectOccurred("requests behind a hit", tally.hits, 200);
    property::ExpectOccurred("requests with several checks", tally.checks, 200);
    // Most choices are clear.
    EXPECT_LT(tally.close, tally.requests / 3);
  }
}

}  // namespace
}  // namespace kvblocks::attention
