#include "specs/config/kv_cache_config_proto.h"

#include <concepts>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checks/field_error.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "kvblocks/kv_cache_spec.h"
#include "specs/config/kv_cache_config.pb.h"
#include "specs/spec_fields.h"

namespace kvblocks {
namespace {

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;

constexpr int64_t kMaxLayersOfGroup = 10'000;

// What a required field that is absent is reported as having.
absl::Status Missing(std::string_view field, std::string_view expected) {
  return FieldError(field, "nothing", expected);
}

// --- One field of a spec. A kind's message and the table of fields (spec_fields.h) name it alike,
// so that one reader and one writer serve all kinds. ---

// A place in a message: a field by its number, or one element of a list of messages.
struct Slot {
  const Message& message;
  const FieldDescriptor* field;

  int64_t Int() const { return message.GetReflection()->GetInt64(message, field); }
  bool Bool() const { return message.GetReflection()->GetBool(message, field); }
  std::string Text() const { return message.GetReflection()->GetString(message, field); }
};

template <typename T>
absl::Status Keep(absl::StatusOr<T> value, T& out) {
  if (value.ok()) out = *std::move(value);
  return value.status();
}

absl::Status Read(const Slot& slot, int64_t& out) { return Keep<int64_t>(slot.Int(), out); }
absl::Status Read(const Slot& slot, std::optional<int64_t>& out) {
  out = slot.Int();
  return absl::OkStatus();
}
absl::Status Read(const Slot& slot, bool& out) { return Keep<bool>(slot.Bool(), out); }
absl::Status Read(const Slot& slot, DataType& out) { return Keep(ParseDataType(slot.Text()), out); }
absl::Status Read(const Slot& slot, QuantMode& out) {
  return Keep(ParseQuantMode(slot.Text()), out);
}
absl::Status Read(const Slot& slot, ModelVersion& out) {
  return Keep(ParseModelVersion(slot.Text()), out);
}
absl::Status Read(const Slot& slot, MambaCacheMode& out) {
  return Keep(ParseMambaCacheMode(slot.Text()), out);
}
absl::Status Read(const Slot& slot, PageBytesFormula& out) {
  out = slot.Bool() ? PageBytesFormula::kUpstreamCompatible : PageBytesFormula::kExact;
  return absl::OkStatus();
}
absl::Status Read(const Slot& slot, std::vector<MambaState>& out) {
  const auto* const reflection = slot.message.GetReflection();
  for (int i = 0; i < reflection->FieldSize(slot.message, slot.field); ++i) {
    const std::string path = "states[" + std::to_string(i) + "]";
    const auto& state = static_cast<const config::v1::MambaState&>(
        reflection->GetRepeatedMessage(slot.message, slot.field, i));
    if (!state.has_dtype()) {
      return WithFieldPrefix(Missing("dtype", "the storage type, \"bf16\" for one"), path);
    }
    const absl::StatusOr<DataType> dtype = ParseDataType(state.dtype());
    if (!dtype.ok()) return WithFieldPrefix(dtype.status(), path);
    out.push_back({{state.shape().begin(), state.shape().end()}, *dtype});
  }
  return absl::OkStatus();
}

void Write(Message& m, const FieldDescriptor* field, int64_t value) {
  m.GetReflection()->SetInt64(&m, field, value);
}
void Write(Message& m, const FieldDescriptor* field, const std::optional<int64_t>& value) {
  if (value.has_value()) Write(m, field, *value);
}
void Write(Message& m, const FieldDescriptor* field, std::same_as<bool> auto value) {
  m.GetReflection()->SetBool(&m, field, value);
}
void Write(Message& m, const FieldDescriptor* field, PageBytesFormula value) {
  Write(m, field, value == PageBytesFormula::kUpstreamCompatible);
}
void Write(Message& m, const FieldDescriptor* field, const std::vector<MambaState>& states) {
  for (const MambaState& state : states) {
    auto& out = static_cast<config::v1::MambaState&>(*m.GetReflection()->AddMessage(&m, field));
    for (const int64_t dimension : state.shape) out.add_shape(dimension);
    out.set_dtype(std::string(DataTypeName(state.dtype)));
  }
}
template <typename Enum>
void Write(Message& m, const FieldDescriptor* field, Enum value) {
  m.GetReflection()->SetString(&m, field, FieldText(value));
}

// --- A spec ---

const FieldDescriptor* FieldOf(const Message& message, std::string_view name) {
  return message.GetDescriptor()->FindFieldByName(std::string(name));
}

bool Has(const Message& message, const FieldDescriptor* field) {
  return field->is_repeated() ? message.GetReflection()->FieldSize(message, field) > 0
                              : message.GetReflection()->HasField(message, field);
}

// Ranges are checked by Create.
absl::StatusOr<KvCacheSpec> ReadKind(const Message& message, KvCacheSpecKind kind,
                                     const KvCacheKind* registered_kind) {
  KvCacheSpecOptions options;
  absl::Status status;
  ForEachSpecField([&](const SpecField& field, auto member) {
    if (!field.In(kind)) return;
    const FieldDescriptor* const descriptor = FieldOf(message, field.name);
    if (Has(message, descriptor)) {
      status.Update(Read({message, descriptor}, options.*member));
    } else if (field.RequiredIn(kind)) {
      status.Update(Missing(field.name, field.expected));
    }
  });
  if (!status.ok()) return status;
  return registered_kind == nullptr ? KvCacheSpec::Create(kind, options)
                                    : KvCacheSpec::Create(*registered_kind, options);
}

absl::StatusOr<KvCacheSpec> ReadSpec(const config::v1::KvCacheSpec& message) {
  const KvCacheKind* registered_kind = nullptr;
  if (message.has_custom_kind()) {
    registered_kind = FindKvCacheKind(message.custom_kind());
    if (registered_kind == nullptr) {
      return FieldError("custom_kind", '"' + message.custom_kind() + '"', RegisteredKinds());
    }
  }
  for (int i = 0; i < kNumSpecKinds; ++i) {
    const auto kind = static_cast<KvCacheSpecKind>(i);
    const FieldDescriptor* const field = FieldOf(message, KindName(kind));
    if (!Has(message, field)) continue;
    if (registered_kind != nullptr && registered_kind->managed_like != kind) {
      return FieldError(
          "custom_kind", '"' + registered_kind->name + '"',
          "a kind that is managed like " + std::string(KindName(kind)),
          "write its fields under " + std::string(KindName(registered_kind->managed_like)));
    }
    absl::StatusOr<KvCacheSpec> spec =
        ReadKind(message.GetReflection()->GetMessage(message, field), kind, registered_kind);
    if (!spec.ok()) return WithFieldPrefix(spec.status(), KindName(kind));
    return spec;
  }
  return Missing("kind", SupportedKinds());
}

void WriteSpec(const KvCacheSpec& spec, config::v1::KvCacheSpec& message) {
  if (spec.registered_kind() != nullptr) message.set_custom_kind(std::string(spec.kind_name()));
  Message& out =
      *message.GetReflection()->MutableMessage(&message, FieldOf(message, KindName(spec.kind())));
  ForEachSpecField([&](const SpecField& field, auto member) {
    if (field.In(spec.kind())) Write(out, FieldOf(out, field.name), spec.options().*member);
  });
}

absl::StatusOr<std::vector<std::string>> ReadLayerNames(const config::v1::KvCacheGroup& message,
                                                        const std::string& path) {
  if (!message.has_num_layers()) {
    if (message.layer_names().empty()) return Missing("layer_names", "at least one name");
    return std::vector<std::string>(message.layer_names().begin(), message.layer_names().end());
  }
  absl::Status status = CheckRange("num_layers", message.num_layers(), 1, kMaxLayersOfGroup);
  if (!message.layer_names().empty()) {
    status.Update(FieldError("num_layers", std::to_string(message.num_layers()),
                             "either layer_names or num_layers", "remove one of them"));
  }
  if (!status.ok()) return status;
  std::vector<std::string> names;
  for (int64_t i = 0; i < message.num_layers(); ++i) {
    names.push_back(path + ".layers[" + std::to_string(i) + "]");
  }
  return names;
}

absl::StatusOr<KvCacheGroup> ReadGroup(const config::v1::KvCacheGroup& message,
                                       const std::string& path) {
  if (!message.has_spec()) return Missing("spec", "a spec of " + SupportedKinds());
  absl::StatusOr<KvCacheSpec> spec = ReadSpec(message.spec());
  if (!spec.ok()) return WithFieldPrefix(spec.status(), "spec");
  auto names = ReadLayerNames(message, path);
  if (!names.ok()) return names.status();
  return KvCacheGroup{*std::move(spec), *std::move(names), message.is_draft()};
}

}  // namespace

absl::StatusOr<KvCacheConfig> FromProto(const config::v1::KvCacheConfig& message) {
  if (!message.has_num_blocks()) {
    return Missing("num_blocks", "a number from 1 to " + std::to_string(kMaxNumBlocks));
  }
  KvCacheConfig config;
  config.num_blocks = message.num_blocks();
  for (int g = 0; g < message.groups_size(); ++g) {
    const std::string path = "groups[" + std::to_string(g) + "]";
    absl::StatusOr<KvCacheGroup> group = ReadGroup(message.groups(g), path);
    if (!group.ok()) return WithFieldPrefix(group.status(), path);
    config.groups.push_back(*std::move(group));
  }
  if (message.has_scheduler_block_size()) {
    config.scheduler_block_size = message.scheduler_block_size();
  }
  if (message.has_hash_block_size()) config.hash_block_size = message.hash_block_size();
  if (message.has_native()) {
    const config::v1::NativeLayout& native = message.native();
    config.native = {native.num_chunks(),
                     {native.pages_per_chunk().begin(), native.pages_per_chunk().end()},
                     {native.class_of_group().begin(), native.class_of_group().end()}};
  }
  if (absl::Status status = Validate(config); !status.ok()) return status;
  return config;
}

config::v1::KvCacheConfig ToProto(const KvCacheConfig& config) {
  config::v1::KvCacheConfig message;
  message.set_num_blocks(config.num_blocks);
  for (const KvCacheGroup& group : config.groups) {
    config::v1::KvCacheGroup& out = *message.add_groups();
    WriteSpec(group.spec, *out.mutable_spec());
    for (const std::string& name : group.layer_names) out.add_layer_names(name);
    out.set_is_draft(group.is_draft);
  }
  if (config.scheduler_block_size.has_value()) {
    message.set_scheduler_block_size(*config.scheduler_block_size);
  }
  if (config.hash_block_size.has_value()) message.set_hash_block_size(*config.hash_block_size);
  if (config.native.has_value()) {
    config::v1::NativeLayout& native = *message.mutable_native();
    native.set_num_chunks(config.native->num_chunks);
    for (const int64_t pages : config.native->pages_per_chunk) native.add_pages_per_chunk(pages);
    for (const int32_t page_class : config.native->class_of_group) {
      native.add_class_of_group(page_class);
    }
  }
  return message;
}

namespace {

absl::StatusOr<KvCacheConfig> Read(std::string_view text, std::string_view source_name,
                                   ConfigSyntax syntax) {
  config::v1::KvCacheConfig message;
  const auto source = ConfigSource::Parse(text, source_name, syntax, message);
  if (!source.ok()) return source.status();
  absl::StatusOr<KvCacheConfig> config = FromProto(message);
  if (!config.ok()) return source->Locate(config.status());
  return config;
}

}  // namespace

absl::StatusOr<KvCacheConfig> KvCacheConfigFromText(std::string_view text,
                                                    std::string_view source_name) {
  return Read(text, source_name, ConfigSyntax::kText);
}

absl::StatusOr<KvCacheConfig> KvCacheConfigFromJson(std::string_view json,
                                                    std::string_view source_name) {
  return Read(json, source_name, ConfigSyntax::kJson);
}

absl::StatusOr<KvCacheConfig> LoadKvCacheConfig(const std::string& path) {
  const auto text = ReadConfigFile(path);
  if (!text.ok()) return text.status();
  return Read(*text, path, ConfigSyntax::kDetect);
}

}  // namespace kvblocks
