#include "sim/trace/byte_source.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "sim/trace/byte_sink.h"
#include "sim/trace/line_reader.h"

namespace kvblocks::sim {
namespace {

namespace fs = std::filesystem;

std::string Gzip(const std::string& text) {
  const std::string path = testing::TempDir() + "/member.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

absl::StatusOr<std::string> ReadAll(ByteSource& source) { return ReadUpTo(1 << 30, source); }

absl::StatusOr<std::string> ReadString(std::string stored, int window_log = 27) {
  return ReadAll(*ByteSourceOfString(std::move(stored), window_log));
}

std::string Text() {
  std::string text;
  for (int i = 0; i < 60000; ++i) text += std::to_string(i * 7919) + "\n";
  return text;
}

TEST(ByteSourceTest, CompressionIsDetectedByContent) {
  const std::string text = Text();
  EXPECT_EQ(*ReadString(text), text);
  EXPECT_EQ(*ReadString(Gzip(text)), text);
  EXPECT_EQ(*ReadString(Zstd(text)), text);
  EXPECT_EQ(*ReadString(""), "");
  EXPECT_EQ(*ReadString("\x1f"), "\x1f");
  EXPECT_EQ(*ReadString(Gzip("")), "");
}

TEST(ByteSourceTest, MembersAndFramesAreJoined) {
  EXPECT_EQ(*ReadString(Gzip("one\n") + Gzip("") + Gzip("two\n")), "one\ntwo\n");
  EXPECT_EQ(*ReadString(Zstd("one\n") + Zstd("two\n")), "one\ntwo\n");
  EXPECT_EQ(*ReadString(Gzip("one\n") + std::string(512, '\0')), "one\n") << "padding";
}

TEST(ByteSourceTest, TruncatedStreamsAreErrorsAtEveryLength) {
  const std::string text = Text().substr(0, 2000);
  for (const std::string& whole : {Gzip(text), Zstd(text)}) {
    for (size_t size = 5; size < whole.size(); size += 13) {
      absl::StatusOr<std::string> read = ReadString(whole.substr(0, size));
      ASSERT_FALSE(read.ok()) << size;
      EXPECT_NE(read.status().message().find("truncated"), std::string::npos) << read.status();
    }
  }
}

TEST(ByteSourceTest, DamageIsAnError) {
  std::string gzip = Gzip(Text());
  gzip[gzip.size() / 2] ^= 0x55;
  EXPECT_FALSE(ReadString(gzip).ok());
  std::string bad_sum = Gzip("one\n");
  bad_sum[bad_sum.size() - 6] ^= 1;
  EXPECT_FALSE(ReadString(bad_sum).ok());
  EXPECT_FALSE(ReadString(Gzip("one\n") + "junk").ok());
  std::string zstd = Zstd(Text());
  zstd[zstd.size() / 2] ^= 0x55;
  EXPECT_FALSE(ReadString(zstd).ok() && *ReadString(zstd) == Text());
}

// A frame that says 32 bytes and has one empty block, read into buffers below and above 32 bytes.
TEST(ByteSourceTest, ZstdFrameShorterThanItSaysIsDamaged) {
  const std::string frame("\x28\xb5\x2f\xfd\x20\x20\x01\x00\x00", 9);
  for (size_t size : {1, 31, 32, 1000}) {
    const auto source = ByteSourceOfString(frame);
    std::vector<char> buffer(size);
    const auto read = source->Read(buffer.data(), buffer.size());
    ASSERT_FALSE(read.ok()) << size;
    EXPECT_NE(read.status().message().find("damaged zstd stream"), std::string::npos);
  }
}

TEST(ByteSourceTest, ZstdWindowAboveTheLimitNamesTheOption) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 20);
  std::string out(1 << 20, '\0');
  std::string text(600000, 'x');
  ZSTD_inBuffer in = {text.data(), text.size(), 0};
  ZSTD_outBuffer to = {out.data(), out.size(), 0};
  ZSTD_compressStream2(context, &to, &in, ZSTD_e_continue);  // the size stays unknown
  ZSTD_inBuffer none = {nullptr, 0, 0};
  ZSTD_compressStream2(context, &to, &none, ZSTD_e_end);
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  EXPECT_EQ(*ReadString(out, 20), text);
  const absl::StatusOr<std::string> small = ReadString(out, 12);
  ASSERT_FALSE(small.ok());
  EXPECT_NE(small.status().message().find("--zstd-window-log"), std::string::npos);
}

TEST(ByteSourceTest, FilesReportProgressInStoredBytes) {
  const std::string path = testing::TempDir() + "/progress.bin";
  const std::string stored = Gzip(Text());
  std::ofstream(path, std::ios::binary) << stored;
  auto source = OpenByteSource(path);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->bytes_total(), static_cast<int64_t>(stored.size()));
  EXPECT_TRUE(ReadAll(**source).ok());
  EXPECT_EQ((*source)->bytes_read(), static_cast<int64_t>(stored.size()));
}

TEST(ByteSourceTest, MissingFilesAndFoldersAreNamed) {
  EXPECT_EQ(OpenByteSource("/nonexistent/x").status().message(),
            "/nonexistent/x: error: cannot open: No such file or directory");
  EXPECT_NE(OpenByteSource("/tmp").status().message().find("directory"), std::string::npos);
}

// Delivers a line of any length without having it.
class EndlessLine : public ByteSource {
 public:
  explicit EndlessLine(int64_t bytes) : left_(bytes) {}
  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    if (left_ == 0 && !tail_) return size_t{0};
    if (left_ == 0) {
      tail_ = false;
      out[0] = '\n';
      out[1] = 'b';
      return size_t{2};
    }
    const size_t n = static_cast<size_t>(std::min<int64_t>(left_, static_cast<int64_t>(size)));
    std::fill(out, out + n, 'a');
    left_ -= static_cast<int64_t>(n);
    most_ = std::max(most_, size);
    return n;
  }
  int64_t bytes_read() const override { return 0; }
  int64_t bytes_total() const override { return 0; }
  size_t most() const { return most_; }

 private:
  int64_t left_;
  bool tail_ = true;
  size_t most_ = 0;
};

TEST(LineReaderTest, TwoGigabyteLineIsSkippedWithoutBeingHeld) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  auto endless = std::make_unique<EndlessLine>(kBytes);
  const EndlessLine* source = endless.get();
  LineReader reader(std::move(endless), 1 << 20);
  Line line;
  ASSERT_TRUE(*reader.Next(&line));
  EXPECT_TRUE(line.too_long);
  EXPECT_EQ(line.bytes, kBytes);
  ASSERT_TRUE(*reader.Next(&line));
  EXPECT_EQ(line.text, "b");
  EXPECT_EQ(line.number, 2);
  EXPECT_LT(source->most(), size_t{4} << 20) << "the buffer stays near the limit";
}

TEST(LineReaderTest, CompleteLinesComeBeforeTheErrorOfTheSource) {
  const std::string whole = Gzip(Text());
  LineReader reader(ByteSourceOfString(whole.substr(0, whole.size() - 9)), 1000);
  Line line;
  while (true) {
    absl::StatusOr<bool> more = reader.Next(&line);
    if (!more.ok()) break;
    ASSERT_TRUE(*more) << "a truncated stream must not look like the end";
  }
  EXPECT_GT(reader.line_number(), 50000);
}

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
    EXPECT_EQ(ReadAll(**source).value(), text);
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
