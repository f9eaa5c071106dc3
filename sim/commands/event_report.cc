#include "kvblocks/sim/commands/event_report.h"

#include <cmath>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/human_table.h"
#include "kvblocks/sim/report/json_text.h"

namespace kvblocks::sim {
namespace {

std::string ShortHash(const BlockHash& hash) {
  const std::string hex = hash.ToHex();
  return hex.substr((hash.words[0] | hash.words[1] | hash.words[2]) == 0 ? 48 : 0, 12);
}

// Writes an object or array field by field; commas come by themselves.
class JsonLine {
 public:
  JsonLine() { Open('{'); }
  std::string Take() && { return text_ + "}\n"; }

  void Key(std::string_view name) {
    Separate();
    AppendJsonString(name, &text_);
    text_ += ':';
    is_first_ = true;  // the value needs no comma
  }
  void Text(std::string_view value) {
    Separate();
    AppendJsonString(value, &text_);
  }
  void Int(int64_t value) {
    Separate();
    absl::StrAppend(&text_, value);
  }
  void Number(double value) {
    Separate();
    // A time from the wire may be any double; JSON has no infinity.
    text_ += std::isfinite(value) ? absl::StrFormat("%.17g", value) : "null";
  }
  void Bool(bool value) {
    Separate();
    text_ += value ? "true" : "false";
  }
  void Null() {
    Separate();
    text_ += "null";
  }
  void Open(char bracket) {
    Separate();
    text_ += bracket;
    is_first_ = true;
  }
  void Close(char bracket) {
    text_ += bracket;
    is_first_ = false;
  }

 private:
  void Separate() {
    if (!is_first_) text_ += ',';
    is_first_ = false;
  }
  std::string text_;
  bool is_first_ = true;
};

class EventJson {
 public:
  EventJson(const events::HashForm& form, JsonLine* line) : form_(form), line_(*line) {}

  void operator()(const BlockStored& event) {
    line_.Key("type");
    line_.Text("BlockStored");
    line_.Key("block_hashes");
    line_.Open('[');
    for (const BlockHash& hash : event.block_hashes) Hash(hash);
    line_.Close(']');
    line_.Key("parent_block_hash");
    event.parent_block_hash ? Hash(*event.parent_block_hash) : line_.Null();
    line_.Key("token_ids");
    Tokens(event.token_ids);
    line_.Key("block_size");
    line_.Int(event.block_size);
    line_.Key("lora_id");
    event.lora_id ? line_.Int(*event.lora_id) : line_.Null();
    TextOrNull("medium", event.medium);
    TextOrNull("lora_name", event.lora_name);
    if (!event.extra_keys.empty()) {
      line_.Key("extra_keys");
      line_.Open('[');
      for (const std::optional<ExtraKeys>& keys : event.extra_keys) Keys(keys);
      line_.Close(']');
    }
    line_.Key("group_idx");
    line_.Int(event.group_idx);
    if (!event.kv_cache_spec_kind.empty()) {
      TextOrNull("kv_cache_spec_kind", event.kv_cache_spec_kind);
    }
    if (event.kv_cache_spec_sliding_window) {
      line_.Key("kv_cache_spec_sliding_window");
      line_.Int(*event.kv_cache_spec_sliding_window);
    }
    TextIfAny("locality", event.locality);
    TextIfAny("ownership", event.ownership);
    TextIfAny("session_id", event.session_id);
    if (event.lookahead_token_ids) {
      line_.Key("lookahead_token_ids");
      line_.Open('[');
      for (const std::vector<TokenId>& tokens : *event.lookahead_token_ids) Tokens(tokens);
      line_.Close(']');
    }
  }
  void operator()(const BlockRemoved& event) {
    line_.Key("type");
    line_.Text("BlockRemoved");
    line_.Key("block_hashes");
    line_.Open('[');
    Hash(event.block_hash);
    line_.Close(']');
    TextOrNull("medium", event.medium);
    line_.Key("group_idx");
    line_.Int(event.group_idx);
    TextIfAny("locality", event.locality);
    TextIfAny("ownership", event.ownership);
  }
  void operator()(const AllBlocksCleared&) {
    line_.Key("type");
    line_.Text("AllBlocksCleared");
  }

