#include "tests/conformance/transcript.h"

#include <limits>
#include <string_view>

#include "tests/conformance/field_reader.h"

namespace kvblocks::conformance {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

std::vector<TokenId> TokensOf(const std::vector<TokenSegment>& segments) {
  std::vector<TokenId> tokens;
  for (const TokenSegment& segment : segments) {
    for (int64_t i = 0; i < segment.count; ++i) {
      tokens.push_back(TranscriptToken(segment.document, segment.start + i));
    }
  }
  return tokens;
}

RecordedState ParseState(FieldReader& in) {
  RecordedState state;
  constexpr int64_t kMaxCrc = std::numeric_limits<uint32_t>::max();
  state.num_free = in.Int("f");
  state.queue_crc = static_cast<uint32_t>(in.Int("q", 0, kMaxCrc));
  state.key_crc = static_cast<uint32_t>(in.Int("k", 0, kMaxCrc));
  state.ref_crc = static_cast<uint32_t>(in.Int("r", 0, kMaxCrc));
  if (!in.Has("ev")) return state;
  using Kind = TableChange::Kind;
  for (element item : in.Array("ev")) {
    std::vector<element> parts = in.ItemsOf(item, "ev");
    std::string_view kind;
    if (parts.empty() || parts[0].get_string().get(kind)) {
      in.Fail("ev", "a list of changes");
      break;
    }
    parts.erase(parts.begin());
    TableChange change;
    if (kind == "S" && parts.size() == 4) {
      change.blocks = in.BlockIds(in.ItemsOf(parts.back(), "ev"), "ev");
      parts.pop_back();
    }
    const std::vector<int64_t> n = in.IntsOf(parts, "ev");
    if (kind == "S" && n.size() == 3 && n[1] >= 0 && n[1] <= n[2] &&
        n[2] - n[1] == static_cast<int64_t>(change.blocks.size())) {
      change.kind = Kind::kStored;
      change.from = n[1];
      change.to = n[2];
    } else if (kind == "R" && (n.size() == 2 || n.size() == 3)) {
      change.kind = Kind::kRemoved;
      change.blocks = in.BlockIds({parts[1]}, "ev");
      change.is_further_key = n.back() == 2 && n.size() == 3;
    } else if (kind == "P" && n.size() == 4 && n[2] >= 1) {
      change.kind = Kind::kStoredTail;
      change.blocks = in.BlockIds({parts[1]}, "ev");
      change.num_tokens = n[2];
      change.is_further_key = n[3] == 2;
    } else if (kind == "M" && n.size() == 2) {
      change.kind = Kind::kMoved;
      change.blocks = in.BlockIds(parts, "ev");
    } else if (kind != "C") {
      in.Fail("ev",
              "[\"S\", group, from, to, blocks], [\"R\", group, block] or with a 2 behind, "
              "[\"P\", group, block, tokens, 1 or 2], [\"M\", source, target] or [\"C\"]");
      break;
    }
    if (kind != "C" && kind != "M") change.group = static_cast<GroupId>(n[0]);
    state.changes.push_back(std::move(change));
  }
  return state;
}

// [[id, value], ...]; `read` gets the second part.
template <typename Read>
void ParsePairs(FieldReader& in, const char* name, Read read) {
  for (element item : in.Array(name)) {
    const std::vector<element> pair = in.ItemsOf(item, name);
    std::string_view id;
    if (pair.size() != 2 || pair[0].get_string().get(id)) {
      in.Fail(name, "a list of [id, value]");
      return;
    }
    read(std::string(id), pair[1]);
  }
}

}  // namespace

TokenId TranscriptToken(int64_t doc, int64_t position) {
  const uint64_t mixed =
      static_cast<uint64_t>(doc) * 1315423911u + static_cast<uint64_t>(position) * 2654435761u;
  return static_cast<TokenId>((mixed & 0xffffffffu) % 128000u);
}

