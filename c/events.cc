// The calls of kvblocks.h that concern event batches, their bytes and the index. A batch is fixed
// when it is taken, so that any thread may read it.

#include <algorithm>
#include <cstring>
#include <variant>

#include "c/error.h"
#include "c/growing_struct.h"
#include "c/handles.h"
#include "kvblocks/kv_events.h"

struct kvb_events {
  std::vector<kvblocks::KvEvent> events;
  // Of a decoded batch: what its string_views point to. Each text there ends with a zero byte.
  bool is_decoded = false;
  std::vector<std::unique_ptr<const std::string>> texts = {};
};

struct kvb_block_index {
  kvblocks::events::BlockIndex index;

  bool Has(int32_t holder) const { return holder >= 0 && holder < index.num_holders(); }
  kvb_status NoHolder(const char* function, int32_t holder) const {
    return kvblocks::c::Fail(KVB_NOT_FOUND, absl::StrCat(function, ": holder is ", holder, ", ",
                                                         index.num_holders(), " were added"));
  }
};

namespace kvblocks::c {
namespace {

// BlockHash is 32 bytes, and any object may be read as bytes.
const kvb_hash* HashesToC(const BlockHash* hashes) {
  return reinterpret_cast<const kvb_hash*>(hashes);
}

kvb_event EventToC(const KvEvent& event, bool is_decoded) {
  // Texts from the wire are not kept for ever.
  const auto text_of = [is_decoded](std::string_view text) {
    return text.empty() ? "" : is_decoded ? text.data() : StaticText(text);
  };
  kvb_event out = {};
  if (const auto* stored = std::get_if<BlockStored>(&event)) {
    out.kind = KVB_EVENT_STORED;
    out.group = stored->group_idx;
    out.medium = text_of(stored->medium);
    out.block_hashes = HashesToC(stored->block_hashes.data());
    out.num_block_hashes = stored->block_hashes.size();
    out.parent_hash = stored->parent_block_hash ? HashesToC(&*stored->parent_block_hash) : nullptr;
    out.token_ids = stored->token_ids.data();
    out.num_tokens = stored->token_ids.size();
    out.block_size = stored->block_size;
    out.has_lora_id = stored->lora_id.has_value();
    out.lora_id = stored->lora_id.value_or(0);
    out.lora_name = stored->lora_name.c_str();
    out.spec_kind = text_of(stored->kv_cache_spec_kind);
    out.session_id = stored->session_id ? stored->session_id->c_str() : nullptr;
    out.sliding_window = stored->kv_cache_spec_sliding_window.value_or(0);
  } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
    out.kind = KVB_EVENT_REMOVED;
    out.group = removed->group_idx;
    out.medium = text_of(removed->medium);
    out.block_hashes = HashesToC(&removed->block_hash);
    out.num_block_hashes = 1;
    out.removal_reason = static_cast<kvb_removal_reason>(removed->reason);
  } else {
    out.kind = KVB_EVENT_CLEARED;
    out.medium = "";
  }
  if (out.lora_name == nullptr) out.lora_name = "";
  if (out.spec_kind == nullptr) out.spec_kind = "";
  return out;
}

static_assert(static_cast<int>(RemovalReason::kReused) == KVB_REMOVAL_REUSED);
static_assert(static_cast<int>(RemovalReason::kEvicted) == KVB_REMOVAL_EVICTED);
static_assert(static_cast<int>(RemovalReason::kReplaced) == KVB_REMOVAL_REPLACED);
static_assert(static_cast<int>(RequestStatus::kFinished) == KVB_REQUEST_FINISHED);
static_assert(static_cast<int>(ExtraKey::Kind::kPromptEmbedding) == KVB_EXTRA_KEY_PROMPT_EMBEDDING);

events::HashForm FormOf(const kvb_wire_batch& batch) {
  return {.digest_size = batch.digest_size == 0 ? sizeof(BlockHash)
                                                : static_cast<size_t>(batch.digest_size),
          .as_integers = batch.hashes_as_integers != 0};
}

kvb_status NoEvent(const char* function, size_t index, size_t count) {
  return Fail(KVB_NOT_FOUND,
              absl::StrCat(function, ": index is ", index, ", the batch has ", count, " events"));
}

}  // namespace
}  // namespace kvblocks::c

