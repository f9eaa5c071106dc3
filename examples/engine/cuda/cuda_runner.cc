#include "examples/engine/cuda/cuda_runner.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "attention/cuda/cuda_call.h"
#include "checks/status_macros.h"
#include "examples/engine/cuda/step_kernels.h"
#include "kvblocks/attention_cuda.h"

namespace kvblocks::engine {
namespace {

namespace cuda = attention::cuda;
using attention::DType;
using attention::TensorView;
using cuda::StatusOf;

constexpr attention::DeviceId kDevice = {attention::DeviceKind::kCuda, 0};
constexpr int64_t kRowMultiple = 64;  // of products outside of graphs: fewer shapes to choose for
constexpr int64_t kMostInGraph = 512;

using Clock = std::chrono::steady_clock;
double MicrosSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

int64_t RoundUp(int64_t n) { return (n + kRowMultiple - 1) / kRowMultiple * kRowMultiple; }

}  // namespace

CudaRunner::CudaRunner(const ModelConfig& model, const DeviceWeights& weights, Products& products,
                       RunnerOptions options)
    : StepRunner(std::move(options)),
      model_(model),
      weights_(weights),
      products_(products),
      device_masks_({.device = kDevice, .upload = attention::CudaMaskUpload()}) {}

CudaRunner::~CudaRunner() {
  if (place_ == nullptr) return;
  (void)cuda::Synchronize(place_->context().stream);
  for (const auto& [size, graph] : captured_) (void)cuda::DestroyGraph(graph);
}

absl::StatusOr<std::unique_ptr<CudaRunner>> CudaRunner::Create(const ModelConfig& model,
                                                               const DeviceWeights& weights,
                                                               Products& products, const Plan& plan,
                                                               const sim::SimulationConfig& config,
                                                               RunnerOptions options) {
  KVBLOCKS_RETURN_IF_ERROR(CheckConfig(config));
  KVBLOCKS_RETURN_IF_ERROR(DeviceWeights::Check(model));
  for (const auto& [id, asks] : options.requests) {
    if (!asks.blends()) continue;
    return absl::UnimplementedError(absl::StrCat(
        "request ", id, ": chunks are blended by the runner whose model is the CPU's; ",
        "serve it without chunks, or by that one"));
  }
  std::unique_ptr<CudaRunner> runner(new CudaRunner(model, weights, products, std::move(options)));
  KVBLOCKS_ASSIGN_OR_RETURN(runner->place_, CudaPlace::Create(model.facts, config));
  KVBLOCKS_RETURN_IF_ERROR(runner->TakeMemory(plan, *runner->place_));
  KVBLOCKS_RETURN_IF_ERROR(runner->AddLayers());
  KVBLOCKS_RETURN_IF_ERROR(runner->AddMetadata(config));
  const int64_t max_tokens = config.scheduler.max_num_batched_tokens;
  const int64_t max_requests = config.scheduler.max_num_seqs;
  KVBLOCKS_RETURN_IF_ERROR(runner->AllocateActivations(
      max_tokens, std::min(max_tokens, max_requests * (1 + config.drafts.num_draft_tokens))));
  runner->place_->set_flags(runner->results_.as<uint32_t>());
  KVBLOCKS_ASSIGN_OR_RETURN(const auto call,
                            cuda::CudaCall::Begin("engine", runner->place_->context()));
  runner->launch_ = call.launch();
  return runner;
}

absl::Status CudaRunner::AddLayers() {
  const ModelFacts& facts = model_.facts;
  for (int64_t i = 0; i < facts.num_layers(); ++i) {
    attention::LayerConfig config;
    config.name = absl::StrCat("model.layers.", i, ".attn");
    config.num_heads = facts.num_heads;
    config.num_kv_heads = facts.num_kv_heads;
    config.head_size = facts.head_size;
    config.scale = model_.attention_scale;
    Layer& layer = layers_.emplace_back();
    KVBLOCKS_ASSIGN_OR_RETURN(layer.cache, CacheOf(config, &layer.metadata));
    if (layer.cache.k.dtype != DType::kBF16) {
      return absl::InvalidArgumentError(
          absl::StrCat(config.name, ": its cache is of ", attention::Name(layer.cache.k.dtype),
                       ", expected bfloat16: plan one with --kv-cache-dtype=bfloat16"));
    }
    KVBLOCKS_ASSIGN_OR_RETURN(layer.impl, attention::CudaBackend().MakeImpl(config));
  }
  return absl::OkStatus();
}

absl::Status CudaRunner::AddMetadata(const sim::SimulationConfig& config) {
  attention::MetadataBuilderOptions options = BuilderOptions(config);
  if (!options_.requests.empty()) {
    options.max_mask_bytes =
        options.max_num_tokens * (options.max_seq_len / 8 + 1) + 8 * options.max_num_reqs;
    options.attach_masks = [this](const auto&, attention::CommonAttentionMetadata* metadata) {
      auto bits = BitsOfGraph();
      if (bits.ok()) metadata->custom_mask = *std::move(bits);
      return bits.status();
    };
  }
  const int64_t most = std::min({options.max_num_reqs, options.max_num_tokens, kMostInGraph});
  std::vector<int64_t> sizes = attention::GraphCaptureSizes(most);
  if (sizes.empty() || sizes.back() < most) sizes.push_back(most);
  KVBLOCKS_ASSIGN_OR_RETURN(graphs_,
                            attention::GraphParameters::Create(
                                options, {.sizes = std::move(sizes), .uniform_query_len = 1}));
  return place_->UseBuilder(&graphs_->builder());
}

// Of a step that none are read of they are empty, but of the form that was captured.
absl::StatusOr<attention::MaskRef> CudaRunner::BitsOfGraph() {
  const static sim::StepRecord none;
  const sim::StepRecord& step = is_masked_ && fits_graph_ ? *step_ : none;
  std::vector<int32_t> order(step.scheduled.size());
  std::iota(order.begin(), order.end(), 0);
  return MaskOf(step, order, 0, masks_);
}

absl::Status CudaRunner::AllocateActivations(int64_t max_tokens, int64_t max_sampled) {
  const ModelFacts& facts = model_.facts;
  max_tokens_ = RoundUp(max_tokens);
  max_sampled_ = RoundUp(max_sampled);
  const int64_t queries = facts.num_heads * facts.head_size;
  const int64_t keys = facts.num_kv_heads * facts.head_size;
  struct Wanted {
    DeviceArray& array;
    const char* what;
    int64_t bytes;
  };
  for (const Wanted& wanted : {
           Wanted{x_, "activations", max_tokens_ * facts.hidden_size * 2},
           Wanted{normed_, "activations", max_tokens_ * facts.hidden_size * 2},
           Wanted{added_, "activations", max_tokens_ * facts.hidden_size * 2},
           Wanted{qkv_, "queries, keys and values", max_tokens_ * (queries + 2 * keys) * 2},
           Wanted{attended_, "attention's output", max_tokens_ * queries * 2},
           Wanted{gate_up_, "gates", max_tokens_ * facts.intermediate_size * 4},
           Wanted{gated_, "gated activations", max_tokens_ * facts.intermediate_size * 2},
           Wanted{tokens_, "tokens", max_tokens_ * 4},
           Wanted{rows_, "rows", max_sampled_ * 4},
           Wanted{last_rows_, "the last rows", max_sampled_ * facts.hidden_size * 2},
           Wanted{logits_, "logits", max_sampled_ * facts.vocab_size * 4},
           Wanted{results_, "sampled tokens", (1 + max_sampled_) * 4},
       }) {
    KVBLOCKS_ASSIGN_OR_RETURN(wanted.array, DeviceArray::Create(wanted.what, wanted.bytes));
  }
  KVBLOCKS_ASSIGN_OR_RETURN(host_in_,
                            DeviceArray::Pinned("tokens", (max_tokens_ + max_sampled_) * 4));
  KVBLOCKS_ASSIGN_OR_RETURN(host_out_,
                            DeviceArray::Pinned("sampled tokens", (1 + max_sampled_) * 4));
  frequencies_ = attention::ViewOf(absl::MakeConstSpan(model_.rotary.frequencies));
  return place_->Keep(frequencies_);
}

absl::Status CudaRunner::Run(const sim::StepRecord& step) {
  const auto start = Clock::now();
  KVBLOCKS_ASSIGN_OR_RETURN(const attention::BatchInput input, InputOf(step));
  step_ = &step;
  is_masked_ = IsMasked(step);
  fits_graph_ = static_cast<int64_t>(input.requests.size()) <= graphs_->sets().back().num_tokens &&
                std::all_of(input.requests.begin(), input.requests.end(),
                            [](const auto& request) { return request.num_scheduled_tokens == 1; });
  last_set_ = nullptr;
  if (fits_graph_) {
    KVBLOCKS_ASSIGN_OR_RETURN(last_set_, graphs_->Update(input));
  } else {
    KVBLOCKS_RETURN_IF_ERROR(graphs_->builder().Build(input));
  }
  num_graph_steps_ += last_set_ != nullptr;
  last_ = {.is_graph = last_set_ != nullptr, .build_us = MicrosSince(start)};
  const StepTokens tokens = TokensOf(step, graphs_->builder().permutation());
  const auto num_tokens = static_cast<int64_t>(tokens.tokens.size());
  KVBLOCKS_RETURN_IF_ERROR(
      UploadTokens(tokens, last_set_ != nullptr ? last_set_->num_tokens : num_tokens));
  KVBLOCKS_RETURN_IF_ERROR(place_->Upload());
  last_.num_tokens = num_tokens;
  last_.upload_us = MicrosSince(start);
  if (last_set_ != nullptr) {
    KVBLOCKS_RETURN_IF_ERROR(Replay(*last_set_));
  } else {
    Batch batch{.num_tokens = num_tokens, .num_sampled = static_cast<int64_t>(tokens.rows.size())};
    attention::MaskRef mask;
    if (is_masked_) {
      KVBLOCKS_ASSIGN_OR_RETURN(mask,
                                MaskOf(step, graphs_->builder().permutation(), 0, device_masks_));
    }
    for (int group = 0; group < graphs_->builder().num_groups(); ++group) {
      batch.metadata.push_back(place_->metadata(group));
      batch.metadata.back().custom_mask = mask;
    }
    KVBLOCKS_RETURN_IF_ERROR(Forward(batch, kAll));
  }
  const int64_t num_sampled =
      last_set_ != nullptr ? last_set_->num_tokens : static_cast<int64_t>(tokens.rows.size());
  cuda::Error error =
      cuda::CopyAsync(host_out_.as<void>(), results_.as<void>(),
                      static_cast<size_t>(1 + num_sampled) * 4, place_->context().stream);
  last_.issue_us = MicrosSince(start);
  if (error == 0) error = cuda::Synchronize(place_->context().stream);
  KVBLOCKS_RETURN_IF_ERROR(StatusOf("a step", error));
  last_.total_us = MicrosSince(start);
  return Finish(tokens);
}

absl::Status CudaRunner::UploadTokens(const StepTokens& tokens, int64_t num_padded) {
  if (num_padded > max_tokens_ || static_cast<int64_t>(tokens.rows.size()) > max_sampled_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a step of ", num_padded, " tokens, of which ", tokens.rows.size(),
                     " are sampled from; there is room for ", max_tokens_, " and ", max_sampled_));
  }
  auto* const ids = host_in_.as<int32_t>();
  std::fill_n(std::copy(tokens.tokens.begin(), tokens.tokens.end(), ids),
              num_padded - static_cast<int64_t>(tokens.tokens.size()), 0);
  int32_t* const rows = ids + max_tokens_;
  std::copy(tokens.rows.begin(), tokens.rows.end(), rows);
  cuda::Error error = cuda::CopyAsync(tokens_.as<void>(), ids, static_cast<size_t>(num_padded) * 4,
                                      place_->context().stream);
  if (error == 0 && last_set_ == nullptr && !tokens.rows.empty()) {  // graphs sample every row
    error =
        cuda::CopyAsync(rows_.as<void>(), rows, tokens.rows.size() * 4, place_->context().stream);
  }
  return StatusOf("tokens", error);
}

