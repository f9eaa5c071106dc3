#include "kvblocks/checks/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace kvblocks {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// A folder that looks like the root of a machine.
class MemoryLimitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "/memory_limit_test";
    std::filesystem::remove_all(root_);
  }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int64_t Limit() const { return ControlGroupMemoryLimit(root_); }

  std::string root_;
};

TEST_F(MemoryLimitTest, NothingKnownIsNoLimit) {
  EXPECT_EQ(Limit(), kUnlimited);
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(Limit(), kUnlimited);
}

TEST_F(MemoryLimitTest, Version2TakesTheLeastOfTheGroupAndThoseAroundIt) {
  Write("/proc/self/cgroup", "0::/pod/container\n");
  Write("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  EXPECT_EQ(Limit(), kUnlimited);
  Write("/sys/fs/cgroup/pod/container/memory.max", "2147483648\n");
  EXPECT_EQ(Limit(), int64_t{2} << 30);
  Write("/sys/fs/cgroup/pod/memory.max", "1073741824\n");
  EXPECT_EQ(Limit(), int64_t{1} << 30);
  Write("/sys/fs/cgroup/other/memory.max", "4096\n");
  EXPECT_EQ(Limit(), int64_t{1} << 30);
}

TEST_F(MemoryLimitTest, Version2InAContainerOfItsOwnNameSpace) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(Limit(), 536'870'912);
}

TEST_F(MemoryLimitTest, Version1TakesTheMemoryController) {
  Write("/proc/self/cgroup",
        "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/x\n");
  Write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_GE(Limit(), int64_t{1} << 62);
  Write("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(Limit(), int64_t{1} << 30);
}

// The path is the host's, the mount shows the container's group only.
TEST_F(MemoryLimitTest, Version1InAContainerWithoutANameSpace) {
  Write("/proc/self/cgroup", "4:hugetlb,memory:/docker/abc\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(Limit(), int64_t{1} << 30);
}

TEST_F(MemoryLimitTest, OddFilesAreNoLimit) {
  Write("/proc/self/cgroup", "\n:\n::\n0::\n0::x\n7:memory\n4:memory:relative\n0::/a//b/\n");
  Write("/sys/fs/cgroup/memory.max", "many\n");
  EXPECT_EQ(Limit(), kUnlimited);
  Write("/sys/fs/cgroup/memory.max", "0\n");
  EXPECT_EQ(Limit(), kUnlimited);
  Write("/sys/fs/cgroup/memory.max", "99999999999999999999\n");
  EXPECT_EQ(Limit(), kUnlimited);
}

TEST_F(MemoryLimitTest, ThisProcessHasMemory) {
  EXPECT_GT(MemoryLimit(), int64_t{1} << 20);
  EXPECT_LE(MemoryLimit(), ControlGroupMemoryLimit(""));
}

}  // namespace
}  // namespace kvblocks
