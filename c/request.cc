// The calls of kvblocks.h that concern a request.

#include <utility>

#include "c/error.h"
#include "c/explanation_json.h"
#include "c/growing_struct.h"
#include "c/handles.h"

namespace kvblocks::c {
namespace {

std::string Text(const char* text) { return text == nullptr ? "" : text; }

// The features of a caller whose kvb_feature may have another size than ours.
kvb_status ReadFeatures(const kvb_request_options& options,
                        std::vector<MultimodalFeature>* features) {
  if (options.num_features == 0) return KVB_OK;
  constexpr const char* kFunction = "kvb_request_create";
  if (options.features == nullptr) return FailNull(kFunction, "options.features");
  const size_t stride = options.features->struct_size;
  const auto* bytes = reinterpret_cast<const unsigned char*>(options.features);
  for (size_t i = 0; i < options.num_features; ++i) {
    kvb_feature feature;
    const auto* element = reinterpret_cast<const kvb_feature*>(bytes + i * stride);
    if (element->struct_size != stride) {
      return Fail(
          KVB_INVALID_ARGUMENT,
          absl::StrCat(kFunction, ": options.features[", i, "].struct_size is ",
                       element->struct_size, ", expected ", stride, " as in the first element"));
    }
    if (kvb_status status = ReadStruct(element, kFunction, "options.features[]", &feature);
        status != KVB_OK) {
      return status;
    }
    features->push_back({.identifier = Text(feature.identifier),
                         .offset = feature.offset,
                         .length = feature.length});
  }
  return KVB_OK;
}

kvb_status ReadHashes(const kvb_hash* hashes, size_t num_hashes, const char* function,
                      std::vector<BlockHash>* out) {
  if (hashes == nullptr && num_hashes > 0) return FailNull(function, "hashes");
  out->reserve(num_hashes);
  for (size_t i = 0; i < num_hashes; ++i) out->push_back(FromC(hashes[i]));
  return KVB_OK;
}

kvb_request* NewHandle(kvb_manager* manager, std::unique_ptr<Request> request) {
  auto* handle = new kvb_request{.owner = manager, .request = std::move(request)};
  ++manager->num_users;
  return handle;
}

kvb_status CheckGroup(const kvb_request& request, int32_t group, const char* function) {
  if (group >= 0 && group < request.manager().num_groups()) return KVB_OK;
  return Guard([&] {
    return Fail(KVB_NOT_FOUND, absl::StrCat(function, ": group is ", group, ", expected 0 to ",
                                            request.manager().num_groups() - 1));
  });
}

void HandOut(absl::Span<const BlockId> list, const int32_t** blocks, size_t* num_blocks) {
  *blocks = list.data();
  *num_blocks = list.size();
}

kvb_status Allocate(kvb_request& request, const kvb_allocation& allocation) noexcept {
  return Guard([&] {
    const auto slots = request.manager().AllocateSlots(
        *request.request, {.num_new_tokens = allocation.num_new_tokens,
                           .computed_blocks = allocation.use_hits != 0 ? &request.hits : nullptr,
                           .num_lookahead_tokens = allocation.num_lookahead_tokens,
                           .num_external_computed_tokens = allocation.num_external_tokens,
                           .delay_cache_blocks = allocation.delay_cache_blocks != 0,
                           .full_sequence_must_fit = allocation.full_sequence_must_fit != 0,
                           .reserved_blocks = allocation.reserved_blocks,
                           .has_scheduled_requests = allocation.has_scheduled_requests != 0,
                           .num_encoder_tokens = allocation.num_encoder_tokens});
    if (!slots.ok()) return Fail(slots.status());
    request.new_blocks = slots->value_or(NewBlocks({}));
    return slots->has_value() ? KVB_OK : KVB_NO_SPACE;
  });
}

// Of a caller whose kvb_allocation has another size than ours. A function of its own, to keep the
// step short.
[[gnu::noinline]] kvb_status AllocateOtherSize(kvb_request& request,
                                               const kvb_allocation* allocation) noexcept {
  kvb_allocation whole;
  const kvb_status status =
      Guard([&] { return ReadStruct(allocation, "kvb_request_allocate", "allocation", &whole); });
  if (status != KVB_OK) return status;
  whole.struct_size = sizeof(whole);
  return kvb_request_allocate(&request, &whole);
}

}  // namespace
}  // namespace kvblocks::c

