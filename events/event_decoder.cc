#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "events/msgpack.h"
#include "kvblocks/check.h"
#include "kvblocks/kv_events.h"

namespace kvblocks::events {
namespace {

using msgpack::Item;
using msgpack::Type;

// Texts that string_views may point to for ever: what engines send all the time.
constexpr std::string_view kKnownTexts[] = {"GPU",
                                            "CPU",
                                            "STORAGE",
                                            "hidden_state",
                                            "full_attention",
                                            "mla_attention",
                                            "sliding_window",
                                            "sliding_window_mla",
                                            "mamba",
                                            "chunked_local_attention",
                                            "sink_full_attention",
                                            "encoder_only_attention",
                                            "cross_attention",
                                            "unknown"};

// Fields that are asked for by place: the first ones of Decoder::kFields.
enum Field { kType, kBlockHashes, kParent, kTokenIds, kBlockSize };

// What an event's map says, before its type is looked at: the type may come last.
struct Fields {
  uint32_t present = 0;
  std::string_view type;
  BlockStored stored;

  bool has(int field) const { return (present >> field & 1) != 0; }
};

class Decoder {
 public:
  explicit Decoder(std::string_view payload)
      : reader_(payload),
        memory_limit_(kFreeDecodedBytes + kDecodedBytesPerByte * payload.size()),
        memory_left_(memory_limit_) {}

  absl::StatusOr<EventBatch> Run() {
    if (!Batch()) return InvalidArgument("KV event batch: ", error_);
    return std::move(batch_);
  }

 private:
  // A key of an event's map, and how its value is read.
  struct FieldEntry {
    std::string_view name;
    bool (*read)(Decoder& decoder, const char* name, Fields& fields);
  };
  static const FieldEntry kFields[16];
  static bool ReadType(Decoder& decoder, const char* name, Fields& fields) {
    Item item;
    if (!decoder.Next(name, Type::kText, "a text", &item)) return false;
    fields.type = item.bytes;
    return true;
  }
  // By the overload of Value for the member's type.
  template <auto kMember>
  static bool Read(Decoder& decoder, const char* name, Fields& fields) {
    return decoder.Value(name, &(fields.stored.*kMember));
  }

  // All return whether the bytes were as expected; if not, error_ says what was found.
  bool Batch() {
    Item head;
    if (!Next("batch", Type::kArray, "an array of time, events and rank", &head)) return false;
    if (head.count < 2) {
      return Refuse(
          absl::StrCat("got an array of ", head.count, " items, expected time, events and rank"));
    }
    if (!Number("ts", &batch_.timestamp)) return false;
    Item events;
    if (!Next("events", Type::kArray, "an array of events", &events)) return false;
    // All at once, so that growing does not hold every event twice.
    constexpr size_t kLeastEventBytes = 23;  // AllBlocksCleared
    batch_.events.reserve(
        std::min({static_cast<size_t>(events.count), reader_.remaining() / kLeastEventBytes + 1,
                  kMaxEventsPerBatch, memory_limit_ / sizeof(KvEvent)}));
    for (index_ = 0; index_ < static_cast<int64_t>(events.count); ++index_) {
      if (!Event()) return false;
    }
    index_ = -1;
    for (size_t i = 2; i < head.count; ++i) {
      const bool read =
          i == 2 ? Value("data_parallel_rank", &batch_.data_parallel_rank) : Skip("batch");
      if (!read) return false;
    }
    if (!reader_.at_end()) {
      return Refuse(absl::StrCat("got ", reader_.remaining(), " bytes more, expected the end"));
    }
    return true;
  }

