// Settings from text or JSON, with the place of each in errors.

#ifndef KVBLOCKS_CONFIG_SOURCE_H_
#define KVBLOCKS_CONFIG_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Configuration files: read with a bound, parsed from protobuf text format or JSON, and refused
// with the place of the error, "FILE:LINE:COLUMN: error: FIELD: got VALUE, expected WHAT (HINT)".
//
//   config::v1::KvCacheConfig message;
//   auto source = ConfigSource::Parse(text, "pool.txtpb", ConfigSyntax::kDetect, message);
//   if (!source.ok()) return source.status();
//   if (auto config = FromProto(message); !config.ok()) return source->Locate(config.status());
//
// Lines and columns count from 1, columns in bytes. Only the first error is reported.

namespace google::protobuf {
class Message;
}

namespace kvblocks {

inline constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

enum class ConfigSyntax {
  kText,    // protobuf text format
  kJson,    // the fields' own names or their lowerCamelCase ones
  kDetect,  // JSON if the first character that is no blank is a brace
};

// The text of a file. Refuses a path that cannot be read (NotFound, PermissionDenied or what else
// the system says), a directory, and a file of more than kMaxConfigBytes, of which no more than
// that is read.
absl::StatusOr<std::string> ReadConfigFile(const std::string& path);

class ConfigSource {
 public:
  // `name` is used in messages only. The text is copied. On error `message` holds anything.
  static absl::StatusOr<ConfigSource> Parse(std::string_view text, std::string_view name,
                                            ConfigSyntax syntax,
                                            google::protobuf::Message& message);
  ConfigSource(ConfigSource&&);
  ConfigSource& operator=(ConfigSource&&);
  ~ConfigSource();

  // `error` at the place where the field that it names (see FieldOfError) was written; the place of
  // the innermost message around a field that is missing; line 1 for errors that name none.
  absl::Status Locate(const absl::Status& error) const;

 private:
  struct Parsed;
  explicit ConfigSource(std::unique_ptr<Parsed> parsed);

  std::unique_ptr<Parsed> parsed_;
};

}  // namespace kvblocks

#endif  // KVBLOCKS_CONFIG_SOURCE_H_
