// The block manager with decode and prefill context parallelism, and attention over the caches of
// all its ranks: prefix hits, chunks, decodes whose tokens only the last step knows, blocks used
// again. What each step's tokens get is what dense attention over their whole history gives.

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/testing/dense_oracle.h"
#include "attention/testing/paged_case.h"
#include "gtest/gtest.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/attention_layer.h"
#include "kvblocks/attention_metadata.h"
#include "kvblocks/kv_cache_manager.h"

namespace kvblocks {
namespace {

using attention::AttentionBackend;
using attention::AttentionMetadataBuilder;
using attention::CommonAttentionMetadata;
using attention::DType;
using attention::Tensor;
using attention::ViewOf;

constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 8, kMaxLen = 96;

#define MUST_BE_OK(expression)                    \
  do {                                            \
    const absl::Status must_be_ok = (expression); \
    ASSERT_TRUE(must_be_ok.ok()) << must_be_ok;   \
  } while (false)

// Stands for a projection of the model: a row of a token at a position, so that rows found in the
// cache are those that would be computed. What 0: queries, 1: keys, 2: values.
std::vector<double> Projected(int what, int32_t token, int64_t position, int64_t heads) {
  std::mt19937_64 random(static_cast<uint64_t>((token * 1000 + position) * 3 + what));
  std::vector<double> row = attention::NormalDraws(random, heads * kDim);
  for (double& value : row) value = static_cast<float>(value);
  return row;
}

// A request, and its row of token ids as the engine keeps it.
struct Running {
  std::unique_ptr<Request> kv;
  int32_t token_row = 0;
  int64_t scheduled = 0;
  int32_t last_row = -1;  // in the last step, if that sampled it
  std::vector<int32_t> tokens;
  int64_t max_tokens = 0;
};

class Engine {
 public:
  Engine(uint64_t seed, int64_t decode_ranks, int64_t prefill_ranks, int32_t interleave,
         int64_t sink_length = 0)
      : random_(seed), num_ranks_(static_cast<int32_t>(decode_ranks * prefill_ranks)) {
    const int64_t block = 4 * interleave;
    auto spec = sink_length > 0
                    ? SinkFullAttentionSpec::Create({.block_size = block,
                                                     .num_kv_heads = kKvHeads,
                                                     .head_size = kDim,
                                                     .sink_length = sink_length * block})
                    : FullAttentionSpec::Create(
                          {.block_size = block, .num_kv_heads = kKvHeads, .head_size = kDim});
    auto manager = KvCacheManager::Create({.num_blocks = kBlocks, .groups = {{.spec = *spec}}},
                                          {.max_model_len = kMaxLen,
                                           .hash_seed = "seed",
                                           .decode_context_parallel = decode_ranks,
                                           .prefill_context_parallel = prefill_ranks});
    EXPECT_TRUE(manager.ok()) << manager.status();
    manager_ = *std::move(manager);
    const absl::Span<const BlockId> sinks = manager_->group(0).sink_blocks();
    for (int32_t rank = 0; rank < num_ranks_; ++rank) {
      attention::MetadataBuilderOptions options;
      options.groups = {{.manager_block_size = manager_->group(0).block_size(),
                         .kernel_block_size = block,
                         .num_blocks = kBlocks,
                         .sink_blocks = {sinks.begin(), sinks.end()},
                         .context_parallel = {num_ranks_, rank, interleave}}};
      if (num_ranks_ == 1) options.groups[0].context_parallel = {};
      options.max_num_reqs = 4, options.max_num_tokens = 64, options.max_seq_len = kMaxLen;
      auto builder = AttentionMetadataBuilder::Create(options);
      EXPECT_TRUE(builder.ok()) << builder.status();
      builders_.push_back(*std::move(builder));
      for (auto* caches : {&k_, &v_}) {
        caches->emplace_back(DType::kF32, std::vector<int64_t>{kBlocks, block, kKvHeads, kDim});
        attention::FillWithPoison(caches->back());
      }
    }
    layer_ = std::move(attention::CpuBackend().MakeImpl({.name = "layer",
                                                         .num_heads = kHeads,
                                                         .num_kv_heads = kKvHeads,
                                                         .head_size = kDim}))
                 .value();
    StoreSinks();
  }

  void Run(int steps) {
    for (int step = 0; step < steps && !testing::Test::HasFatalFailure(); ++step) Step();
  }
  int64_t num_hits() const { return num_hits_; }
  int num_sampled_on_device() const { return num_on_device_; }

 private:
  static constexpr int64_t kBlocks = 40;