  bool Event() {
    Item head;
    if (!Next("event", Type::kMap, "a map", &head)) return false;
    if (!Charge("event", 1, sizeof(KvEvent))) return false;
    Fields fields;
    for (size_t i = 0; i < head.count; ++i) {
      Item key;
      if (!Next("key", Type::kText, "a text", &key)) return false;
      const auto* const found =
          std::ranges::find(kFields, key.bytes, [](const FieldEntry& field) { return field.name; });
      if (found == std::end(kFields)) {
        if (!Skip("value of an unknown key")) return false;
        continue;
      }
      const auto place = static_cast<int>(found - std::begin(kFields));
      if (fields.has(place)) return Refuse(absl::StrCat(found->name.data(), " is there twice"));
      fields.present |= 1u << place;
      if (!found->read(*this, found->name.data(), fields)) return false;
    }
    if (!fields.has(kType)) return Refuse("has no type");
    if (fields.type == "BlockStored") return Stored(std::move(fields));
    if (fields.type == "BlockRemoved") return Removed(fields);
    if (fields.type == "AllBlocksCleared") return Add(AllBlocksCleared{});
    return Refuse(absl::StrCat("type: got \"", Shown(fields.type),
                               "\", expected BlockStored, BlockRemoved or AllBlocksCleared"));
  }

  bool Require(const Fields& fields, std::initializer_list<Field> required) {
    for (const Field field : required) {
      if (!fields.has(field)) {
        return Refuse(
            absl::StrCat(std::string(fields.type), " without ", kFields[field].name.data()));
      }
    }
    return true;
  }
  bool Stored(Fields fields) {
    if (!Require(fields, {kBlockHashes, kParent, kTokenIds, kBlockSize})) return false;
    KeyAdapters(&fields.stored);
    return Add(std::move(fields.stored));
  }
  bool Removed(const Fields& fields) {
    if (!Require(fields, {kBlockHashes})) return false;
    const std::vector<BlockHash>& hashes = fields.stored.block_hashes;
    // Every event has its own copy of the texts.
    const auto bytes_of = [](const std::optional<std::string>& text) {
      return text && text->capacity() > std::string().capacity() ? text->size() + 1 : 0;
    };
    const size_t copied = bytes_of(fields.stored.locality) + bytes_of(fields.stored.ownership);
    if (!Charge("block_hashes", hashes.size(), copied + sizeof(KvEvent))) return false;
    const size_t num_events = batch_.events.size() + hashes.size();
    if (num_events > batch_.events.capacity()) {
      // Not more than needed, where one removal is nearly all of a batch.
      batch_.events.reserve(std::max(num_events, batch_.events.size() * 2));
    }
    for (const BlockHash& hash : hashes) {
      if (!Add(BlockRemoved{.block_hash = hash,
                            .medium = fields.stored.medium,
                            .group_idx = fields.stored.group_idx,
                            .locality = fields.stored.locality,
                            .ownership = fields.stored.ownership})) {
        return false;
      }
    }
    return true;
  }
  bool Add(KvEvent event) {
    if (batch_.events.size() == kMaxEventsPerBatch) {
      return Refuse(absl::StrCat("is beyond ", kMaxEventsPerBatch, " events, the limit"));
    }
    batch_.events.push_back(std::move(event));
    return true;
  }
  // Before so much is allocated. Bytes are never given back: one batch is one sum.
  bool Charge(const char* name, size_t count, size_t bytes_each) {
    if (bytes_each == 0 || count <= memory_left_ / bytes_each) {
      memory_left_ -= count * bytes_each;
      return true;
    }
    return Refuse(absl::StrCat(name, ": needs more than ", memory_limit_,
                               " bytes of memory, the limit for a batch of this size; expected a "
                               "batch that the sender splits"));
  }

  // A text among the extra keys is a salt, unless it names the adapter (V-52).
  static void KeyAdapters(BlockStored* stored) {
    for (std::optional<ExtraKeys>& keys : stored->extra_keys) {
      if (keys && !keys->empty() && keys->front().kind == ExtraKey::Kind::kSalt &&
          !stored->lora_name.empty() && keys->front().value == stored->lora_name) {
        keys->front().kind = ExtraKey::Kind::kLora;
      }
    }
  }