using namespace kvblocks;     // NOLINT: the file is the C interface
using namespace kvblocks::c;  // NOLINT

extern "C" {

// --- Life ---

kvb_status kvb_request_create(kvb_manager* manager, const kvb_request_options* options,
                              kvb_request** request) {
  KVB_REQUIRE(manager, options, request);
  *request = nullptr;
  return Guard([&] {
    kvb_request_options o;
    kvb_status status = ReadStruct(options, "kvb_request_create", "options", &o);
    if (status != KVB_OK) return status;
    if (o.token_ids == nullptr && o.num_tokens > 0) {
      return FailNull("kvb_request_create", "options.token_ids");
    }
    KvCacheManager::RequestOptions made{
        .id = Text(o.id),
        .skip_reading_prefix_cache = o.skip_reading_prefix_cache != 0,
        .report_reused_blocks = o.report_reused_blocks != 0};
    made.content.token_ids.assign(o.token_ids, o.token_ids + o.num_tokens);
    made.content.lora_name = Text(o.lora_name);
    made.content.lora_path = Text(o.lora_path);
    if (o.session_id != nullptr) made.content.session_id = o.session_id;
    if (o.has_lora_id != 0) made.content.lora_id = o.lora_id;
    made.content.cache_salt = Text(o.cache_salt);
    status = ReadFeatures(o, &made.content.features);
    if (status != KVB_OK) return status;
    auto created = manager->manager->NewRequest(std::move(made));
    if (!created.ok()) return Fail(created.status());
    *request = NewHandle(manager, *std::move(created));
    return KVB_OK;
  });
}

kvb_status kvb_request_create_from_hashes(kvb_manager* manager, const char* id, int64_t num_tokens,
                                          const kvb_hash* hashes, size_t num_hashes,
                                          kvb_request** request) {
  KVB_REQUIRE(manager, request);
  *request = nullptr;
  return Guard([&] {
    std::vector<BlockHash> list;
    const kvb_status status =
        ReadHashes(hashes, num_hashes, "kvb_request_create_from_hashes", &list);
    if (status != KVB_OK) return status;
    auto created = manager->manager->NewRequestFromHashes(Text(id), num_tokens, std::move(list));
    if (!created.ok()) return Fail(created.status());
    *request = NewHandle(manager, *std::move(created));
    return KVB_OK;
  });
}

void kvb_request_destroy(kvb_request* request) {
  if (request == nullptr) return;
  kvb_manager* const owner = request->owner;
  delete request;
  owner->Release();
}

kvb_status kvb_request_get_info(const kvb_request* request, kvb_request_info* info) {
  KVB_REQUIRE(request, info);
  return Guard([&] {
    const Request& r = *request->request;
    const kvb_request_info value = {
        .struct_size = sizeof(value),
        .num_tokens = r.num_tokens(),
        .num_prompt_tokens = r.num_prompt_tokens(),
        .num_computed_tokens = r.num_computed_tokens(),
        .num_inflight_tokens = r.num_inflight_tokens(),
        .num_preemptions = r.num_preemptions(),
        .num_hit_tokens = request->hits.num_tokens(),
        .hit_shared_prefix_boundary = request->hits.shared_prefix_boundary(),
        .shared_prefix_boundary = r.shared_prefix_boundary(),
        .status = static_cast<kvb_request_status>(r.status()),
        .holds_blocks = request->manager().HoldsBlocks(r)};
    return WriteStruct(value, "kvb_request_get_info", "info", info);
  });
}

kvb_status kvb_request_append_tokens(kvb_request* request, const int32_t* token_ids,
                                     size_t num_tokens) {
  KVB_REQUIRE(request);
  if (num_tokens > 0) KVB_REQUIRE(token_ids);
  return Guard([&] { return Fail(request->request->AppendOutputTokens({token_ids, num_tokens})); });
}

kvb_status kvb_request_append_hashed(kvb_request* request, int64_t num_tokens,
                                     const kvb_hash* hashes, size_t num_hashes) {
  KVB_REQUIRE(request);
  return Guard([&] {
    std::vector<BlockHash> list;
    const kvb_status status = ReadHashes(hashes, num_hashes, "kvb_request_append_hashed", &list);
    if (status != KVB_OK) return status;
    return Fail(request->request->AppendHashedTokens(num_tokens, list));
  });
}

kvb_status kvb_request_set_num_computed_tokens(kvb_request* request, int64_t num_tokens) {
  KVB_REQUIRE(request);
  request->request->set_num_computed_tokens(num_tokens);
  return KVB_OK;
}

kvb_status kvb_request_set_num_inflight_tokens(kvb_request* request, int64_t num_tokens) {
  KVB_REQUIRE(request);
  request->request->set_num_inflight_tokens(num_tokens);
  return KVB_OK;
}

kvb_status kvb_request_set_status(kvb_request* request, int32_t status) {
  KVB_REQUIRE(request);
  if (status < KVB_REQUEST_WAITING || status > KVB_REQUEST_FINISHED) {
    return Guard([&] {
      return Fail(KVB_INVALID_ARGUMENT,
                  absl::StrCat("kvb_request_set_status: status is ", status, ", expected 0 to 3"));
    });
  }
  request->request->set_status(static_cast<RequestStatus>(status));
  return KVB_OK;
}

kvb_status kvb_request_set_shared_prefix_boundary(kvb_request* request, int64_t num_tokens) {
  KVB_REQUIRE(request);
  if (num_tokens < 0) {
    return Guard([&] {
      return Fail(KVB_INVALID_ARGUMENT,
                  absl::StrCat("kvb_request_set_shared_prefix_boundary: num_tokens is ", num_tokens,
                               ", expected at least 0"));
    });
  }
  request->request->set_shared_prefix_boundary(num_tokens);
  return KVB_OK;
}

// --- The step ---

kvb_status kvb_request_lookup(kvb_request* request, int64_t* num_hit_tokens) {
  KVB_REQUIRE(request, num_hit_tokens);
  return Guard([&] {
    const absl::Status status =
        request->manager().GetComputedBlocks(*request->request, request->hits);
    if (!status.ok()) return Fail(status);
    *num_hit_tokens = request->hits.num_tokens();
    return KVB_OK;
  });
}

kvb_status kvb_request_truncate_hits(kvb_request* request, int64_t num_tokens) {
  KVB_REQUIRE(request);
  return Guard([&] {
    auto cut = request->manager().TruncateComputedBlocks(request->hits, num_tokens);
    if (!cut.ok()) return Fail(cut.status());
    request->hits = *std::move(cut);
    return KVB_OK;
  });
}

kvb_status kvb_request_get_hits(const kvb_request* request, int32_t group, const int32_t** blocks,
                                size_t* num_blocks) {
  KVB_REQUIRE(request, blocks, num_blocks);
  if (kvb_status status = CheckGroup(*request, group, __func__); status != KVB_OK) return status;
  const bool was_looked_up = request->hits.num_groups() > 0;
  HandOut(was_looked_up ? request->hits.blocks(group) : absl::Span<const BlockId>(), blocks,
          num_blocks);
  return KVB_OK;
}

kvb_status kvb_request_allocate(kvb_request* request, const kvb_allocation* allocation) {
  KVB_REQUIRE(request, allocation);
  if (allocation->struct_size == sizeof(*allocation)) return Allocate(*request, *allocation);
  return AllocateOtherSize(*request, allocation);
}

kvb_status kvb_request_get_blocks(const kvb_request* request, int32_t group, const int32_t** blocks,
                                  size_t* num_blocks) {
  KVB_REQUIRE(request, blocks, num_blocks);
  if (kvb_status status = CheckGroup(*request, group, __func__); status != KVB_OK) return status;
  HandOut(request->manager().GetBlocks(*request->request, group), blocks, num_blocks);
  return KVB_OK;
}

kvb_status kvb_request_get_new_blocks(const kvb_request* request, int32_t group,
                                      const int32_t** blocks, size_t* num_blocks) {
  KVB_REQUIRE(request, blocks, num_blocks);
  if (kvb_status status = CheckGroup(*request, group, __func__); status != KVB_OK) return status;
  const bool is_valid = request->new_blocks.num_groups() > 0;
  HandOut(is_valid ? request->new_blocks.blocks(group) : absl::Span<const BlockId>(), blocks,
          num_blocks);
  return KVB_OK;
}

kvb_status kvb_request_free(kvb_request* request) {
  KVB_REQUIRE(request);
  return Guard([&] {
    request->new_blocks = NewBlocks({});
    return Fail(request->manager().Free(*request->request));
  });
}

kvb_status kvb_request_preempt(kvb_request* request) {
  const kvb_status status = kvb_request_free(request);
  if (status == KVB_OK) request->request->MarkPreempted();
  return status;
}

kvb_status kvb_request_pop_blocks(kvb_request* request, const int32_t** blocks,
                                  size_t* num_blocks) {
  KVB_REQUIRE(request, blocks, num_blocks);
  return Guard([&] {
    request->new_blocks = NewBlocks({});
    auto popped = request->manager().PopBlocksForFree(*request->request);
    if (!popped.ok()) return Fail(popped.status());
    request->popped = *std::move(popped);
    HandOut(request->popped, blocks, num_blocks);
    return KVB_OK;
  });
}

kvb_status kvb_request_cache_blocks(kvb_request* request, int64_t num_tokens) {
  KVB_REQUIRE(request);
  return Guard([&] { return Fail(request->manager().CacheBlocks(*request->request, num_tokens)); });
}

kvb_status kvb_request_remove_skipped_blocks(kvb_request* request, int64_t num_tokens) {
  KVB_REQUIRE(request);
  return Guard(
      [&] { return Fail(request->manager().RemoveSkippedBlocks(*request->request, num_tokens)); });
}

// --- Questions ---

kvb_status kvb_request_get_num_common_prefix_blocks(const kvb_request* request, int64_t* counts,
                                                    size_t num_groups) {
  KVB_REQUIRE(request, counts);
  return Guard([&] {
    const std::vector<int64_t> common =
        request->manager().GetNumCommonPrefixBlocks(*request->request);
    if (num_groups != common.size()) {
      return Fail(KVB_INVALID_ARGUMENT,
                  absl::StrCat("kvb_request_get_num_common_prefix_blocks: num_groups is ",
                               num_groups, ", expected ", common.size()));
    }
    for (size_t g = 0; g < common.size(); ++g) counts[g] = common[g];
    return KVB_OK;
  });
}

kvb_status kvb_request_get_block_hash(const kvb_request* request, int32_t group, int64_t block,
                                      kvb_hash* hash) {
  KVB_REQUIRE(request, hash);
  if (group != -1) {
    if (kvb_status status = CheckGroup(*request, group, __func__); status != KVB_OK) return status;
  }
  return Guard([&] {
    const PrefixContent& content = request->request->content();
    const int64_t block_size = group == -1 ? request->manager().hash_block_size()
                                           : request->manager().group(group).block_size();
    const int64_t num_known = content.num_hashed_tokens() / block_size;
    if (block < 0 || block >= num_known) {
      return Fail(KVB_NOT_FOUND,
                  absl::StrCat("kvb_request_get_block_hash: block is ", block, ", but ", num_known,
                               " blocks of group ", group, " are hashed"));
    }
    const auto found = content.HashOfBlockAt(block, block_size);
    if (!found.ok()) return Fail(found.status());
    *hash = ToC(*found);
    return KVB_OK;
  });
}

kvb_status kvb_request_explain_json(const kvb_request* request, char** json) {
  KVB_REQUIRE(request, json);
  *json = nullptr;
  return Guard([&] {
    const auto why = ExplainLookup(request->manager(), *request->request);
    if (!why.ok()) return Fail(why.status());
    *json = NewString(ExplanationJson(*why));
    return KVB_OK;
  });
}

kvb_status kvb_request_record_admission(kvb_request* request, int32_t explain) {
  KVB_REQUIRE(request);
  return Guard([&] {
    if (explain == 0) {
      request->manager().RecordPrefixCacheStats(*request->request, request->hits.num_tokens());
      return KVB_OK;
    }
    const auto why = ExplainLookup(request->manager(), *request->request);
    if (!why.ok()) return Fail(why.status());
    const auto missed = why->TokensByReason();
    request->manager().RecordPrefixCacheStats(*request->request, request->hits.num_tokens(),
                                              &missed);
    return KVB_OK;
  });
}

}  // extern "C"
