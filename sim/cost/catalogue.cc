#include "sim/cost/catalogue.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "block_pool/check.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "sim/cost/catalogue.pb.h"
#include "sim/cost/catalogue_data.h"

namespace kvblocks::sim {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) text_ = absl::StrCat(line + 1, ":", column + 1, ": error: ", message);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

DeviceFacts FromProto(const cost::v1::Device& device) {
  return {.name = device.name(),
          .bf16_tflops = device.bf16_tflops(),
          .memory_gb_per_s = device.memory_gb_per_s(),
          .memory_gb = device.memory_gb(),
          .link_gb_per_s = device.link_gb_per_s()};
}

ModelFacts FromProto(const cost::v1::Model& model) {
  ModelFacts facts;
  facts.name = model.name();
  facts.full_layers = model.full_layers();
  facts.window_layers = model.window_layers();
  facts.window = model.window();
  facts.hidden_size = model.hidden_size();
  facts.num_heads = model.num_heads();
  facts.num_kv_heads = model.num_kv_heads();
  facts.head_size = model.head_size();
  facts.vocab_size = model.vocab_size();
  facts.params_b = model.params_b();
  facts.active_params_b = model.active_params_b() == 0 ? model.params_b() : model.active_params_b();
  facts.tied_embeddings = model.tied_embeddings();
  if (model.bytes_per_param() != 0) facts.bytes_per_param = model.bytes_per_param();
  facts.bytes_per_expert_param = facts.bytes_per_param;
  if (model.has_moe()) {
    facts.num_experts = model.moe().num_experts();
    facts.experts_per_token = model.moe().experts_per_token();
    facts.expert_intermediate_size = model.moe().intermediate_size();
    facts.moe_layers = model.moe().num_layers();
    if (model.moe().bytes_per_param() != 0) {
      facts.bytes_per_expert_param = model.moe().bytes_per_param();
    }
  }
  return facts;
}

// Checks the fields of one entry; the first error stays.
class Checker {
 public:
  Checker(absl::string_view kind, const std::string& name) : entry_(absl::StrCat(kind, " ", name)) {
    if (name.empty()) {
      status_ = absl::InvalidArgumentError(absl::StrCat(kind, " without a name"));
    }
  }
  void Range(absl::string_view field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return;
    Fail(absl::StrCat(field, " is ", value, ", expected ", low, " to ", high));
  }
  // Also refuses NaN.
  void Range(absl::string_view field, double value, double low, double high) {
    if (value >= low && value <= high) return;
    Fail(absl::StrCat(field, " is ", value, ", expected ", low, " to ", high));
  }
  void Fail(const std::string& what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(entry_, ": ", what));
  }
  const absl::Status& status() const { return status_; }

 private:
  std::string entry_;
  absl::Status status_;
};

template <typename Map>
std::string Names(const Map& map) {
  std::string names;
  for (const auto& [name, facts] : map) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  return names;
}

constexpr double kMinRate = 1e-6;
constexpr double kMaxRate = 1e9;
constexpr int64_t kMaxSize = int64_t{1} << 30;

}  // namespace

double ModelFacts::embedding_params_b() const {
  return static_cast<double>(hidden_size) * static_cast<double>(vocab_size) / 1e9 *
         (tied_embeddings ? 1 : 2);
}

double ModelFacts::routed_params_b() const {
  // Gate, up and down projections.
  return 3.0 * static_cast<double>(moe_layers) * static_cast<double>(num_experts) *
         static_cast<double>(hidden_size) / 1e9 * static_cast<double>(expert_intermediate_size);
}

double ModelFacts::weight_bytes() const {
  const double routed = routed_params_b();
  return ((params_b - routed) * bytes_per_param + routed * bytes_per_expert_param) * 1e9;
}

absl::Status Validate(const DeviceFacts& device) {
  Checker check("device", device.name);
  check.Range("bf16_tflops", device.bf16_tflops, kMinRate, kMaxRate);
  check.Range("memory_gb_per_s", device.memory_gb_per_s, kMinRate, kMaxRate);
  check.Range("memory_gb", device.memory_gb, kMinRate, kMaxRate);
  check.Range("link_gb_per_s", device.link_gb_per_s, 0.0, kMaxRate);
  return check.status();
}

