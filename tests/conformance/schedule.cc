#include "tests/conformance/schedule.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvblocks::conformance {
namespace {

constexpr int64_t kMostBlocks = int64_t{1} << 24;
constexpr int64_t kMostTokens = int64_t{1} << 26;  // of one request, and of all together
constexpr int64_t kMostSize = int64_t{1} << 30;
constexpr int64_t kLastTime = 1000000000;
constexpr int64_t kMostDrafts = 1024;

// One of two texts; true for the first.
bool Choice(FieldReader& in, const char* name, const std::string& yes, const std::string& no) {
  const std::string text = in.String(name);
  if (text != yes && text != no) in.Fail(name, "one of two known words");
  return text == yes;
}

RecordedGroup ParseScheduleGroup(FieldReader& in) {
  RecordedGroup group;
  group.kind = in.String("kind");
  if (group.kind == "mamba") group.mamba_mode = "align";
  group.block_size = in.Int("block_size", 1, kMostSize);
  if (in.HasValue("window")) {
    (group.kind == "chunked_local_attention" ? group.attention_chunk_size : group.sliding_window) =
        in.Int("window", 1, kMostSize);
  }
  group.is_draft = in.BoolOr("draft", false);
  return group;
}

ScheduleConfig ParseScheduleConfig(FieldReader& in) {
  ScheduleConfig config;
  in.StringOrEmpty("model");  // a remark
  config.async = Choice(in, "mode", "async", "sync");
  config.num_blocks = in.Int("num_blocks", 2, kMostBlocks);
  config.block_size = in.Int("block_size", 1, kMostSize);
  if (in.HasValue("groups")) {
    for (const auto item : in.Array("groups")) {
      const auto fields = in.ObjectOf(item, "groups");
      if (!fields) break;
      FieldReader group_in(*fields);
      config.groups.push_back(ParseScheduleGroup(group_in));
      group_in.RefuseOthers();
      in.Adopt(group_in.status());
    }
  } else {
    config.groups.push_back({.kind = "full_attention", .block_size = config.block_size});
  }
  config.max_num_seqs = in.Int("max_num_seqs", 1, 1 << 20);
  config.max_num_batched_tokens = in.Int("max_num_batched_tokens", 1, kMostSize);
  config.max_model_len = in.Int("max_model_len", 2, kMostSize);
  config.priority_policy = Choice(in, "policy", "priority", "fcfs");
  config.chunked_prefill = in.Bool("chunked_prefill");
  config.long_prefill_threshold = in.Int("long_prefill_threshold", 0, kMostSize);
  config.watermark = in.Double("watermark");
  config.reserve_full_isl = in.Bool("reserve_full_isl");
  config.num_drafts = in.Int("drafts", 0, kMostDrafts);
  config.method = in.StringOrEmpty("method");
  config.lookahead_hashes = in.Bool("lookahead_hashes");
  config.retention = in.OptionalInt("retention");
  config.prefix_caching = in.Bool("prefix_caching");
  config.step_ms = in.Int("step_ms", 1, kLastTime);
  config.max_num_active_seqs = in.OptionalInt("max_num_active_seqs");
  config.adaptive_threshold = in.BoolOr("adaptive_threshold", false);
  if (in.HasValue("prefill_interval")) {
    config.prefill_interval = in.Int("prefill_interval", 1, kMostSize);
  }
  return config;
}

ScheduleDerived ParseScheduleDerived(FieldReader& in) {
  ScheduleDerived derived;
  derived.lookahead_slots = in.Int("lookahead_slots");
  derived.hash_lookahead_tokens = in.Int("hash_lookahead_tokens");
  derived.drop_last_hit_block = in.Bool("drop_last_hit_block");
  derived.draft_slots = in.Int("draft_slots");
  derived.max_in_flight_tokens = in.Int("max_in_flight_tokens");
  derived.steps_in_flight = in.Int("steps_in_flight");
  derived.watermark_blocks = in.OptionalInt("watermark_blocks");
  derived.scheduler_block_size = in.OptionalInt("scheduler_block_size");
  derived.hash_block_size = in.OptionalInt("hash_block_size");
  derived.prefill_lookahead_tokens = in.OptionalInt("prefill_lookahead_tokens");
  return derived;
}

ScheduleRequest ParseScheduleRequest(FieldReader& in) {
  ScheduleRequest request;
  request.arrival = in.Int("t", 0, kLastTime);
  request.prompt = in.Segments(in.Array("p"), "p");
  request.num_outputs = in.Int("out", 1, kMostTokens);
  if (in.Has("prio")) request.priority = in.Int("prio", -kMostSize, kMostSize);
  if (in.Has("abort")) request.abort_after = in.Int("abort", 1, kLastTime);
  if (in.Has("acc")) {
    request.accepted_drafts = in.Ints("acc");
    for (const int64_t count : request.accepted_drafts) {
      if (count < 0 || count > kMostDrafts) in.Fail("acc", "numbers of drafts");
    }
  }
  return request;
}

std::vector<int64_t> RowsOf(FieldReader& in, const char* name, int64_t num_rows) {
  std::vector<int64_t> rows = in.Ints(name);
  for (const int64_t row : rows) {
    if (row < 0 || row >= num_rows) in.Fail(name, "rows of the list of requests");
  }
  return rows;
}

// [row, tokens, hit tokens or null, new blocks per group, verified drafts]
ScheduledPart ParsePart(FieldReader& in, FieldReader::Element item, int64_t num_rows) {
  ScheduledPart part;
  const auto fields = in.ItemsOf(item, "sched");
  int64_t hits = 0;
  if (fields.size() != 5 || fields[0].get_int64().get(part.row) ||
      fields[1].get_int64().get(part.num_tokens) ||
      (!fields[2].is_null() && fields[2].get_int64().get(hits)) ||
      fields[4].get_int64().get(part.num_verified_drafts) || part.row < 0 ||
      part.row >= num_rows) {
    in.Fail("sched", "lists [row, tokens, hit tokens or null, new blocks, verified drafts]");
    return part;
  }
  if (!fields[2].is_null()) part.num_hit_tokens = hits;
  part.new_blocks = in.ListsOf(in.ItemsOf(fields[3], "sched"), "sched");
  return part;
}

ScheduleCall ParseCall(FieldReader& in, int64_t num_rows) {
  ScheduleCall call;
  call.time = in.Int("t");
  call.num_running = in.OptionalInt("run");
  call.num_waiting = in.OptionalInt("wait");
  call.num_free = in.Int("free");
  if (in.Has("pre")) call.preempted = RowsOf(in, "pre", num_rows);
  if (!in.Has("i")) return call;
  call.step = in.Int("i");
  call.start = in.OptionalInt("start");
  for (const auto item : in.Array("sched")) call.parts.push_back(ParsePart(in, item, num_rows));
  call.num_emitted = in.Ints("out");
  if (call.num_emitted.size() != call.parts.size()) in.Fail("out", "one number per part of sched");
  if (in.Has("fin")) call.finished = RowsOf(in, "fin", num_rows);
  return call;
}

std::string Describe(const ScheduleCall& call) {
  std::string text = absl::StrCat("t ", call.time);
  if (call.step) absl::StrAppend(&text, ", step ", *call.step);
  if (call.start) absl::StrAppend(&text, ", start ", *call.start);
  if (call.num_running) absl::StrAppend(&text, ", running ", *call.num_running);
  if (call.num_waiting) absl::StrAppend(&text, ", waiting ", *call.num_waiting);
  absl::StrAppend(&text, ", free ", call.num_free);
  for (size_t i = 0; i < call.parts.size(); ++i) {
    const ScheduledPart& part = call.parts[i];
    absl::StrAppend(&text, "; row ", part.row, ": ", part.num_tokens, " tokens");
    if (part.num_hit_tokens) absl::StrAppend(&text, " after ", *part.num_hit_tokens, " hit");
    for (const std::vector<BlockId>& blocks : part.new_blocks) {
      absl::StrAppend(&text, " [", absl::StrJoin(blocks, ","), "]");
    }
    if (part.num_verified_drafts > 0) {
      absl::StrAppend(&text, " ", part.num_verified_drafts, " drafts");
    }
    if (i < call.num_emitted.size()) absl::StrAppend(&text, " -> ", call.num_emitted[i]);
  }
  if (!call.preempted.empty()) {
    absl::StrAppend(&text, "; preempted ", absl::StrJoin(call.preempted, ","));
  }
  if (!call.finished.empty()) {
    absl::StrAppend(&text, "; finished ", absl::StrJoin(call.finished, ","));
  }
  return text;
}

std::string Describe(const ScheduleAbort& abort) {
  return absl::StrCat("t ", abort.time, ", aborted ", absl::StrJoin(abort.rows, ","),
                      abort.before_outputs ? " before outputs" : " between steps");
}

std::string Describe(const ScheduleEnd& end) {
  return absl::StrCat("end at t ", end.time, ", steps ", end.num_steps, ", free ", end.num_free,
                      ", CRC-32 of the free queue ", end.queue_crc, ", keyed blocks ",
                      end.num_keyed_blocks);
}

template <typename T>
bool IsSame(const std::optional<T>& recorded, const std::optional<T>& replayed) {
  return !recorded || recorded == replayed;
}

bool IsSame(const ScheduleCall& a, const ScheduleCall& b) {
  return a.time == b.time && IsSame(a.num_running, b.num_running) &&
         IsSame(a.num_waiting, b.num_waiting) && a.num_free == b.num_free &&
         a.preempted == b.preempted && a.step == b.step && IsSame(a.start, b.start) &&
         a.parts == b.parts && a.num_emitted == b.num_emitted && a.finished == b.finished;
}

bool IsSame(const ScheduleAbort& a, const ScheduleAbort& b) { return a == b; }
bool IsSame(const ScheduleEnd& a, const ScheduleEnd& b) { return a == b; }

}  // namespace

