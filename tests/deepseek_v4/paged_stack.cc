#include "tests/deepseek_v4/paged_stack.h"

#include <algorithm>
#include <cmath>

#include "attention/cache/quantised_rows.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {
namespace {

Tensor Poisoned(DType dtype, std::vector<int64_t> extents) {
  Tensor tensor(dtype, std::move(extents));
  FillWithPoison(tensor);
  return tensor;
}

Tensor Holding(const std::vector<double>& values, std::vector<int64_t> extents) {
  Tensor tensor(DType::kF32, std::move(extents));
  tensor.Set(values);
  return tensor;
}

}  // namespace

Tensor PagedStack::MakeRows(LayerKind kind, bool compressed, int64_t blocks,
                            int64_t block_size) const {
  const StackConfig& config = model_->config();
  if (!config.has_codes()) return Poisoned(DType::kF32, {blocks, block_size, config.row()});
  const bool records = config.stored_as == StoredAs::kRecords;
  const int64_t bytes =
      records ? ShapeOf(StackConfig::RecordOf(kind, compressed)).bytes : kMla656Bytes;
  Tensor rows = records || kind == LayerKind::kV32
                    ? Tensor(DType::kU8, {blocks, block_size, bytes})
                    : Tensor(DType::kU8, {blocks, MlaFp8_584BlockBytes(block_size)});
  std::fill(rows.bytes.begin(), rows.bytes.end(), std::byte{0xFF});
  return rows;
}
Tensor PagedStack::MakeIndexRows(int64_t blocks) const {
  const StackConfig& config = model_->config();
  if (!config.has_codes()) return Poisoned(DType::kF32, {blocks, 64, config.index_dim});
  Tensor rows(DType::kU8, {blocks, IndexBlockBytes(64, config.index_dim)});
  std::fill(rows.bytes.begin(), rows.bytes.end(), std::byte{0xFF});
  return rows;
}
KvCacheView PagedStack::RowsView(LayerKind kind, bool compressed, const Tensor& rows,
                                 int64_t block_size) const {
  const StackConfig& config = model_->config();
  if (!config.has_codes()) return MakeMlaLatentView(rows.view, config.Value(kind)).value();
  if (config.stored_as == StoredAs::kRecords) {
    KvCacheView view(KvLayout::kMlaLatent, rows.view);
    view.format = StackConfig::RecordOf(kind, compressed);
    return view;
  }
  if (kind == LayerKind::kV32) return {KvLayout::kMlaFp8_656, rows.view};
  return {KvLayout::kMlaFp8_584, rows.view, {}, block_size};
}
IndexCacheView PagedStack::IndexView(const Tensor& rows) const {
  return {rows.view, model_->config().has_codes() ? 64 : 0};
}

PagedStack::PagedStack(const StackModel* model, const AttentionBackend* backend,
                       const PagedStackOptions& options)
    : model_(model), backend_(backend), options_(options) {
  const StackConfig& config = model->config();
  const auto group = [&](Table table, int64_t kernel, int64_t window, int64_t ratio) {
    return KvGroupConfig{.manager_block_size = kTableBlocks[table],
                         .kernel_block_size = kernel,
                         .num_blocks = options.num_blocks,
                         .window = window,
                         .compression_ratio = ratio};
  };
  MetadataBuilderOptions build;
  build.groups = {group(kWindowTable, 64, config.window, 1),
                  group(kRowsTable, 64, 0, 4),
                  group(kRowsTable, 2, 0, 128),
                  group(kC4StatesTable, 4, kC4StateWindow, 1),
                  group(kC128StatesTable, 8, kC128StateWindow, 1),
                  group(kRowsTable, 64, 0, 1)};
  build.max_num_reqs = options.max_requests;
  build.max_num_tokens = options.max_tokens;
  build.max_seq_len = options.max_len;
  builder_ = AttentionMetadataBuilder::Create(build).value();

  // As models keep them: cosines, then sines, of each position.
  std::vector<double> angles;
  for (int64_t p = 0; p < options.max_len; ++p) {
    for (const bool cosine : {true, false}) {
      for (int64_t i = 0; i < config.rotary / 2; ++i) {
        const double angle =
            static_cast<double>(p) * std::pow(config.theta, -2.0 * static_cast<double>(i) /
                                                                static_cast<double>(config.rotary));
        angles.push_back(cosine ? std::cos(angle) : std::sin(angle));
      }
    }
  }
  cos_sin_ = Holding(angles, {options.max_len, config.rotary});
  layers_.resize(config.layers.size());
  for (size_t l = 0; l < layers_.size(); ++l) MakeLayer(l);
  forward_.SetHooks(options.hooks, options.hooks != nullptr);
}

