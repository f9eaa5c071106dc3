// Configuration files, in text format or (what begins with a brace) in JSON: any text is either
// refused at a place in the file or gives a config that is valid and survives the way to its
// message, to text and to JSON and back.

#include <string>

#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"
#include "kvblocks/kv_cache_config.h"
#include "specs/config/kv_cache_config_proto.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  const auto rest = input.Rest();
  const bool is_json = !rest.empty() && rest[0] == '{';
  const auto config = is_json ? kvblocks::KvCacheConfigFromJson(rest, "file.txtpb")
                              : kvblocks::KvCacheConfigFromText(rest, "file.txtpb");
  if (!config.ok()) {
    const std::string message(config.status().message());
    FUZZ_EXPECT(message.rfind("file.txtpb:", 0) == 0, message);
    return 0;
  }
  FUZZ_EXPECT(Validate(*config).ok(), Validate(*config).ToString());
  const auto again = kvblocks::FromProto(kvblocks::ToProto(*config));
  FUZZ_EXPECT(again.ok() && *again == *config, again.status().ToString());
  std::string text;
  FUZZ_EXPECT(google::protobuf::TextFormat::PrintToString(kvblocks::ToProto(*config), &text), "");
  const auto reread = kvblocks::KvCacheConfigFromText(text, "again.txtpb");
  FUZZ_EXPECT(reread.ok() && *reread == *config, reread.status().ToString() + "\n" + text);
  std::string json;
  FUZZ_EXPECT(google::protobuf::util::MessageToJsonString(kvblocks::ToProto(*config), &json).ok(),
              text);
  const auto from_json = kvblocks::KvCacheConfigFromJson(json, "again.json");
  FUZZ_EXPECT(from_json.ok() && *from_json == *config, from_json.status().ToString() + "\n" + json);
  return 0;
}