 private:
  void Hash(const BlockHash& hash) {
    const std::string hex = hash.ToHex();
    line_.Text(form_.as_integers ? hex.substr(48) : hex.substr(0, 2 * form_.digest_size));
  }
  void Tokens(const std::vector<TokenId>& tokens) {
    line_.Open('[');
    for (const TokenId token : tokens) line_.Int(token);
    line_.Close(']');
  }
  void TextOrNull(std::string_view name, std::string_view text) {
    line_.Key(name);
    text.empty() ? line_.Null() : line_.Text(text);
  }
  void TextIfAny(std::string_view name, const std::optional<std::string>& text) {
    if (text) TextOrNull(name, *text);
  }
  void Keys(const std::optional<ExtraKeys>& keys) {
    if (!keys) return line_.Null();
    line_.Open('[');
    for (const ExtraKey& key : *keys) {
      switch (key.kind) {
        case ExtraKey::Kind::kMultimodal:
          line_.Open('[');
          line_.Text(key.value);
          line_.Int(key.offset);
          line_.Close(']');
          break;
        case ExtraKey::Kind::kPromptEmbedding:
          line_.Text(absl::BytesToHexString(key.value));
          break;
        case ExtraKey::Kind::kLora:
        case ExtraKey::Kind::kSalt:
          line_.Text(key.value);
      }
    }
    line_.Close(']');
  }

  const events::HashForm form_;
  JsonLine& line_;
};

JsonLine LineOf(std::string_view type, const EventStream& stream) {
  JsonLine line;
  line.Key("type");
  line.Text(type);
  line.Key("stream");
  line.Text(stream.name);
  return line;
}

void AddProblems(const EventStream& stream, const events::StreamCheck::Totals& totals,
                 TextPage& page) {
  const int64_t num_problems = totals.num_problems() + stream.num_undecodable;
  if (num_problems == 0) {
    page.Line("consistent", "yes: every removal, parent and length fits what was stored");
  } else {
    page.Text(
        "PROBLEMS",
        absl::StrCat(WithThousands(totals.num_unknown_removals),
                     " removals of what was not stored, ", WithThousands(totals.num_two_parents),
                     " hashes behind two parents, ", WithThousands(totals.num_unequal_lists),
                     " lists of wrong length, ", WithThousands(stream.num_undecodable),
                     " messages that are no batches. ", Harmless(totals.first_problem)));
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
  if (!notes.empty()) {
    std::string text;
    for (const std::string& line : notes) absl::StrAppend(&text, text.empty() ? "" : "; ", line);
    page.Text("notes", text);
  }
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
  page.Line("messages",
            absl::StrCat(WithThousands(totals.num_batches), " batches with ",
                         WithThousands(totals.num_events), " events",
                         totals.num_batches == 0
                             ? ""
                             : absl::StrCat(", numbers ", stream.first_sequence, " to ",
                                            stream.last_sequence, ", over ",
                                            Span(totals.last_time - totals.first_time))));
  page.Line("", absl::StrCat(WithThousands(stream.num_replayed), " replayed, ",
                             WithThousands(stream.num_duplicates), " came twice, ",
                             WithThousands(stream.num_lost), " lost at ",
                             Plural(stream.num_losses, "place"), ", ",
                             Plural(stream.num_restarts, "restart")));
  page.Line("cache now", absl::StrCat(Plural(holder.num_blocks, "block"), " with ",
                                      Plural(holder.num_keys, "key"), "; cleared ",
                                      Plural(totals.num_cleared, "time")));
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
  JsonLine line = LineOf("batch", stream);
  line.Key("sequence");
  line.Int(sequence);
  line.Key("time");
  line.Number(batch.timestamp);
  line.Key("replayed");
  line.Bool(is_replayed);
  line.Key("data_parallel_rank");
  batch.data_parallel_rank ? line.Int(*batch.data_parallel_rank) : line.Null();
  line.Key("events");
  line.Open('[');
  for (const KvEvent& event : batch.events) {
    line.Open('{');
    std::visit(EventJson(batch.hash_form, &line), event);
    line.Close('}');
  }
  line.Close(']');
  return std::move(line).Take();
}

std::string LossAsJson(const EventStream& stream, int64_t num_batches, std::string_view error) {
  JsonLine line = LineOf("loss", stream);
  line.Key("batches");
  line.Int(num_batches);
  line.Key("error");
  error.empty() ? line.Null() : line.Text(error);
  return std::move(line).Take();
}

std::string RestartAsJson(const EventStream& stream) {
  return LineOf("restart", stream).Take();
}

std::string StreamReportAsJson(const EventStream& stream, const events::StreamCheck::Totals& totals,
                               const events::BlockIndex::Holder& holder) {
  JsonLine line = LineOf("report", stream);
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
    value < 0 ? line.Null() : line.Int(value);
  }
  line.Key("first_time");
  line.Number(totals.first_time);
  line.Key("last_time");
  line.Number(totals.last_time);
  line.Key("consistent");
  line.Bool(totals.num_problems() + stream.num_undecodable == 0);
  line.Key("first_problem");
  totals.first_problem.empty() ? line.Null() : line.Text(totals.first_problem);
  return std::move(line).Take();
}

}  // namespace kvblocks::sim
