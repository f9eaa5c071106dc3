#include "sim/commands/event_report.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checks/json_writer.h"
#include "sim/report/human_table.h"

namespace kvblocks::sim {
namespace {

std::string ShortHash(const BlockHash& hash) {
  const std::string hex = hash.ToHex();
  return hex.substr((hash.words[0] | hash.words[1] | hash.words[2]) == 0 ? 48 : 0, 12);
}

class EventJson {
 public:
  EventJson(const events::HashForm& form, JsonWriter* json) : form_(form), json_(*json) {}

  void operator()(const BlockStored& event) {
    json_.Key("type").Value("BlockStored");
    json_.Key("block_hashes").BeginArray();
    for (const BlockHash& hash : event.block_hashes) Hash(hash);
    json_.EndArray();
    json_.Key("parent_block_hash");
    event.parent_block_hash ? Hash(*event.parent_block_hash) : void(json_.Null());
    json_.Key("token_ids");
    Tokens(event.token_ids);
    json_.Key("block_size").Value(event.block_size);
    json_.Key("lora_id");
    event.lora_id ? json_.Value(*event.lora_id) : json_.Null();
    TextOrNull("medium", event.medium);
    TextOrNull("lora_name", event.lora_name);
    if (!event.extra_keys.empty()) {
      json_.Key("extra_keys").BeginArray();
      for (const std::optional<ExtraKeys>& keys : event.extra_keys) Keys(keys);
      json_.EndArray();
    }
    json_.Key("group_idx").Value(int64_t{event.group_idx});
    if (!event.kv_cache_spec_kind.empty()) {
      TextOrNull("kv_cache_spec_kind", event.kv_cache_spec_kind);
    }
    if (event.kv_cache_spec_sliding_window) {
      json_.Key("kv_cache_spec_sliding_window").Value(*event.kv_cache_spec_sliding_window);
    }
    TextIfAny("locality", event.locality);
    TextIfAny("ownership", event.ownership);
    TextIfAny("session_id", event.session_id);
    if (event.lookahead_token_ids) {
      json_.Key("lookahead_token_ids").BeginArray();
      for (const std::vector<TokenId>& tokens : *event.lookahead_token_ids) Tokens(tokens);
      json_.EndArray();
    }
  }
  void operator()(const BlockRemoved& event) {
    json_.Key("type").Value("BlockRemoved");
    json_.Key("block_hashes").BeginArray();
    Hash(event.block_hash);
    json_.EndArray();
    TextOrNull("medium", event.medium);
    json_.Key("group_idx").Value(int64_t{event.group_idx});
    TextIfAny("locality", event.locality);
    TextIfAny("ownership", event.ownership);
  }
  void operator()(const AllBlocksCleared&) {
    json_.Key("type").Value("AllBlocksCleared");
  }

 private:
  void Hash(const BlockHash& hash) {
    const std::string hex = hash.ToHex();
    json_.Value(form_.as_integers ? hex.substr(48) : hex.substr(0, 2 * form_.digest_size));
  }
  void Tokens(const std::vector<TokenId>& tokens) {
    json_.BeginArray();
    for (const TokenId token : tokens) json_.Value(int64_t{token});
    json_.EndArray();
  }
  void TextOrNull(std::string_view name, std::string_view text) {
    json_.Key(name);
    text.empty() ? json_.Null() : json_.Value(text);
  }
  void TextIfAny(std::string_view name, const std::optional<std::string>& text) {
    if (text) TextOrNull(name, *text);
  }
  void Keys(const std::optional<ExtraKeys>& keys) {
    if (!keys) {
      json_.Null();
      return;
    }
    json_.BeginArray();
    for (const ExtraKey& key : *keys) {
      switch (key.kind) {
        case ExtraKey::Kind::kMultimodal:
          json_.BeginArray();
          json_.Value(key.value);
          json_.Value(key.offset);
          json_.EndArray();
          break;
        case ExtraKey::Kind::kPromptEmbedding:
          json_.Value(absl::BytesToHexString(key.value));
          break;
        case ExtraKey::Kind::kLora:
        case ExtraKey::Kind::kSalt:
          json_.Value(key.value);
      }
    }
    json_.EndArray();
  }

