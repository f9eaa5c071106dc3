// One layer of DeepSeek V4 with a compression of 4 (C4A): a window of 128 tokens, a compressed row
// per 4 tokens in 584 bytes, and an indexer with rows of 132 bytes that chooses 32 of them per
// query. The manager gives out blocks of three groups; a second request with the same prompt finds
// 512 tokens computed - rows, window and compressor states - and gets the same output.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "kvblocks/attention.h"
#include "kvblocks/kv_cache.h"

using namespace kvblocks;
using namespace kvblocks::attention;

constexpr int64_t kBlocks = 200, kHeads = 2, kRow = 512, kIndexDim = 128, kIndexHeads = 4;
constexpr int64_t kPrompt = 600, kChunk = 96, kTopk = 32, kWindow = 128;

// Stands for a projection of the model: some number per token and column.
std::vector<float> Project(int64_t first_token, int64_t tokens, int64_t columns, float seed) {
  std::vector<float> rows(tokens * columns);
  for (int64_t i = 0; i < tokens * columns; ++i) {
    rows[i] = std::sin(seed * static_cast<float>((first_token * columns + i) % 9973));
  }
  return rows;
}

int main() {
  // Groups with V4's blocks: compressed rows and their index, window, compressor states.
  const auto rows = MlaAttentionSpec::Create({.block_size = 256, .head_size = kRow});
  const auto window = SlidingWindowMlaSpec::Create(
      {.block_size = 64, .head_size = kRow, .sliding_window = kWindow});
  const auto states =
      SlidingWindowMlaSpec::Create({.block_size = 4, .head_size = 4 * kRow, .sliding_window = 8});
  auto manager = KvCacheManager::Create(
      {.num_blocks = kBlocks, .groups = {{.spec = *rows}, {.spec = *window}, {.spec = *states}}},
      {.max_model_len = 1024, .semantics = {.retention_interval = std::nullopt}});
  auto builder = AttentionMetadataBuilder::Create(
      {.groups =
           {{.manager_block_size = 256,
             .kernel_block_size = 64,
             .num_blocks = kBlocks,
             .compression_ratio = 4},
            {.manager_block_size = 64,
             .kernel_block_size = 64,
             .num_blocks = kBlocks,
             .window = kWindow},
            {.manager_block_size = 4, .kernel_block_size = 4, .num_blocks = kBlocks, .window = 8}},
       .max_num_reqs = 1,
       .max_num_tokens = kChunk,
       .max_seq_len = 1024});
  if (!manager.ok() || !builder.ok()) return 1;

  // Caches, addressed by block id.
  std::vector<uint8_t> row_bytes(kBlocks * MlaFp8_584BlockBytes(64)), window_bytes(row_bytes);
  std::vector<uint8_t> index_bytes(kBlocks * IndexBlockBytes(64, kIndexDim));
  std::vector<float> state(kBlocks * 4 * 4 * kRow), index_state(kBlocks * 4 * 4 * kIndexDim);
  const auto cache_of = [](std::vector<uint8_t>& bytes) {
    return KvCacheView(KvLayout::kMlaFp8_584,
                       ViewOf(absl::MakeSpan(bytes), {kBlocks, MlaFp8_584BlockBytes(64)}), {}, 64);
  };
  LayerConfig config{
      .name = "c4a", .num_heads = kHeads, .window = kWindow, .latent_rank = 448, .rotary_dim = 64};
  config.sparse = {.compress_ratio = 4,
                   .overlap = true,
                   .topk = kTopk,
                   .index_heads = kIndexHeads,
                   .index_dim = kIndexDim};
  const std::vector<float> norm(kRow, 1);
  config.sparse.compressor.norm_weight = ViewOf(absl::MakeConstSpan(norm));
  const AttentionBackend& backend = CpuBackend();
  const auto layer = backend.MakeImpl(config);
  if (!layer.ok()) return 1;
  const SparseWorkBounds bounds{.max_tokens = kChunk, .max_seq_len = 1024};
  std::vector<uint8_t> memory(SparseWorkBytes((*layer)->config(), bounds));
  SparseTensors sparse;
  sparse.work = *MakeSparseWork((*layer)->config(), bounds, ViewOf(absl::MakeSpan(memory)));
  sparse.compressed_cache = cache_of(row_bytes);
  sparse.index_cache = {
      ViewOf(absl::MakeSpan(index_bytes), {kBlocks, IndexBlockBytes(64, kIndexDim)}), 64};
  sparse.compressor.states = ViewOf(absl::MakeSpan(state), {kBlocks, 4, 4 * kRow});
  sparse.index_compressor.states = ViewOf(absl::MakeSpan(index_state), {kBlocks, 4, 4 * kIndexDim});

  std::vector<float> outputs[2];
  for (const int turn : {0, 1}) {
    auto request =
        (*manager)->NewRequest({.id = "turn " + std::to_string(turn),
                                .content = {.token_ids = std::vector<TokenId>(kPrompt, 7)}});
    const auto hits = (*manager)->GetComputedBlocks(**request);
    int64_t computed = hits->num_tokens(), steps = 0;
    for (int64_t n; computed < kPrompt; computed += n, ++steps) {
      n = std::min(kChunk, kPrompt - computed);
      const auto slots = (*manager)->AllocateSlots(
          **request, {.num_new_tokens = n, .computed_blocks = steps == 0 ? &*hits : nullptr});
      if (!slots.ok() || !slots->has_value()) return 1;
      const std::vector<RequestInput> batch = {
          {.num_computed_tokens = computed, .num_scheduled_tokens = n}};
      std::vector<absl::Span<const int32_t>> tables;
      for (GroupId g = 0; g < 3; ++g) tables.push_back((*manager)->GetBlocks(**request, g));
      absl::Status status = builder->Build({.requests = batch, .block_ids = tables});

      // A model's projections of the step's tokens.
      const auto q = Project(computed, n, kHeads * kRow, 0.11f),
                 kv = Project(computed, n, kRow, 0.7f);
      const auto c = Project(computed, n, 2 * kRow, 0.3f), s = Project(computed, n, 2 * kRow, 0.5f);
      const auto ic = Project(computed, n, 2 * kIndexDim, 0.23f),
                 is = Project(computed, n, 2 * kIndexDim, 0.41f);
      const auto iq = Project(computed, n, kIndexHeads * kIndexDim, 0.17f),
                 iw = Project(computed, n, kIndexHeads, 0.9f);
      std::vector<float> out(n * kHeads * kRow);
      const auto view = [n](const std::vector<float>& values, int64_t columns) {
        return ViewOf(absl::MakeConstSpan(values), {n, columns});
      };
      sparse.compressor.kv = view(c, 2 * kRow), sparse.compressor.score = view(s, 2 * kRow);
      sparse.index_compressor.kv = view(ic, 2 * kIndexDim);
      sparse.index_compressor.score = view(is, 2 * kIndexDim);
      sparse.index_q = ViewOf(absl::MakeConstSpan(iq), {n, kIndexHeads, kIndexDim});
      sparse.index_weights = view(iw, kIndexHeads);
      sparse.compressed = &builder->metadata(0), sparse.states = &builder->metadata(2);
      LayerTensors tensors;
      tensors.q = ViewOf(absl::MakeConstSpan(q), {n, kHeads, kRow});
      tensors.k = *view(kv, kRow).Slice(1, 0, 448), tensors.v = *view(kv, kRow).Slice(1, 448, kRow);
      tensors.cache = cache_of(window_bytes);
      tensors.out = ViewOf(absl::MakeSpan(out), {n, kHeads, kRow});
      tensors.sparse = &sparse;
      if (status.ok()) {  // once per step for all layers of this type
        status = BuildSparseLists(backend, {}, (*layer)->config(), builder->metadata(1),
                                  sparse.compressed, sparse.work);
      }
      if (status.ok()) status = (*layer)->Forward({}, tensors, &builder->metadata(1));
      if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.ToString().c_str());
        return 1;
      }
      (*request)->set_num_computed_tokens(computed + n);
      const auto last = out.end() - kHeads * kRow;
      outputs[turn].assign(last, out.end());
      if (computed + n < kPrompt) continue;
      const int32_t* lens = sparse.work.chosen_lens.as<int32_t>();
      const int32_t* seen = sparse.work.window_lens.as<int32_t>();
      std::printf(
          "turn %d: %ld tokens found computed, %ld steps; the last token reads %d of its "
          "window and %d of %ld rows\n",
          turn + 1, static_cast<long>(hits->num_tokens()), static_cast<long>(steps + 1),
          seen[n - 1], lens[n - 1], static_cast<long>(kPrompt / 4));
    }
    if (!(*manager)->Free(**request).ok()) return 1;
  }
  std::printf("its output is %s\n", outputs[0] == outputs[1] ? "the same, bit by bit" : "another");
  return outputs[0] == outputs[1] ? 0 : 1;
}