  int64_t Draw(int64_t low, int64_t high) { return attention::IntegerDraw(random_, low, high); }
  attention::KvCacheView Cache(int32_t rank) {
    return {attention::KvLayout::kNhd, k_[rank].view, v_[rank].view};
  }

  void StoreSinks() {
    const attention::KvGroupConfig& group = builders_[0].config(0);
    const int64_t rows = group.num_sink_rows();
    if (rows == 0) return;
    sink_k_ = attention::NormalDraws(random_, rows * kKvHeads * kDim);
    sink_v_ = attention::NormalDraws(random_, rows * kKvHeads * kDim);
    for (auto* values : {&sink_k_, &sink_v_}) {
      for (double& value : *values) value = static_cast<float>(value);
    }
    Tensor k(DType::kF32, {rows, kKvHeads, kDim}), v(DType::kF32, {rows, kKvHeads, kDim});
    k.Set(sink_k_), v.Set(sink_v_);
    std::vector<int64_t> slots(static_cast<size_t>(rows));
    FillSinkSlots(group, slots.data());
    attention::ReshapeAndCacheArgs args;
    args.k = k.view, args.v = v.view;
    args.slot_mapping = ViewOf(absl::MakeConstSpan(slots));
    args.cache = Cache(0);
    MUST_BE_OK(attention::CpuBackend().ops().ReshapeAndCache({}, args));
  }

  // A prompt that begins like earlier ones.
  void Admit() {
    Running next;
    const int64_t length = Draw(1, 50), shared = Draw(0, length);
    for (int64_t t = 0; t < length; ++t) {
      next.tokens.push_back(t < shared ? static_cast<int32_t>(t)
                                       : static_cast<int32_t>(Draw(100, 999)));
    }
    next.max_tokens = std::min<int64_t>(kMaxLen, length + Draw(1, 12));
    auto kv = manager_->NewRequest(
        {.id = std::to_string(num_requests_++),
         .content = {.token_ids = {next.tokens.begin(), next.tokens.end()}}});
    ASSERT_TRUE(kv.ok()) << kv.status();
    next.kv = *std::move(kv);
    const auto hits = manager_->GetComputedBlocks(*next.kv);
    ASSERT_TRUE(hits.ok()) << hits.status();
    const int64_t computed = hits->num_tokens();
    next.scheduled = std::min(length - computed, Draw(1, 16));
    const auto slots = manager_->AllocateSlots(
        *next.kv, {.num_new_tokens = next.scheduled, .computed_blocks = &*hits});
    ASSERT_TRUE(slots.ok()) << slots.status();
    if (!slots->has_value()) return;
    num_hits_ += computed;
    next.kv->set_num_computed_tokens(computed);
    next.kv->set_status(RequestStatus::kRunning);
    while (std::any_of(running_.begin(), running_.end(),
                       [&](const Running& r) { return r.token_row == next.token_row; })) {
      ++next.token_row;
    }
    std::copy(next.tokens.begin(), next.tokens.end(),
              token_ids_.begin() + next.token_row * kMaxLen);
    running_.push_back(std::move(next));
  }

  void Step() {
    manager_->NewStepStarts();
    for (size_t i = 0; i < running_.size();) {
      Running& r = running_[i];
      const auto left = static_cast<int64_t>(r.tokens.size()) - r.kv->num_computed_tokens();
      r.scheduled = std::min(left, Draw(1, 16));
      const auto slots = manager_->AllocateSlots(*r.kv, {.num_new_tokens = r.scheduled});
      ASSERT_TRUE(slots.ok()) << slots.status();
      if (slots->has_value()) {
        ++i;
        continue;
      }
      MUST_BE_OK(manager_->Free(*r.kv));  // it is lost: this engine does not preempt
      running_.erase(running_.begin() + static_cast<int64_t>(i));
    }
    if (running_.size() < 4) Admit();
    if (running_.empty()) return;
    Compute();
  }

