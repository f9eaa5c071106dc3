#include "sim/testing/output_readers.h"

#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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

namespace {

bool IsName(const std::string& name, bool may_have_colon) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (const char c : name) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!is_letter && !(c >= '0' && c <= '9') && !(c == ':' && may_have_colon)) return false;
  }
  return true;
}

// The number; NaN if `text` is none.
double ReadNumber(const std::string& text) {
  if (text == "+Inf") return std::numeric_limits<double>::infinity();
  char* end = nullptr;
  const bool has_digits = text.find_first_of("0123456789") != std::string::npos &&
                          text.find_first_not_of("0123456789.e+-") == std::string::npos;
  const double value = std::strtod(text.c_str(), &end);
  return has_digits && *end == '\0' ? value : std::nan("");
}

struct Line {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0, time = -1;
};

// Empty: done.
std::string ReadSample(const std::string& line, Line& out) {
  const size_t brace = line.find('{');
  if (brace == std::string::npos) return "no labels";
  out.name = line.substr(0, brace);
  if (!IsName(out.name, true)) return "bad name";
  size_t i = brace + 1;
  while (i < line.size() && line[i] != '}') {
    if (!out.labels.empty() && line[i++] != ',') return "no comma between labels";
    const size_t equals = line.find("=\"", i);
    if (equals == std::string::npos) return "no label value";
    const std::string name = line.substr(i, equals - i);
    if (!IsName(name, false)) return "bad label name";
    std::string value;
    for (i = equals + 2; i < line.size() && line[i] != '"'; ++i) {
      if (line[i] == '\\') {
        ++i;
        if (i == line.size() || std::string("\\\"n").find(line[i]) == std::string::npos) {
          return "bad escape";
        }
        value += line[i] == 'n' ? '\n' : line[i];
      } else {
        value += line[i];
      }
    }
    if (i++ == line.size()) return "a label value without end";
    if (!out.labels.emplace(name, value).second) return "a label twice";
  }
  if (i + 1 >= line.size() || line[i] != '}' || line[i + 1] != ' ') return "no value";
  const std::vector<std::string> fields = absl::StrSplit(line.substr(i + 2), ' ');
  out.value = ReadNumber(fields[0]);
  if (std::isnan(out.value) || fields.size() > 2) return "bad value";
  if (fields.size() == 2) out.time = ReadNumber(fields[1]);
  return std::isnan(out.time) ? "bad timestamp" : "";
}

std::string LabelText(std::map<std::string, std::string> labels) {
  labels.erase("le");
  std::string text = "{";
  for (const auto& [name, value] : labels) {
    absl::StrAppend(&text, text.size() == 1 ? "" : ",", name, "=\"", value, "\"");
  }
  return text + "}";
}

class Reader {
 public:
  explicit Reader(OpenMetrics& out) : out_(out) {}

  std::string Read(const std::string& line) {
    if (absl::StartsWith(line, "# ")) return ReadMetadata(line);
    Line sample;
    if (std::string error = ReadSample(line, sample); !error.empty()) return error;
    if (!absl::StartsWith(sample.name, family_)) return "a sample outside its family";
    if (std::string error = Check(sample); !error.empty()) return error;
    std::string key = sample.name + LabelText(sample.labels);
    if (sample.labels.count("le") > 0) absl::StrAppend(&key, " le=", sample.labels["le"]);
    auto& series = out_.samples[key];
    if (!series.empty()) {
      if (sample.time <= series.back().first) return "times do not rise";
      if (type_ != "gauge" && sample.value < series.back().second) return "a counter falls";
    }
    series.emplace_back(sample.time, sample.value);
    return "";
  }

  std::string EndFamily() { return EndHistogram(); }

