// Result logs, which --results reads back: whatever the bytes, they are results or refused with a
// message that names a line. What was read is written as lines that read the same, and a log that
// was cut off anywhere keeps its whole lines.

#include <string>
#include <string_view>

#include "sim/sweep/point_runner.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::sim;

absl::StatusOr<ResultLines> Parse(std::string_view text) {
  auto lines = ParseResultLines(text, "log");
  if (!lines.ok()) {
    const std::string message(lines.status().message());
    FUZZ_EXPECT(message.rfind("log:", 0) == 0, message);
    for (const char c : message) FUZZ_EXPECT(c >= ' ' && c < 127, message);
    return lines;
  }
  FUZZ_EXPECT(lines->whole_bytes <= text.size(), "more than there is");
  FUZZ_EXPECT(lines->whole_bytes == 0 || text[lines->whole_bytes - 1] == '\n', "half a line");
  for (const auto& result : lines->results) FUZZ_EXPECT(!result->name().empty(), "no name");
  return lines;
}

}  // namespace

// The first byte is where the rest is cut off the second time.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  const size_t share = input.Byte();
  const std::string_view text = input.Rest();
  const auto lines = Parse(text);
  if (!lines.ok()) return 0;
  std::string written;
  for (const auto& result : lines->results) {
    const auto line = ResultLine(*result);
    FUZZ_EXPECT(line.ok(), line.status().ToString());
    FUZZ_EXPECT(line->find('\n') == line->size() - 1, "more than one line");
    written += *line;
  }
  const auto again = Parse(written);
  FUZZ_EXPECT(again.ok(), again.status().ToString());
  FUZZ_EXPECT(again->results.size() == lines->results.size(), "another number of results");
  for (size_t i = 0; i < lines->results.size(); ++i) {
    FUZZ_EXPECT(*ResultLine(*again->results[i]) == *ResultLine(*lines->results[i]),
                "reads otherwise: " + written);
  }
  const auto cut = Parse(std::string_view(written).substr(0, written.size() * share / 256));
  FUZZ_EXPECT(cut.ok(), cut.status().ToString());
  FUZZ_EXPECT(cut->results.size() <= lines->results.size(), "more results than were written");
  return 0;
}
