// The tokenizer's process when it misbehaves, with scripts in its place. tests/serve has the real
// one.

#include "sim/serve/tokenizer.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

using ::testing::HasSubstr;

// A program for --python.
std::string Script(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << "#!/bin/sh\n" << text;
  chmod(path.c_str(), 0700);
  return path;
}

absl::StatusOr<Encoding> Encode(Tokenizer& tokenizer, const std::string& text) {
  return tokenizer.Encode(text, /*adds_special=*/false, /*with_pieces=*/false);
}

TEST(HfTokenizerTest, ProcessThatNeverStartsIsGivenUp) {
  const auto tokenizer =
      MakeHfTokenizer("f", Script("mute", "sleep 100\n"), absl::Milliseconds(50));
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("no answer within 50ms"));
}

TEST(HfTokenizerTest, ProcessThatHangsIsReplaced) {
  const std::string mark = testing::TempDir() + "/hung_before";
  const auto tokenizer = MakeHfTokenizer(
      "f",
      Script("hangs_once", "echo '{\"ready\":true}'\nread line\n[ -e " + mark + " ] || { touch " +
                               mark + "; sleep 100; }\necho '{\"ids\":[7]}'\nread line\n"),
      absl::Seconds(2));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Encode(**tokenizer, "a").status().code(), absl::StatusCode::kDeadlineExceeded);
  const auto encoding = Encode(**tokenizer, "a");
  ASSERT_TRUE(encoding.ok()) << encoding.status();
  EXPECT_THAT(encoding->tokens, testing::ElementsAre(7));
}

// A request larger than a pipe holds, to a process that reads nothing.
TEST(HfTokenizerTest, ProcessThatDoesNotReadIsGivenUp) {
  const auto tokenizer = MakeHfTokenizer(
      "f", Script("deaf", "echo '{\"ready\":true}'\nsleep 100\n"), absl::Milliseconds(500));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(Encode(**tokenizer, std::string(1 << 20, 'x')).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace kvblocks::sim