  void Compute() {
    std::vector<attention::RequestInput> requests;
    std::vector<absl::Span<const int32_t>> tables;
    for (const Running& r : running_) {
      requests.push_back({r.kv->num_computed_tokens(), r.scheduled});
      tables.push_back(manager_->GetBlocks(*r.kv, 0));
    }
    for (AttentionMetadataBuilder& builder : builders_) {
      MUST_BE_OK(builder.Build({.requests = requests, .block_ids = tables}));
    }
    const CommonAttentionMetadata& batch = builders_[0].metadata();
    const absl::Span<const int32_t> order = builders_[0].permutation();
    const int64_t tokens = batch.num_actual_tokens;

    // What the step is fed: ids that the last step sampled are not in the engine's rows yet.
    std::vector<int32_t> rows, computed, last, logits_starts = {0};
    for (const int32_t i : order) {
      const Running& r = running_[static_cast<size_t>(i)];
      const bool ends = r.kv->num_computed_tokens() + r.scheduled ==
                        static_cast<int64_t>(r.tokens.size());
      rows.push_back(r.token_row);
      computed.push_back(static_cast<int32_t>(r.kv->num_computed_tokens()));
      last.push_back(ends ? r.last_row : -1);
      logits_starts.push_back(logits_starts.back() + ends);
      num_on_device_ += last.back() >= 0;
    }
    std::vector<int32_t> ids(static_cast<size_t>(tokens)), positions(ids);
    std::vector<int32_t> logits(static_cast<size_t>(logits_starts.back()));
    attention::InputTokensArgs gather;
    gather.query_start_loc = batch.query_start_loc;
    gather.request_rows = ViewOf(absl::MakeConstSpan(rows));
    gather.num_computed = ViewOf(absl::MakeConstSpan(computed));
    gather.token_ids = ViewOf(absl::MakeConstSpan(token_ids_), {4, kMaxLen});
    gather.logits_start_loc = ViewOf(absl::MakeConstSpan(logits_starts));
    gather.last_rows = ViewOf(absl::MakeConstSpan(last));
    gather.sampled =
        ViewOf(absl::MakeConstSpan(sampled_), {static_cast<int64_t>(sampled_.size()), 1});
    gather.input_ids = ViewOf(absl::MakeSpan(ids));
    gather.positions = ViewOf(absl::MakeSpan(positions));
    gather.logits_indices = ViewOf(absl::MakeSpan(logits));
    MUST_BE_OK(GatherInputTokens(gather));

    Tensor q(DType::kF32, {tokens, kHeads, kDim}), k(DType::kF32, {tokens, kKvHeads, kDim});
    Tensor v(DType::kF32, {tokens, kKvHeads, kDim});
    const auto fill = [&](Tensor& tensor, int what, int64_t heads) {
      std::vector<double> values;
      for (int64_t t = 0; t < tokens; ++t) {
        const std::vector<double> row = Projected(what, ids[t], positions[t], heads);
        values.insert(values.end(), row.begin(), row.end());
      }
      tensor.Set(values);
    };
    fill(q, 0, kHeads), fill(k, 1, kKvHeads), fill(v, 2, kKvHeads);

    const int32_t states = num_ranks_ == 1 ? 1 : num_ranks_ + 1;
    Tensor outs(DType::kF32, {states, tokens, kHeads, kDim});
    Tensor lses(DType::kF32, {states, tokens, kHeads}), out(DType::kF32, {tokens, kHeads, kDim});
    for (int32_t state = 0; state < states; ++state) {
      const int32_t rank = std::min(state, num_ranks_ - 1);
      attention::LayerTensors tensors;
      tensors.q = q.view, tensors.k = k.view, tensors.v = v.view;
      if (state < num_ranks_) tensors.cache = Cache(rank);
      tensors.out = *outs.view.Select(0, state);
      tensors.lse = *lses.view.Select(0, state);
      MUST_BE_OK(layer_->Forward({}, tensors, &builders_[rank].metadata()));
    }
    attention::MergeStatesArgs merge;
    merge.outs = outs.view, merge.lses = lses.view;
    merge.out = out.view;
    MUST_BE_OK(attention::CpuBackend().ops().MergeStates({}, merge));
    Compare(batch, order, out);
    Sample(order, logits, logits_starts, ids);
  }

  void Compare(const CommonAttentionMetadata& batch, absl::Span<const int32_t> order,
               const Tensor& out) {
    const std::vector<double> got = out.Get();
    for (size_t b = 0; b < order.size(); ++b) {
      const Running& r = running_[static_cast<size_t>(order[b])];
      attention::DenseRequest dense;
      dense.q_len = r.scheduled;
      dense.num_heads = kHeads, dense.num_kv_heads = kKvHeads;
      dense.key_dim = dense.value_dim = kDim;
      dense.k = sink_k_, dense.v = sink_v_;
      const int64_t first = r.kv->num_computed_tokens(), end = first + r.scheduled;
      dense.kv_len = end + static_cast<int64_t>(sink_k_.size()) / (kKvHeads * kDim);
      for (int64_t p = 0; p < end; ++p) {
        const int32_t token = r.tokens[static_cast<size_t>(p)];
        const auto append = [&](int what, int64_t heads, std::vector<double>& to) {
          const std::vector<double> row = Projected(what, token, p, heads);
          to.insert(to.end(), row.begin(), row.end());
        };
        append(1, kKvHeads, dense.k), append(2, kKvHeads, dense.v);
        if (p >= first) append(0, kHeads, dense.q);
      }
      attention::DenseParams params;
      params.scale = 1 / std::sqrt(static_cast<double>(kDim));
      const attention::DenseResult expected = attention::DenseAttention(dense, params);
      const int64_t at = batch.host_query_start_loc[b] * kHeads * kDim;
      for (size_t i = 0; i < expected.out.size(); ++i) {
        ASSERT_NEAR(got[at + i], expected.out[i], 3e-5) << "request " << r.kv->id();
      }
    }
  }

