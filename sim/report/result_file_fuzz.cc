// Result files: whatever the bytes, a report or a step file is read or refused with a message. What
// was read equals itself, can be compared with any other, and can be printed.
//
// The first byte is where the rest is split into two files; with 0 the second is the first again.

#include <string>
#include <string_view>

#include "sim/report/human_table.h"
#include "sim/report/report_comparison.h"
#include "sim/report/report_json.h"
#include "sim/report/result_file.h"
#include "sim/report/step_rows.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::sim;
namespace pb = ::kvblocks::report::v1;

constexpr size_t kMost = 1 << 20;

// Compression bombs show nothing new here.
bool IsLarge(const std::string& bytes) {
  const std::string_view magic = std::string_view(bytes).substr(0, 2);
  if (magic != "\x1f\x8b" && magic != "\x28\xb5") return false;
  const auto source = ByteSourceOfString(bytes, 20);
  std::string chunk(64 << 10, '\0');
  for (size_t total = 0; total < kMost;) {
    const auto n = source->Read(chunk.data(), chunk.size());
    if (!n.ok() || *n == 0) return false;
    total += *n;
  }
  return true;
}

absl::StatusOr<ResultFile> Open(const std::string& bytes, const char* name) {
  auto file = OpenResult(ByteSourceOfString(bytes, 20), name);
  if (!file.ok()) {
    const std::string message(file.status().message());
    FUZZ_EXPECT(message.rfind(name, 0) == 0, message);
    for (const char c : message) FUZZ_EXPECT(c >= ' ' && c < 127, message);
  } else {
    FUZZ_EXPECT((file->report != nullptr) != (file->steps != nullptr), "neither or both");
  }
  return file;
}

void CheckReports(const pb::Report& a, const pb::Report& b, bool is_same) {
  ReportComparisonOptions options;
  options.tolerances = *ToleranceSet::Parse({"0"});
  pb::Comparison comparison;
  const absl::Status status = CompareReports(a, b, options, &comparison);
  FUZZ_EXPECT(status.ok(), status.ToString());
  if (is_same) {
    FUZZ_EXPECT(comparison.metrics_changed() == 0 && comparison.metrics_exceeded() == 0 &&
                    comparison.configuration_size() == 0,
                "differs from itself: " + comparison.ShortDebugString());
  }
  FUZZ_EXPECT(comparison.metrics_judged() == comparison.metrics(), "not judged");
  FUZZ_EXPECT(!FormatComparison(comparison, false).empty(), "no table");
}

void CheckSteps(StepReader& a, StepReader& b, bool is_same) {
  const auto schedule = CompareSteps(a, b);
  if (!schedule.ok()) return;
  FUZZ_EXPECT(schedule->same() != schedule->has_first_divergence(), "no state");
  if (is_same) {
    FUZZ_EXPECT(schedule->same() && !schedule->has_first_difference(),
                "differs from itself: " + schedule->ShortDebugString());
  }
  pb::Comparison comparison;
  *comparison.mutable_schedule() = *schedule;
  FUZZ_EXPECT(!FormatComparison(comparison, false).empty(), "no table");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  const size_t share = input.Byte();
  const std::string_view rest = input.Rest();
  const size_t split = share == 0 ? rest.size() : rest.size() * share / 256;
  const std::string first(rest.substr(0, split));
  const std::string second(share == 0 ? rest : rest.substr(split));
  if (IsLarge(first) || IsLarge(second)) return 0;
  const auto a = Open(first, "a");
  const auto b = Open(second, "b");
  if (!a.ok() || !b.ok()) return 0;
  if (a->report != nullptr && b->report != nullptr) {
    CheckReports(*a->report, *b->report, first == second);
    const auto json = ToJson(*a->report);
    FUZZ_EXPECT(json.ok(), json.status().ToString());
    const auto again = ParseReport(*json, "again");
    FUZZ_EXPECT(again.ok(), again.status().ToString());
    CheckReports(*a->report, *again, true);
  }
  if (a->steps != nullptr && b->steps != nullptr) CheckSteps(*a->steps, *b->steps, first == second);
  return 0;
}