  const events::HashForm form_;
  JsonWriter& json_;
};

JsonWriter LineOf(std::string_view type, const EventStream& stream) {
  JsonWriter line;
  line.BeginObject();
  line.Key("type").Value(type);
  line.Key("stream").Value(stream.name);
  return line;
}

std::string Ended(JsonWriter& line) { return line.EndObject().text() + "\n"; }

void AddProblems(const EventStream& stream, const events::StreamCheck::Totals& totals,
                 TextPage& page) {
  const int64_t num_problems = totals.num_problems() + stream.num_undecodable;
  if (num_problems == 0) {
    page.Line("consistent", "yes: every removal, parent and length fits what was stored");
  } else {
    page.Text("PROBLEMS",
              Say("$0 removals of what was not stored, $1 hashes behind two parents, $2 lists of "
                  "wrong length, $3 messages that are no batches. $4",
                  totals.num_unknown_removals, totals.num_two_parents, totals.num_unequal_lists,
                  stream.num_undecodable, Harmless(totals.first_problem)));
  }
  std::vector<std::string> notes;
  const auto note = [&](int64_t count, const char* what) {
    if (count > 0) notes.push_back(absl::StrCat(WithThousands(count), " ", what));
  };
  note(totals.num_removals_after_loss, "removals of what a lost batch may have stored");
  note(totals.num_unknown_parents, "events whose parent was never stored");
  note(totals.num_times_backwards, "batches with a time before the last one's");
  note(totals.num_unknown_extra_keys, "extra keys of unknown kinds");
  note(totals.num_other_media, "blocks of other media");
  if (!notes.empty()) page.Text("notes", absl::StrJoin(notes, "; "));
}

}  // namespace

std::string Harmless(const std::string& text) { return absl::CHexEscape(text.substr(0, 200)); }

std::string InWords(const KvEvent& event) {
  if (const auto* stored = std::get_if<BlockStored>(&event)) {
    std::string text =
        absl::StrCat("stored ", Plural(static_cast<int64_t>(stored->block_hashes.size()), "block"),
                     " of ", stored->block_size, " tokens, group ", stored->group_idx);
    if (!stored->block_hashes.empty()) {
      absl::StrAppend(&text, ", ", ShortHash(stored->block_hashes.front()));
      if (stored->block_hashes.size() > 1) {
        absl::StrAppend(&text, " to ", ShortHash(stored->block_hashes.back()));
      }
    }
    absl::StrAppend(&text, stored->parent_block_hash
                               ? absl::StrCat(" behind ", ShortHash(*stored->parent_block_hash))
                               : std::string(" at token 0"));
    return text;
  }
  if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
    return absl::StrCat("removed ", ShortHash(removed->block_hash), ", group ", removed->group_idx);
  }
  return "cleared all";
}

void AddStreamReport(const EventStream& stream, const events::StreamCheck::Totals& totals,
                     const events::BlockIndex::Holder& holder, TextPage& page) {
  page.Line("stream", Harmless(stream.name));
  page.Line("messages", Say("$0 batches with $1 events", totals.num_batches, totals.num_events) +
                            (totals.num_batches == 0
                                 ? ""
                                 : absl::StrCat(", numbers ", stream.first_sequence, " to ",
                                                stream.last_sequence, ", over ",
                                                Span(totals.last_time - totals.first_time))));
  page.Line("", Say("$0 replayed, $1 came twice, $2 lost at $3, $4", stream.num_replayed,
                    stream.num_duplicates, stream.num_lost, Plural(stream.num_losses, "place"),
                    Plural(stream.num_restarts, "restart")));
  page.Line("cache now", Say("$0 with $1; cleared $2", Plural(holder.num_blocks, "block"),
                             Plural(holder.num_keys, "key"), Plural(totals.num_cleared, "time")));
  page.Line("removed", Plural(totals.num_removed, "block"));
  page.Line("stored", Plural(totals.num_stored, "block"));
  const auto part = [&](const char* name, int64_t count, const char* meaning) {
    const double share = totals.num_stored == 0 ? 0
                                                : 100.0 * static_cast<double>(count) /
                                                      static_cast<double>(totals.num_stored);
    page.Line("", absl::StrFormat("%-16s %12s  %6.2f %%  %s", name, WithThousands(count), share,
                                  meaning));
  };
  part("first seen", totals.num_first_seen, "new to this cache");
  part("lost before", totals.num_lost_before, "a larger cache would have hit");
  part("held elsewhere", totals.num_held_elsewhere, "another routing would have hit");
  part("held here", totals.num_held_here, "side by side, or reported as reused");
  AddProblems(stream, totals, page);
}

