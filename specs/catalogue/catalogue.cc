#include "kvblocks/model_facts.h"

#include <cstdlib>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checks/field_error.h"
#include "kvblocks/config_source.h"
#include "specs/catalogue/catalogue.pb.h"

namespace kvblocks {

// catalogue.textproto, made part of the binary when it is built.
extern const char kCatalogueText[];

namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

namespace proto = catalogue::v1;

DeviceFacts FromProto(const proto::Device& device) {
  return {.name = device.name(),
          .bf16_tflops = device.bf16_tflops(),
          .memory_gb_per_s = device.memory_gb_per_s(),
          .memory_gb = device.memory_gb(),
          .link_gb_per_s = device.link_gb_per_s(),
          .measured_memory_gb = device.measured_memory_gb()};
}

LatentFacts FromProto(const proto::MultiHeadLatent& mla) {
  return {.kv_lora_rank = mla.kv_lora_rank(),
          .q_lora_rank = mla.q_lora_rank(),
          .qk_rope_head_dim = mla.qk_rope_head_dim(),
          .qk_nope_head_dim = mla.qk_nope_head_dim(),
          .v_head_dim = mla.v_head_dim()};
}

IndexerFacts FromProto(const proto::Indexer& indexer) {
  return {.num_heads = indexer.num_heads(),
          .head_dim = indexer.head_dim(),
          .top_k = indexer.top_k(),
          .row_bytes =
              indexer.row_bytes() == 0 ? IndexerRowBytes(indexer.head_dim()) : indexer.row_bytes()};
}

CompressorStateFacts FromProto(const proto::CompressorState& state) {
  return {.block_size = state.block_size(),
          .window = state.window(),
          .row_elements = state.row_elements(),
          .indexer_elements = state.indexer_elements()};
}

CompressedFacts FromProto(const proto::CompressedAttention& c) {
  return {.qk_rope_head_dim = c.qk_rope_head_dim(),
          .q_lora_rank = c.q_lora_rank(),
          .o_lora_rank = c.o_lora_rank(),
          .o_groups = c.o_groups(),
          .row_bytes_fp8_ds_mla = c.row_bytes_fp8_ds_mla(),
          .main_block_size = c.main_block_size(),
          .sliding_block_size = c.sliding_block_size(),
          .state4 = FromProto(c.state_4()),
          .state128 = FromProto(c.state_128()),
          .rows_per_block = c.rows_per_block(),
          .ring2 = {.rows = c.ring_2().rows(), .row_elements = c.ring_2().row_elements()},
          .bounded_replay = c.bounded_replay()};
}

ExpertFacts FromProto(const proto::MixtureOfExperts& moe, double bytes_per_param) {
  return {.num_experts = moe.num_experts(),
          .experts_per_token = moe.experts_per_token(),
          .intermediate_size = moe.intermediate_size(),
          .num_layers = moe.num_layers(),
          .num_shared_experts = moe.num_shared_experts(),
          .shared_intermediate_size = moe.shared_intermediate_size(),
          .bytes_per_param = moe.bytes_per_param() == 0 ? bytes_per_param : moe.bytes_per_param()};
}

PublishedCacheFacts FromProto(const proto::PublishedCache& cache) {
  PublishedCacheFacts facts;
  if (cache.has_bf16_all_layers()) facts.bf16_all_layers = cache.bf16_all_layers();
  if (cache.has_bf16_unbounded_layers()) {
    facts.bf16_unbounded_layers = cache.bf16_unbounded_layers();
  }
  if (cache.has_fp8_ds_mla_unbounded_layers()) {
    facts.fp8_ds_mla_unbounded_layers = cache.fp8_ds_mla_unbounded_layers();
  }
  return facts;
}

// The pattern, in whichever of the two ways it is written.
absl::StatusOr<std::string> PatternOf(const proto::Model& model) {
  const std::pair<const char*, int64_t> counts[] = {{"full_layers", model.full_layers()},
                                                    {"window_layers", model.window_layers()}};
  for (const auto& [field, count] : counts) {
    if (count == 0) continue;
    if (count < 0 || count > kMaxLayers) {
      return FieldError(field, absl::StrCat(count), absl::StrCat("0 to ", kMaxLayers));
    }
    if (!model.layer_pattern().empty()) {
      return FieldError(field, absl::StrCat(count, " next to layer_pattern"), "one of the two");
    }
  }
  if (!model.layer_pattern().empty()) return ExpandLayerPattern(model.layer_pattern());
  return std::string(static_cast<size_t>(model.full_layers()), 'F') +
         std::string(static_cast<size_t>(model.window_layers()), 'S');
}

absl::StatusOr<ModelFacts> FromProto(const proto::Model& model) {
  ModelFacts facts;
  facts.name = model.name();
  auto pattern = PatternOf(model);
  if (!pattern.ok()) return pattern.status();
  facts.layer_pattern = *std::move(pattern);
  facts.hf_id = model.hf_id();
  facts.family = model.family();
  facts.window = model.window();
  facts.chunk = model.chunk();
  facts.hidden_size = model.hidden_size();
  facts.intermediate_size = model.intermediate_size();
  facts.num_heads = model.num_heads();
  facts.num_kv_heads = model.num_kv_heads();
  facts.head_size = model.head_size();
  facts.num_global_kv_heads = model.num_global_kv_heads();
  facts.global_head_size = model.global_head_size();
  facts.num_kv_shared_layers = model.num_kv_shared_layers();
  if (!model.dtype().empty()) {
    const auto dtype = ParseDataType(model.dtype());
    if (!dtype.ok()) return dtype.status();
    facts.dtype = *dtype;
  }
  facts.vocab_size = model.vocab_size();
  facts.max_position_embeddings = model.max_position_embeddings();
  facts.tied_embeddings = model.tied_embeddings();
  facts.sink_bias = model.sink_bias();
  if (model.bytes_per_param() != 0) facts.bytes_per_param = model.bytes_per_param();
  if (model.has_mla()) facts.latent = FromProto(model.mla());
  if (model.has_indexer()) facts.indexer = FromProto(model.indexer());
  if (model.has_compressed_attention()) facts.compressed = FromProto(model.compressed_attention());
  if (model.has_moe()) facts.experts = FromProto(model.moe(), facts.bytes_per_param);
  for (const proto::State& state : model.state()) {
    const auto dtype = ParseDataType(state.dtype());
    if (!dtype.ok()) return WithFieldPrefix(dtype.status(), "state");
    facts.states.push_back({state.name(), {state.shape().begin(), state.shape().end()}, *dtype});
  }
  facts.params_b = model.params_b();
  facts.active_params_b = model.active_params_b() == 0 ? model.params_b() : model.active_params_b();
  facts.rounded_params = model.rounded_params();
  facts.published_cache = FromProto(model.published_cache());
  facts.notes = model.notes();
  return facts;
}

bool EqualIgnoringCase(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase(View(a), View(b));
}

// The entry of that name or that `is_alias` accepts, else the only one whose name begins so.
template <typename Facts, typename IsAlias>
absl::StatusOr<Facts> Find(const std::map<std::string, Facts, std::less<>>& entries,
                           absl::string_view kind, std::string_view name, IsAlias is_alias) {
  if (const auto it = entries.find(name); it != entries.end()) return it->second;
  std::vector<const Facts*> begins;
  std::string begins_names, names;
  for (const auto& [known, facts] : entries) {
    if (is_alias(facts)) return facts;
    absl::StrAppend(&names, names.empty() ? "" : ", ", known);
    if (name.empty() || known.compare(0, name.size(), name) != 0) continue;
    begins.push_back(&facts);
    absl::StrAppend(&begins_names, begins_names.empty() ? "" : ", ", known);
  }
  if (begins.size() == 1) return *begins[0];
  return absl::NotFoundError(absl::StrCat(
      kind, " \"", View(name), "\" is ", begins.empty() ? "unknown" : "the beginning of several",
      ", expected one of ", begins.empty() ? names : begins_names));
}

// Checks `facts` and puts it into `entries`.
template <typename Facts>
absl::Status Add(const absl::StatusOr<Facts>& facts,
                 std::map<std::string, Facts, std::less<>>* entries) {
  if (!facts.ok()) return facts.status();
  if (absl::Status status = Validate(*facts); !status.ok()) return status;
  entries->insert_or_assign(facts->name, *facts);
  return absl::OkStatus();
}

}  // namespace