CudaRunner::Batch CudaRunner::BatchOf(const attention::GraphParameterSet& set) const {
  Batch batch{.num_tokens = set.num_tokens, .num_sampled = set.num_tokens, .samples_all = true};
  for (const auto& metadata : set.metadata) {
    batch.metadata.push_back(place_->device_metadata().OnDevice(metadata));
    if (!is_masked_) batch.metadata.back().custom_mask = {};
  }
  return batch;
}

absl::StatusOr<void*> CudaRunner::Capture(const Batch& batch, unsigned parts) {
  KVBLOCKS_RETURN_IF_ERROR(StatusOf("a capture", cuda::BeginCapture(place_->context().stream)));
  const absl::Status status = Forward(batch, parts);
  void* graph = nullptr;
  const absl::Status ended =
      StatusOf("a capture", cuda::EndCapture(place_->context().stream, &graph));
  if (status.ok() && ended.ok()) return graph;
  if (graph != nullptr) (void)cuda::DestroyGraph(graph);
  return status.ok() ? ended : status;
}

absl::Status CudaRunner::Replay(const attention::GraphParameterSet& set) {
  const Batch batch = BatchOf(set);
  // Where kernels are emulated, nothing can be captured.
  if (cuda::IsEmulation()) return Forward(batch, kAll);
  void*& graph = captured_[{set.num_tokens, is_masked_}];
  if (graph == nullptr) {
    // Products choose their algorithms outside of a capture. What this step stores, the replay
    // stores again.
    KVBLOCKS_RETURN_IF_ERROR(Forward(batch, kAll));
    KVBLOCKS_ASSIGN_OR_RETURN(graph, Capture(batch, kAll));
  }
  return StatusOf("a graph", cuda::LaunchGraph(graph, place_->context().stream));
}

