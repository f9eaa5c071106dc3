// Result files: what `kvsim replay` wrote, recognised by content - a report (--json) or steps
// (--steps). Both are read as hostile input; compression is unpacked on the way.

#ifndef KVBLOCKS_SIM_REPORT_RESULT_FILE_H_
#define KVBLOCKS_SIM_REPORT_RESULT_FILE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "sim/report/report.pb.h"
#include "sim/report/step_rows.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/measurement.h"

namespace kvblocks::sim {

// The version of report.proto that this code writes and reads. Reports of one replica of the
// version before are read, too.
inline constexpr uint32_t kReportSchemaVersion = 2;

struct ResultFile {
  std::string file;
  std::unique_ptr<::kvblocks::report::v1::Report> report;  // one of the two
  std::unique_ptr<StepReader> steps;
};

// "-" is standard input. Errors: FILE: error: WHAT: got VALUE, expected EXPECTATION.
absl::StatusOr<ResultFile> OpenResultFile(const std::string& path);
absl::StatusOr<ResultFile> OpenResult(std::unique_ptr<ByteSource> source, const std::string& file);

// A whole report, as ToJson writes it. `file` is for messages.
absl::StatusOr<::kvblocks::report::v1::Report> ParseReport(std::string_view json,
                                                           const std::string& file);

// A measurement in the form of a report, and a report cut to what a measurement says, so that
// `kvsim compare` can put a replay beside a real run.
//
// Compared are requests, tokens, queueing, TTFT, TPOT, E2E and ITL with their percentiles, duration
// and throughput, each where the file has it. No such file has blocks, hits or preemptions.

// Of the requests that succeeded.
::kvblocks::report::v1::Report MeasuredReport(const Measurement& measurement);

// The fields of `replayed` that `measured` has.
::kvblocks::report::v1::Report CutToMeasured(const ::kvblocks::report::v1::Report& replayed,
                                             const ::kvblocks::report::v1::Report& measured);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_REPORT_RESULT_FILE_H_
