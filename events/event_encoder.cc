#include <algorithm>
#include <cstring>
#include <variant>

#include "events/msgpack.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_events.h"

namespace kvblocks::events {
namespace {

using msgpack::Writer;

class Encoder {
 public:
  Encoder(const EncodeOptions& options, std::string* out)
      : form_(options.hash_form), out_(out), writer_(out) {}

  void Stored(const BlockStored& event) {
    const size_t num_optional =
        !event.extra_keys.empty() + size_t{1} + !event.kv_cache_spec_kind.empty() +
        event.kv_cache_spec_sliding_window.has_value() + event.locality.has_value() +
        event.ownership.has_value() + event.session_id.has_value() +
        event.lookahead_token_ids.has_value();
    writer_.WideMap(8 + num_optional);
    Field("type", "BlockStored");
    writer_.Text("block_hashes");
    writer_.Array(event.block_hashes.size());
    for (const BlockHash& hash : event.block_hashes) Hash(hash);
    writer_.Text("parent_block_hash");
    event.parent_block_hash ? Hash(*event.parent_block_hash) : writer_.Nil();
    writer_.Text("token_ids");
    Tokens(event.token_ids);
    writer_.Text("block_size");
    writer_.Int(event.block_size);
    writer_.Text("lora_id");
    event.lora_id ? writer_.Int(*event.lora_id) : writer_.Nil();
    FieldOrNil("medium", event.medium);
    FieldOrNil("lora_name", event.lora_name);
    if (!event.extra_keys.empty()) {
      writer_.Text("extra_keys");
      writer_.Array(event.extra_keys.size());
      for (const auto& keys : event.extra_keys) Keys(keys);
    }
    writer_.Text("group_idx");
    writer_.Int(event.group_idx);
    if (!event.kv_cache_spec_kind.empty()) Field("kv_cache_spec_kind", event.kv_cache_spec_kind);
    if (event.kv_cache_spec_sliding_window) {
      writer_.Text("kv_cache_spec_sliding_window");
      writer_.Int(*event.kv_cache_spec_sliding_window);
    }
    FieldIfAny("locality", event.locality);
    FieldIfAny("ownership", event.ownership);
    FieldIfAny("session_id", event.session_id);
    if (event.lookahead_token_ids) {
      writer_.Text("lookahead_token_ids");
      writer_.Array(event.lookahead_token_ids->size());
      for (const auto& tokens : *event.lookahead_token_ids) Tokens(tokens);
    }
  }

  // `events`: removals that differ in their hash only.
  void Removed(absl::Span<const KvEvent> events) {
    const auto& first = std::get<BlockRemoved>(events.front());
    writer_.Map(size_t{4} + first.locality.has_value() + first.ownership.has_value());
    Field("type", "BlockRemoved");
    writer_.Text("block_hashes");
    writer_.Array(events.size());
    for (const KvEvent& event : events) Hash(std::get<BlockRemoved>(event).block_hash);
    FieldOrNil("medium", first.medium);
    writer_.Text("group_idx");
    writer_.Int(first.group_idx);
    FieldIfAny("locality", first.locality);
    FieldIfAny("ownership", first.ownership);
  }

  void Cleared() {
    writer_.Map(1);
    Field("type", "AllBlocksCleared");
  }

 private:
  void Field(std::string_view name, std::string_view text) {
    writer_.Text(name);
    writer_.Text(text);
  }
  void FieldOrNil(std::string_view name, std::string_view text) {
    writer_.Text(name);
    text.empty() ? writer_.Nil() : writer_.Text(text);
  }
  void FieldIfAny(std::string_view name, const std::optional<std::string>& text) {
    if (text) Field(name, *text);
  }
  void Tokens(absl::Span<const TokenId> tokens) {
    writer_.Array(tokens.size());
    out_->reserve(out_->size() + 5 * tokens.size() + 64);
    for (const TokenId token : tokens) writer_.Int(token);
  }
  void Hash(const BlockHash& hash) {
    const auto* bytes = reinterpret_cast<const char*>(hash.words.data());
    if (!form_.as_integers) return writer_.Bytes({bytes, form_.digest_size});
    uint64_t last;
    std::memcpy(&last, bytes + form_.digest_size - sizeof(last), sizeof(last));
    writer_.Uint(__builtin_bswap64(last));
  }
  void Keys(const std::optional<ExtraKeys>& keys) {
    if (!keys) return writer_.Nil();
    writer_.Array(keys->size());
    for (const ExtraKey& key : *keys) {
      switch (key.kind) {
        case ExtraKey::Kind::kMultimodal:
          writer_.Array(2);
          writer_.Text(key.value);
          writer_.Int(key.offset);
          break;
        case ExtraKey::Kind::kPromptEmbedding:
          writer_.Bytes(key.value);
          break;
        case ExtraKey::Kind::kLora:
        case ExtraKey::Kind::kSalt:
          writer_.Text(key.value);
      }
    }
  }

  const HashForm form_;
  std::string* out_;
  Writer writer_;
};

bool DifferInHashOnly(const KvEvent& a, const KvEvent& b) {
  const auto* first = std::get_if<BlockRemoved>(&a);
  const auto* second = std::get_if<BlockRemoved>(&b);
  return first != nullptr && second != nullptr && first->medium == second->medium &&
         first->group_idx == second->group_idx && first->locality == second->locality &&
         first->ownership == second->ownership;
}

// The events from `begin` on that are one on the wire.
size_t EndOfRun(absl::Span<const KvEvent> events, size_t begin, bool join) {
  size_t end = begin + 1;
  while (join && end < events.size() && DifferInHashOnly(events[begin], events[end])) ++end;
  return end;
}

}  // namespace

void EncodeEvents(absl::Span<const KvEvent> events, const EncodeOptions& options,
                  std::string* out) {
  KVBLOCKS_CHECK(options.hash_form.digest_size >= (options.hash_form.as_integers ? 8 : 1) &&
                     options.hash_form.digest_size <= sizeof(BlockHash),
                 "digest_size is out of range");
  size_t num_events = 0;
  for (size_t i = 0; i < events.size(); i = EndOfRun(events, i, options.join_removals)) {
    ++num_events;
  }
  Writer writer(out);
  writer.Array(3);
  writer.Double(options.timestamp);
  writer.Array(num_events);
  Encoder encoder(options, out);
  for (size_t begin = 0; begin < events.size();) {
    const size_t end = EndOfRun(events, begin, options.join_removals);
    if (const auto* stored = std::get_if<BlockStored>(&events[begin])) {
      encoder.Stored(*stored);
    } else if (std::holds_alternative<BlockRemoved>(events[begin])) {
      encoder.Removed(events.subspan(begin, end - begin));
    } else {
      encoder.Cleared();
    }
    begin = end;
  }
  options.data_parallel_rank ? writer.Int(*options.data_parallel_rank) : writer.Nil();
}

}  // namespace kvblocks::events