absl::Status CudaRunner::WarmUp() {
  // Before the first step it is metadata of requests without tokens.
  KVBLOCKS_RETURN_IF_ERROR(place_->Upload());
  for (const bool masked : {true, false}) {
    if (masked && options_.requests.empty()) continue;
    is_masked_ = masked;
    for (const attention::GraphParameterSet& set : graphs_->sets()) {
      KVBLOCKS_RETURN_IF_ERROR(Replay(set));
    }
  }
  for (int64_t tokens = kRowMultiple; tokens <= max_tokens_; tokens += kRowMultiple) {
    Batch batch{.num_tokens = tokens, .num_sampled = std::min(tokens, max_sampled_)};
    KVBLOCKS_RETURN_IF_ERROR(Forward(batch, kProducts));
  }
  return StatusOf("warming up", cuda::Synchronize(place_->context().stream));
}

absl::Status CudaRunner::Multiply(unsigned part, const DeviceArray& weight, const DeviceArray& x,
                                  int64_t rows, int64_t in, int64_t out, const DeviceArray& y,
                                  bool float_out) {
  if (part == 0) return absl::OkStatus();
  return products_.Multiply({.rows = rows, .in = in, .out = out, .float_out = float_out},
                            x.as<Bf16Bits>(), weight.as<Bf16Bits>(), y.as<void>(),
                            place_->context().stream);
}