void PagedStack::MakeLayer(size_t l) {
  const StackConfig& config = model_->config();
  const LayerKind kind = config.layers[l];
  const int64_t ratio = StackConfig::Ratio(kind), parts = StackConfig::Parts(kind);
  const int64_t d = config.row(), di = config.index_dim, blocks = options_.num_blocks;
  Layer& layer = layers_[l];
  LayerConfig made;
  made.name = "layer " + std::to_string(l);
  made.num_heads = config.heads;
  // V4's plain rows are keys and values as a whole.
  made.latent_rank = config.has_codes() ? config.latent : config.Value(kind);
  made.rotary_dim = d - made.latent_rank;
  made.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)));
  SparseConfig& sparse = made.sparse;
  sparse.names = {made.name + ".compressed", made.name + ".index", made.name + ".states",
                  made.name + ".index_states"};
  if (config.stored_as == StoredAs::kRecords) {
    made.row_format = StackConfig::RecordOf(kind, false);
    if (ratio > 1) sparse.compressed_row_format = StackConfig::RecordOf(kind, true);
  }
  if (StackConfig::HasIndexer(kind)) {
    sparse.topk = config.topk;
    sparse.index_heads = config.index_heads, sparse.index_dim = di;
  }
  if (kind == LayerKind::kV32) {
    layer.cache = MakeRows(kind, false, blocks * 4, 64);
    layer.index_rows = MakeIndexRows(blocks * 4);
  } else {
    made.window = config.window;
    layer.sinks = Holding(model_->sinks(l), {config.heads});
    made.sinks = layer.sinks.view;
    sparse.compress_ratio = ratio, sparse.overlap = parts == 2;
    sparse.cos_sin = cos_sin_.view;
    layer.cache = MakeRows(kind, false, blocks, 64);
  }
  if (ratio > 1) {
    const int64_t state_block =
        kTableBlocks[kind == LayerKind::kC4 ? kC4StatesTable : kC128StatesTable];
    layer.rows = MakeRows(kind, true, blocks, 256 / ratio);
    layer.states = Poisoned(DType::kF32, {blocks, state_block, 2 * parts * d});
    layer.bias = Holding(model_->compressor(l).bias, {ratio, parts * d});
    layer.norm = Holding(model_->compressor(l).norm, {d});
    sparse.compressor = {layer.bias.view, layer.norm.view};
    if (kind == LayerKind::kC4) {
      layer.index_rows = MakeIndexRows(blocks);
      layer.index_states = Poisoned(DType::kF32, {blocks, state_block, 2 * parts * di});
      layer.index_bias = Holding(model_->index_compressor(l).bias, {ratio, parts * di});
      layer.index_norm = Holding(model_->index_compressor(l).norm, {di});
      sparse.index_compressor = {layer.index_bias.view, layer.index_norm.view};
    }
  }
  auto impl = backend_->MakeImpl(made).value();
  layer.impl = impl.get();
  const SparseWorkBounds bounds{.max_tokens = options_.max_tokens, .max_seq_len = options_.max_len};
  layer.memory.resize(SparseWorkBytes(layer.impl->config(), bounds), std::byte{0xFF});
  layer.work = MakeSparseWork(layer.impl->config(), bounds,
                              TensorView::Contiguous(layer.memory.data(), DType::kU8,
                                                     {static_cast<int64_t>(layer.memory.size())}))
                   .value();
  SparseTensors tensors;
  tensors.work = layer.work;
  if (StackConfig::HasIndexer(kind)) tensors.index_cache = IndexView(layer.index_rows);
  if (ratio > 1) {
    tensors.compressed_cache = RowsView(kind, true, layer.rows, 256 / ratio);
    tensors.compressor.states = layer.states.view;
    if (kind == LayerKind::kC4) tensors.index_compressor.states = layer.index_states.view;
  }
  const absl::Status added =
      forward_.AddLayer(std::move(impl), RowsView(kind, false, layer.cache, 64), tensors);
  if (!added.ok()) std::abort();
}

void PagedStack::AddMetadata(size_t l, ForwardContext::MetadataByLayer* by_name) const {
  const LayerKind kind = model_->config().layers[l];
  const LayerConfig& config = layers_[l].impl->config();
  const bool c4 = kind == LayerKind::kC4;
  (*by_name)[config.name] =
      &builder_->metadata(kind == LayerKind::kV32 ? kV32Group : kWindowGroup);
  if (!config.sparse.compresses()) return;
  (*by_name)[config.sparse.names.compressed] = &builder_->metadata(c4 ? kC4Group : kC128Group);
  (*by_name)[config.sparse.names.states] =
      &builder_->metadata(c4 ? kC4StatesGroup : kC128StatesGroup);
}

