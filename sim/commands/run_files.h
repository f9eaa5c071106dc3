// The files of one run, with the options that name them. Nothing that is read may be overwritten,
// and no two outputs may be one file.
//
// Files are compared by device and inode, those that are not there yet by where they would be; so
// two spellings, symbolic and hard links are seen through. Nothing is opened.

#ifndef KVBLOCKS_SIM_COMMANDS_RUN_FILES_H_
#define KVBLOCKS_SIM_COMMANDS_RUN_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvblocks::sim {

enum class FileUse { kNone, kRead, kWritten };

struct RunFile {
  std::string option;  // as messages name it: "--csv", "TRACE"
  std::string path;    // - is standard input or output; an endpoint is no file
  FileUse use = FileUse::kNone;
};

// Before anything is opened for writing. InvalidArgument names both options and the path. Of a
// folder that is read, so are the files in it. Standard output is written by every run.
// Cost: a few system calls per file.
absl::Status CheckRunFiles(const std::vector<RunFile>& files);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_RUN_FILES_H_