absl::Status CudaRunner::Norm(unsigned parts, const DeviceArray* added, const DeviceArray& weight,
                              int64_t rows) {
  if ((parts & kRest) == 0) return absl::OkStatus();
  return StatusOf("a norm",
                  LaunchAddAndNorm(launch_, {.x = x_.as<Bf16Bits>(),
                                             .added = added ? added->as<Bf16Bits>() : nullptr,
                                             .weight = weight.as<Bf16Bits>(),
                                             .out = normed_.as<Bf16Bits>(),
                                             .num_rows = rows,
                                             .size = static_cast<int32_t>(model_.facts.hidden_size),
                                             .eps = model_.norm_eps}));
}

// Queries, keys and values lie side by side in the rows of one tensor.
absl::Status CudaRunner::Attend(const Layer& layer, const Batch& batch) {
  const ModelFacts& facts = model_.facts;
  const int64_t size = facts.head_size, width = facts.num_heads + 2 * facts.num_kv_heads;
  const auto heads = [&](int64_t first, int64_t count) {
    return TensorView::Make(qkv_.as<std::byte>() + first * size * 2, DType::kBF16,
                            {batch.num_tokens, count, size}, {width * size, size, 1}, kDevice);
  };
  KVBLOCKS_ASSIGN_OR_RETURN(const TensorView q, heads(0, facts.num_heads));
  KVBLOCKS_ASSIGN_OR_RETURN(const TensorView k, heads(facts.num_heads, facts.num_kv_heads));
  KVBLOCKS_ASSIGN_OR_RETURN(const TensorView v,
                            heads(facts.num_heads + facts.num_kv_heads, facts.num_kv_heads));
  return layer.impl->Forward(
      place_->context(),
      {.q = q,
       .k = k,
       .v = v,
       .cache = layer.cache,
       .out = TensorView::Contiguous(attended_.as<std::byte>(), DType::kBF16,
                                     {batch.num_tokens, facts.num_heads, size}, kDevice)},
      &batch.metadata[static_cast<size_t>(layer.metadata)]);
}

