// kvb_plan_json: from a model and a device to a plan and a manager's configuration, as JSON.

#include <utility>

#include "absl/strings/str_cat.h"
#include "c/error.h"
#include "c/handles.h"
#include "c/plan_request.pb.h"
#include "checks/json_writer.h"
#include "google/protobuf/util/json_util.h"
#include "kvblocks/config_source.h"
#include "kvblocks/planning.h"
#include "specs/config/kv_cache_config_proto.h"

namespace kvblocks::c {
namespace {

using v1::PlanRequest;

constexpr int64_t kDefaultInFlightTokens = 8192;
constexpr int64_t kMaxLength = int64_t{1} << 31;

absl::Status Refuse(absl::string_view field, absl::string_view got, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("options: ", field, ": got ", got, ", expected ", expected));
}

absl::StatusOr<ModelFacts> FindModel(const PlanRequest& request,
                                     std::optional<std::string_view> hf_config) {
  if (request.has_model() && hf_config) {
    return Refuse("model", absl::StrCat("\"", request.model(), "\" and a config.json"),
                  "one of the two");
  }
  if (hf_config) return ModelFromHfConfig(*hf_config, "hf_config");
  if (!request.has_model()) return Refuse("model", "nothing", "a name, or a config.json");
  return Catalogue::BuiltIn().FindModel(request.model());
}

absl::StatusOr<int64_t> AvailableBytes(const PlanRequest& request, const ModelFacts& model,
                                       int64_t ranks) {
  if (request.has_available_bytes() == request.has_device()) {
    return Refuse("device", request.has_device() ? "device and available_bytes" : "nothing",
                  "one of device and available_bytes");
  }
  if (request.has_available_bytes()) return request.available_bytes();
  auto device = Catalogue::BuiltIn().FindDevice(request.device());
  if (!device.ok()) return device.status();
  PoolMemory memory{.device = *std::move(device), .model = model, .tensor_parallel = ranks};
  if (request.has_memory_utilization()) memory.utilization = request.memory_utilization();
  if (request.has_activation_gb()) memory.activation_gb = request.activation_gb();
  if (request.has_graph_gb()) memory.graph_gb = request.graph_gb();
  return CacheBytesInMemory(memory);
}

absl::Status ReadPolicy(const PlanRequest& request, PlanOptions* options) {
  if (request.policy() == PolicyName(PlanPolicy::kUpstream)) {
    options->policy = PlanPolicy::kUpstream;
  } else if (request.has_policy() && request.policy() != PolicyName(PlanPolicy::kExact)) {
    return Refuse("policy", absl::StrCat("\"", request.policy(), "\""), "exact or upstream");
  }
  if (!request.has_layout()) return absl::OkStatus();
  for (PoolLayout layout : {PoolLayout::kUniform, PoolLayout::kSlab, PoolLayout::kNative}) {
    if (request.layout() == LayoutName(layout)) options->layout = layout;
  }
  if (options->layout) return absl::OkStatus();
  return Refuse("layout", absl::StrCat("\"", request.layout(), "\""), "uniform, slab or native");
}

absl::StatusOr<Plan> MakePlanOf(const PlanRequest& request, const ModelFacts& model,
                                int64_t available_bytes, int64_t ranks) {
  LayerCacheOptions layer_options{.tensor_parallel = ranks};
  if (request.has_kv_cache_dtype()) layer_options.cache_dtype = request.kv_cache_dtype();
  if (request.has_block_size()) layer_options.block_size = request.block_size();
  const bool prefix_caching = !request.has_prefix_caching() || request.prefix_caching();
  // States for reuse lie where blocks end.
  if (prefix_caching) layer_options.mamba_cache_mode = MambaCacheMode::kAlign;
  auto layers = LayerCaches(model, layer_options);
  if (!layers.ok()) return layers.status();
  PlanOptions options{.limits = {.max_model_len = request.max_model_len(),
                                 .max_in_flight_tokens = request.has_max_in_flight_tokens()
                                                             ? request.max_in_flight_tokens()
                                                             : kDefaultInFlightTokens},
                      .available_bytes = {available_bytes},
                      .hashes_needed = prefix_caching};
  if (model.max_position_embeddings > 0) {
    options.longest_automatic_len = model.max_position_embeddings;
  }
  if (absl::Status status = ReadPolicy(request, &options); !status.ok()) return status;
  PlanResult result = MakePlan(*layers, options);
  if (result.ok()) return *std::move(result.plan);
  std::string text;
  for (const PlanError& error : result.errors) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", PlanErrorName(error.code), ": ",
                    error.message);
  }
  return absl::InvalidArgumentError(text);
}