 private:
  std::string ReadMetadata(const std::string& line) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
    if (words.size() != 4 || words[3].empty()) return "metadata without text";
    if (words[1] == "TYPE") {
      if (std::string error = EndFamily(); !error.empty()) return error;
      family_ = words[2];
      type_ = words[3];
      order_ = 0;
      label_sets_.clear();
      last_set_.clear();
      if (!IsName(family_, true)) return "bad family name";
      if (!out_.types.emplace(family_, type_).second) return "a family twice";
      if (type_ == "counter" && absl::EndsWith(family_, "_total")) return "a counter named _total";
      return "";
    }
    if (words[2] != family_) return "metadata of another family";
    const int order = words[1] == "UNIT" ? 1 : words[1] == "HELP" ? 2 : 0;
    if (order <= order_ || !last_set_.empty()) return "metadata out of order";
    order_ = order;
    if (order == 1 && !absl::EndsWith(family_, "_" + words[3])) return "a unit not in the name";
    return "";
  }

  std::string Check(const Line& sample) {
    const std::string suffix = sample.name.substr(family_.size());
    static const auto* const suffixes = new std::map<std::string, std::set<std::string>>{
        {"gauge", {""}},
        {"counter", {"_total"}},
        {"info", {"_info"}},
        {"histogram", {"_bucket", "_count", "_sum"}}};
    const auto it = suffixes->find(type_);
    if (it == suffixes->end()) return "an unknown type";
    if (it->second.count(suffix) == 0) return "a suffix that does not fit the type";
    if (type_ == "info" && sample.value != 1) return "an info that is not 1";
    if (type_ != "gauge" && sample.value < 0) return "a negative count";
    const std::string set = LabelText(sample.labels);
    if (set != last_set_ && !label_sets_.insert(set).second) return "a label set is split";
    last_set_ = set;
    if (type_ != "histogram") return sample.labels.count("le") > 0 ? "a stray le" : "";
    return CheckHistogram(sample, suffix);
  }

  std::string CheckHistogram(const Line& sample, const std::string& suffix) {
    if (suffix != "_bucket") {
      if (bound_ != std::numeric_limits<double>::infinity()) return "no bucket +Inf";
      if (suffix == "_count" && sample.value != in_buckets_) return "_count is not the last bucket";
      return "";
    }
    const auto le = sample.labels.find("le");
    if (le == sample.labels.end()) return "a bucket without le";
    const double bound = ReadNumber(le->second);
    if (std::isnan(bound) || le->second.find_first_of(".e+") == std::string::npos) return "bad le";
    if (bound_ == std::numeric_limits<double>::infinity()) {  // the next point
      bound_ = -1;
      in_buckets_ = 0;
    }
    if (bound <= bound_) return "buckets do not rise";
    if (sample.value < in_buckets_) return "buckets are not cumulative";
    bound_ = bound;
    in_buckets_ = sample.value;
    return "";
  }

  std::string EndHistogram() {
    const bool is_open = type_ == "histogram" && bound_ != std::numeric_limits<double>::infinity();
    bound_ = -1;
    in_buckets_ = 0;
    return is_open ? "a histogram without +Inf" : "";
  }

  OpenMetrics& out_;
  std::string family_ = " ", type_;
  int order_ = 0;
  std::set<std::string> label_sets_;
  std::string last_set_;
  double bound_ = -1, in_buckets_ = 0;
};

}  // namespace

double OpenMetrics::Value(const std::string& name, const std::string& label) const {
  double value = std::nan("");
  int found = 0;
  for (const auto& [key, series] : samples) {
    if (!absl::StartsWith(key, name + "{") || !absl::StrContains(key, label)) continue;
    value = series.back().second;
    ++found;
  }
  return found == 1 ? value : std::nan("");
}

OpenMetrics ReadOpenMetrics(const std::string& text) {
  OpenMetrics out;
  Reader reader(out);
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() < 2 || lines.back() != "" || lines[lines.size() - 2] != "# EOF") {
    out.error = "no end mark";
    return out;
  }
  lines.resize(lines.size() - 2);
  for (size_t i = 0; i < lines.size() && out.error.empty(); ++i) {
    if (const std::string error = reader.Read(lines[i]); !error.empty()) {
      out.error = absl::StrCat("line ", i + 1, ": ", error, ": ", lines[i]);
    }
  }
  if (out.error.empty()) out.error = reader.EndFamily();
  return out;
}

}  // namespace kvblocks::sim
