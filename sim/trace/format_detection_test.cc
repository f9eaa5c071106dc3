#include "kvblocks/sim/trace/format_detection.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

constexpr const char* kRecord =
    R"({"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [1]})";

// Delivers a text in parts of `size` bytes.
class PartsSource final : public ByteSource {
 public:
  PartsSource(std::string text, size_t size) : text_(std::move(text)), size_(size) {}
  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    const size_t n = text_.copy(out, std::min(size, size_), position_);
    position_ += n;
    return n;
  }
  int64_t bytes_read() const override { return static_cast<int64_t>(position_); }
  int64_t bytes_total() const override { return static_cast<int64_t>(text_.size()); }

 private:
  std::string text_;
  size_t size_;
  size_t position_ = 0;
};

std::string Head(const std::string& text, size_t part, size_t max_bytes = 1 << 26) {
  std::unique_ptr<ByteSource> source = std::make_unique<PartsSource>(text, part);
  auto head = PeekHead(&source, max_bytes);
  EXPECT_TRUE(head.ok());
  return *head;
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST(FormatDetectionTest, BlanksBeforeTheFirstRecordAreLookedAtOnce) {
  const double start = CpuSeconds();
  for (const char blank : {' ', '\n', '\r', 'x', '\0'}) {
    const std::string text(4 << 20, blank);
    EXPECT_EQ(Head(text + "\n" + kRecord + "\n", 64).size() / 64, text.size() / 64 + 1);
    EXPECT_FALSE(DetectFormat(text, "t").ok());
  }
  // About 0.3 s; looking again with every part took hours.
  EXPECT_LT(CpuSeconds() - start, 60);
}

TEST(FormatDetectionTest, ReadsUpToTheEndOfTheFirstLineWithText) {
  const std::string blanks = "\xef\xbb\xbf \n\t\r\n  ";
  for (const size_t part : {1, 2, 3, 5, 1000}) {
    const std::string text = blanks + kRecord + "\n" + std::string(2000, 'y');
    const std::string head = Head(text, part);
    EXPECT_GE(head.size(), blanks.size() + 1 + std::string(kRecord).size()) << part;
    EXPECT_LT(head.size(), blanks.size() + 1 + std::string(kRecord).size() + part) << part;
    EXPECT_EQ(DetectFormat(head, "t").value_or("none"), "mooncake") << part;
  }
}

TEST(FormatDetectionTest, NulsAreNoBlanks) {
  const std::string nuls(8, '\0');
  for (const std::string& text : {nuls, nuls + "\n" + kRecord}) {
    const auto format = DetectFormat(text, "t");
    ASSERT_FALSE(format.ok());
    EXPECT_THAT(std::string(format.status().message()), HasSubstr("t:1:"));
    EXPECT_THAT(std::string(format.status().message()), Not(HasSubstr("empty")));
  }
}

TEST(FormatDetectionTest, SaysThatThereAreOnlyBlanks) {
  EXPECT_EQ(DetectFormat("", "t").status().message(),
            "t:1: error: format: got an empty file, expected a first record");
  EXPECT_EQ(DetectFormat(" \n  ", "t").status().message(),
            "t:2: error: format: got an empty file, with nothing but blanks in its first 4 bytes, "
            "expected a first record");
}

}  // namespace
}  // namespace kvblocks::sim