int64_t ScheduleRequest::num_prompt_tokens() const {
  int64_t sum = 0;
  for (const TokenSegment& segment : prompt) sum += segment.count;
  return sum;
}

absl::StatusOr<Schedule> ParseSchedule(const std::string& line) {
  simdjson::dom::parser parser;
  const auto fields = ParseObject(parser, line);
  if (!fields.ok()) return fields.status();
  FieldReader in(*fields);
  Schedule schedule;
  if (in.String("format") != "kvsched 1") in.Fail("format", "\"kvsched 1\"");
  if (const auto object = in.Object("config")) {
    FieldReader config_in(*object);
    schedule.config = ParseScheduleConfig(config_in);
    config_in.RefuseOthers();
    in.Adopt(config_in.status());
  }
  if (in.Has("derived")) {
    if (const auto object = in.Object("derived")) {
      FieldReader derived_in(*object);
      schedule.derived = ParseScheduleDerived(derived_in);
      derived_in.RefuseOthers();
      in.Adopt(derived_in.status());
    }
  }
  int64_t num_tokens = 0;
  for (const auto item : in.Array("requests")) {
    const auto object = in.ObjectOf(item, "requests");
    if (!object || !in.status().ok()) break;
    FieldReader request_in(*object);
    schedule.requests.push_back(ParseScheduleRequest(request_in));
    request_in.RefuseOthers();
    in.Adopt(request_in.status());
    const ScheduleRequest& request = schedule.requests.back();
    num_tokens += request.num_prompt_tokens() + request.num_outputs;
    if (num_tokens > kMostTokens) in.Fail("requests", "at most 2^26 tokens in all");
    if (schedule.requests.size() > 1 &&
        request.arrival < schedule.requests[schedule.requests.size() - 2].arrival) {
      in.Fail("requests", "requests in order of arrival");
    }
  }
  in.StringOrEmpty("name");
  in.StringOrEmpty("engine");
  in.StringOrEmpty("note");
  in.RefuseOthers();
  if (!in.status().ok()) return in.status();
  return schedule;
}

