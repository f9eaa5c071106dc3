// Short ways to read a trace from a string in tests.

#ifndef KVBLOCKS_SIM_TESTING_TRACE_TESTING_H_
#define KVBLOCKS_SIM_TESTING_TRACE_TESTING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "sim/trace/decimal.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

inline constexpr int64_t kMs = 1000000;  // in nanoseconds

inline absl::StatusOr<std::vector<TraceRequest>> AllRequests(TraceReader& reader) {
  std::vector<TraceRequest> requests;
  TraceRequest request;
  while (true) {
    absl::StatusOr<bool> more = reader.Next(request);
    if (!more.ok()) return more.status();
    if (!*more) return requests;
    requests.push_back(std::move(request));
    request = TraceRequest();
  }
}

inline absl::StatusOr<std::vector<TraceRequest>> ReadTrace(std::string content,
                                                           const TraceReaderOptions& options = {}) {
  auto reader = OpenTraceString(std::move(content), "t", options);
  if (!reader.ok()) return reader.status();
  return AllRequests(**reader);
}

// The same of what must be readable, or else the test ends.
inline std::unique_ptr<TraceReader> MustOpen(const std::string& path,
                                             const TraceReaderOptions& options = {}) {
  return OpenTrace(path, options).value();
}
inline std::unique_ptr<TraceReader> MustOpenString(std::string content,
                                                   const TraceReaderOptions& options = {}) {
  return OpenTraceString(std::move(content), "t", options).value();
}
inline std::vector<TraceRequest> MustRead(TraceReader& reader) {
  return AllRequests(reader).value();
}
inline std::vector<TraceRequest> MustRead(std::string content,
                                          const TraceReaderOptions& options = {}) {
  return ReadTrace(std::move(content), options).value();
}

// The error's message, or "" if the trace reads well.
inline std::string TraceError(std::string content, const TraceReaderOptions& options = {}) {
  return std::string(ReadTrace(std::move(content), options).status().message());
}

// Texts, and what is in the messages with which `error` refuses them.
using Refusals = std::vector<std::pair<std::string, std::string>>;
template <typename Error>
void ExpectRefusals(const Error& error, const Refusals& refusals) {
  for (const auto& [text, part] : refusals) {
    const std::string message(error(text));
    EXPECT_NE(message.find(part), std::string::npos)
        << message << "\nhas not: " << part << "\nfor: " << text;
  }
}
inline void ExpectRefusals(const Refusals& refusals) {
  ExpectRefusals([](const std::string& text) { return TraceError(text); }, refusals);
}

// What a request says beside its defaults, in one line, with times in seconds; of more than 6 ids
// their number.
inline std::string Text(const TraceRequest& r) {
  std::string text = absl::StrCat(r.row, r.has_arrival ? " at " : " by ",
                                  FormatScaledDecimal(r.arrival_ns, 9), ": ", r.input_length, "+",
                                  r.output_length);
  const auto add = [&text](const char* name, const auto& value) {
    absl::StrAppend(&text, ", ", name, " ", value);
  };
  const auto add_ids = [&add](const char* name, const auto& ids) {
    if (ids.empty()) return;
    add(name, ids.size() > 6 ? absl::StrCat("of ", ids.size()) : absl::StrJoin(ids, " "));
  };
  if (r.id != absl::StrCat(r.row)) add("id", r.id);
  if (r.session != 0) add("session", absl::StrCat(r.session, "/", r.turn));
  add_ids("after", r.waits_for);
  if (r.think_ns != 0) add("thinks", FormatScaledDecimal(r.think_ns, 9));
  add_ids(r.ids_cover_output ? "all ids" : "ids", r.content_ids);
  add_ids("output", r.output_ids);
  if (r.priority != 0) add("priority", r.priority);
  if (!r.slo_class.empty()) add("class", r.slo_class);
  return text;
}
inline std::string Texts(const std::vector<TraceRequest>& requests) {
  std::string texts;
  for (const TraceRequest& request : requests) absl::StrAppend(&texts, Text(request), "\n");
  return texts;
}

// A Mooncake row of length-only content.
inline std::string Row(const std::string& timestamp, const std::string& more = "") {
  return "{\"timestamp\": " + timestamp +
         ", \"input_length\": 8, \"output_length\": 2, \"block_size\": 0, \"hash_ids\": []" +
         (more.empty() ? "" : ", ") + more + "}\n";
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_TRACE_TESTING_H_
