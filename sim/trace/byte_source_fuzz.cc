// Byte sources and lines: damaged gzip and zstd end with an error, what was read does not depend on
// how much is asked for at a time, and lines are those of a plain search for line ends.
//
// The first byte is the size of the reads and the longest line, the second the zstd window.

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "sim/trace/byte_source.h"
#include "sim/trace/line_reader.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using kvblocks::sim::ByteSource;
using kvblocks::sim::ByteSourceOfString;

constexpr size_t kMost = size_t{4} << 20;  // of a decompressed input; a bomb is cut off there

struct Content {
  std::string bytes;
  bool ok = true;
  bool complete = false;
};

Content ReadAll(ByteSource& source, size_t at_a_time) {
  Content content;
  std::string chunk(at_a_time, '\0');
  int64_t stored = 0;
  while (content.bytes.size() < kMost) {
    const auto n = source.Read(chunk.data(), chunk.size());
    FUZZ_EXPECT(source.bytes_read() >= stored, "progress goes back");
    stored = source.bytes_read();
    FUZZ_EXPECT(stored <= source.bytes_total(), "more read than there is");
    if (!n.ok()) {
      content.ok = false;
      return content;
    }
    FUZZ_EXPECT(*n <= chunk.size(), "more bytes than asked for");
    if (*n == 0) {
      content.complete = true;
      return content;
    }
    content.bytes.append(chunk, 0, *n);
  }
  return content;
}

void CheckLines(std::string stored, int window, const Content& content, int64_t most) {
  kvblocks::sim::LineReader reader(ByteSourceOfString(std::move(stored), window), most);
  std::string_view rest = content.bytes;
  kvblocks::sim::Line line;
  for (int64_t number = 1;; ++number) {
    const auto more = reader.Next(&line);
    FUZZ_EXPECT(more.ok(), more.status().ToString());
    if (!*more) {
      FUZZ_EXPECT(content.complete && rest.empty(), "the end came too early");
      return;
    }
    const size_t end = rest.find('\n');
    std::string_view text = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    FUZZ_EXPECT(line.number == number && reader.line_number() == number, "line number");
    FUZZ_EXPECT(line.bytes == static_cast<int64_t>(text.size()), "line length");
    FUZZ_EXPECT(line.too_long == (line.bytes > most), "too long");
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    if (number == 1 && text.substr(0, 3) == "\xef\xbb\xbf") text.remove_prefix(3);
    FUZZ_EXPECT(line.text == (line.too_long ? std::string_view() : text), "line text");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  const uint8_t first = input.Byte();
  const int window = static_cast<int>(input.Small(10, 27));
  const std::string stored(input.Rest());
  const auto large = ByteSourceOfString(stored, window);
  const Content content = ReadAll(*large, 64 << 10);
  if (content.bytes.size() >= kMost) return 0;
  const auto small = ByteSourceOfString(stored, window);
  const Content again = ReadAll(*small, size_t{1} + first);
  FUZZ_EXPECT(again.ok == content.ok && again.complete == content.complete, "other outcome");
  // After damage the last bytes before it may or may not have been delivered.
  const size_t common = std::min(again.bytes.size(), content.bytes.size());
  FUZZ_EXPECT(again.bytes.substr(0, common) == content.bytes.substr(0, common), "other bytes");
  FUZZ_EXPECT(!content.ok || again.bytes.size() == content.bytes.size(), "other length");
  if (content.ok) CheckLines(stored, window, content, 1 + first);
  return 0;
}
