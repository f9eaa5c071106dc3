// What commands write: results to standard output in one piece, everything else to standard error.
//
// A reader that goes away (| head) is no failure: writing stops and the command ends as if all had
// been read.

#ifndef KVBLOCKS_SIM_COMMANDS_OUTPUT_H_
#define KVBLOCKS_SIM_COMMANDS_OUTPUT_H_

#include <string>

#include "absl/status/status.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {

// How a command ended, as the exit status of the process.
enum ExitStatus {
  kDone = 0,
  kMissed = 1,      // a comparison or a service level objective failed
  kBadInput = 2,    // options, configuration, trace or output file
  kNoProgress = 3,  // nothing could ever move again
  kInternal = 4,    // an internal check failed
};

// False: it could not be written, and standard error says why.
bool WriteStdout(const std::string& text);

// See OpenByteSink.
absl::Status WriteFile(const std::string& path, const std::string& text);

// The status, or none if it says that nobody reads the pipe any more.
absl::Status UnlessReaderGone(const absl::Status& status);

// What the reader found to say of its trace, a line each on standard error.
void PrintWarnings(const TraceReader& reader);

// Prints "kvsim COMMAND: MESSAGE" and returns the exit status that fits.
ExitStatus Fail(const std::string& command, const absl::Status& status);

// What is added to the message of a process that a signal ends; at first nothing. A command that
// keeps what it has done says here where.
void SetInterruptNote(const std::string& note);
// May be called from a signal handler.
const char* InterruptNote();

// "auto" (a terminal, and NO_COLOR is not set), "always" or "never".
bool UseColor(const std::string& choice);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_OUTPUT_H_