  bool Value(const char* name, std::vector<BlockHash>* out) {
    Item head;
    if (!Next(name, Type::kArray, "an array", &head)) return false;
    if (!Charge(name, head.count, sizeof(BlockHash))) return false;
    out->resize(head.count);
    for (size_t i = 0; i < head.count; ++i) {
      Item item;
      if (!Next(name, &item) || !Hash(name, item, &(*out)[i])) return false;
    }
    return true;
  }
  bool Value(const char* name, std::optional<BlockHash>* out) {
    Item item;
    if (!Next(name, &item)) return false;
    return item.type == Type::kNil || Hash(name, item, &out->emplace());
  }
  bool Hash(const char* name, const Item& item, BlockHash* out) {
    HashForm form;
    auto* bytes = reinterpret_cast<char*>(out->words.data());
    if (item.type == Type::kBytes && !item.bytes.empty() &&
        item.bytes.size() <= sizeof(BlockHash)) {
      form.digest_size = item.bytes.size();
      std::copy(item.bytes.begin(), item.bytes.end(), bytes);
    } else if (item.type == Type::kUint || item.type == Type::kNegative) {
      // An engine that sends signed numbers means their 64 bits.
      form.as_integers = true;
      const uint64_t last = __builtin_bswap64(item.bits);
      std::memcpy(bytes + sizeof(BlockHash) - sizeof(last), &last, sizeof(last));
    } else if (item.type == Type::kBytes) {
      return Refuse(absl::StrCat(name, ": got a hash of ", item.bytes.size(),
                                 " bytes, expected 1 to ", sizeof(BlockHash)));
    } else {
      return Wrong(name, item, "bytes or an integer");
    }
    if (!knows_form_) {
      knows_form_ = true;
      batch_.hash_form = form;
    } else if (form != batch_.hash_form) {
      return Refuse(absl::StrCat(name, ": got a hash as ", Shown(form), " after one as ",
                                 Shown(batch_.hash_form), ", expected one form in a batch"));
    }
    return true;
  }
  static std::string Shown(const HashForm& form) {
    return form.as_integers ? "an integer" : absl::StrCat(form.digest_size, " bytes");
  }

  bool Value(const char* name, std::vector<TokenId>* out) {
    Item head;
    if (!Next(name, Type::kArray, "an array", &head)) return false;
    if (!Charge(name, head.count, sizeof(TokenId))) return false;
    out->resize(head.count);
    for (size_t i = 0; i < head.count; ++i) {
      int64_t token;
      if (!Integer(name, std::numeric_limits<TokenId>::min(), std::numeric_limits<TokenId>::max(),
                   &token)) {
        return false;
      }
      (*out)[i] = static_cast<TokenId>(token);
    }
    return true;
  }
  bool Value(const char* name, std::optional<std::vector<std::vector<TokenId>>>* out) {
    Item head;
    if (!Next(name, &head)) return false;
    if (head.type == Type::kNil) return true;
    if (head.type != Type::kArray) return Wrong(name, head, "an array or nil");
    if (!Charge(name, head.count, sizeof(std::vector<TokenId>))) return false;
    out->emplace(head.count);
    return std::ranges::all_of(**out, [&](auto& tokens) { return Value(name, &tokens); });
  }