const Catalogue& Catalogue::BuiltIn() {
  static const Catalogue* const kBuiltIn = [] {
    auto* catalogue = new Catalogue;
    const absl::Status status = catalogue->Merge(kCatalogueText, "the built-in catalogue");
    if (!status.ok()) {  // made from a file of this folder, so that a test finds it first
      std::cerr << status << "\n";
      std::abort();
    }
    return catalogue;
  }();
  return *kBuiltIn;
}

absl::Status Catalogue::Merge(std::string_view text, std::string_view source) {
  proto::Catalogue message;
  const auto parsed = ConfigSource::Parse(text, source, ConfigSyntax::kText, message);
  if (!parsed.ok()) return parsed.status();
  Catalogue merged = *this;
  for (int i = 0; i < message.device_size(); ++i) {
    const absl::StatusOr<DeviceFacts> facts = FromProto(message.device(i));
    const absl::Status status = Add(facts, &merged.devices_);
    if (!status.ok())
      return parsed->Locate(WithFieldPrefix(status, absl::StrCat("device[", i, "]")));
  }
  for (int i = 0; i < message.model_size(); ++i) {
    const absl::Status status = Add(FromProto(message.model(i)), &merged.models_);
    if (!status.ok())
      return parsed->Locate(WithFieldPrefix(status, absl::StrCat("model[", i, "]")));
  }
  *this = std::move(merged);
  return absl::OkStatus();
}

absl::StatusOr<DeviceFacts> Catalogue::FindDevice(std::string_view name) const {
  return Find(devices_, "device", name, [](const DeviceFacts&) { return false; });
}

absl::StatusOr<ModelFacts> Catalogue::FindModel(std::string_view name) const {
  return Find(models_, "model", name, [name](const ModelFacts& model) {
    return !name.empty() && EqualIgnoringCase(model.hf_id, name);
  });
}

}  // namespace kvblocks
