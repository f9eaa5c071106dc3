#include "checks/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace kvblocks {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// A file without a number says "max": no limit. Version 1 writes a huge number for that.
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t value;
  return file >> value && value > 0 ? value : kUnlimited;
}

// The least number in the files `name` of `group` and of the folders around it, up to `mount`. A
// container without a name space of its own sees a path that is not below its mount; the mount
// itself is its group then.
int64_t LeastUpwards(const std::string& mount, std::string group, const std::string& name) {
  int64_t least = NumberIn(mount + "/" + name);
  while (!group.empty() && group != "/") {
    least = std::min(least, NumberIn(mount + group + "/" + name));
    group.resize(group.rfind('/'));
  }
  return least;
}

}  // namespace

int64_t ControlGroupMemoryLimit(const std::string& root) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  int64_t least = kUnlimited;
  // ID:CONTROLLERS:/PATH; version 2 is the line without controllers.
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      least = std::min(least, LeastUpwards(mount, group, "memory.max"));
    } else if (controllers.find(",memory,") != std::string::npos) {
      least = std::min(least, LeastUpwards(mount + "/memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

int64_t MemoryLimit() {
  static const int64_t limit = [] {
    const int64_t pages = sysconf(_SC_PHYS_PAGES);
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t machine = pages > 0 && page > 0 ? pages * page : kUnlimited;
    return std::min(machine, ControlGroupMemoryLimit(""));
  }();
  return limit;
}

}  // namespace kvblocks