absl::Status CudaRunner::Forward(const Batch& batch, unsigned parts) {
  const ModelFacts& facts = model_.facts;
  const int64_t tokens = batch.num_tokens, hidden = facts.hidden_size;
  // Rows of padding hold what earlier steps left there; nobody reads what is made of them.
  const int64_t rows = batch.samples_all ? tokens : RoundUp(tokens);
  const int64_t queries = facts.num_heads * facts.head_size;
  const int64_t keys = facts.num_kv_heads * facts.head_size, inner = facts.intermediate_size;
  const bool rest = (parts & kRest) != 0;
  const auto take = [&](const DeviceArray& table, int64_t table_rows, const DeviceArray& indices,
                        int64_t num_rows, const DeviceArray& out) {
    return StatusOf("rows", LaunchTakeRows(launch_, {.table = table.as<Bf16Bits>(),
                                                     .indices = indices.as<int32_t>(),
                                                     .out = out.as<Bf16Bits>(),
                                                     .num_rows = num_rows,
                                                     .table_rows = table_rows,
                                                     .size = static_cast<int32_t>(hidden)}));
  };
  if (rest) {
    KVBLOCKS_RETURN_IF_ERROR(take(weights_.embedding, facts.vocab_size, tokens_, tokens, x_));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const DeviceWeights::Layer& weights = weights_.layers[i];
    KVBLOCKS_RETURN_IF_ERROR(
        Norm(parts, i == 0 ? nullptr : &added_, weights.attention_norm, tokens));
    KVBLOCKS_RETURN_IF_ERROR(
        Multiply(parts & kQkv, weights.qkv, normed_, rows, hidden, queries + 2 * keys, qkv_));
    if (rest) {
      const auto& metadata = batch.metadata[static_cast<size_t>(layers_[i].metadata)];
      KVBLOCKS_RETURN_IF_ERROR(
          StatusOf("rotary embedding",
                   LaunchRotate(launch_, {.qkv = qkv_.as<Bf16Bits>(),
                                          .positions = metadata.positions.as<int32_t>(),
                                          .frequencies = frequencies_.as<float>(),
                                          .q_weight = weights.q_norm.as<Bf16Bits>(),
                                          .k_weight = weights.k_norm.as<Bf16Bits>(),
                                          .num_rows = tokens,
                                          .heads = static_cast<int32_t>(facts.num_heads),
                                          .kv_heads = static_cast<int32_t>(facts.num_kv_heads),
                                          .head_size = static_cast<int32_t>(facts.head_size),
                                          .scale = model_.rotary.scale,
                                          .eps = model_.norm_eps})));
    }
    if ((parts & kAttention) != 0) KVBLOCKS_RETURN_IF_ERROR(Attend(layers_[i], batch));
    KVBLOCKS_RETURN_IF_ERROR(
        Multiply(parts & kOut, weights.o, attended_, rows, queries, hidden, added_));
    KVBLOCKS_RETURN_IF_ERROR(Norm(parts, &added_, weights.mlp_norm, tokens));
    KVBLOCKS_RETURN_IF_ERROR(
        Multiply(parts & kGateUp, weights.gate_up, normed_, rows, hidden, 2 * inner, gate_up_));
    if (rest) {
      KVBLOCKS_RETURN_IF_ERROR(
          StatusOf("gates", LaunchGate(launch_, {.gate_up = gate_up_.as<Bf16Bits>(),
                                                 .out = gated_.as<Bf16Bits>(),
                                                 .num_rows = tokens,
                                                 .size = static_cast<int32_t>(inner)})));
    }
    KVBLOCKS_RETURN_IF_ERROR(
        Multiply(parts & kDown, weights.down, gated_, rows, inner, hidden, added_));
  }
  if (batch.num_sampled == 0) return absl::OkStatus();
  KVBLOCKS_RETURN_IF_ERROR(Norm(parts, &added_, weights_.norm, tokens));
  if (rest && !batch.samples_all) {
    KVBLOCKS_RETURN_IF_ERROR(take(normed_, tokens, rows_, batch.num_sampled, last_rows_));
  }
  KVBLOCKS_RETURN_IF_ERROR(
      Multiply(parts & kHead, weights_.head.absent() ? weights_.embedding : weights_.head,
               batch.samples_all ? normed_ : last_rows_,
               batch.samples_all ? batch.num_sampled : RoundUp(batch.num_sampled), hidden,
               facts.vocab_size, logits_, /*float_out=*/true));
  if (!rest) return absl::OkStatus();
  return StatusOf("argmax",
                  LaunchArgmax(launch_, {.logits = logits_.as<float>(),
                                         .out = results_.as<int32_t>() + 1,
                                         .num_rows = batch.num_sampled,
                                         .size = static_cast<int32_t>(facts.vocab_size)}));
}

