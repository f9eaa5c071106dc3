#include "kvblocks/model_facts.h"

#include "absl/strings/str_cat.h"
#include "checks/field_error.h"

namespace kvblocks {
namespace {

// Checks of the fields of one entry. Refusals are FieldErrors whose hint names the entry; the first
// stays.
class EntryChecks {
 public:
  EntryChecks(absl::string_view kind, const std::string& name)
      : entry_(absl::StrCat(kind, " ", name)) {
    if (name.empty()) status_ = FieldError("name", "nothing", "a name");
  }
  template <typename T>
  void Range(std::string_view field, T value, T low, T high) {
    if (value >= low && value <= high) return;  // nor is NaN in it
    Refuse(field, absl::StrCat(value), absl::StrCat(low, " to ", high));
  }
  void Range(std::string_view field, int64_t value, int64_t low, int64_t high) {
    Range<int64_t>(field, value, low, high);
  }
  void Refuse(std::string_view field, std::string_view got, std::string_view expected) {
    if (status_.ok()) status_ = FieldError(field, got, expected, entry_);
  }
  const absl::Status& status() const { return status_; }

 private:
  std::string entry_;
  absl::Status status_;
};

constexpr double kMinRate = 1e-6;
constexpr double kMaxRate = 1e9;
constexpr int64_t kMaxSize = int64_t{1} << 30;
constexpr int64_t kMaxHeads = 100'000;

double Product(int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

void CheckPattern(const ModelFacts& model, EntryChecks& check) {
  if (model.layer_pattern.empty()) {
    check.Refuse("layer_pattern", "nothing", "a letter per layer");
  }
  check.Range("layer_pattern", model.num_layers(), 0, kMaxLayers);
  const size_t bad = model.layer_pattern.find_first_not_of(kLayerLetters);
  if (bad != std::string::npos) {
    check.Refuse("layer_pattern",
                 absl::StrCat("'", std::string(1, model.layer_pattern[bad]), "' at layer ", bad),
                 "one of " + std::string(kLayerLetters));
  }
  check.Range("num_kv_shared_layers", model.num_kv_shared_layers, 0, model.num_layers() - 1);
}

// A part that the pattern's letters need, and nothing else does.
void CheckPresence(const ModelFacts& model, std::string_view field, bool present,
                   std::string_view letters, EntryChecks& check) {
  const bool needed = model.CountLayers(letters) > 0;
  if (present == needed) return;
  check.Refuse(
      field, present ? "a value" : "nothing",
      (needed ? "a value next to layers of " : "none without layers of ") + std::string(letters));
}

int64_t NumWindows(const ModelFacts& model) {
  return model.CountLayers("S") + model.CountLayers(kCompressedLetters);
}

void CheckAttention(const ModelFacts& model, EntryChecks& check) {
  check.Range("window", model.window, NumWindows(model) > 0 ? 1 : 0, kMaxSize);
  check.Range("chunk", model.chunk, model.has(LayerKind::kChunked) ? 1 : 0, kMaxSize);
  check.Range("num_heads", model.num_heads, 1, kMaxHeads);
  check.Range("num_kv_heads", model.num_kv_heads, 1, kMaxHeads);
  const bool has_heads = model.CountLayers("FSC") + model.CountLayers(kCompressedLetters) > 0;
  check.Range("head_size", model.head_size, has_heads ? 1 : 0, kMaxHeads);
  check.Range("num_global_kv_heads", model.num_global_kv_heads, 0, kMaxHeads);
  check.Range("global_head_size", model.global_head_size, 0, kMaxHeads);
  if (!check.status().ok()) return;
  for (const int64_t kv_heads : {model.num_kv_heads, model.full_kv_heads()}) {
    if (model.CountLayers("FSC") > 0 && model.num_heads % kv_heads != 0) {
      check.Refuse("num_heads", absl::StrCat(model.num_heads),
                   absl::StrCat("a multiple of the ", kv_heads, " KV heads"));
    }
  }
}

void CheckLatent(const ModelFacts& model, EntryChecks& check) {
  CheckPresence(model, "mla", model.latent.has_value(), "MN", check);
  CheckPresence(model, "indexer", model.indexer.has_value(), "N421I", check);
  CheckPresence(model, "compressed_attention", model.compressed.has_value(), kCompressedLetters,
                check);
  if (model.latent) {
    check.Range("mla.kv_lora_rank", model.latent->kv_lora_rank, 1, kMaxSize);
    check.Range("mla.q_lora_rank", model.latent->q_lora_rank, 0, kMaxSize);
    check.Range("mla.qk_rope_head_dim", model.latent->qk_rope_head_dim, 0, kMaxHeads);
    check.Range("mla.qk_nope_head_dim", model.latent->qk_nope_head_dim, 1, kMaxHeads);
    check.Range("mla.v_head_dim", model.latent->v_head_dim, 1, kMaxHeads);
  }
  if (model.indexer) {
    check.Range("indexer.num_heads", model.indexer->num_heads, 1, kMaxHeads);
    check.Range("indexer.head_dim", model.indexer->head_dim, 1, kMaxHeads);
    check.Range("indexer.top_k", model.indexer->top_k, 1, kMaxSize);
    check.Range("indexer.row_bytes", model.indexer->row_bytes, 1, kMaxSize);
  }
}

void CheckState(const std::string& field, const CompressorStateFacts& state, EntryChecks& check) {
  check.Range(field + ".block_size", state.block_size, 1, kMaxSize);
  check.Range(field + ".window", state.window, 1, kMaxSize);
  check.Range(field + ".row_elements", state.row_elements, 1, kMaxSize);
  check.Range(field + ".indexer_elements", state.indexer_elements, 0, kMaxSize);
}

void CheckSharedRows(const ModelFacts& model, EntryChecks& check) {
  const size_t first = model.layer_pattern.find_first_of(kSharedRowLetters);
  const CompressedFacts& c = *model.compressed;
  check.Range("compressed_attention.rows_per_block", c.rows_per_block,
              first == std::string::npos ? 0 : 1, kMaxSize);
  const bool has_ring = model.has(LayerKind::kSharedRows2);
  check.Range("compressed_attention.ring_2.rows", c.ring2.rows, has_ring ? 2 : 0, kMaxSize);
  check.Range("compressed_attention.ring_2.row_elements", c.ring2.row_elements, has_ring ? 1 : 0,
              kMaxSize);
  if (first == std::string::npos) return;
  const char letter = model.layer_pattern[first];
  if (letter == '2' || letter == '1') return;
  check.Refuse("layer_pattern", absl::StrCat(std::string(1, letter), " as layer ", first),
               "a layer of 2 or 1, whose rows it reads, in front of it");
}

void CheckCompressed(const ModelFacts& model, EntryChecks& check) {
  if (!model.compressed) return;
  const CompressedFacts& c = *model.compressed;
  check.Range("compressed_attention.qk_rope_head_dim", c.qk_rope_head_dim, 0, model.head_size);
  check.Range("compressed_attention.q_lora_rank", c.q_lora_rank, 0, kMaxSize);
  check.Range("compressed_attention.o_lora_rank", c.o_lora_rank, 0, kMaxSize);
  check.Range("compressed_attention.o_groups", c.o_groups, 0, kMaxHeads);
  check.Range("compressed_attention.row_bytes_fp8_ds_mla", c.row_bytes_fp8_ds_mla, 1, kMaxSize);
  check.Range("compressed_attention.sliding_block_size", c.sliding_block_size, 1, kMaxSize);
  const bool shares_rows = model.CountLayers(kSharedRowLetters) > 0;
  check.Range("compressed_attention.main_block_size", c.main_block_size, shares_rows ? 0 : 1,
              kMaxSize);
  CheckSharedRows(model, check);
  const int64_t ratio = model.has(LayerKind::kCompressed128) ? kCompressRatio128 : kCompressRatio4;
  if (model.CountLayers("4H") > 0 && c.main_block_size % ratio != 0) {
    check.Refuse("compressed_attention.main_block_size", absl::StrCat(c.main_block_size),
                 absl::StrCat("a multiple of ", ratio));
  }
  if (model.has(LayerKind::kCompressed4)) {
    CheckState("compressed_attention.state_4", c.state4, check);
  }
  if (model.has(LayerKind::kCompressed128)) {
    CheckState("compressed_attention.state_128", c.state128, check);
  }
}

void CheckStates(const ModelFacts& model, EntryChecks& check) {
  CheckPresence(model, "state", !model.states.empty(), "L", check);
  for (const StateFacts& state : model.states) {
    if (state.shape.empty()) check.Refuse("state.shape", "nothing", "at least one number");
    double elements = 1;
    for (const int64_t n : state.shape) {
      check.Range("state.shape", n, 1, kMaxSize);
      elements *= static_cast<double>(n);
    }
    check.Range("state.shape", elements, 1.0, 1e12);
  }
}

void CheckExperts(const ModelFacts& model, EntryChecks& check) {
  if (!model.experts) return;
  const ExpertFacts& e = *model.experts;
  check.Range("moe.num_experts", e.num_experts, 1, 1'000'000);
  check.Range("moe.experts_per_token", e.experts_per_token, 1, e.num_experts);
  check.Range("moe.intermediate_size", e.intermediate_size, 1, kMaxSize);
  check.Range("moe.num_layers", e.num_layers, 1, model.num_layers());
  check.Range("moe.num_shared_experts", e.num_shared_experts, 0, 1'000'000);
  check.Range("moe.shared_intermediate_size", e.shared_intermediate_size, 0, kMaxSize);
  check.Range("moe.bytes_per_param", e.bytes_per_param, 1e-3, 16.0);
  if (model.routed_params_b() > model.params_b) {
    check.Refuse("params_b", absl::StrCat(model.params_b),
                 absl::StrCat("at least the experts' ", model.routed_params_b()));
  }
}

}  // namespace

double ModelFacts::embedding_params_b() const {
  return Product(hidden_size, vocab_size) / 1e9 * (tied_embeddings ? 1 : 2);
}

double ModelFacts::routed_params_b() const {
  if (!experts) return 0;
  // Gate, up and down projections.
  return 3.0 * Product(experts->num_layers, experts->num_experts) *
         static_cast<double>(hidden_size) / 1e9 * static_cast<double>(experts->intermediate_size);
}

double ModelFacts::weight_bytes() const {
  const double routed = routed_params_b();
  return ((params_b - routed) * bytes_per_param +
          routed * (experts ? experts->bytes_per_param : bytes_per_param)) *
         1e9;
}

absl::Status Validate(const DeviceFacts& device) {
  EntryChecks check("device", device.name);
  check.Range("bf16_tflops", device.bf16_tflops, kMinRate, kMaxRate);
  check.Range("memory_gb_per_s", device.memory_gb_per_s, kMinRate, kMaxRate);
  check.Range("memory_gb", device.memory_gb, kMinRate, kMaxRate);
  check.Range("link_gb_per_s", device.link_gb_per_s, 0.0, kMaxRate);
  check.Range("devices_per_node", device.devices_per_node, 1, int64_t{1} << 20);
  check.Range("node_gb_per_s", device.node_gb_per_s, kMinRate, kMaxRate);
  check.Range("measured_memory_gb", device.measured_memory_gb, 0.0, kMaxRate);
  return check.status();
}

absl::Status Validate(const ModelFacts& model) {
  EntryChecks check("model", model.name);
  CheckPattern(model, check);
  CheckAttention(model, check);
  CheckLatent(model, check);
  CheckCompressed(model, check);
  CheckStates(model, check);
  check.Range("hidden_size", model.hidden_size, 1, kMaxSize);
  check.Range("intermediate_size", model.intermediate_size, 0, kMaxSize);
  check.Range("vocab_size", model.vocab_size, 1, kMaxSize);
  check.Range("max_position_embeddings", model.max_position_embeddings, 0, int64_t{1} << 40);
  check.Range("params_b", model.params_b, 1e-9, 1e6);
  check.Range("active_params_b", model.active_params_b, 1e-9, model.params_b);
  check.Range("bytes_per_param", model.bytes_per_param, 1e-3, 16.0);
  if (model.embedding_params_b() > model.active_params_b) {
    check.Refuse("active_params_b", absl::StrCat(model.active_params_b),
                 absl::StrCat("at least the embeddings' ", model.embedding_params_b()));
  }
  CheckExperts(model, check);
  return check.status();
}

}  // namespace kvblocks
