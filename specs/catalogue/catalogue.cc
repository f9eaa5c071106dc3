#include "kvblocks/model_facts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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
          .aliases = {device.alias().begin(), device.alias().end()},
          .bf16_tflops = device.bf16_tflops(),
          .memory_gb_per_s = device.memory_gb_per_s(),
          .memory_gb = device.memory_gb(),
          .link_gb_per_s = device.link_gb_per_s(),
          .devices_per_node = device.devices_per_node() == 0 ? DeviceFacts().devices_per_node
                                                             : device.devices_per_node(),
          .node_gb_per_s = device.node_gb_per_s() == 0 ? DeviceFacts().node_gb_per_s
                                                       : device.node_gb_per_s(),
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
  facts.aliases = {model.alias().begin(), model.alias().end()};
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

// What is left of a name without what does not tell entries from each other: case, organisation,
// vendor, and words of tuned versions. "meta-llama/Llama-3.1-8B-Instruct" is "llama-3.1-8b".
std::string Plain(std::string_view name) {
  std::string lower = absl::AsciiStrToLower(View(name));
  lower.erase(0, lower.rfind('/') + 1);
  std::vector<std::string> words = absl::StrSplit(lower, absl::ByAnyChar("- _"));
  std::erase_if(words, [](const std::string& word) {
    static constexpr std::array<std::string_view, 8> kIgnored = {
        "instruct", "it", "chat", "base", "hf", "meta", "nvidia", "geforce"};
    return std::find(kIgnored.begin(), kIgnored.end(), word) != kIgnored.end();
  });
  return absl::StrJoin(words, "-");
}

std::vector<std::string> PlainNames(const DeviceFacts& device) {
  std::vector<std::string> names = {Plain(device.name)};
  for (const std::string& alias : device.aliases) names.push_back(Plain(alias));
  return names;
}

std::vector<std::string> PlainNames(const ModelFacts& model) {
  std::vector<std::string> names = {Plain(model.name)};
  if (!model.hf_id.empty()) names.push_back(Plain(model.hf_id));
  for (const std::string& alias : model.aliases) names.push_back(Plain(alias));
  return names;
}

// The entry of that name, else the one that is called so, else the only one whose name goes on
// with a further word.
template <typename Facts>
absl::StatusOr<Facts> Find(const std::map<std::string, Facts, std::less<>>& entries,
                           absl::string_view kind, std::string_view name) {
  if (const auto it = entries.find(name); it != entries.end()) return it->second;
  const std::string plain = Plain(name);
  constexpr size_t kLongestName = 64;  // a wrong name may be as long as a request
  std::vector<const Facts*> begins;
  // By the distance of a name's beginning, then of all of it: h2000 is nearest to h200-sxm.
  std::vector<std::tuple<size_t, size_t, std::string>> nearest;
  for (const auto& [known, facts] : entries) {
    size_t distance = SIZE_MAX, whole = SIZE_MAX;
    bool goes_on = false;
    for (const std::string& other : PlainNames(facts)) {
      if (!plain.empty() && other == plain) return facts;
      goes_on |= !plain.empty() && absl::StartsWith(other, absl::StrCat(plain, "-"));
      const std::string asked = plain.substr(0, kLongestName);
      whole = std::min(whole, EditDistance(asked, other));
      distance = std::min({distance, whole, EditDistance(asked, other.substr(0, plain.size()))});
    }
    if (goes_on) begins.push_back(&facts);
    nearest.emplace_back(distance, whole, known);
  }
  if (begins.size() == 1) return *begins[0];
  std::vector<std::string> names;
  for (const Facts* facts : begins) names.push_back(facts->name);
  std::sort(nearest.begin(), nearest.end());
  constexpr size_t kShown = 3;
  for (size_t i = 0; begins.empty() && i < std::min(kShown, nearest.size()); ++i) {
    names.push_back(std::get<2>(nearest[i]));
  }
  return absl::NotFoundError(absl::StrCat(
      kind, " \"", View(name), "\" is ",
      begins.empty() ? absl::StrCat("none of the ", entries.size(), " known; the nearest are ")
                     : "the beginning of several, expected one of ",
      absl::StrJoin(names, ", ")));
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
  return Find(devices_, "device", name);
}

absl::StatusOr<ModelFacts> Catalogue::FindModel(std::string_view name) const {
  return Find(models_, "model", name);
}

}  // namespace kvblocks