  // The engine learns of sampled tokens one step later: its rows get them when they are read from
  // `sampled_` for the last time.
  void Sample(absl::Span<const int32_t> order, const std::vector<int32_t>& logits,
              const std::vector<int32_t>& logits_starts, const std::vector<int32_t>& ids) {
    std::vector<int32_t> sampled;
    std::vector<size_t> done;
    for (size_t b = 0; b < order.size(); ++b) {
      Running& r = running_[static_cast<size_t>(order[b])];
      if (r.last_row >= 0) {  // what was on the device has arrived
        token_ids_[r.token_row * kMaxLen + r.tokens.size() - 1] = r.tokens.back();
      }
      r.kv->set_num_computed_tokens(r.kv->num_computed_tokens() + r.scheduled);
      r.last_row = -1;
      if (logits_starts[b] == logits_starts[b + 1]) {
        sampled.push_back(-7);
        continue;
      }
      ASSERT_EQ(ids[static_cast<size_t>(logits[static_cast<size_t>(logits_starts[b])])],
                r.tokens.back());
      const auto token = static_cast<TokenId>(Draw(100, 999));
      sampled.push_back(static_cast<int32_t>(token));
      r.last_row = static_cast<int32_t>(b);
      r.tokens.push_back(static_cast<int32_t>(token));
      if (static_cast<int64_t>(r.tokens.size()) > r.max_tokens) {
        done.push_back(static_cast<size_t>(order[b]));
      } else {
        MUST_BE_OK(r.kv->AppendOutputTokens({&token, 1}));
        token_ids_[r.token_row * kMaxLen + r.tokens.size() - 1] = -1;  // not known on the host
      }
    }
    sampled_ = sampled;
    std::sort(done.rbegin(), done.rend());
    for (const size_t i : done) {
      MUST_BE_OK(manager_->Free(*running_[i].kv));
      running_.erase(running_.begin() + static_cast<int64_t>(i));
    }
  }

  std::mt19937_64 random_;
  int32_t num_ranks_;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<AttentionMetadataBuilder> builders_;
  std::vector<Tensor> k_, v_;
  std::unique_ptr<attention::AttentionImpl> layer_;
  std::vector<double> sink_k_, sink_v_;
  std::vector<Running> running_;
  std::vector<int32_t> token_ids_ = std::vector<int32_t>(4 * kMaxLen, -1), sampled_ = {-7};
  int64_t num_hits_ = 0;
  int num_requests_ = 0, num_on_device_ = 0;
};

TEST(ContextParallelEngineTest, AnyNumberOfRanksAttendsAsOne) {
  const struct {
    int64_t decode_ranks, prefill_ranks;
    int32_t interleave;
  } kWorlds[] = {{1, 1, 1}, {2, 1, 1}, {2, 1, 2}, {3, 1, 1}, {1, 2, 4}, {2, 2, 1}};
  int64_t hits = 0;
  int on_device = 0;
  uint64_t seed = 1;
  for (const auto& [decode_ranks, prefill_ranks, interleave] : kWorlds) {
    SCOPED_TRACE(testing::Message() << decode_ranks << " x " << prefill_ranks << " ranks by "
                                    << interleave);
    Engine engine(seed++, decode_ranks, prefill_ranks, interleave);
    engine.Run(60);
    ASSERT_FALSE(HasFatalFailure());
    hits += engine.num_hits();
    on_device += engine.num_sampled_on_device();
  }
  EXPECT_GT(hits, 100);
  EXPECT_GT(on_device, 200);
}

// BM-70: the blocks that the manager takes for good hold the learned rows.
TEST(ContextParallelEngineTest, SinkBlocksOfTheManagerAreSeenByAll) {
  Engine engine(7, 1, 1, 1, /*sink_length=*/2);
  engine.Run(60);
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_GT(engine.num_hits(), 0);
}

}  // namespace
}  // namespace kvblocks