std::string BatchAsJson(const EventStream& stream, int64_t sequence, bool is_replayed,
                        const events::EventBatch& batch) {
  JsonWriter line = LineOf("batch", stream);
  line.Key("sequence").Value(sequence);
  line.Key("time").Value(batch.timestamp);
  line.Key("replayed").Value(is_replayed);
  line.Key("data_parallel_rank");
  batch.data_parallel_rank ? line.Value(*batch.data_parallel_rank) : line.Null();
  line.Key("events").BeginArray();
  for (const KvEvent& event : batch.events) {
    line.BeginObject();
    std::visit(EventJson(batch.hash_form, &line), event);
    line.EndObject();
  }
  line.EndArray();
  return Ended(line);
}

std::string LossAsJson(const EventStream& stream, int64_t num_batches, std::string_view error) {
  JsonWriter line = LineOf("loss", stream);
  line.Key("batches").Value(num_batches);
  line.Key("error");
  error.empty() ? line.Null() : line.Value(error);
  return Ended(line);
}

std::string RestartAsJson(const EventStream& stream) {
  JsonWriter line = LineOf("restart", stream);
  return Ended(line);
}

std::string StreamReportAsJson(const EventStream& stream, const events::StreamCheck::Totals& totals,
                               const events::BlockIndex::Holder& holder) {
  JsonWriter line = LineOf("report", stream);
  const std::pair<const char*, int64_t> numbers[] = {
      {"batches", totals.num_batches},
      {"events", totals.num_events},
      {"first_sequence", stream.first_sequence},
      {"last_sequence", stream.last_sequence},
      {"replayed", stream.num_replayed},
      {"duplicates", stream.num_duplicates},
      {"lost", stream.num_lost},
      {"losses", stream.num_losses},
      {"restarts", stream.num_restarts},
      {"blocks_now", holder.num_blocks},
      {"keys_now", holder.num_keys},
      {"cleared", totals.num_cleared},
      {"removed", totals.num_removed},
      {"stored", totals.num_stored},
      {"stored_first_seen", totals.num_first_seen},
      {"stored_lost_before", totals.num_lost_before},
      {"stored_held_elsewhere", totals.num_held_elsewhere},
      {"stored_held_here", totals.num_held_here},
      {"unknown_removals", totals.num_unknown_removals},
      {"two_parents", totals.num_two_parents},
      {"unequal_lists", totals.num_unequal_lists},
      {"undecodable", stream.num_undecodable},
      {"removals_after_loss", totals.num_removals_after_loss},
      {"unknown_parents", totals.num_unknown_parents},
      {"times_backwards", totals.num_times_backwards},
      {"unknown_extra_keys", totals.num_unknown_extra_keys},
      {"other_media", totals.num_other_media}};
  for (const auto& [name, value] : numbers) {
    line.Key(name);
    value < 0 ? line.Null() : line.Value(value);
  }
  line.Key("first_time").Value(totals.first_time);
  line.Key("last_time").Value(totals.last_time);
  line.Key("consistent").Value(totals.num_problems() + stream.num_undecodable == 0);
  line.Key("first_problem");
  totals.first_problem.empty() ? line.Null() : line.Value(totals.first_problem);
  return Ended(line);
}

}  // namespace kvblocks::sim