absl::StatusOr<ScheduleLine> ParseScheduleLine(const std::string& line, int64_t num_rows) {
  simdjson::dom::parser parser;
  const auto fields = ParseObject(parser, line);
  if (!fields.ok()) return fields.status();
  FieldReader in(*fields);
  ScheduleLine out;
  if (in.Has("abort")) {
    ScheduleAbort abort;
    abort.rows = RowsOf(in, "abort", num_rows);
    abort.time = in.Int("t");
    abort.before_outputs = Choice(in, "at", "outputs", "loop");
    out = std::move(abort);
  } else if (in.Has("end")) {
    constexpr int64_t kMostCrc = std::numeric_limits<uint32_t>::max();
    out = ScheduleEnd{.time = in.Int("t"),
                      .num_steps = in.Int("steps"),
                      .num_free = in.Int("free"),
                      .queue_crc = static_cast<uint32_t>(in.Int("queue_crc32", 0, kMostCrc)),
                      .num_keyed_blocks = in.Int("keyed_blocks")};
  } else {
    out = ParseCall(in, num_rows);
  }
  in.RefuseOthers();
  if (!in.status().ok()) return in.status();
  return out;
}

bool Agrees(const ScheduleLine& recorded, const ScheduleLine& replayed) {
  if (recorded.index() != replayed.index()) return false;
  return std::visit(
      [&](const auto& line) {
        return IsSame(line, std::get<std::decay_t<decltype(line)>>(replayed));
      },
      recorded);
}

std::string Describe(const ScheduleLine& line) {
  return std::visit([](const auto& what) { return Describe(what); }, line);
}

}  // namespace kvblocks::conformance