absl::Status Validate(const ModelFacts& model) {
  Checker check("model", model.name);
  check.Range("full_layers", model.full_layers, 0, 100000);
  check.Range("window_layers", model.window_layers, 0, 100000);
  if (model.num_layers() < 1) check.Fail("full_layers + window_layers is 0, expected at least 1");
  check.Range("window", model.window, model.window_layers > 0 ? 1 : 0, kMaxSize);
  check.Range("hidden_size", model.hidden_size, 1, kMaxSize);
  check.Range("num_heads", model.num_heads, 1, 100000);
  check.Range("num_kv_heads", model.num_kv_heads, 1, 100000);
  check.Range("head_size", model.head_size, 1, 100000);
  check.Range("vocab_size", model.vocab_size, 1, kMaxSize);
  check.Range("params_b", model.params_b, 1e-9, 1e6);
  check.Range("active_params_b", model.active_params_b, 1e-9, model.params_b);
  check.Range("bytes_per_param", model.bytes_per_param, 1e-3, 16.0);
  if (model.embedding_params_b() > model.active_params_b) {
    check.Fail(absl::StrCat("active_params_b is ", model.active_params_b,
                            ", expected at least the embeddings' ", model.embedding_params_b()));
  }
  if (model.num_experts != 0 || model.experts_per_token != 0 || model.moe_layers != 0) {
    check.Range("moe.num_experts", model.num_experts, 1, 1000000);
    check.Range("moe.experts_per_token", model.experts_per_token, 1, model.num_experts);
    check.Range("moe.intermediate_size", model.expert_intermediate_size, 1, kMaxSize);
    check.Range("moe.num_layers", model.moe_layers, 1, model.num_layers());
    check.Range("moe.bytes_per_param", model.bytes_per_expert_param, 1e-3, 16.0);
    if (model.routed_params_b() > model.params_b) {
      check.Fail(absl::StrCat("params_b is ", model.params_b, ", expected at least the experts' ",
                              model.routed_params_b()));
    }
  }
  return check.status();
}

const Catalogue& Catalogue::BuiltIn() {
  static const Catalogue* const kBuiltIn = [] {
    auto* catalogue = new Catalogue;
    const absl::Status status = catalogue->Merge(kCatalogueText, "the built-in catalogue");
    KVBLOCKS_CHECK(status.ok(), status.ToString());
    return catalogue;
  }();
  return *kBuiltIn;
}

absl::Status Catalogue::Merge(std::string_view text, std::string_view source) {
  cost::v1::Catalogue proto;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &proto)) {
    return absl::InvalidArgumentError(absl::StrCat(View(source), ":", error.text()));
  }
  Catalogue merged = *this;
  for (const cost::v1::Device& device : proto.device()) {
    DeviceFacts facts = FromProto(device);
    if (absl::Status status = Validate(facts); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(View(source), ": error: ", status.message()));
    }
    merged.devices_.insert_or_assign(facts.name, facts);
  }
  for (const cost::v1::Model& model : proto.model()) {
    ModelFacts facts = FromProto(model);
    if (absl::Status status = Validate(facts); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(View(source), ": error: ", status.message()));
    }
    merged.models_.insert_or_assign(facts.name, facts);
  }
  *this = std::move(merged);
  return absl::OkStatus();
}

absl::StatusOr<DeviceFacts> Catalogue::FindDevice(std::string_view name) const {
  if (const auto it = devices_.find(name); it != devices_.end()) return it->second;
  return absl::NotFoundError(
      absl::StrCat("device \"", View(name), "\" is unknown, expected one of ", Names(devices_)));
}

absl::StatusOr<ModelFacts> Catalogue::FindModel(std::string_view name) const {
  if (const auto it = models_.find(name); it != models_.end()) return it->second;
  return absl::NotFoundError(
      absl::StrCat("model \"", View(name), "\" is unknown, expected one of ", Names(models_)));
}

}  // namespace kvblocks::sim
