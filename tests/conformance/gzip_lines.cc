#include "kvblocks/tests/conformance/gzip_lines.h"

#include <zlib.h>

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"

namespace kvblocks::conformance {

absl::StatusOr<std::vector<std::string>> ReadLines(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  std::string text;
  std::array<char, 1 << 16> buffer;
  int count = 0;
  // Far beyond any recording; a small file can unpack to a thousand times its size.
  constexpr size_t kMostBytes = size_t{1} << 30;
  while ((count = gzread(file, buffer.data(), buffer.size())) > 0) {
    if (text.size() > kMostBytes) {
      gzclose(file);
      return absl::ResourceExhaustedError(absl::StrCat(path, ": more than ", kMostBytes, " bytes"));
    }
    text.append(buffer.data(), static_cast<size_t>(count));
  }
  int error = Z_OK;
  const std::string message = gzerror(file, &error);
  gzclose(file);
  if (count < 0 || (error != Z_OK && error != Z_STREAM_END)) {
    return absl::DataLossError(
        absl::StrCat(path, ": damaged or cut off after ", text.size(), " bytes: ", message));
  }
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

std::vector<std::string> CompressedFilesIn(const std::filesystem::path& folder) {
  std::vector<std::string> files;
  if (!std::filesystem::is_directory(folder)) return files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".gz") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace kvblocks::conformance
