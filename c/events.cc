// The calls of kvblocks.h that concern event batches. A batch is fixed when it is taken, so that any
// thread may read it.

#include <variant>

#include "kvblocks/c/error.h"
#include "kvblocks/c/growing_struct.h"
#include "kvblocks/c/handles.h"

struct kvb_events {
  std::vector<kvblocks::KvEvent> events;
};

namespace kvblocks::c {
namespace {

// BlockHash is 32 bytes, and any object may be read as bytes.
const kvb_hash* HashesToC(const BlockHash* hashes) {
  return reinterpret_cast<const kvb_hash*>(hashes);
}

kvb_event EventToC(const KvEvent& event) {
  kvb_event out = {};
  if (const auto* stored = std::get_if<BlockStored>(&event)) {
    out.kind = KVB_EVENT_STORED;
    out.group = stored->group_idx;
    out.medium = StaticText(stored->medium);
    out.block_hashes = HashesToC(stored->block_hashes.data());
    out.num_block_hashes = stored->block_hashes.size();
    out.parent_hash = stored->parent_block_hash ? HashesToC(&*stored->parent_block_hash) : nullptr;
    out.token_ids = stored->token_ids.data();
    out.num_tokens = stored->token_ids.size();
    out.block_size = stored->block_size;
    out.has_lora_id = stored->lora_id.has_value();
    out.lora_id = stored->lora_id.value_or(0);
    out.lora_name = stored->lora_name.c_str();
    out.spec_kind = StaticText(stored->kv_cache_spec_kind);
    out.session_id = stored->session_id ? stored->session_id->c_str() : nullptr;
    out.sliding_window = stored->kv_cache_spec_sliding_window.value_or(0);
  } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
    out.kind = KVB_EVENT_REMOVED;
    out.group = removed->group_idx;
    out.medium = StaticText(removed->medium);
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
  KVB_REQUIRE(manager);
  KVB_REQUIRE(events);
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
  KVB_REQUIRE(events);
  KVB_REQUIRE(event);
  return Guard([&] {
    if (index >= events->events.size()) {
      return NoEvent("kvb_events_get", index, events->events.size());
    }
    return WriteStruct(EventToC(events->events[index]), "kvb_events_get", "event", event);
  });
}

kvb_status kvb_events_get_extra_key(const kvb_events* events, size_t index, size_t block,
                                    size_t key, kvb_extra_key* extra_key) {
  KVB_REQUIRE(events);
  KVB_REQUIRE(extra_key);
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
  KVB_REQUIRE(events);
  KVB_REQUIRE(token_ids);
  KVB_REQUIRE(num_tokens);
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
                                              " has look-ahead tokens of ", num_blocks,
                                              " blocks, asked for block ", block));
    }
    const std::vector<TokenId>& tokens = (*stored->lookahead_token_ids)[block];
    *token_ids = tokens.data();
    *num_tokens = tokens.size();
    return KVB_OK;
  });
}

}  // extern "C"
