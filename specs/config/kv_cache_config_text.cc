#include "kvblocks/specs/config/kv_cache_config_text.h"

#include "kvblocks/specs/config/kv_cache_config.pb.h"
#include "kvblocks/specs/config/kv_cache_config_proto.h"

namespace kvblocks {
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
