// What the simulator writes read back, for tests: Chrome trace events, and OpenMetrics text.

#ifndef KVBLOCKS_SIM_TESTING_OUTPUT_READERS_H_
#define KVBLOCKS_SIM_TESTING_OUTPUT_READERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace kvblocks::sim {

struct TraceSlice {
  int64_t lane = 0;
  std::string name;
  int64_t from_ns = 0, to_ns = 0;
  std::string request;                     // empty: of the device
  std::map<std::string, int64_t> numbers;  // further arguments
};

struct TraceCounter {
  int64_t at_ns = 0;
  std::string name;
  std::map<std::string, int64_t> values;
};

struct TraceEvents {
  std::string error;  // empty: all of the text is JSON, and each event has what its kind needs
  std::vector<TraceSlice> slices;
  std::vector<TraceCounter> counters;
  std::map<std::string, std::vector<std::string>> instants;  // requests by name
  std::map<int64_t, std::string> lanes;
  std::map<std::string, double> other;  // numbers of otherData
  bool is_complete = false;

  std::vector<TraceSlice> Named(const std::string& name) const;
  int64_t Sum(const std::string& argument) const;  // over the slices of requests
  // The first two slices of a lane that overlap, in words; empty if none do.
  std::string Overlap() const;
};

TraceEvents ParseTraceEvents(const std::string& text);

// A strict reader of OpenMetrics 1.0 text, for tests: what it accepts a scraper accepts.
//
// Beyond the grammar it checks that families and label sets are not split, that names and
// suffixes fit the type, that buckets are canonical, cumulative and end at +Inf with the count,
// that times rise, and that counters never fall.

struct OpenMetrics {
  std::string error;                         // empty: valid
  std::map<std::string, std::string> types;  // by family
  // By name with sorted labels, `a_total{engine="0",model_name="m"}`: time (-1: none) and value.
  std::map<std::string, std::vector<std::pair<double, double>>> samples;

  // The last value of the only series whose name is `name` and whose labels include `label`
  // (`reason="stop"`, or nothing). NaN if there is not exactly one.
  double Value(const std::string& name, const std::string& label = "") const;
};

OpenMetrics ReadOpenMetrics(const std::string& text);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_OUTPUT_READERS_H_
