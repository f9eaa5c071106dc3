// BatchSequences: random requests that grow step by step, with the tensors and the metadata of each
// step and, from their whole history, what dense attention gives. For suites whose batches are not
// plain (batch_suite.cc). Testonly.

#ifndef KVBLOCKS_ATTENTION_TESTING_BATCH_SEQUENCES_H_
#define KVBLOCKS_ATTENTION_TESTING_BATCH_SEQUENCES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "attention/testing/dense_oracle.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_metadata.h"

namespace kvblocks::attention::batch {

inline constexpr int64_t kHeads = 4, kMaxLen = 64, kNumBlocks = 96;
inline constexpr double kLimit = 2e-5;

// Sizes of the rows that a layer takes; MLA's keys are latent and rotary columns.
struct Shape {
  int64_t kv_heads = 2, k_dim = 8, v_dim = 8;
  bool mla = false;

  int64_t q_dim() const { return mla ? k_dim + v_dim : k_dim; }
  int64_t out_dim() const { return mla ? k_dim : v_dim; }
  LayerConfig Layer() const {
    LayerConfig layer = {.name = "layer", .num_heads = kHeads, .num_kv_heads = kv_heads};
    layer.head_size = q_dim();
    if (mla) layer.latent_rank = k_dim, layer.rotary_dim = v_dim;
    return layer;
  }
};
inline constexpr Shape kDense = {}, kLatent = {.kv_heads = 1, .k_dim = 12, .v_dim = 4, .mla = true};

// The whole history of a request.
struct Sequence {
  int64_t computed = 0;
  std::vector<double> k, v;
  std::vector<int32_t> blocks;
};

// One step of some sequences: what each rank, or the only one, is given.
struct StepRows {
  std::vector<size_t> sequences;  // of the input's requests
  std::vector<RequestInput> requests;
  std::vector<absl::Span<const int32_t>> tables;
  Tensor q, k, v;
  int64_t num_tokens = 0;

  BatchInput Input() const { return {.requests = requests, .block_ids = tables}; }
};

// Appends rows, rounded to float32, to a request's history and returns where they begin.
inline void Grow(std::mt19937_64& random, int64_t count, std::vector<double>& rows) {
  for (const double value : NormalDraws(random, count)) rows.push_back(static_cast<float>(value));
}

class Sequences {
 public:
  Sequences(uint64_t seed, Shape shape, int64_t tokens_per_block, int32_t first_block = 1)
      : random(seed), shape_(shape), tokens_per_block_(tokens_per_block) {
    for (int32_t block = first_block; block < kNumBlocks; ++block) free_.push_back(block);
    std::shuffle(free_.begin(), free_.end(), random);
  }

  int64_t Draw(int64_t low, int64_t high) { return IntegerDraw(random, low, high); }

  // Some sequences get new tokens: decodes, extends and fresh ones.
  StepRows NextStep() {
    StepRows step;
    for (size_t s = 0; s < all.size(); ++s) {
      const int64_t room = kMaxLen - all[s].computed;
      if (room == 0 || Draw(0, 4) == 0) continue;
      Add(step, s, Draw(0, 1) == 0 ? 1 : Draw(1, std::min<int64_t>(room, 9)));
    }
    if (all.size() < 5) {
      all.emplace_back();
      Add(step, all.size() - 1, Draw(1, 20));
    }
    for (const size_t s : step.sequences) step.tables.push_back(all[s].blocks);
    return step;
  }

  // Draws queries and lays rows out as the builder ordered requests.
  void Fill(StepRows& step, absl::Span<const int32_t> permutation) {
    std::vector<double> q, k, v;
    Grow(random, step.num_tokens * kHeads * shape_.q_dim(), q);
    for (const int32_t i : permutation) {
      const Sequence& s = all[step.sequences[static_cast<size_t>(i)]];
      const int64_t k_row = shape_.kv_heads * shape_.k_dim, v_row = shape_.kv_heads * shape_.v_dim;
      k.insert(k.end(), s.k.begin() + s.computed * k_row, s.k.end());
      v.insert(v.end(), s.v.begin() + s.computed * v_row, s.v.end());
    }
    const auto tensor = [&](std::vector<int64_t> extents, const std::vector<double>& values) {
      Tensor made(DType::kF32, std::move(extents));
      made.Set(values);
      return made;
    };
    const int64_t tokens = step.num_tokens;
    step.q = tensor({tokens, kHeads, shape_.q_dim()}, q);
    step.k = tensor({tokens, shape_.kv_heads, shape_.k_dim}, k);
    step.v = tensor({tokens, shape_.kv_heads, shape_.v_dim}, v);
  }

