#include "kvblocks/kv_cache_config.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "checks/field_error.h"

namespace kvblocks {
namespace {

std::string Indexed(std::string_view name, size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

// Names travel into reports and logs, where control characters and broken encodings would do harm.
bool IsPrintable(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

// Every layer cache is in exactly one group, once.
absl::Status CheckLayerNames(const std::vector<KvCacheGroup>& groups) {
  absl::flat_hash_map<std::string, std::string> path_of_name;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].layer_names.size(); ++i) {
      const std::string& name = groups[g].layer_names[i];
      const std::string path = Indexed("groups", g) + "." + Indexed("layer_names", i);
      if (name.empty()) return FieldError(path, "\"\"", "a name");
      if (!IsPrintable(name)) {
        return FieldError(path, '"' + absl::CHexEscape(name) + '"', "printable ASCII");
      }
      const auto [earlier, inserted] = path_of_name.emplace(name, path);
      if (!inserted) {
        return FieldError(path, '"' + name + '"', "every layer cache in exactly one group",
                          "also at " + earlier->second);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckKinds(const std::vector<KvCacheGroup>& groups) {
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].spec.kind() == KvCacheSpecKind::kEncoderOnlyAttention) {
      return FieldError(Indexed("groups", g) + ".spec", "encoder_only_attention",
                        "a kind that stores something between steps",
                        "leave such layers out of the groups");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSchedulerBlockSize(const KvCacheConfig& config) {
  const int64_t scheduler = *config.scheduler_block_size;
  const std::string got = std::to_string(scheduler);
  if (config.hash_block_size.has_value() && scheduler % *config.hash_block_size != 0) {
    return FieldError("scheduler_block_size", got,
                      "a multiple of hash_block_size " + std::to_string(*config.hash_block_size));
  }
  for (size_t g = 0; g < config.groups.size(); ++g) {
    if (!config.groups[g].spec.is_prefix_cacheable()) continue;
    const int64_t block_size = config.groups[g].spec.block_size();
    if (scheduler % block_size != 0) {
      return FieldError("scheduler_block_size", got, "a multiple of every group's block size",
                        Indexed("groups", g) + " has block size " + std::to_string(block_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNativeLayout(const KvCacheConfig& config) {
  const NativeLayout& native = *config.native;
  absl::Status status = CheckRange("native.num_chunks", native.num_chunks, 1, kMaxNumBlocks);
  if (native.pages_per_chunk.empty()) {
    status.Update(FieldError("native.pages_per_chunk", "no entry", "one per page class"));
  }
  for (size_t k = 0; k < native.pages_per_chunk.size(); ++k) {
    status.Update(CheckRange(Indexed("native.pages_per_chunk", k), native.pages_per_chunk[k], 1,
                             kMaxNumBlocks));
  }
  if (!status.ok()) return status;
  if (native.class_of_group.size() != config.groups.size()) {
    return FieldError("native.class_of_group",
                      std::to_string(native.class_of_group.size()) + " entries",
                      "one for each of " + std::to_string(config.groups.size()) + " groups");
  }
  for (size_t g = 0; g < native.class_of_group.size(); ++g) {
    const int32_t page_class = native.class_of_group[g];
    if (page_class < 0 || static_cast<size_t>(page_class) >= native.pages_per_chunk.size()) {
      return FieldError(Indexed("native.class_of_group", g), std::to_string(page_class),
                        "one of " + std::to_string(native.pages_per_chunk.size()) + " classes");
    }
  }
  // Both factors are at most 2^31, so the product fits.
  const int64_t num_blocks = 1 + native.num_chunks * native.ids_per_chunk();
  if (config.num_blocks != num_blocks) {
    return FieldError("num_blocks", std::to_string(config.num_blocks), std::to_string(num_blocks),
                      "a native layout has the null block and num_chunks times the pages of its "
                      "most finely cut class");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const KvCacheConfig& config) {
  absl::Status status = CheckRange("num_blocks", config.num_blocks, 1, kMaxNumBlocks);
  status.Update(CheckKinds(config.groups));
  status.Update(CheckLayerNames(config.groups));
  status.Update(CheckPositive("hash_block_size", config.hash_block_size));
  status.Update(CheckPositive("scheduler_block_size", config.scheduler_block_size));
  if (status.ok() && config.scheduler_block_size.has_value()) {
    status = CheckSchedulerBlockSize(config);
  }
  if (status.ok() && config.native.has_value()) status = CheckNativeLayout(config);
  return status;
}

bool IsMixedPrecision(const KvCacheConfig& config) {
  for (const KvCacheGroup& group : config.groups) {
    const KvCacheSpec& first = config.groups.front().spec;
    if (group.spec.dtype() != first.dtype() || group.spec.quant_mode() != first.quant_mode()) {
      return true;
    }
  }
  return false;
}

bool NeedsZeroedBlocks(const KvCacheConfig& config) {
  return IsMixedPrecision(config) ||
         std::ranges::any_of(config.groups, [](const KvCacheGroup& group) {
           return group.spec.kind() == KvCacheSpecKind::kMamba;
         });
}

}  // namespace kvblocks