using namespace kvblocks;     // NOLINT: the file is the C interface
using namespace kvblocks::c;  // NOLINT

extern "C" {

kvb_status kvb_manager_take_events(kvb_manager* manager, kvb_events** events) {
  KVB_REQUIRE(manager, events);
  *events = nullptr;
  return Guard([&] {
    auto batch = std::make_unique<kvb_events>();  // before anything is taken
    batch->events = manager->manager->TakeEvents();
    *events = batch.release();
    return KVB_OK;
  });
}

void kvb_events_destroy(kvb_events* events) { delete events; }

size_t kvb_events_count(const kvb_events* events) {
  return events == nullptr ? 0 : events->events.size();
}

kvb_status kvb_events_get(const kvb_events* events, size_t index, kvb_event* event) {
  KVB_REQUIRE(events, event);
  return Guard([&] {
    if (index >= events->events.size()) {
      return NoEvent("kvb_events_get", index, events->events.size());
    }
    return WriteStruct(EventToC(events->events[index], events->is_decoded), "kvb_events_get",
                       "event", event);
  });
}

kvb_status kvb_events_get_extra_key(const kvb_events* events, size_t index, size_t block,
                                    size_t key, kvb_extra_key* extra_key) {
  KVB_REQUIRE(events, extra_key);
  return Guard([&] {
    if (index >= events->events.size()) {
      return NoEvent("kvb_events_get_extra_key", index, events->events.size());
    }
    const auto* stored = std::get_if<BlockStored>(&events->events[index]);
    const size_t num_blocks = stored == nullptr ? 0 : stored->extra_keys.size();
    const size_t num_keys =
        block < num_blocks && stored->extra_keys[block] ? stored->extra_keys[block]->size() : 0;
    if (key >= num_keys) {
      return Fail(KVB_NOT_FOUND,
                  absl::StrCat("kvb_events_get_extra_key: block ", block, " of event ", index,
                               " has ", num_keys, " extra keys, asked for number ", key));
    }
    const ExtraKey& found = (*stored->extra_keys[block])[key];
    kvb_extra_key value = {};
    value.kind = static_cast<kvb_extra_key_kind>(found.kind);
    value.value = found.value.c_str();
    value.value_size = found.value.size();
    value.offset = found.offset;
    return WriteStruct(value, "kvb_events_get_extra_key", "extra_key", extra_key);
  });
}

kvb_status kvb_events_get_lookahead_tokens(const kvb_events* events, size_t index, size_t block,
                                           const int32_t** token_ids, size_t* num_tokens) {
  KVB_REQUIRE(events, token_ids, num_tokens);
  *token_ids = nullptr;
  *num_tokens = 0;
  return Guard([&] {
    if (index >= events->events.size()) {
      return NoEvent("kvb_events_get_lookahead_tokens", index, events->events.size());
    }
    const auto* stored = std::get_if<BlockStored>(&events->events[index]);
    const size_t num_blocks =
        stored == nullptr || !stored->lookahead_token_ids ? 0 : stored->lookahead_token_ids->size();
    if (block >= num_blocks) {
      return Fail(KVB_NOT_FOUND, absl::StrCat("kvb_events_get_lookahead_tokens: event ", index,
                                              " has lookahead tokens of ", num_blocks,
                                              " blocks, asked for block ", block));
    }
    const std::vector<TokenId>& tokens = (*stored->lookahead_token_ids)[block];
    *token_ids = tokens.data();
    *num_tokens = tokens.size();
    return KVB_OK;
  });
}

kvb_status kvb_events_encode(const kvb_events* events, const kvb_wire_batch* batch, char** bytes,
                             size_t* size) {
  KVB_REQUIRE(events, batch, bytes, size);
  *bytes = nullptr;
  *size = 0;
  return Guard([&] {
    kvb_wire_batch given;
    if (kvb_status status = ReadStruct(batch, "kvb_events_encode", "batch", &given);
        status != KVB_OK) {
      return status;
    }
    const int32_t least = given.hashes_as_integers != 0 ? 8 : 1;
    const auto most = static_cast<int32_t>(sizeof(BlockHash));
    if (given.digest_size != 0 && (given.digest_size < least || given.digest_size > most)) {
      return Fail(KVB_INVALID_ARGUMENT,
                  absl::StrCat("kvb_events_encode: digest_size is ", given.digest_size,
                               ", expected ", least, " to ", most, ", or 0 for ", most));
    }
    events::EncodeOptions options{.timestamp = given.timestamp,
                                  .hash_form = FormOf(given),
                                  .join_removals = given.join_removals != 0};
    if (given.has_data_parallel_rank != 0) options.data_parallel_rank = given.data_parallel_rank;
    std::string out;
    events::EncodeEvents(events->events, options, &out);
    *bytes = NewString(out);
    *size = out.size();
    return KVB_OK;
  });
}

kvb_status kvb_events_decode(const char* bytes, size_t size, kvb_wire_batch* batch,
                             kvb_events** events) {
  KVB_REQUIRE(bytes, events);
  *events = nullptr;
  return Guard([&] {
    absl::StatusOr<events::EventBatch> decoded = events::DecodeEvents({bytes, size});
    if (!decoded.ok()) {
      return Fail(KVB_INVALID_ARGUMENT,
                  absl::StrCat("kvb_events_decode: ", decoded.status().message()));
    }
    if (batch != nullptr) {
      kvb_wire_batch value = {};
      value.timestamp = decoded->timestamp;
      value.has_data_parallel_rank = decoded->data_parallel_rank.has_value();
      value.data_parallel_rank = decoded->data_parallel_rank.value_or(0);
      value.digest_size = static_cast<int32_t>(decoded->hash_form.digest_size);
      value.hashes_as_integers = decoded->hash_form.as_integers;
      if (kvb_status status = WriteStruct(value, "kvb_events_decode", "batch", batch);
          status != KVB_OK) {
        return status;
      }
    }
    auto made = std::make_unique<kvb_events>();
    made->events = std::move(decoded->events);
    made->is_decoded = true;
    made->texts = std::move(decoded->texts);
    *events = made.release();
    return KVB_OK;
  });
}

kvb_status kvb_block_index_create(kvb_block_index** index) {
  KVB_REQUIRE(index);
  *index = nullptr;
  return Guard([&] {
    *index = new kvb_block_index();
    return KVB_OK;
  });
}

void kvb_block_index_destroy(kvb_block_index* index) { delete index; }

kvb_status kvb_block_index_add_holder(kvb_block_index* index, int32_t* holder) {
  KVB_REQUIRE(index, holder);
  return Guard([&] {
    *holder = index->index.AddHolder("");
    return KVB_OK;
  });
}

kvb_status kvb_block_index_apply(kvb_block_index* index, int32_t holder, const kvb_events* events) {
  KVB_REQUIRE(index, events);
  return Guard([&] {
    if (!index->Has(holder)) return index->NoHolder("kvb_block_index_apply", holder);
    index->index.Apply(holder, events->events);
    return KVB_OK;
  });
}

kvb_status kvb_block_index_forget(kvb_block_index* index, int32_t holder) {
  KVB_REQUIRE(index);
  return Guard([&] {
    if (!index->Has(holder)) return index->NoHolder("kvb_block_index_forget", holder);
    index->index.Forget(holder);
    return KVB_OK;
  });
}

kvb_status kvb_block_index_find_prefix(const kvb_block_index* index, const kvb_hash* hashes,
                                       size_t num_hashes, int32_t group, int32_t* holders,
                                       int64_t* num_blocks, size_t capacity, size_t* count) {
  KVB_REQUIRE(index, count);
  if (num_hashes > 0) KVB_REQUIRE(hashes);
  if (capacity > 0) KVB_REQUIRE(holders, num_blocks);
  *count = 0;
  return Guard([&] {
    std::vector<BlockHash> chain(num_hashes);
    if (num_hashes > 0)
      std::memcpy(static_cast<void*>(chain.data()), hashes, num_hashes * sizeof(BlockHash));
    const auto matches = index->index.FindLongestPrefix(chain, group);
    for (size_t i = 0; i < std::min(capacity, matches.size()); ++i) {
      holders[i] = matches[i].holder;
      num_blocks[i] = matches[i].num_blocks;
    }
    *count = matches.size();
    return KVB_OK;
  });
}

}  // extern "C"
