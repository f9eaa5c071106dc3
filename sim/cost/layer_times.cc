#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvblocks/model_facts.h"
#include "sim/cost/table_clock.h"

namespace kvblocks::sim {
namespace {

constexpr absl::string_view kMeasured = "measured kernels";
constexpr absl::string_view kEstimated = "roofline";
constexpr int64_t kTokenBytes = 2;  // activations travel as 16-bit values
constexpr int64_t kNormBytes = 8;   // of a token: two sums in 32 bits
// What the norm and the residual take inside of an all-reduce.
constexpr int64_t kFusedNormTime = 2 * kMicrosecond;

// No one operation takes longer, so that sums over layers stay small.
int64_t Limited(int64_t time) { return std::min(time, KernelGrid::kMaxTime); }

double ToDouble(int64_t value) { return static_cast<double>(value); }

int64_t PerRank(int64_t count, int64_t ranks) { return std::max<int64_t>(1, count / ranks); }

// Blocks of latent attention were measured with eager launches on these devices; what that cost the
// host, by the floor of the same tables of other devices against that of captured graphs.
int64_t LatentHostTime(std::string_view device) {
  return device == "l40s" || device == "rtx-pro-6000" ? 50 * kMicrosecond : 0;
}

// Whether the device's own 4-bit format is in its tables.
bool IsBlackwell(const KernelTables& tables) { return tables.Find("gemm", "nvfp4") != nullptr; }

}  // namespace

LayerTimes::LayerTimes(const KernelTables& tables, const LayerTimesOptions& options)
    : tables_(tables),
      options_(options),
      model_(options_.roofline.model),
      ranks_(options_.roofline.tensor_parallel),
      data_parallel_(options_.roofline.data_parallel) {
  const RooflineOptions& roofline = options_.roofline;
  flops_ = roofline.device.bf16_tflops * 1e12 * roofline.compute_efficiency;
  bytes_per_s_ = roofline.device.memory_gb_per_s * 1e9 * roofline.memory_efficiency;
  AddAttention();
  AddDenseLayers();
  AddExperts();
  AddCollectives();
  AddRest();
}

void LayerTimes::Say(std::string_view part, std::string source, bool measured) {
  parts_.push_back({std::string(part), std::move(source)});
  has_measured_ |= measured;
  has_estimated_ |= !measured;
}

std::string LayerTimes::GemmDtype() const {
  if (!options_.gemm_dtype.empty()) return options_.gemm_dtype;
  if (model_.bytes_per_param >= 1.5) return "bfloat16";
  if (model_.bytes_per_param >= 0.75) {
    // Models with experts are published with a scale per block of 128 x 128 weights.
    const bool has_blocks = model_.experts && tables_.Find("gemm", "fp8_block") != nullptr;
    return has_blocks ? "fp8_block" : "fp8";
  }
  return IsBlackwell(tables_) ? "nvfp4" : "bfloat16";
}

// The first that is in the tables.
std::vector<std::string> LayerTimes::ExpertDtypes() const {
  if (!options_.expert_dtype.empty()) return {options_.expert_dtype};
  const double bytes = model_.experts->bytes_per_param;
  if (bytes >= 1.5) return {"bfloat16"};
  // Published FP8 experts have a scale per block of 128 x 128 weights.
  if (bytes >= 0.75) return {"fp8_block", "fp8"};
  // Scales of MXFP4 take a byte per 32 weights, those of NVFP4 one per 16.
  if (bytes < 0.55) return {"w4a16_mxfp4", "int4_wo", "nvfp4"};
  return {"nvfp4", "int4_wo", "w4a16_mxfp4"};
}

void LayerTimes::AddProduct(std::string_view part, int64_t count, int64_t n, int64_t k,
                            const std::string& dtype) {
  if (count == 0 || n < 1 || k < 1) return;
  const KernelGrid* grid = tables_.Find("gemm", dtype);
  if (grid != nullptr && grid->num_axes() != 3) grid = nullptr;
  std::string source(grid ? kMeasured : kEstimated);
  if (grid && (n > grid->last(0) || k > grid->last(1))) {
    absl::StrAppend(&source, " continued to ", n, " x ", k);
  }
  absl::StrAppend(&source, grid ? absl::StrCat(", ", dtype) : "");
  Say(part, source, grid != nullptr);
  if (grid) range_.num_tokens = std::min(range_.num_tokens, grid->last(2));
  products_.push_back(
      {.count = count, .n = n, .k = k, .grid = grid, .bytes_per_param = model_.bytes_per_param});
  known_params_ += ToDouble(count) * ToDouble(n) * ToDouble(k) * ToDouble(ranks_);
}

// --- Attention ---

void LayerTimes::AddAttention() {
  std::string letters;  // that have tables
  if (AddTabledAttention('F', model_.full_kv_heads(), model_.full_head_size(), 0)) letters += 'F';
  if (AddTabledAttention('S', model_.num_kv_heads, model_.head_size, model_.window)) letters += 'S';
  if (AddLatentBlocks('M', "mla")) letters += 'M';
  if (AddLatentBlocks('N', "sparse_mla")) letters += 'N';
  ModelFacts others = model_;
  std::erase_if(others.layer_pattern,
                [&](char letter) { return letters.find(letter) != std::string::npos; });
  num_estimated_layers_ = others.num_layers();
  if (others.layer_pattern.empty()) return;
  AttentionRates rates{.flops_per_s = flops_,
                       .bytes_per_s = bytes_per_s_,
                       .ranks = ToDouble(ranks_),
                       .bytes_per_element = options_.roofline.kv_bytes_per_element};
  if (!options_.roofline.kv_cache_dtype.empty()) {
    const auto format =
        ResolveCacheDtype(model_, {.cache_dtype = options_.roofline.kv_cache_dtype});
    if (format.ok()) rates.format = *format;
  }
  estimated_attention_.emplace(others, rates);
  Say(absl::StrCat("attention of ", others.num_layers(), " layers"), std::string(kEstimated),
      false);
}

bool LayerTimes::AddTabledAttention(char letter, int64_t num_kv_heads, int64_t head_size,
                                    int64_t window) {
  const int64_t count = model_.CountLayers(std::string_view(&letter, 1));
  if (count == 0) return false;
  const std::string dtype = options_.kv_dtype.empty() ? "bfloat16" : options_.kv_dtype;
  const int64_t heads = PerRank(model_.num_heads, ranks_);
  const int64_t kv_heads = PerRank(num_kv_heads, ranks_);
  const std::string shape = absl::StrCat(head_size, "|", dtype, "|", window, "|");
  // The head shape itself, or the nearest one with as many queries per key.
  int64_t nearest = 0;
  const KernelGrid *context = nullptr, *decode = nullptr;
  for (const auto& [key, grid] : tables_.GridsOf("attention_decode")) {
    if (key.compare(0, shape.size(), shape) != 0) continue;
    const std::vector<std::string> parts = absl::StrSplit(key, '|');
    int64_t table_heads, table_kv_heads;
    if (parts.size() != 5 || !absl::SimpleAtoi(parts[3], &table_heads) ||
        !absl::SimpleAtoi(parts[4], &table_kv_heads) || table_heads < 1 || table_kv_heads < 1 ||
        table_heads * kv_heads != heads * table_kv_heads) {
      continue;
    }
    if (nearest != 0 && std::abs(table_heads - heads) >= std::abs(nearest - heads)) continue;
    const KernelGrid* prompts = tables_.Find("attention_context", key);
    if (prompts == nullptr || prompts->num_axes() != 1 || grid.num_axes() != 2) continue;
    nearest = table_heads;
    context = prompts;
    decode = &grid;
  }
  const int64_t qkv = (heads + 2 * kv_heads) * head_size;
  const std::string part = absl::StrCat(letter == 'F' ? "" : "window ", "attention");
  AddProduct(absl::StrCat("projections of ", part), count, qkv, model_.hidden_size, GemmDtype());
  AddProduct(absl::StrCat("outputs of ", part), count, model_.hidden_size, heads * head_size,
             GemmDtype());
  if (decode == nullptr) return false;
  attention_.push_back({.count = count,
                        .context = context,
                        .decode = decode,
                        .heads = heads,
                        .table_heads = nearest});
  range_.num_decodes = std::min(range_.num_decodes, decode->last(0));
  range_.decode_context = std::min(range_.decode_context, decode->last(1));
  range_.prompt_end = std::min(range_.prompt_end, context->last(0));
  num_summed_layers_ += count;
  Say(absl::StrCat(part, " of ", count, " layers"),
      nearest == heads ? std::string(kMeasured)
                       : absl::StrCat(kMeasured, " of ", nearest, " heads for ", heads));
  return true;
}

// The tables have DeepSeek-V3's block with any number of heads, projections included, and that of
// V3.2 with its indexer.
bool LayerTimes::AddLatentBlocks(char letter, const std::string& operation) {
  const int64_t count = model_.CountLayers(std::string_view(&letter, 1));
  if (count == 0 || model_.hidden_size != 7168 || model_.latent->kv_lora_rank != 512 ||
      model_.latent->q_lora_rank != 1536 || model_.latent->qk_rope_head_dim != 64) {
    return false;
  }
  const bool is_sparse = letter == 'N';
  if (is_sparse && (model_.indexer->num_heads != 64 || model_.indexer->head_dim != 128 ||
                    model_.indexer->top_k != 2048)) {
    return false;
  }
  const std::string kv = options_.kv_dtype.empty() ? "bfloat16" : options_.kv_dtype;
  const std::string gemm = GemmDtype() == "fp8" ? "fp8_block" : GemmDtype();
  const std::string key = absl::StrCat(kv, "|", gemm, "|", PerRank(model_.num_heads, ranks_));
  const KernelGrid* context = tables_.Find(absl::StrCat(operation, "_context"), key);
  const KernelGrid* decode = tables_.Find(absl::StrCat(operation, "_decode"), key);
  if (context == nullptr || decode == nullptr || context->num_axes() != 1 ||
      decode->num_axes() != 2) {
    return false;
  }
  attention_.push_back({.count = count,
                        .context = context,
                        .decode = decode,
                        .host_time = LatentHostTime(tables_.device()),
                        .floor = 25 * kMicrosecond});
  range_.num_decodes = std::min(range_.num_decodes, decode->last(0));
  range_.decode_context = std::min(range_.decode_context, decode->last(1));
  range_.prompt_end = std::min(range_.prompt_end, context->last(0));
  num_block_layers_ += count;
  Say(absl::StrCat(is_sparse ? "sparse " : "", "latent attention of ", count,
                   " layers, projections included"),
      absl::StrCat(kMeasured, ", ", gemm));
  const LatentFacts& latent = *model_.latent;
  const double heads = ToDouble(model_.num_heads);
  known_params_ +=
      ToDouble(count) *
      (ToDouble(model_.hidden_size) * ToDouble(latent.q_lora_rank + latent.row_elements()) +
       ToDouble(latent.q_lora_rank) * heads *
           ToDouble(latent.qk_nope_head_dim + latent.qk_rope_head_dim) +
       ToDouble(latent.kv_lora_rank) * heads *
           ToDouble(latent.qk_nope_head_dim + latent.v_head_dim) +
       heads * ToDouble(latent.v_head_dim) * ToDouble(model_.hidden_size));
  return true;
}

// --- Matrix products, experts, collectives ---

void LayerTimes::AddDenseLayers() {
  const int64_t num_expert_layers = model_.experts ? model_.experts->num_layers : 0;
  const int64_t count = model_.num_layers() - num_expert_layers;
  const int64_t width = PerRank(model_.intermediate_size, ranks_);
  if (model_.intermediate_size > 0) {
    AddProduct("gate and up", count, 2 * width, model_.hidden_size, GemmDtype());
    AddProduct("down", count, model_.hidden_size, width, GemmDtype());
  }
  const int64_t vocabulary = PerRank(model_.vocab_size, ranks_);
  const double known = known_params_;
  AddProduct("output head", 1, vocabulary, model_.hidden_size, "bfloat16");
  known_params_ = known;
  head_ = products_.back();
  head_.bytes_per_param = 2;
  products_.pop_back();
}

void LayerTimes::AddExperts() {
  if (!model_.experts) return;
  const ExpertFacts& experts = *model_.experts;
  num_expert_layers_ = experts.num_layers;
  AddProduct("router", experts.num_layers, experts.num_experts, model_.hidden_size, "bfloat16");
  // Every rank has the router.
  known_params_ -= ToDouble(experts.num_layers) * ToDouble(experts.num_experts) *
                   ToDouble(model_.hidden_size) * ToDouble(ranks_ - 1);
  if (experts.shared_intermediate_size > 0) {
    const int64_t width = PerRank(experts.shared_intermediate_size, ranks_);
    AddProduct("shared experts", experts.num_layers, 2 * width, model_.hidden_size, GemmDtype());
    AddProduct("shared experts, down", experts.num_layers, model_.hidden_size, width, GemmDtype());
    // Engines give small batches of them a stream of their own.
    constexpr int64_t kTokensOfOwnStream = 256;
    for (size_t i = products_.size() - 2; i < products_.size(); ++i) {
      products_[i].hidden_tokens = kTokensOfOwnStream;
    }
  }
  known_params_ += ToDouble(experts.num_layers) * ToDouble(experts.experts_per_token) * 3 *
                   ToDouble(model_.hidden_size) * ToDouble(experts.intermediate_size);
  const int64_t all_ranks = ranks_ * data_parallel_;
  const int64_t tp = options_.expert_tensor_parallel;
  const int64_t ep = options_.expert_parallel;
  const int64_t asked_ep = ep > 0 ? ep : tp > 0 ? 1 : data_parallel_ > 1 ? all_ranks : 1;
  const int64_t asked_tp = tp > 0 ? tp : std::max<int64_t>(1, all_ranks / asked_ep);
  const std::pair<int64_t, int64_t> divisions[] = {
      {asked_tp, asked_ep}, {1, asked_tp * asked_ep}, {asked_tp * asked_ep, 1}};
  for (const std::string& dtype : ExpertDtypes()) {
    for (const auto& [expert_tp, expert_ep] : divisions) {
      const KernelGrid* grid = tables_.Find(
          "moe", absl::StrCat(dtype, "|", model_.hidden_size, "|", experts.intermediate_size, "|",
                              experts.num_experts, "|", experts.experts_per_token, "|", expert_tp,
                              "|", expert_ep));
      if (grid == nullptr || grid->num_axes() != 1) continue;
      experts_ = grid;
      range_.num_tokens = std::min(range_.num_tokens, grid->last(0) / data_parallel_);
      const bool is_asked = expert_tp == asked_tp && expert_ep == asked_ep;
      Say("experts",
          absl::StrCat(kMeasured, ", ", dtype, ", uneven load, divided ", expert_tp, " x ",
                       expert_ep,
                       is_asked ? "" : absl::StrCat(" for ", asked_tp, " x ", asked_ep)));
      return;
    }
  }
  Say("experts", std::string(kEstimated), false);
}

void LayerTimes::AddCollectives() {
  if (ranks_ > 1) {
    reduce_ = MakeCollective("collectives", 2 * model_.num_layers(), ranks_);
    const KernelGrid* fused = tables_.Find("allreduce_fused", absl::StrCat(ranks_));
    if (options_.fuses_allreduce && fused != nullptr && fused->num_axes() == 1) {
      reduce_.fused = fused;
      Say("collectives with norms",
          absl::StrCat(kMeasured, ", fused up to messages of ", fused->last(0) >> 10, " KiB"));
    }
  }
  // MiniMax-M2 normalises queries and keys over the heads of all ranks, which sum their squares.
  if (ranks_ > 1 && model_.family == "minimax_m2") {
    norm_ = MakeCollective("sums for norms", model_.num_layers(), ranks_);
  }
  // All-gather and reduce-scatter around the experts: half an all-reduce each.
  if (data_parallel_ > 1 && num_expert_layers_ > 0) {
    dispatch_ = MakeCollective(ranks_ > 1 ? "to experts and back" : "collectives",
                               num_expert_layers_, data_parallel_, ranks_);
  }
}

LayerTimes::Collective LayerTimes::MakeCollective(std::string_view part, int64_t count,
                                                  int64_t ranks, int64_t stride) {
  const auto find = [&](int64_t measured) {
    const KernelGrid* grid = tables_.Find("allreduce", absl::StrCat(measured));
    return grid != nullptr && grid->num_axes() == 1 ? grid : nullptr;
  };
  const DeviceFacts& device = options_.roofline.device;
  Collective collective{
      .count = count, .ranks = PlaceRanks(ranks, stride, device), .grid = find(ranks)};
  if (collective.grid != nullptr) {
    collective.ranks = {.inside = ranks};
  } else if (collective.ranks.are_several()) {
    collective.grid = find(collective.ranks.inside);
  }
  std::string source =
      collective.grid ? absl::StrCat(kMeasured, ", ", collective.ranks.inside,
                                     " ranks in captured graphs")
                      : std::string(kEstimated);
  Say(part, source, collective.grid != nullptr);
  if (collective.ranks.are_several()) {
    Say(absl::StrCat(std::string(part), " between ", collective.ranks.nodes, " nodes of ",
                     device.node_gb_per_s, " GB/s a device"),
        std::string(kEstimated), false);
  }
  return collective;
}

// Parameters that no product above stands for: projections of layers whose shapes differ.
void LayerTimes::AddRest() {
  const double params = (model_.active_params_b - model_.embedding_params_b()) * 1e9;
  // Counts that publishers round differ by this much.
  constexpr double kNegligible = 0.04;
  if (params - known_params_ <= kNegligible * params) return;
  rest_ = {.params = params - known_params_, .bytes_per_param = model_.bytes_per_param};
  Say("other weights", std::string(kEstimated), false);
}

// --- Times ---

int64_t LayerTimes::EstimateTime(const Estimate& estimate, int64_t num_tokens) const {
  const double params = estimate.params;
  return Limited(RoundToPicoseconds(std::max(2.0 * params * ToDouble(num_tokens) / flops_,
                                             params * estimate.bytes_per_param / bytes_per_s_)));
}

int64_t LayerTimes::ProductTime(const Product& product, int64_t num_tokens) const {
  if (product.grid != nullptr) {
    return product.count * product.grid->At({product.n, product.k, num_tokens});
  }
  return product.count * EstimateTime({.params = ToDouble(product.n) * ToDouble(product.k),
                                       .bytes_per_param = product.bytes_per_param},
                                      num_tokens);
}

int64_t LayerTimes::Experts(int64_t num_tokens, Which which) const {
  if (num_expert_layers_ == 0 || num_tokens == 0) return 0;
  if (which == Which::kEstimated && experts_ != nullptr) return 0;
  const int64_t tokens = num_tokens * data_parallel_;
  if (experts_ != nullptr) return num_expert_layers_ * experts_->At({tokens});
  const ExpertFacts& experts = *model_.experts;
  const double ranks = ToDouble(ranks_ * data_parallel_);
  const double params = 3.0 * ToDouble(model_.hidden_size) * ToDouble(experts.intermediate_size);
  // The share of experts that none of the tokens goes to.
  const double miss = 1.0 - ToDouble(experts.experts_per_token) / ToDouble(experts.num_experts);
  double unread = 1.0;
  for (int64_t i = 0; i < tokens && unread > 1e-9; ++i) unread *= miss;
  const double read = ToDouble(experts.num_experts) * (1.0 - unread);
  return num_expert_layers_ *
         Limited(RoundToPicoseconds(
             std::max(2.0 * params * ToDouble(experts.experts_per_token) * ToDouble(tokens) /
                          (flops_ * ranks),
                      params * read * experts.bytes_per_param / (bytes_per_s_ * ranks))));
}

int64_t LayerTimes::TimeInside(const Collective& collective, int64_t bytes) const {
  int64_t time;
  if (collective.grid != nullptr) {
    time = collective.grid->At({bytes});
  } else {
    const double ranks = ToDouble(collective.ranks.inside);
    const double seconds = 2.0 * (ranks - 1) / ranks * ToDouble(bytes) /
                           (options_.roofline.device.link_gb_per_s * 1e9);
    time = Limited(Limited(options_.roofline.allreduce_latency) +
                   Limited(RoundToPicoseconds(seconds)));
  }
  if (collective.fused != nullptr && bytes <= collective.fused->last(0)) {
    time = std::min(time, collective.fused->At({bytes}) + kFusedNormTime);
  }
  return time;
}

int64_t LayerTimes::TimeOf(const Collective& collective, int64_t bytes, Which which) const {
  if (collective.count == 0) return 0;
  int64_t time = 0;
  const bool is_wanted = which == Which::kAll || collective.grid == nullptr;
  if (is_wanted && (collective.ranks.inside > 1 || !collective.ranks.are_several())) {
    time = TimeInside(collective, bytes);
  }
  if (collective.ranks.are_several()) {
    const double seconds =
        SecondsBetweenNodes(collective.ranks, ToDouble(bytes), options_.roofline.device);
    time = Limited(time + Limited(options_.roofline.allreduce_latency) +
                   Limited(RoundToPicoseconds(seconds)));
  }
  return collective.count * time;
}

int64_t LayerTimes::DispatchTime(int64_t num_tokens, Which which) const {
  if (num_tokens == 0) return 0;
  return TimeOf(dispatch_, num_tokens * data_parallel_ * model_.hidden_size * kTokenBytes, which);
}

int64_t LayerTimes::Shared(int64_t num_tokens, Which which) const {
  return Experts(num_tokens, which) + DispatchTime(num_tokens, which);
}

int64_t LayerTimes::Linear(int64_t num_tokens, Which which) const {
  if (num_tokens == 0) return 0;
  int64_t time = Shared(num_tokens, which) +
                 TimeOf(reduce_, num_tokens * model_.hidden_size * kTokenBytes, which) +
                 TimeOf(norm_, num_tokens * kNormBytes, which);
  for (const Product& product : products_) {
    if (which == Which::kEstimated && product.grid != nullptr) continue;
    if (num_tokens > product.hidden_tokens) time += ProductTime(product, num_tokens);
  }
  if (rest_.params > 0) {
    time += EstimateTime(
        {.params = rest_.params / ToDouble(ranks_), .bytes_per_param = rest_.bytes_per_param},
        num_tokens);
  }
  return time;
}

int64_t LayerTimes::Head(int64_t num_samples, Which which) const {
  if (num_samples == 0 || (which == Which::kEstimated && head_.grid != nullptr)) return 0;
  return ProductTime(head_, num_samples);
}

int64_t LayerTimes::AttentionTimeOf(const Attention& attention, int64_t table_time) const {
  int64_t time = table_time * attention.heads / attention.table_heads;
  if (attention.host_time > 0) time = std::max(time - attention.host_time, attention.floor);
  return attention.count * time;
}

int64_t LayerTimes::Decode(int64_t num_sequences, int64_t context, Which which) const {
  if (num_sequences == 0) return 0;
  int64_t time = 0;
  for (const Attention& attention : attention_) {
    if (which == Which::kEstimated) break;
    time += AttentionTimeOf(attention,
                            attention.decode->At({num_sequences, std::max<int64_t>(context, 1)}));
  }
  if (estimated_attention_) {
    AttentionTime one;
    estimated_attention_->Add(
        SequenceWork{.num_context = std::max<int64_t>(context - 1, 0), .num_new = 1}, &one);
    const Wide all = std::max(one.compute, one.traffic) * num_sequences;
    time += static_cast<int64_t>(std::min<Wide>(all, KernelGrid::kMaxTime));
  }
  return time;
}

int64_t LayerTimes::Context(int64_t num_tokens, Which which) const {
  if (num_tokens == 0) return 0;
  int64_t time = 0;
  for (const Attention& attention : attention_) {
    if (which == Which::kEstimated) break;
    time += AttentionTimeOf(attention, attention.context->At({num_tokens}));
  }
  if (estimated_attention_) {
    AttentionTime all;
    estimated_attention_->Add(SequenceWork{.num_context = 0, .num_new = num_tokens}, &all);
    time += static_cast<int64_t>(
        std::min<Wide>(std::max(all.compute, all.traffic), KernelGrid::kMaxTime));
  }
  return time;
}

}  // namespace kvblocks::sim
