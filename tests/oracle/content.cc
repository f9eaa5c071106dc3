#include "tests/oracle/content.h"

namespace kvblocks::oracle {

ExtraKeys ExtraKeysOf(const Content& content, int64_t begin, int64_t end) {
  ExtraKeys keys;
  if (!content.lora_name.empty())
    keys.push_back({ExtraKey::Kind::kLora, content.lora_name, 0, content.lora_path});
  for (const MultimodalFeature& feature : content.features) {
    if (end > feature.offset && begin < feature.offset + feature.length) {
      keys.push_back({ExtraKey::Kind::kMultimodal, feature.identifier, feature.offset - begin});
    }
  }
  if (begin == 0 && !content.cache_salt.empty()) {
    keys.push_back({ExtraKey::Kind::kSalt, content.cache_salt, 0});
  }
  return keys;
}

std::vector<std::string> PrefixNames(const Content& content, int64_t hash_block_size,
                                     int64_t num_lookahead) {
  std::vector<std::string> names;
  std::string name;
  for (int64_t begin = 0; begin + hash_block_size + num_lookahead <= content.num_tokens();
       begin += hash_block_size) {
    const int64_t end = begin + hash_block_size + num_lookahead;
    for (int64_t i = begin; i < end; ++i) {
      name += std::to_string(content.tokens[static_cast<size_t>(i)]) + ",";
    }
    for (const ExtraKey& key : ExtraKeysOf(content, begin, end)) {
      name += "{" + std::to_string(static_cast<int>(key.kind)) + ":" + key.value + "@" +
              std::to_string(key.offset) + "@" + key.path + "}";
    }
    names.push_back(name);
  }
  return names;
}

}  // namespace kvblocks::oracle
