#include "sim/testing/trace_events.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace kvblocks::sim {
namespace {

using simdjson::dom::element;

std::string Text(element value) { return std::string(value.get_string().value()); }

// Microseconds with three decimals, which a double holds exactly enough.
int64_t EventNanoseconds(element value) {
  return std::llround(value.get_double().value() * 1000.0);
}

void ReadEvent(element event, TraceEvents& out) {
  const std::string kind = Text(event["ph"]);
  const std::string name = Text(event["name"]);
  const int64_t lane = event["tid"].get_int64().value();
  if (event["pid"].get_int64().value() != 1) out.error = "another process";
  const simdjson::dom::object arguments = event["args"].get_object().value();
  if (kind == "M") {
    if (name == "thread_name") out.lanes[lane] = Text(event["args"]["name"]);
  } else if (kind == "X") {
    TraceSlice& slice = out.slices.emplace_back();
    slice.lane = lane;
    slice.name = name;
    slice.from_ns = EventNanoseconds(event["ts"]);
    slice.to_ns = slice.from_ns + EventNanoseconds(event["dur"]);
    for (const auto& [key, value] : arguments) {
      if (key == "request") {
        slice.request = Text(value);
      } else {
        slice.numbers[std::string(key)] = value.get_int64().value();
      }
    }
  } else if (kind == "C") {
    TraceCounter& counter = out.counters.emplace_back();
    counter.at_ns = EventNanoseconds(event["ts"]);
    counter.name = name;
    for (const auto& [key, value] : arguments) {
      counter.values[std::string(key)] = value.get_int64().value();
    }
  } else if (kind == "i") {
    element request;
    const bool has_request = event["args"]["request"].get(request) == simdjson::SUCCESS;
    out.instants[name].push_back(has_request ? Text(request) : "");
  } else {
    out.error = absl::StrCat("an event of kind ", kind);
  }
}

}  // namespace

std::vector<TraceSlice> TraceEvents::Named(const std::string& name) const {
  std::vector<TraceSlice> named;
  for (const TraceSlice& slice : slices) {
    if (slice.name == name && !slice.request.empty()) named.push_back(slice);
  }
  return named;
}

int64_t TraceEvents::Sum(const std::string& argument) const {
  int64_t sum = 0;
  for (const TraceSlice& slice : slices) {
    const auto it = slice.numbers.find(argument);
    if (!slice.request.empty() && it != slice.numbers.end()) sum += it->second;
  }
  return sum;
}

std::string TraceEvents::Overlap() const {
  std::vector<const TraceSlice*> sorted;
  for (const TraceSlice& slice : slices) {
    if (slice.to_ns < slice.from_ns) return absl::StrCat(slice.name, " ends before it begins");
    sorted.push_back(&slice);
  }
  std::sort(sorted.begin(), sorted.end(), [](const TraceSlice* a, const TraceSlice* b) {
    return std::tie(a->lane, a->from_ns, a->to_ns) < std::tie(b->lane, b->from_ns, b->to_ns);
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const TraceSlice &a = *sorted[i - 1], &b = *sorted[i];
    if (a.lane == b.lane && b.from_ns < a.to_ns) {
      return absl::StrCat("lane ", a.lane, ": ", a.name, " of ", a.request, " until ", a.to_ns,
                          ", ", b.name, " of ", b.request, " from ", b.from_ns);
    }
  }
  return "";
}

TraceEvents ParseTraceEvents(const std::string& text) {
  TraceEvents out;
  try {
    simdjson::dom::parser parser;
    const element document = parser.parse(simdjson::padded_string(text)).value();
    const simdjson::dom::array events = document["traceEvents"].get_array().value();
    for (element event : events) ReadEvent(event, out);
    const simdjson::dom::object others = document["otherData"].get_object().value();
    for (const auto& [key, value] : others) {
      if (key == "complete") {
        out.is_complete = value.get_bool().value();
      } else {
        out.other[std::string(key)] = value.get_double().value();
      }
    }
  } catch (const simdjson::simdjson_error& error) {
    out.error = error.what();
  }
  return out;
}

}  // namespace kvblocks::sim
