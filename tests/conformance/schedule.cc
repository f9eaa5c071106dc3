#include "tests/conformance/schedule.h"

#include <utility>

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

std::map<std::string, int64_t> ParseDerived(FieldReader& in) {
  std::map<std::string, int64_t> derived;
  const auto fields = in.Object("derived");
  if (!fields) return derived;
  for (const auto& [name, value] : *fields) {
    bool is_true = false;
    int64_t number = 0;
    if (value.is_null()) continue;
    if (!value.get_bool().get(is_true)) {
      number = is_true;
    } else if (value.get_int64().get(number)) {
      in.Fail("derived", "numbers and truth values");
    }
    derived.emplace(name, number);
  }
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
  if (in.Has("derived")) schedule.derived = ParseDerived(in);
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

absl::StatusOr<ScheduleLine> ParseScheduleLine(const std::string& line) {
  simdjson::dom::parser parser;
  const auto fields = ParseObject(parser, line);
  if (!fields.ok()) return fields.status();
  ScheduleLine out;
  for (const auto& [name, value] : *fields) {
    if (std::string text = simdjson::minify(value); text != "[]") {
      out.emplace(name, std::move(text));
    }
  }
  return out;
}

}  // namespace kvblocks::conformance