  bool Value(const char* name, std::vector<std::optional<ExtraKeys>>* out) {
    Item head;
    if (!Next(name, &head)) return false;
    if (head.type == Type::kNil) return true;
    if (head.type != Type::kArray) return Wrong(name, head, "an array or nil");
    if (!Charge(name, head.count, sizeof(std::optional<ExtraKeys>))) return false;
    out->resize(head.count);
    for (std::optional<ExtraKeys>& keys : *out) {
      Item item;
      if (!Next(name, &item)) return false;
      if (item.type == Type::kNil) continue;
      if (item.type != Type::kArray) return Wrong(name, item, "an array or nil");
      if (!Charge(name, item.count, sizeof(ExtraKey))) return false;
      keys.emplace().reserve(item.count);
      for (size_t i = 0; i < item.count; ++i) {
        if (!OneExtraKey(name, &*keys)) return false;
      }
    }
    return true;
  }
  bool OneExtraKey(const char* what, ExtraKeys* keys) {
    Item item;
    if (!Next(what, &item)) return false;
    if (item.type == Type::kText || item.type == Type::kBytes) {
      const auto kind =
          item.type == Type::kText ? ExtraKey::Kind::kSalt : ExtraKey::Kind::kPromptEmbedding;
      keys->push_back({.kind = kind, .value = std::string(item.bytes)});
      return true;
    }
    size_t num_inside = item.type == Type::kArray ? item.count
                        : item.type == Type::kMap ? 2 * item.count
                                                  : 0;
    if (item.type == Type::kArray && item.count == 2) {
      Item name, offset;
      const msgpack::Reader before = reader_;
      if (!Next(what, &name)) return false;
      if (name.type == Type::kText && Next(what, &offset) && IsInt64(offset)) {
        keys->push_back({.kind = ExtraKey::Kind::kMultimodal,
                         .value = std::string(name.bytes),
                         .offset = static_cast<int64_t>(offset.bits)});
        return true;
      }
      if (!error_.empty()) return false;
      reader_ = before;
    }
    ++batch_.num_unknown_extra_keys;
    for (; num_inside > 0; --num_inside) {
      if (!Skip(what)) return false;
    }
    return true;
  }

  bool Number(const char* name, double* out) {
    Item item;
    if (!Next(name, &item)) return false;
    if (item.type == Type::kDouble) {
      *out = item.real;
    } else if (item.type == Type::kUint) {
      *out = static_cast<double>(item.bits);
    } else if (item.type == Type::kNegative) {
      *out = static_cast<double>(item.negative());
    } else {
      return Wrong(name, item, "a number");
    }
    return true;
  }
  static bool IsInt64(const Item& item) {
    return item.type == Type::kNegative ||
           (item.type == Type::kUint && item.bits <= std::numeric_limits<int64_t>::max());
  }
  bool InRange(const char* name, const Item& item, int64_t low, int64_t high, int64_t* out) {
    if (!IsInt64(item)) return Wrong(name, item, "an integer of 64 bits");
    *out = static_cast<int64_t>(item.bits);
    if (*out >= low && *out <= high) return true;
    return Refuse(absl::StrCat(name, ": got ", *out, ", expected ", low, " to ", high));
  }
  bool Integer(const char* name, int64_t low, int64_t high, int64_t* out) {
    Item item;
    return Next(name, &item) && InRange(name, item, low, high, out);
  }
  bool OptionalInteger(const char* name, int64_t low, int64_t high, std::optional<int64_t>* out) {
    Item item;
    if (!Next(name, &item)) return false;
    return item.type == Type::kNil || InRange(name, item, low, high, &out->emplace());
  }
  bool Value(const char* name, int64_t* block_size) {
    return Integer(name, 1, std::numeric_limits<int32_t>::max(), block_size);
  }
  bool Value(const char* name, std::optional<int64_t>* out) {
    return OptionalInteger(name, std::numeric_limits<int64_t>::min(),
                           std::numeric_limits<int64_t>::max(), out);
  }
  bool Value(const char* name, GroupId* out) {
    std::optional<int64_t> group;
    if (!OptionalInteger(name, 0, kMaxGroupId, &group)) return false;
    *out = static_cast<GroupId>(group.value_or(0));
    return true;
  }
  bool Value(const char* name, std::optional<std::string>* out) {
    Item item;
    if (!Next(name, &item)) return false;
    if (item.type == Type::kNil) return true;
    if (item.type != Type::kText) return Wrong(name, item, "a text or nil");
    out->emplace(item.bytes);
    return true;
  }
  bool Value(const char* name, std::string* out) {
    std::optional<std::string> text;
    if (!Value(name, &text)) return false;
    *out = std::move(text).value_or("");
    return true;
  }
  // A text that outlives the payload without being copied into every event.
  bool Value(const char* name, std::string_view* out) {
    Item item;
    *out = {};
    if (!Next(name, &item)) return false;
    if (item.type == Type::kNil) return true;
    if (item.type != Type::kText) return Wrong(name, item, "a text or nil");
    if (const auto known = std::find(std::begin(kKnownTexts), std::end(kKnownTexts), item.bytes);
        known != std::end(kKnownTexts)) {
      *out = *known;
    } else if (!batch_.texts.empty() && *batch_.texts.back() == item.bytes) {
      *out = *batch_.texts.back();
    } else {
      if (!Charge(name, 1, 2 * sizeof(std::string) + item.bytes.size())) return false;
      batch_.texts.push_back(std::make_unique<const std::string>(item.bytes));
      *out = *batch_.texts.back();
    }
    return true;
  }

