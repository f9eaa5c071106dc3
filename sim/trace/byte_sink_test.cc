#include "sim/trace/byte_sink.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "sim/trace/byte_source.h"

namespace kvblocks::sim {
namespace {

namespace fs = std::filesystem;

// A folder of its own, so that what is left in it can be counted.
class ByteSinkTest : public testing::Test {
 protected:
  ByteSinkTest() {
    std::string name = testing::TempDir() + "/byte_sink.XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~ByteSinkTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Content(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void Put(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  static absl::Status WriteAll(const std::string& path, const std::string& text) {
    auto sink = OpenByteSink(path);
    if (!sink.ok()) return sink.status();
    if (absl::Status status = (*sink)->Write(text); !status.ok()) return status;
    return (*sink)->Close();
  }
  mode_t ModeOf(const std::string& name) const {
    struct stat info = {};
    EXPECT_EQ(stat(Path(name).c_str(), &info), 0);
    return info.st_mode & 07777;
  }
  int64_t NumFiles() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  std::string folder_;
};

TEST_F(ByteSinkTest, NameDecidesCompressionAndCloseMakesTheFile) {
  const std::string text(100'000, 'x');
  for (const char* name : {"sink.txt", "sink.gz", "sink.zst"}) {
    auto sink = OpenByteSink(Path(name));
    ASSERT_TRUE(sink.ok()) << sink.status();
    ASSERT_TRUE((*sink)->Write(text).ok());
    EXPECT_FALSE(fs::exists(Path(name))) << "not before Close";
    ASSERT_TRUE((*sink)->Close().ok());
    auto source = OpenByteSource(Path(name));
    ASSERT_TRUE(source.ok());
    std::string read, chunk(1 << 16, '\0');
    while (true) {
      const auto n = (*source)->Read(chunk.data(), chunk.size());
      ASSERT_TRUE(n.ok());
      if (*n == 0) break;
      read.append(chunk, 0, *n);
    }
    EXPECT_EQ(read, text);
    EXPECT_EQ((*source)->bytes_total() < static_cast<int64_t>(text.size()),
              std::string(name) != "sink.txt");
  }
  EXPECT_EQ(NumFiles(), 3);
}

TEST_F(ByteSinkTest, AbandonedSinkLeavesTheOldFileAndNothingElse) {
  Put("old.gz", "old");
  for (const char* name : {"old.gz", "new.gz"}) {
    auto sink = OpenByteSink(Path(name));
    ASSERT_TRUE((*sink)->Write("x").ok());
  }
  EXPECT_EQ(Content("old.gz"), "old");
  EXPECT_EQ(NumFiles(), 1);
  EXPECT_FALSE(OpenByteSink("/nonexistent/x").ok());
}

TEST_F(ByteSinkTest, ReplacedFileKeepsItsMode) {
  for (const mode_t mode : {0600u, 0640u, 0755u}) {
    Put("file", "a longer old text");
    ASSERT_EQ(chmod(Path("file").c_str(), mode), 0);
    ASSERT_TRUE(WriteAll(Path("file"), "new").ok());
    EXPECT_EQ(Content("file"), "new");
    EXPECT_EQ(ModeOf("file"), mode);
  }
}

TEST_F(ByteSinkTest, LinksAreFollowed) {
  fs::create_directory(Path("data"));
  Put("data/file", "old");
  fs::create_symlink("data/file", Path("first"));
  fs::create_symlink(Path("first"), Path("second"));
  ASSERT_TRUE(WriteAll(Path("second"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(Path("second")));
  EXPECT_TRUE(fs::is_symlink(Path("first")));
  EXPECT_EQ(Content("data/file"), "new");
  // A link to what is not there yet makes it.
  fs::create_symlink("data/later", Path("dangling"));
  ASSERT_TRUE(WriteAll(Path("dangling"), "text").ok());
  EXPECT_TRUE(fs::is_symlink(Path("dangling")));
  EXPECT_EQ(Content("data/later"), "text");
  fs::create_symlink("loop", Path("loop"));
  EXPECT_FALSE(WriteAll(Path("loop"), "text").ok());
}

TEST_F(ByteSinkTest, PipesAreWrittenAsTheyAre) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = Content("pipe"); });
  EXPECT_TRUE(WriteAll(Path("pipe"), "through the pipe").ok());
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
  EXPECT_EQ(NumFiles(), 1);
}

TEST_F(ByteSinkTest, DevicesAreWrittenAsTheyAre) {
  // Like /dev/null, in a folder where it can be spared; not everybody may make one.
  if (mknod(Path("null").c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) {
    GTEST_SKIP() << "may make no device node";
  }
  const int fd = open(Path("null").c_str(), O_WRONLY);
  if (fd < 0) GTEST_SKIP() << "may not open a device node";
  close(fd);
  EXPECT_TRUE(WriteAll(Path("null"), "gone").ok());
  EXPECT_TRUE(fs::is_character_file(Path("null")));
  EXPECT_EQ(NumFiles(), 1);
}

TEST_F(ByteSinkTest, SaysThatTheReaderIsGone) {
  const auto old = std::signal(SIGPIPE, SIG_IGN);
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const int reader = open(Path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  auto sink = OpenByteSink(Path("pipe"));
  ASSERT_TRUE(sink.ok()) << sink.status();
  close(reader);
  EXPECT_TRUE(IsReaderGone((*sink)->Write("to nobody")));
  EXPECT_FALSE(IsReaderGone(absl::OkStatus()));
  EXPECT_FALSE(IsReaderGone(OpenByteSink("/nonexistent/x").status()));
  std::signal(SIGPIPE, old);
}

TEST_F(ByteSinkTest, UnfinishedFilesCanBeRemovedAtAnyTime) {
  Put("kept", "old");
  auto one = OpenByteSink(Path("kept"));
  auto two = OpenByteSink(Path("new.gz"));
  auto done = OpenByteSink(Path("done"));
  ASSERT_TRUE((*done)->Write("all").ok());
  ASSERT_TRUE((*done)->Close().ok());
  EXPECT_EQ(NumFiles(), 4);
  RemoveUnfinishedFiles();
  EXPECT_EQ(NumFiles(), 2);
  EXPECT_EQ(Content("kept"), "old");
  EXPECT_EQ(Content("done"), "all");
}

}  // namespace
}  // namespace kvblocks::sim
