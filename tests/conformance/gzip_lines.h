// ReadLines: the lines of a text file, gzip or plain.

#ifndef KVBLOCKS_TESTS_CONFORMANCE_GZIP_LINES_H_
#define KVBLOCKS_TESTS_CONFORMANCE_GZIP_LINES_H_

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvblocks::conformance {

// NotFound if the file cannot be opened, DataLoss if its compressed data is damaged or cut off,
// ResourceExhausted beyond 1 GiB of text.
absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path);

// The paths of a folder's *.gz, sorted; none if there is no such folder.
std::vector<std::string> CompressedFilesIn(const std::filesystem::path& folder);

}  // namespace kvblocks::conformance

#endif  // KVBLOCKS_TESTS_CONFORMANCE_GZIP_LINES_H_