// The configuration that the plan stands for, as kvb_manager_create reads it.
absl::StatusOr<std::string> ConfigJson(const PlanRequest& request, const Plan& plan) {
  config::v1::KvCacheManagerConfig config;
  *config.mutable_cache() = ToProto(plan.config);
  config.mutable_options()->set_max_model_len(plan.limits.max_model_len);
  config.mutable_options()->set_max_in_flight_tokens(plan.limits.max_in_flight_tokens);
  if (request.has_prefix_caching()) {
    config.mutable_options()->set_enable_caching(request.prefix_caching());
  }
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(config, &json, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  return json;
}

std::string PlanJson(const ModelFacts& model, const Plan& plan, int64_t available_bytes,
                     const std::vector<int64_t>& lengths, std::string_view config) {
  JsonWriter json;
  json.BeginObject();
  json.Key("model").Value(model.name);
  json.Key("policy").Value(PolicyName(plan.policy));
  json.Key("layout").Value(LayoutName(plan.layout));
  json.Key("available_bytes").Value(available_bytes);
  json.Key("max_model_len").Value(plan.limits.max_model_len);
  json.Key("num_blocks").Value(plan.num_blocks());
  json.Key("allocatable_blocks").Value(plan.num_allocatable_blocks());
  json.Key("groups").BeginArray();
  for (const PlannedGroup& group : plan.groups) {
    json.BeginObject();
    json.Key("kind").Value(group.spec.kind_name());
    json.Key("layers").Value(static_cast<int64_t>(group.layers.size()));
    json.Key("block_size").Value(group.spec.block_size());
    json.Key("page_bytes").Value(group.page_bytes);  // over the group's layers
    json.EndObject();
  }
  json.EndArray();
  json.Key("lengths").BeginArray();
  for (const int64_t length : lengths) {
    json.BeginObject();
    json.Key("length").Value(length);
    json.Key("blocks_per_request").Value(plan.TotalBlocksPerRequest(length));
    json.Key("concurrency").Value(plan.Concurrency(length));
    json.EndObject();
  }
  json.EndArray();
  json.Key("longest_context").Value(plan.LongestContext(kMaxLength));
  json.Key("config").Raw(config);
  json.EndObject();
  return json.text();
}

absl::StatusOr<std::string> AnswerPlan(std::string_view text,
                                       std::optional<std::string_view> hf_config) {
  PlanRequest request;
  const auto source = ConfigSource::Parse(text, "options", ConfigSyntax::kJson, request);
  if (!source.ok()) return source.status();
  const int64_t ranks = request.has_tensor_parallel() ? request.tensor_parallel() : 1;
  const auto model = FindModel(request, hf_config);
  if (!model.ok()) return model.status();
  const auto bytes = AvailableBytes(request, *model, ranks);
  if (!bytes.ok()) return bytes.status();
  const auto plan = MakePlanOf(request, *model, *bytes, ranks);
  if (!plan.ok()) return plan.status();
  std::vector<int64_t> lengths(request.lengths().begin(), request.lengths().end());
  if (lengths.empty()) lengths.push_back(plan->limits.max_model_len);
  for (const int64_t length : lengths) {
    if (length >= 1 && length <= plan->limits.max_model_len) continue;
    return Refuse("lengths", absl::StrCat(length),
                  absl::StrCat("1 to ", plan->limits.max_model_len));
  }
  const auto config = ConfigJson(request, *plan);
  if (!config.ok()) return config.status();
  return PlanJson(*model, *plan, *bytes, lengths, *config);
}

}  // namespace
}  // namespace kvblocks::c

using namespace kvblocks::c;  // NOLINT: the file is the C interface

extern "C" kvb_status kvb_plan_json(const char* options, size_t options_size, const char* hf_config,
                                    size_t hf_config_size, char** json) {
  KVB_REQUIRE(options, json);
  *json = nullptr;
  return Guard([&] {
    std::optional<std::string_view> model_text;
    if (hf_config != nullptr) model_text.emplace(hf_config, hf_config_size);
    const auto answer = AnswerPlan({options, options_size}, model_text);
    // That a plan does not fit is about the device's memory, not the host's.
    if (absl::IsResourceExhausted(answer.status())) {
      return Fail(KVB_INVALID_ARGUMENT, std::string(answer.status().message()));
    }
    if (!answer.ok()) return Fail(answer.status());
    *json = NewString(*answer);
    return KVB_OK;
  });
}
