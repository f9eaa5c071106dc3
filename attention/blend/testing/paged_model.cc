#include "attention/blend/testing/paged_model.h"

#include <algorithm>
#include <numeric>

#include "checks/ceil_div.h"
#include "gtest/gtest.h"

namespace kvblocks::attention {

AttentionMetadataBuilder PagedModel::MakeBuilder(const PagedModelOptions& options) {
  auto made =
      AttentionMetadataBuilder::Create({.groups = {{.manager_block_size = options.block_size,
                                                    .kernel_block_size = options.block_size,
                                                    .num_blocks = options.num_blocks}},
                                        .max_num_reqs = 8,
                                        .max_num_tokens = 512,
                                        .max_seq_len = 512});
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

PagedModel::PagedModel(const SmallTransformer& the_model, const PagedModelOptions& options)
    : model(the_model), builder(MakeBuilder(options)), options_(options) {
  const SmallTransformerConfig& config = model.config();
  const std::vector<int64_t> extents = {options.num_blocks, options.block_size, config.num_kv_heads,
                                        config.head_dim};
  for (int layer = 0; layer < config.num_layers; ++layer) {
    FillWithPoison(k.emplace_back(options.dtype, extents));
    FillWithPoison(v.emplace_back(options.dtype, extents));
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    layers.push_back({KvCacheView(KvLayout::kNhd, k[layer].view, v[layer].view), {}});
  }
  free_blocks_.resize(options.num_blocks - 1);
  std::iota(free_blocks_.begin(), free_blocks_.end(), 1);  // 0 is the null block
  std::mt19937_64 random(options.seed);
  for (size_t i = free_blocks_.size(); i > 1; --i) {
    std::swap(free_blocks_[i - 1], free_blocks_[random() % i]);
  }
}

std::vector<int32_t> PagedModel::TakeBlocks(int64_t num_tokens) {
  const auto count = static_cast<size_t>(CeilDiv(num_tokens, options_.block_size));
  EXPECT_LE(count, free_blocks_.size());
  std::vector<int32_t> blocks(free_blocks_.end() - count, free_blocks_.end());
  free_blocks_.resize(free_blocks_.size() - count);
  return blocks;
}

void PagedModel::Build(const std::vector<StepRequest>& requests) {
  std::vector<RequestInput> inputs;
  std::vector<absl::Span<const int32_t>> tables;
  const auto ids_of = [](const StepRequest& request) {
    return request.session == nullptr ? absl::MakeConstSpan(request.ids)
                                      : request.session->token_ids();
  };
  for (const StepRequest& request : requests) {
    inputs.push_back({.num_computed_tokens = request.num_computed,
                      .num_scheduled_tokens =
                          static_cast<int64_t>(ids_of(request).size()) - request.num_computed});
    tables.push_back(request.blocks);
  }
  ASSERT_EQ(builder.Build({.requests = inputs, .block_ids = tables}), absl::OkStatus());
  sessions.clear();
  num_registered_tokens.assign(requests.size(), 0);
  hidden.clear();
  for (const int32_t index : builder.permutation()) {
    const StepRequest& request = requests[index];
    sessions.push_back(request.session);
    const std::vector<float> rows = model.Embed(ids_of(request).subspan(request.num_computed));
    hidden.insert(hidden.end(), rows.begin(), rows.end());
  }
}

int64_t PagedModel::RowOf(int64_t request) const {
  const auto rows = builder.permutation();
  return std::find(rows.begin(), rows.end(), request) - rows.begin();
}

BlendStep PagedModel::step() {
  BlendStep step;
  step.metadata = &builder.metadata();
  step.sessions = sessions;
  step.num_registered_tokens = num_registered_tokens;
  step.layers = layers;
  const int64_t width = model.config().hidden_size;
  step.hidden =
      ViewOf(absl::MakeConstSpan(hidden), {static_cast<int64_t>(hidden.size()) / width, width});
  return step;
}

absl::StatusOr<BlendResult> PagedModel::Run(const AttentionOps& ops, const ExecContext& context,
                                            const BlendModel& callbacks) {
  return RunBlend(ops, context, model.blend_config(), step(), callbacks);
}

absl::StatusOr<BlendResult> PagedModel::Run(const AttentionOps& ops, const ExecContext& context,
                                            const std::vector<StepRequest>& requests) {
  Build(requests);
  return Run(ops, context, model.Model(ops, context));
}

std::vector<float> RowsOf(const BlendResult& result, int64_t b) {
  const int64_t width = result.hidden.extent[1];
  const float* const rows = result.hidden.as<float>();
  return {rows + result.row_start[b] * width, rows + result.row_start[b + 1] * width};
}

}  // namespace kvblocks::attention
