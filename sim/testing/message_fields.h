// Fields of a message against a text, for tests:
//
//   EXPECT_FIELDS(report, "latency.itl.count 16, pool.usage.mean 0.5, groups[0].live_blocks none");
//
// Names are those of ListMetrics (sim/report/metric_list.h), values all digits that matter. "none":
// there is no such field. Numbers without presence are there, and 0.

#ifndef KVBLOCKS_SIM_TESTING_MESSAGE_FIELDS_H_
#define KVBLOCKS_SIM_TESTING_MESSAGE_FIELDS_H_

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "sim/report/metric_list.h"

namespace kvblocks::sim {

// `expected` with the values that the message has.
inline std::string FieldsAsIn(const google::protobuf::Message& message,
                              const std::string& expected) {
  std::map<std::string, std::string> values;
  const auto metrics = ListMetrics(message);
  EXPECT_TRUE(metrics.ok()) << metrics.status();
  for (const Metric& metric : *metrics) values[metric.name] = MetricText(metric);
  std::string found;
  for (const absl::string_view part : absl::StrSplit(expected, ", ")) {
    const std::string name(part.substr(0, part.find(' ')));
    const auto it = values.lower_bound(name);
    const bool is_there = it != values.end() && absl::StartsWith(it->first, name);
    absl::StrAppend(&found, found.empty() ? "" : ", ", name, " ",
                    is_there && it->first == name                             ? it->second
                    : is_there && (it->first[name.size()] == '.' ||
                                   it->first[name.size()] == '[') ? "a message"
                                                                              : "none");
  }
  return found;
}

// `message` with the fields of a text in protobuf's text format.
template <typename Message>
Message WithFields(Message message, const std::string& text) {
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &message)) << text;
  return message;
}

}  // namespace kvblocks::sim

#define EXPECT_FIELDS(message, expected) \
  EXPECT_EQ(::kvblocks::sim::FieldsAsIn(message, expected), expected)

#endif  // KVBLOCKS_SIM_TESTING_MESSAGE_FIELDS_H_
