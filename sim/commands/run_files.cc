#include "sim/commands/run_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/trace/byte_sink.h"

namespace kvblocks::sim {
namespace {

std::string InodeOf(const struct stat& facts) {
  return absl::StrCat(facts.st_dev, ":", facts.st_ino);
}

bool Stat(const RunFile& file, struct stat* facts) {
  if (file.path != "-") return stat(file.path.c_str(), facts) == 0;
  return fstat(file.use == FileUse::kRead ? STDIN_FILENO : STDOUT_FILENO, facts) == 0;
}

// Where a file that is not there would be made: links are followed, also those that lead to
// nothing.
std::filesystem::path WhereMade(const std::string& path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  std::filesystem::path target = path;
  for (int links = 0; links < kMostLinks; ++links) {
    const auto next = std::filesystem::read_symlink(target, error);
    if (error) break;
    target = target.parent_path() / next;
  }
  const auto whole =
      std::filesystem::weakly_canonical(std::filesystem::absolute(target, error), error);
  return error ? target : whole;
}

std::string IdentityOf(const RunFile& file) {
  struct stat facts;
  if (!Stat(file, &facts)) return WhereMade(file.path).string();
  // Of devices, such as /dev/null, many may be written at once; one name twice is a slip.
  return S_ISCHR(facts.st_mode) ? file.path : InodeOf(facts);
}

absl::Status Overwrites(const RunFile& out, const std::string& input) {
  if (out.option.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "standard output: it is what ", input,
        " reads, and would be written over; send it to another file"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(out.option, ": ", out.path, " is what ", input,
                   " reads and would be overwritten; name another file"));
}

}  // namespace

absl::Status CheckRunFiles(const std::vector<RunFile>& files) {
  std::map<std::string, std::string> inputs;  // options of regular files, and of folders, by inode
  for (const RunFile& file : files) {
    struct stat facts;
    if (file.use != FileUse::kRead || !Stat(file, &facts)) continue;
    if (S_ISREG(facts.st_mode) || S_ISDIR(facts.st_mode))
      inputs.emplace(InodeOf(facts), file.option);
  }
  std::vector<RunFile> outputs = {{.option = "", .path = "-", .use = FileUse::kWritten}};
  for (const RunFile& file : files) {
    const bool is_endpoint = file.path.find("://") != std::string::npos;
    if (file.use == FileUse::kWritten && !is_endpoint) outputs.push_back(file);
  }
  std::map<std::string, const RunFile*> written;
  for (const RunFile& out : outputs) {
    struct stat facts, folder;
    if (Stat(out, &facts) && S_ISREG(facts.st_mode)) {
      if (const auto in = inputs.find(InodeOf(facts)); in != inputs.end()) {
        return Overwrites(out, in->second);
      }
      const std::string parent = WhereMade(out.path).parent_path().string();
      if (out.path != "-" && stat(parent.c_str(), &folder) == 0) {
        if (const auto in = inputs.find(InodeOf(folder)); in != inputs.end()) {
          return Overwrites(out, in->second);
        }
      }
    }
    if (out.option.empty()) continue;
    const auto [other, is_new] =
        written.emplace(IsStandardOutput(out.path) ? "-" : IdentityOf(out), &out);
    if (is_new) continue;
    const RunFile& first = *other->second;
    if (IsStandardOutput(out.path)) {
      return absl::InvalidArgumentError(
          absl::StrCat(first.option, " and ", out.option,
                       " both want standard output; write one of them "
                       "to a file"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        first.option, " and ", out.option, " are both ", out.path,
        first.path == out.path ? "" : absl::StrCat(", as ", first.path, " is the same file"),
        "; name two files"));
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