  // Dense attention of a request's queries over its history, `before` in front of it.
  DenseResult Dense(const StepRows& step, size_t request, int64_t first_row, DenseParams params,
                    const Sequence& before = {}) const {
    const Sequence& s = all[step.sequences[request]];
    const int64_t q_len = step.requests[request].num_scheduled_tokens;
    const int64_t q_row = kHeads * shape_.q_dim();
    std::vector<double> keys, values;
    for (const Sequence* part : {&before, &s}) {
      const auto rows = static_cast<int64_t>(part->k.size()) / (shape_.kv_heads * shape_.k_dim);
      for (int64_t j = 0; j < rows && shape_.mla; ++j) {
        const double *k = &part->k[j * shape_.k_dim], *v = &part->v[j * shape_.v_dim];
        keys.insert(keys.end(), k, k + shape_.k_dim);
        keys.insert(keys.end(), v, v + shape_.v_dim);
        values.insert(values.end(), k, k + shape_.k_dim);
      }
      if (shape_.mla) continue;
      keys.insert(keys.end(), part->k.begin(), part->k.end());
      values.insert(values.end(), part->v.begin(), part->v.end());
    }
    params.scale = 1 / std::sqrt(static_cast<double>(shape_.q_dim()));
    return DenseAttention(
        RequestOf(q_len, kHeads, shape_.kv_heads, shape_.q_dim(), shape_.out_dim(),
                  Part(step.q.Get(), first_row * q_row, q_len * q_row), keys, values),
        params);
  }

  // `out` and, unless empty, `lse` against the dense oracle.
  void Expect(const StepRows& step, const AttentionMetadataBuilder& builder, const Tensor& out,
              const Tensor& lse, const DenseParams& params, const Sequence& before = {}) const {
    const std::vector<double> got = out.Get();
    const std::vector<double> got_lse = lse.bytes.empty() ? std::vector<double>() : lse.Get();
    const absl::Span<const int32_t> starts = builder.metadata().host_query_start_loc;
    for (size_t b = 0; b < builder.permutation().size(); ++b) {
      const auto request = static_cast<size_t>(builder.permutation()[b]);
      const DenseResult expected = Dense(step, request, starts[b], params, before);
      const auto rows = static_cast<int64_t>(expected.lse.size()), width = shape_.out_dim();
      SCOPED_TRACE(testing::Message() << "row " << b);
      ExpectNear(Part(got, starts[b] * kHeads * width, rows * width), expected.out, kLimit);
      if (got_lse.empty()) continue;
      ExpectNear(Part(got_lse, starts[b] * kHeads, rows), expected.lse, kLimit);
    }
  }

  void Commit(const StepRows& step) {
    for (size_t i = 0; i < step.requests.size(); ++i) {
      all[step.sequences[i]].computed += step.requests[i].num_scheduled_tokens;
    }
  }

  std::vector<Sequence> all;
  std::mt19937_64 random;

 private:
  void Add(StepRows& step, size_t s, int64_t tokens) {
    Sequence& sequence = all[s];
    step.sequences.push_back(s);
    step.requests.push_back(
        {.num_computed_tokens = sequence.computed, .num_scheduled_tokens = tokens});
    step.num_tokens += tokens;
    Grow(random, tokens * shape_.kv_heads * shape_.k_dim, sequence.k);
    Grow(random, tokens * shape_.kv_heads * shape_.v_dim, sequence.v);
    const int64_t length = sequence.computed + tokens;
    while (static_cast<int64_t>(sequence.blocks.size()) * tokens_per_block_ < length) {
      sequence.blocks.push_back(free_.back());
      free_.pop_back();
    }
  }

  Shape shape_;
  int64_t tokens_per_block_;
  std::vector<int32_t> free_;
};

// A cache of NaNs with `blocks` blocks of `rows` rows.
struct Cache {
  Cache(const Shape& shape, int64_t blocks, int64_t rows) {
    if (shape.mla) {
      k = Tensor(DType::kF32, {blocks, rows, shape.k_dim + shape.v_dim});
    } else {
      k = Tensor(DType::kF32, {blocks, rows, shape.kv_heads, shape.k_dim});
      v = Tensor(DType::kF32, {blocks, rows, shape.kv_heads, shape.v_dim});
      FillWithPoison(v);
    }
    FillWithPoison(k);
    view = shape.mla ? KvCacheView(KvLayout::kMlaLatent, k.view, *k.view.Slice(2, 0, shape.k_dim))
                     : KvCacheView(KvLayout::kNhd, k.view, v.view);
  }
  Tensor k, v;
  KvCacheView view;
};

inline AttentionMetadataBuilder BuilderOf(const AttentionBackend& backend, KvGroupConfig group,
                                   AttachMasksFunction attach_masks = {}) {
  group.num_blocks = kNumBlocks;
  MetadataBuilderOptions options;
  options.groups = {std::move(group)};
  options.max_num_reqs = 8, options.max_num_tokens = 128, options.max_seq_len = kMaxLen;
  options.attach_masks = std::move(attach_masks);
  auto builder = backend.MakeMetadataBuilder(options);
  EXPECT_TRUE(builder.ok()) << builder.status();
  return *std::move(builder);
}

inline Tensor Poisoned(std::vector<int64_t> extents) {
  Tensor tensor(DType::kF32, std::move(extents));
  FillWithPoison(tensor);
  return tensor;
}

}  // namespace kvblocks::attention::batch

#endif  // KVBLOCKS_ATTENTION_TESTING_BATCH_SEQUENCES_H_
