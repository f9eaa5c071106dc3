#include "kvblocks/sim/commands/kv_cache_groups.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kvblocks/specs/data_type.h"

namespace kvblocks::sim {
namespace {

using ::kvblocks::config::v1::ReplayConfig;
using GroupMessage = ::kvblocks::config::v1::KvCacheGroup;

constexpr int64_t kMaxLayers = 10'000;
constexpr int64_t kDefaultBlockSize = 16;  // tokens

absl::StatusOr<KvCacheSpec> MakeSpec(const GroupMessage& group, const CacheDtype& dtype) {
  const auto wrap = [](const auto& spec) -> absl::StatusOr<KvCacheSpec> {
    if (!spec.ok()) return spec.status();
    return KvCacheSpec(*spec);
  };
  if (group.kind() == "full_attention") {
    return wrap(FullAttentionSpec::Create({.block_size = group.block_size(),
                                           .num_kv_heads = group.num_kv_heads(),
                                           .head_size = group.head_size(),
                                           .dtype = dtype.storage,
                                           .quant_mode = dtype.mode}));
  }
  if (group.kind() == "sliding_window") {
    return wrap(SlidingWindowSpec::Create({.block_size = group.block_size(),
                                           .num_kv_heads = group.num_kv_heads(),
                                           .head_size = group.head_size(),
                                           .sliding_window = group.window(),
                                           .dtype = dtype.storage,
                                           .quant_mode = dtype.mode}));
  }
  if (group.kind() == "chunked_local_attention") {
    return wrap(ChunkedLocalAttentionSpec::Create({.block_size = group.block_size(),
                                                   .num_kv_heads = group.num_kv_heads(),
                                                   .head_size = group.head_size(),
                                                   .attention_chunk_size = group.window(),
                                                   .dtype = dtype.storage,
                                                   .quant_mode = dtype.mode}));
  }
  if (group.kind() == "mla_attention") {
    return wrap(MlaAttentionSpec::Create({.block_size = group.block_size(),
                                          .head_size = group.head_size(),
                                          .dtype = dtype.storage,
                                          .quant_mode = dtype.mode}));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("kind is \"", group.kind(),
                   "\", expected full_attention, sliding_window, chunked_local_attention or "
                   "mla_attention"));
}

}  // namespace

absl::StatusOr<ReplayGroups> MakeKvCacheGroups(const ReplayConfig& config) {
  const auto dtype = ParseCacheDtype(config.kv_cache_dtype(), DataType::kBFloat16);
  if (!dtype.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--kv-cache-dtype: ", dtype.status().message()));
  }
  std::vector<GroupMessage> messages(config.group().begin(), config.group().end());

  ReplayGroups result;
  for (size_t g = 0; g < messages.size(); ++g) {
    GroupMessage& message = messages[g];
    if (message.block_size() == 0) {
      message.set_block_size(config.block_size() == 0 ? kDefaultBlockSize : config.block_size());
    }
    if (message.num_kv_heads() == 0) message.set_num_kv_heads(8);
    if (message.head_size() == 0) message.set_head_size(128);
    if (message.num_layers() == 0) message.set_num_layers(1);
    const std::string name = absl::StrCat("group[", g, "]");
    if (message.num_layers() < 1 || message.num_layers() > kMaxLayers) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": num_layers is ", message.num_layers(),
                                                     ", expected 1 to ", kMaxLayers));
    }
    const auto spec = MakeSpec(message, *dtype);
    if (!spec.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", spec.status().message()));
    }
    KvCacheGroup group{.spec = *spec, .is_draft = message.is_draft()};
    for (int64_t layer = 0; layer < message.num_layers(); ++layer) {
      group.layer_names.push_back(absl::StrCat(name, ".layer[", layer, "]"));
    }
    int64_t bytes;
    if (__builtin_mul_overflow(spec->page_bytes(), message.num_layers(), &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", message.num_layers(), " layers of ", spec->page_bytes(),
                       " bytes per block do not fit 64 bits; use a smaller block size"));
    }
    result.block_bytes = std::max(result.block_bytes, bytes);
    result.groups.push_back(std::move(group));
  }
  return result;
}

}  // namespace kvblocks::sim
