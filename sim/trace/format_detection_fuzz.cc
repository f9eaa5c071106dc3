// The beginning of a trace file: whatever the bytes and in whatever parts they come, detection
// takes time in proportion to them, and afterwards everything can be read from the first byte.
//
//   byte 0   size of the parts
//   then     pairs of a character and how often it comes: up to 127 times, or 2^0 .. 2^20 times

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "sim/testing/trace_fuzz_input.h"
#include "sim/trace/row_source.h"
#include "tests/fuzz/fuzz_input.h"

using namespace kvblocks::sim;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kMostBytes = 2 << 20;
  constexpr size_t kMaxBytes = 1 << 20;
  kvblocks::fuzz::FuzzInput input(data, size);
  const size_t part = size_t{1} << input.Small(4, 16);
  std::string text;
  while (!input.empty() && text.size() < kMostBytes) {
    const char c = static_cast<char>(input.Byte());
    const uint8_t times = input.Byte();
    text.append(times < 128 ? times : size_t{1} << (times - 128) % 21, c);
  }
  std::unique_ptr<ByteSource> source = std::make_unique<PartsSource>(text, part);
  const auto head = PeekHead(&source, kMaxBytes);
  FUZZ_EXPECT(head.ok(), head.status().ToString());
  FUZZ_EXPECT(head->size() < kMaxBytes + part, "more than the most that was wanted");
  FUZZ_EXPECT(text.compare(0, head->size(), *head) == 0, "the head is something else");
  const auto format = DetectFormat(*head, "file");
  if (!format.ok()) {
    const std::string message(format.status().message());
    FUZZ_EXPECT(message.rfind("file:", 0) == 0, message);
  }
  std::string rest, chunk(1 << 16, '\0');
  while (true) {
    const auto n = source->Read(chunk.data(), chunk.size());
    FUZZ_EXPECT(n.ok(), n.status().ToString());
    if (*n == 0) break;
    rest.append(chunk, 0, *n);
  }
  FUZZ_EXPECT(rest == text, "not everything can be read again");
  return 0;
}