// What came out, to those whose it is. Graphs sample behind every row.
absl::Status CudaRunner::Finish(const StepTokens& tokens) {
  const auto* const out = host_out_.as<int32_t>();
  KVBLOCKS_RETURN_IF_ERROR(CudaPlace::StatusOfFlags(static_cast<uint32_t>(out[0])));
  const auto row_of = [&](size_t i) {
    return last_set_ != nullptr ? static_cast<size_t>(tokens.rows[i]) : i;
  };
  std::vector<int32_t> greedy;
  for (size_t i = 0; i < tokens.rows.size(); ++i) greedy.push_back(out[1 + row_of(i)]);
  std::vector<float> logits;
  if (wants_logits()) {
    const auto vocabulary = static_cast<size_t>(model_.facts.vocab_size);
    logits.resize(tokens.rows.size() * vocabulary);
    cuda::Error error = 0;
    for (size_t i = 0; i < tokens.rows.size() && error == 0; ++i) {
      error = cuda::CopyAsync(logits.data() + i * vocabulary,
                              logits_.as<float>() + row_of(i) * vocabulary, vocabulary * 4,
                              place_->context().stream);
    }
    if (error == 0) error = cuda::Synchronize(place_->context().stream);
    KVBLOCKS_RETURN_IF_ERROR(StatusOf("logits", error));
  }
  Take(tokens, logits, greedy);
  return absl::OkStatus();
}

absl::StatusOr<double> CudaRunner::TimePart(unsigned parts, int rounds) {
  if (last_set_ == nullptr || cuda::IsEmulation()) {
    return absl::FailedPreconditionError(
        "the last step was no graph of decodes on a GPU, whose parts can be timed");
  }
  KVBLOCKS_ASSIGN_OR_RETURN(void* const graph, Capture(BatchOf(*last_set_), parts));
  const auto launch = [&](int times) {
    cuda::Error error = 0;
    for (int i = 0; i < times && error == 0; ++i) {
      error = cuda::LaunchGraph(graph, place_->context().stream);
    }
    return StatusOf("a part", error);
  };
  const absl::Status first = launch(1);  // it is slower
  const auto ms = TimeOnDevice(place_->context().stream, [&] { return launch(rounds); });
  (void)cuda::DestroyGraph(graph);
  KVBLOCKS_RETURN_IF_ERROR(first);
  KVBLOCKS_RETURN_IF_ERROR(ms.status());
  return *ms / rounds;
}

}  // namespace kvblocks::engine