absl::StatusOr<std::vector<std::vector<double>>> PagedStack::Step(
    absl::Span<const StackRequest> requests) {
  std::vector<RequestInput> inputs;
  std::vector<absl::Span<const int32_t>> tables;
  for (const StackRequest& request : requests) {
    inputs.push_back(
        {.num_computed_tokens = request.computed, .num_scheduled_tokens = request.scheduled});
    for (const Table table :
         {kWindowTable, kRowsTable, kRowsTable, kC4StatesTable, kC128StatesTable, kRowsTable}) {
      tables.push_back(request.tables[table]);
    }
  }
  if (absl::Status status = builder_->Build({.requests = inputs, .block_ids = tables});
      !status.ok()) {
    return status;
  }
  ForwardContext::MetadataByLayer by_name;
  for (size_t l = 0; l < layers_.size(); ++l) AddMetadata(l, &by_name);
  forward_.SetMetadata(std::move(by_name));
  std::vector<std::vector<double>> hidden;
  std::vector<int64_t> positions, first_row(requests.size());
  for (const int32_t index : builder_->permutation()) {
    const StackRequest& request = requests[index];
    first_row[index] = static_cast<int64_t>(hidden.size());
    for (int64_t p = request.computed; p < request.computed + request.scheduled; ++p) {
      hidden.push_back(model_->Embed(request.tokens[p]));
      positions.push_back(p);
    }
  }
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (absl::Status status = RunLayer(l, positions, hidden); !status.ok()) return status;
  }
  std::vector<std::vector<double>> in_order;
  for (size_t r = 0; r < requests.size(); ++r) {
    const auto begin = hidden.begin() + first_row[r];
    in_order.insert(in_order.end(), begin, begin + requests[r].scheduled);
  }
  return in_order;
}

absl::Status PagedStack::RunLayer(size_t l, absl::Span<const int64_t> positions,
                                  std::vector<std::vector<double>>& hidden) {
  const StackConfig& config = model_->config();
  const LayerKind kind = config.layers[l];
  const int64_t ratio = StackConfig::Ratio(kind), parts = StackConfig::Parts(kind);
  const int64_t d = config.row(), di = config.index_dim, value = config.Value(kind);
  const auto n = static_cast<int64_t>(hidden.size());
  Layer& layer = layers_[l];
  std::vector<TokenInputs> inputs;
  for (int64_t t = 0; t < n; ++t) inputs.push_back(model_->Project(l, hidden[t], positions[t]));
  const auto all = [&](auto member, std::vector<int64_t> extents) {
    std::vector<double> values;
    for (const TokenInputs& in : inputs) {
      values.insert(values.end(), (in.*member).begin(), (in.*member).end());
    }
    extents.insert(extents.begin(), n);
    return Holding(values, std::move(extents));
  };
  const Tensor q = all(&TokenInputs::q, {config.heads, d}), kv = all(&TokenInputs::kv, {d});
  Tensor out = Poisoned(DType::kF32, {n, config.heads, value});
  Tensor compress_kv, compress_score, index_kv, index_score, index_q, index_weights, index_k;
  SparseInputs sparse;
  if (StackConfig::HasIndexer(kind)) {
    index_q = all(&TokenInputs::index_q, {config.index_heads, di});
    index_weights = all(&TokenInputs::index_weights, {config.index_heads});
    index_k = all(&TokenInputs::index_k, {di});
    sparse.index_q = index_q.view, sparse.index_weights = index_weights.view;
    if (kind == LayerKind::kV32) sparse.index_k = index_k.view;
  }
  if (ratio > 1) {
    compress_kv = all(&TokenInputs::compress_kv, {parts * d});
    compress_score = all(&TokenInputs::compress_score, {parts * d});
    sparse.compress_kv = compress_kv.view, sparse.compress_score = compress_score.view;
    if (kind == LayerKind::kC4) {
      index_kv = all(&TokenInputs::index_kv, {parts * di});
      index_score = all(&TokenInputs::index_score, {parts * di});
      sparse.index_compress_kv = index_kv.view, sparse.index_compress_score = index_score.view;
    }
  }
  const LayerConfig& made = layer.impl->config();
  const int64_t latent = made.latent_rank;
  const ConstTensorView k = *kv.view.Slice(1, 0, latent);
  const ConstTensorView v = latent < d ? *kv.view.Slice(1, latent, d) : ConstTensorView();
  const auto found = forward_.Find(made.name);
  if (!found.ok()) return found.status();
  absl::Status status = BuildSparseLists(*backend_, {}, made, *found->metadata,
                                         found->sparse.compressed, layer.work);
  if (status.ok()) {
    status = UnifiedAttention({}, forward_, made.name, q.view, k, v, out.view, 0, &sparse);
  }
  if (!status.ok()) return status;
  const std::vector<double> attended = out.Get();
  for (int64_t t = 0; t < n; ++t) {
    const auto row = attended.begin() + t * config.heads * value;
    model_->Finish(l, {row, row + config.heads * value}, positions[t], hidden[t]);
  }
  return absl::OkStatus();
}

void PagedStack::ClearStates() {
  for (Layer& layer : layers_) {
    std::fill(layer.states.bytes.begin(), layer.states.bytes.end(), std::byte{0});
  }
}

}  // namespace kvblocks::attention
