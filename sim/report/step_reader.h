// StepReader: the rows of a step file (step_rows.h), read as a stream and as hostile input.
//
// Columns are found by name, so that a file with more of them can be read: `step` must come first
// and `digest` must be there. Always: every row has as many fields as the header, steps increase,
// digests are 16 hexadecimal digits. Everything else is text. Compression is unpacked on the way.
// Memory: one line, at most 16 MiB.

#ifndef KVBLOCKS_SIM_REPORT_STEP_READER_H_
#define KVBLOCKS_SIM_REPORT_STEP_READER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/sim/trace/byte_source.h"
#include "kvblocks/sim/trace/line_reader.h"

namespace kvblocks::sim {

struct StepRow {
  int64_t line = 0;
  int64_t step = 0;
  uint64_t digest = 0;
  std::string_view replica;  // empty: the file is of one
  std::vector<std::string_view> fields;  // as in columns(); valid until the next call
};

class StepReader {
 public:
  // Whether a file that begins with `head` is one.
  static bool Recognises(std::string_view head);

  // Reads the header. `file` is for messages.
  static absl::StatusOr<std::unique_ptr<StepReader>> Create(std::unique_ptr<ByteSource> source,
                                                            const std::string& file);

  // False at the end. Errors: FILE:LINE: error: WHAT: got VALUE, expected EXPECTATION.
  absl::StatusOr<bool> Next(StepRow* row);

  const ByteSource& source() const { return lines_.source(); }
  const std::string& file() const { return file_; }
  const std::vector<std::string>& columns() const { return columns_; }

 private:
  StepReader(std::unique_ptr<ByteSource> source, const std::string& file);
  absl::Status ReadHeader();
  absl::StatusOr<bool> NextLine(Line* line);
  absl::Status Error(int64_t line, const std::string& text) const;

  const std::string file_;
  LineReader lines_;
  std::vector<std::string> columns_;
  size_t digest_column_ = 0;
  std::optional<size_t> replica_column_;
  std::map<std::string, int64_t, std::less<>> last_steps_;  // by replica
};

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_STEP_READER_H_
