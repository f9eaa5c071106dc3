#include "kvblocks/specs/planning/full_storage.h"

#include <algorithm>
#include <set>
#include <string>

#include "kvblocks/specs/merge.h"

namespace kvblocks {
namespace {

bool IsFullType(const KvCacheSpec& spec) {
  return spec.kind() == KvCacheSpecKind::kFullAttention ||
         spec.kind() == KvCacheSpecKind::kMlaAttention ||
         spec.kind() == KvCacheSpecKind::kSinkFullAttention;
}

bool IsLocal(const KvCacheSpec& spec) {
  return spec.sliding_window().has_value() || spec.attention_chunk_size().has_value();
}

// `options` with its padding grown to the page that it would have without.
template <typename Spec>
absl::StatusOr<KvCacheSpec> CreateWithGrownPadding(typename Spec::Options options,
                                                   std::optional<int64_t> padded) {
  absl::StatusOr<Spec> spec = Spec::Create(options);
  if (spec.ok() && padded.has_value()) {
    options.page_size_padded = std::max(*padded, spec->page_bytes());
    spec = Spec::Create(options);
  }
  if (!spec.ok()) return spec.status();
  return KvCacheSpec(*std::move(spec));
}

template <typename LocalOptions>
FullAttentionSpec::Options FullOptions(const LocalOptions& o, int64_t block_size) {
  FullAttentionSpec::Options full;
  full.block_size = block_size;
  full.num_kv_heads = o.num_kv_heads;
  full.head_size = o.head_size;
  if constexpr (requires { o.head_size_v; }) full.head_size_v = o.head_size_v;
  full.dtype = o.dtype;
  full.quant_mode = o.quant_mode;
  full.indexes_kv_by_block_stride = o.indexes_kv_by_block_stride;
  return full;
}

absl::StatusOr<KvCacheSpec> InFull(const KvCacheSpec& spec, int64_t block_size) {
  if (const auto* window = spec.get_if<SlidingWindowSpec>()) {
    FullAttentionSpec::Options full = FullOptions(window->options(), block_size);
    full.sliding_window = window->options().sliding_window;
    return CreateWithGrownPadding<FullAttentionSpec>(full, window->options().page_size_padded);
  }
  if (const auto* chunked = spec.get_if<ChunkedLocalAttentionSpec>()) {
    FullAttentionSpec::Options full = FullOptions(chunked->options(), block_size);
    full.attention_chunk_size = chunked->options().attention_chunk_size;
    return CreateWithGrownPadding<FullAttentionSpec>(full, chunked->options().page_size_padded);
  }
  if (const auto* window = spec.get_if<SlidingWindowMlaSpec>()) {
    const SlidingWindowMlaSpec::Options& o = window->options();
    return CreateWithGrownPadding<MlaAttentionSpec>(
        {.block_size = block_size,
         .head_size = o.head_size,
         .dtype = o.dtype,
         .quant_mode = o.quant_mode,
         .indexes_kv_by_block_stride = o.indexes_kv_by_block_stride,
         .alignment = o.alignment,
         .compress_ratio = o.compress_ratio,
         .model_version = o.model_version},
        o.page_size_padded);
  }
  return spec;
}

}  // namespace

std::optional<std::vector<KvCacheSpec>> StoreInFull(std::span<const LayerCache> caches,
                                                    std::vector<PlanError>* errors) {
  std::vector<KvCacheSpec> specs;
  std::set<int64_t> full_block_sizes;
  bool any_local = false;
  for (const LayerCache& cache : caches) {
    specs.push_back(cache.spec);
    if (IsFullType(cache.spec)) full_block_sizes.insert(cache.spec.block_size());
    any_local |= IsLocal(cache.spec);
  }
  if (full_block_sizes.empty() || !any_local) return specs;
  bool ok = true;
  for (size_t i = 0; i < caches.size(); ++i) {
    const int64_t block_size =
        full_block_sizes.size() == 1 ? *full_block_sizes.begin() : specs[i].block_size();
    absl::StatusOr<KvCacheSpec> full = InFull(specs[i], block_size);
    if (full.ok()) {
      specs[i] = *std::move(full);
      continue;
    }
    ok = false;
    errors->push_back(
        {.code = PlanErrorCode::kNotOneType,
         .message = "layer \"" + caches[i].name + "\" cannot be stored in full with block size " +
                    std::to_string(block_size) + ": " + std::string(full.status().message()),
         .layers = {caches[i].name}});
  }
  if (!ok) return std::nullopt;
  return specs;
}

bool CheckOneType(std::span<const LayerCache> caches, std::span<const KvCacheSpec> specs,
                  std::vector<PlanError>* errors) {
  if (IsUniformType(specs) || IsMergeable(specs)) return true;
  std::string kinds;
  PlanError error = {.code = PlanErrorCode::kNotOneType};
  std::set<std::string> seen;
  for (size_t i = 0; i < specs.size(); ++i) {
    std::string kind(KindName(specs[i].kind()));
    kind += " with block size " + std::to_string(specs[i].block_size());
    if (const auto window = specs[i].sliding_window()) {
      kind += " and window " + std::to_string(*window);
    } else if (const auto chunk = specs[i].attention_chunk_size()) {
      kind += " and chunk " + std::to_string(*chunk);
    }
    if (!seen.insert(kind).second) continue;
    kinds += (kinds.empty() ? "" : ", ") + kind;
    error.layers.push_back(caches[i].name);
  }
  error.message = "layers stored in full are still not of one type; kinds left: " + kinds +
                  "; keep hybrid management on";
  errors->push_back(error);
  const bool one_kind = std::ranges::all_of(
      specs, [&](const KvCacheSpec& spec) { return spec.kind() == specs.front().kind(); });
  if (one_kind) {
    errors->push_back({.code = PlanErrorCode::kMerge,
                       .message = "the only group, layers \"" + caches.front().name + "\" to \"" +
                                  caches.back().name +
                                  "\": " + std::string(Merge(specs).status().message()),
                       .layers = error.layers});
  }
  return false;
}

}  // namespace kvblocks