absl::StatusOr<TranscriptConfig> ParseConfig(const std::string& line) {
  simdjson::dom::parser parser;
  const auto fields = ParseObject(parser, line);
  if (!fields.ok()) return fields.status();
  FieldReader in(*fields);
  TranscriptConfig config;
  in.Int("format", 1, 1);
  config.name = in.String("name");
  in.String("family");                 // of the recorder's, a remark
  in.IntOr("common", 0);               // whether common prefixes are asked for
  in.IntOr("copies", 0);               // whether allocations may make some, which they say
  config.num_blocks = in.Int("num_blocks", 1, std::numeric_limits<int32_t>::max() - 1);
  config.hash_block_size = in.Int("hash_block_size", 1);
  config.scheduler_block_size = in.Int("scheduler_block_size", 1);
  config.enable_caching = in.Bool("enable_caching");
  config.use_eagle = in.Bool("use_eagle");
  config.enable_events = in.Bool("enable_events");
  config.max_model_len = in.Int("max_model_len", 1);
  config.max_in_flight_tokens = in.Int("max_in_flight_tokens", 1);
  const std::string order = in.String("free_order");
  if (order != "fifo" && order != "unhashed_first") {
    in.Fail("free_order", "\"fifo\" or \"unhashed_first\"");
  }
  config.append_all = order == "fifo";
  config.retention_interval = in.OptionalInt("retention");
  config.hash_lookahead = in.IntOr("hash_lookahead", 0);
  config.prefill_lookahead = in.IntOr("prefill_lookahead", 0);
  config.watermark = in.Double("watermark");
  config.decode_context_parallel = in.Has("dcp_world_size") ? in.Int("dcp_world_size", 1, 4096) : 1;
  config.records_boundaries = in.IntOr("rec_boundary", 0) != 0;
  config.has_no_partial_keys = in.IntOr("no_partial", 0) != 0;
  for (element item : in.Array("groups")) {
    object group_fields;
    if (item.get_object().get(group_fields)) {
      in.Fail("groups", "a list of objects");
      break;
    }
    FieldReader group_in(group_fields);
    RecordedGroup group;
    group.kind = group_in.String("kind");
    group.block_size = group_in.Int("block_size", 1);
    group.sliding_window = group_in.OptionalInt("sliding_window");
    group.attention_chunk_size = group_in.OptionalInt("attention_chunk_size");
    group.is_draft = group_in.Bool("draft");
    group.num_retained_tokens = group_in.IntOr("extra_retained_tokens", 0);
    group.mamba_mode = group_in.StringOrEmpty("mode");
    group.num_speculative_blocks = group_in.IntOr("spec_blocks", 0);
    group_in.RefuseOthers();
    if (!group_in.status().ok()) return group_in.status();
    config.groups.push_back(std::move(group));
  }
  in.RefuseOthers();
  if (!in.status().ok()) return in.status();
  return config;
}

absl::StatusOr<Operation> ParseOperation(const std::string& line) {
  simdjson::dom::parser parser;
  const auto fields = ParseObject(parser, line);
  if (!fields.ok()) return fields.status();
  FieldReader in(*fields);
  Operation out;
  out.op = in.String("op");
  const std::string& op = out.op;
  if (op == "new") {
    out.prompt = TokensOf(in.Segments(in.Array("p"), "p"));
    out.skip_reading = in.IntOr("skip", 0) != 0;
    out.salt = in.StringOrEmpty("salt");
    out.lora = in.StringOrEmpty("lora");
  } else if (op == "get") {
    out.hits = in.Lists("hits");
    out.hit_tokens = in.Int("h");
    out.boundary = in.IntOr("b", 0);
  } else if (op == "alloc") {
    out.num_new = in.Int("new");
    out.use_hits = in.IntOr("use", 0) != 0;
    out.num_hit_tokens = in.IntOr("hc", 0);
    out.num_lookahead = in.IntOr("la", 0);
    out.num_external = in.IntOr("ext", 0);
    out.delay = in.IntOr("delay", 0) != 0;
    out.gate = in.IntOr("gate", 0) != 0;
    if (in.HasValue("out")) {
      out.blocks = in.Lists("out");
    } else if (!in.Has("out")) {
      in.Fail("out", "block ids per group, or null");
    }
    if (in.Has("cp")) {
      for (const auto& ends : in.Lists("cp")) {
        if (ends.size() != 2) {
          in.Fail("cp", "pairs of a source and a target");
          break;
        }
        out.copies.emplace_back(ends[0], ends[1]);
      }
    }
  } else if (op == "comp") {
    ParsePairs(in, "set", [&](std::string id, element value) {
      int64_t n = 0;
      if (value.get_int64().get(n)) in.Fail("set", "[id, number]");
      out.computed.emplace_back(std::move(id), n);
    });
  } else if (op == "app") {
    ParsePairs(in, "add", [&](std::string id, element value) {
      out.appended.emplace_back(std::move(id),
                                TokensOf(in.Segments(in.ItemsOf(value, "add"), "add")));
    });
  } else if (op == "cache" || op == "trim") {
    out.n = in.Int("n");
  } else if (op == "evict") {
    out.ids = in.BlockIds(in.Array("ids"), "ids");
  } else if (op == "reset") {
    out.ok = in.Bool("ok");
  } else if (op == "ids") {
    out.tables = in.Lists("t");
  } else if (op == "common") {
    out.common = in.Ints("n");
  } else if (op == "digest") {
    out.digest = RecordedDigest{.queue = in.BlockIds(in.Array("queue"), "queue"),
                                .cached = in.Lists("cached"),
                                .num_keys = in.Int("keys"),
                                .usage = in.Double("usage")};
  } else if (op != "free" && op != "preempt" && op != "step" && op != "release") {
    in.Fail("op", "a known operation");
  }
  const bool changes_blocks = op == "alloc" || op == "free" || op == "preempt" || op == "cache" ||
                              op == "trim" || op == "evict" || op == "reset" || op == "release";
  const bool names_request = op != "comp" && op != "app" && op != "evict" && op != "reset" &&
                             op != "digest" && op != "step" && op != "release";
  if (names_request) out.id = in.String("id");
  if (changes_blocks) out.state = ParseState(in);
  in.RefuseOthers();
  if (!in.status().ok()) return in.status();
  return out;
}

}  // namespace kvblocks::conformance