  bool Next(const char* name, Item* item) {
    if (reader_.Next(item)) return true;
    return Refuse(absl::StrCat(name, ": the bytes end inside it, or are no MessagePack"));
  }
  bool Next(const char* name, Type type, const char* expected, Item* item) {
    if (!Next(name, item)) return false;
    return item->type == type || Wrong(name, *item, expected);
  }
  bool Skip(const char* name) {
    if (reader_.Skip()) return true;
    return Refuse(absl::StrCat(name, ": the bytes end inside it, or are no MessagePack"));
  }
  bool Wrong(const char* name, const Item& item, const char* expected) {
    return Refuse(
        absl::StrCat(name, ": got ", msgpack::TypeName(item.type), ", expected ", expected));
  }
  bool Refuse(const std::string& what) {
    error_ = absl::StrCat(index_ >= 0 ? absl::StrCat("event ", index_, ": ") : "", what, " (byte ",
                          reader_.position(), ")");
    return false;
  }
  // What a stranger sent, short and printable.
  static std::string Shown(std::string_view text) {
    std::string shown(text.substr(0, 40));
    for (char& c : shown) {
      if (c < ' ' || c > '~') c = '?';
    }
    return shown;
  }

  msgpack::Reader reader_;
  const size_t memory_limit_;
  size_t memory_left_;
  EventBatch batch_;
  bool knows_form_ = false;
  int64_t index_ = -1;  // of the event
  std::string error_;
};

const Decoder::FieldEntry Decoder::kFields[] = {
    {"type", ReadType},
    {"block_hashes", Read<&BlockStored::block_hashes>},
    {"parent_block_hash", Read<&BlockStored::parent_block_hash>},
    {"token_ids", Read<&BlockStored::token_ids>},
    {"block_size", Read<&BlockStored::block_size>},
    {"lora_id", Read<&BlockStored::lora_id>},
    {"medium", Read<&BlockStored::medium>},
    {"lora_name", Read<&BlockStored::lora_name>},
    {"extra_keys", Read<&BlockStored::extra_keys>},
    {"group_idx", Read<&BlockStored::group_idx>},
    {"kv_cache_spec_kind", Read<&BlockStored::kv_cache_spec_kind>},
    {"kv_cache_spec_sliding_window", Read<&BlockStored::kv_cache_spec_sliding_window>},
    {"locality", Read<&BlockStored::locality>},
    {"ownership", Read<&BlockStored::ownership>},
    {"session_id", Read<&BlockStored::session_id>},
    {"lookahead_token_ids", Read<&BlockStored::lookahead_token_ids>},
};

}  // namespace

absl::StatusOr<EventBatch> DecodeEvents(std::string_view payload) { return Decoder(payload).Run(); }

}  // namespace kvblocks::events
