#include "attention/testing/layer_fixture.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "attention/cache/quantised_rows.h"
#include "kvblocks/attention_backend.h"
#include "kvblocks/kv_cache_view.h"

namespace kvblocks::attention {

class RecordingBackend::Ops : public AttentionOps {
 public:
  const char* name() const override { return "RECORDING"; }
#define KVBLOCKS_RECORDED_OP(Op)                                                         \
  absl::Status Run(const Checked<Op##Args>& call) const override {                       \
    log_.push_back("run " #Op);                                                          \
    return CpuReferenceBackend().ops().Run(call);                                        \
  }                                                                                      \
  absl::Status Refuse(const ExecContext& context, const Op##Args& args) const override { \
    log_.push_back("check " #Op);                                                        \
    return AttentionOps::Refuse(context, args);                                          \
  }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_RECORDED_OP)
#undef KVBLOCKS_RECORDED_OP
  mutable std::vector<std::string> log_;
};

RecordingBackend::RecordingBackend() : ops_(std::make_shared<Ops>()) {}
const AttentionOps& RecordingBackend::ops() const { return *ops_; }
const BackendSupport& RecordingBackend::support() const { return CpuReferenceBackend().support(); }
const std::vector<std::string>& RecordingBackend::log() const { return ops_->log_; }
void RecordingBackend::ClearCalls() { ops_->log_.clear(); }
std::vector<std::string> RecordingBackend::calls() const {
  std::vector<std::string> calls;
  for (const std::string& entry : log()) {
    if (entry.starts_with("run ")) calls.push_back(entry.substr(4));
  }
  return calls;
}

LayerFixture::LayerFixture(LayerConfig layer, const AttentionBackend* backend, DType cache_dtype)
    : config_(std::move(layer)) {
  if (config_.name.empty()) config_.name = "layer";
  if (config_.num_heads == 0) config_.num_heads = 4, config_.num_kv_heads = 2;
  if (config_.head_size == 0) config_.head_size = 8;
  layer_ = std::move(backend->MakeImpl(config_)).value();
  if (config_.row_format.value_or(KvRowFormat::kElements) == KvRowFormat::kElements) {
    const std::vector<int64_t> shape = {kNumBlocks, kBlockSize, config_.num_kv_heads,
                                        config_.head_size};
    k_cache = Tensor(cache_dtype, shape);
    v_cache = Tensor(cache_dtype, shape);
    FillWithPoison(k_cache);
    FillWithPoison(v_cache);
    cache_ = {KvLayout::kNhd, k_cache.view, v_cache.view};
  } else {
    KvCacheGeometry geometry;
    geometry.dtype = cache_dtype;
    geometry.format = *config_.row_format;
    geometry.placement = KvPlacement::kInterleaved;
    geometry.num_blocks = kNumBlocks, geometry.block_size = kBlockSize;
    geometry.num_kv_heads = config_.num_kv_heads;
    geometry.key_dim = geometry.value_dim = config_.head_size;
    k_cache = Tensor(DType::kU8, {KvCacheBytes(geometry).value()});
    std::fill(k_cache.bytes.begin(), k_cache.bytes.end(), std::byte{0xFF});
    cache_ = MakeKvCacheView(geometry, k_cache.view).value();
  }
  MetadataBuilderOptions options;
  options.groups = {{.manager_block_size = kBlockSize,
                     .kernel_block_size = kBlockSize,
                     .num_blocks = kNumBlocks}};
  options.max_num_reqs = 8;
  options.max_num_tokens = 128;
  options.max_seq_len = 128;
  builder_ = std::move(backend->MakeMetadataBuilder(options)).value();
  for (int32_t block = 1; block < kNumBlocks; ++block) free_blocks_.push_back(block);
  std::shuffle(free_blocks_.begin(), free_blocks_.end(), random_);
}

LayerFixture::RequestState& LayerFixture::Request(int index) {
  if (static_cast<int>(requests_.size()) <= index) requests_.resize(index + 1);
  return requests_[index];
}

void LayerFixture::Grow(RequestState& request, int64_t tokens) {
  const auto append = [&](std::vector<double>& to, int64_t heads) {
    // Rounded to float32, as the layer gets them.
    for (double value : NormalDraws(random_, tokens * heads * config_.head_size)) {
      to.push_back(static_cast<float>(value));
    }
  };
  append(request.q, config_.num_heads);
  append(request.k, config_.num_kv_heads);
  append(request.v, config_.num_kv_heads);
  const int64_t total = request.computed + tokens;
  while (static_cast<int64_t>(request.blocks.size()) * kBlockSize < total) {
    request.blocks.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
}

void LayerFixture::Prepare(const std::vector<std::pair<int, int64_t>>& new_tokens) {
  std::vector<RequestInput> inputs;
  std::vector<absl::Span<const int32_t>> tables;
  for (const auto& [index, tokens] : new_tokens) {
    RequestState& request = Request(index);
    Grow(request, tokens);
    inputs.push_back({.num_computed_tokens = request.computed, .num_scheduled_tokens = tokens});
  }
  for (const auto& [index, tokens] : new_tokens) tables.push_back(Request(index).blocks);
  const absl::Status built = builder_->Build({.requests = inputs, .block_ids = tables});
  if (!built.ok()) std::abort();
  prepared_.clear();
  std::vector<double> q, k, v;
  for (int32_t row : builder_->permutation()) {
    const auto& [index, tokens] = prepared_.emplace_back(new_tokens[row]);
    const RequestState& request = Request(index);
    const auto take = [&](const std::vector<double>& from, int64_t heads, std::vector<double>& to) {
      to.insert(to.end(), from.begin() + request.computed * heads * config_.head_size, from.end());
    };
    take(request.q, config_.num_heads, q);
    take(request.k, config_.num_kv_heads, k);
    take(request.v, config_.num_kv_heads, v);
    (void)tokens;
  }
  const int64_t tokens = metadata().num_actual_tokens;
  const auto fill = [&](Tensor& tensor, int64_t heads, const std::vector<double>& values) {
    tensor = Tensor(DType::kF32, {tokens, heads * config_.head_size});
    tensor.Set(values);
  };
  fill(q_, config_.num_heads, q);
  fill(k_, config_.num_kv_heads, k);
  fill(v_, config_.num_kv_heads, v);
  out_ = Tensor(DType::kF32, {tokens, config_.num_heads * config_.head_size});
  FillWithPoison(out_);
}

void LayerFixture::Commit() {
  for (const auto& [index, tokens] : prepared_) Request(index).computed += tokens;
}

absl::Status LayerFixture::Step(const std::vector<std::pair<int, int64_t>>& new_tokens) {
  Prepare(new_tokens);
  absl::Status status = layer_->Forward(context, tensors(), &metadata());
  Commit();
  return status;
}

std::vector<double> LayerFixture::Stored(std::vector<double> rows,
                                         const ConstTensorView& scales) const {
  if (cache_.format == KvRowFormat::kElements) return rows;
  const std::vector<double> outer = scales.absent() ? std::vector<double>{1} : ValuesOf(scales);
  const int64_t dim = config_.head_size;
  std::vector<std::byte> codes(dim), row_scales(dim);
  for (size_t row = 0; row * dim < rows.size(); ++row) {
    double* const values = rows.data() + row * dim;
    const double scale = outer[row % config_.num_kv_heads % outer.size()];
    EncodeQuantisedRow(cache_.format, cache_.k.dtype, values, dim, scale, codes.data(),
                       row_scales.data());
    DecodeQuantisedRow(cache_.format, cache_.k.dtype, codes.data(), row_scales.data(), dim, values);
    for (int64_t i = 0; i < dim; ++i) values[i] *= scale;
  }
  return rows;
}

std::string LayerFixture::Mismatch(double limit) const {
  const std::vector<double> out = out_.Get();
  DenseParams params;
  params.scale = 1 / std::sqrt(static_cast<double>(config_.head_size));
  params.cap = config_.soft_cap;
  params.causal = config_.type == AttentionType::kDecoder;
  if (config_.window > 0) params.window_left = config_.window - 1;
  if (config_.window > 0 && !params.causal) params.window_right = config_.window - 1;
  params.chunk = config_.chunk;
  if (hides) params.causal = false, params.window_left = params.window_right = -1, params.chunk = 0;
  if (!config_.sinks.absent()) params.sinks = ValuesOf(config_.sinks);
  if (!config_.alibi_slopes.absent()) params.alibi_slopes = ValuesOf(config_.alibi_slopes);
  size_t at = 0;
  for (const auto& [index, tokens] : prepared_) {
    const RequestState& request = requests_[index];
    const DenseRequest dense = RequestOf(
        tokens, config_.num_heads, config_.num_kv_heads, config_.head_size, config_.head_size,
        {request.q.end() - tokens * config_.num_heads * config_.head_size, request.q.end()},
        Stored(request.k, config_.scales.k), Stored(request.v, config_.scales.v));
    if (hides) {
      const int64_t first = dense.kv_len - tokens;
      params.hide = [this, first](int64_t i, int64_t j, int64_t) { return hides(first + i, j); };
    }
    for (double expected : DenseAttention(dense, params).out) {
      if (!(std::abs(out[at] - expected) <= limit)) {
        return absl::StrCat("request ", index, ": element ", at, " is ", out[at], ", not ",
                            expected);
      }
      ++at;
    }
  }
  return at == out.size() ? "" : absl::StrCat(out.size() - at, " elements too many");
}

}  // namespace kvblocks::attention
