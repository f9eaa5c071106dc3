#include "kvblocks/sim/trace/convert.h"

#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblocks::sim {

absl::StatusOr<TraceFormat> ParseTraceFormat(const std::string& name) {
  if (name == "native") return TraceFormat::kNative;
  if (name == "mooncake") return TraceFormat::kMooncake;
  if (name == "csv") return TraceFormat::kCsv;
  if (name == "oracle") return TraceFormat::kOracle;
  return absl::InvalidArgumentError(
      absl::StrCat("got \"", name, "\", expected native, mooncake, csv or oracle"));
}

std::unique_ptr<TraceWriter> MakeTraceWriter(std::unique_ptr<ByteSink> sink, TraceFormat format,
                                             const NativeWriterOptions& native) {
  switch (format) {
    case TraceFormat::kNative:
      break;
    case TraceFormat::kMooncake:
      return MakeMooncakeWriter(std::move(sink));
    case TraceFormat::kCsv:
      return MakeCsvWriter(std::move(sink));
    case TraceFormat::kOracle:
      return MakeOracleWriter(std::move(sink));
  }
  return MakeNativeWriter(std::move(sink), native);
}

absl::StatusOr<ConvertReport> CopyTrace(TraceReader& reader, TraceWriter& writer) {
  if (absl::Status status = writer.Begin(reader.info()); !status.ok()) return status;
  ConvertReport report;
  TraceRequest request;
  while (true) {
    absl::StatusOr<bool> more = reader.Next(request);
    if (!more.ok()) return more.status();
    if (!*more) break;
    if (absl::Status status = writer.Write(request); !status.ok()) return status;
    ++report.num_requests;
  }
  if (absl::Status status = writer.Finish(); !status.ok()) return status;
  report.losses = writer.losses();
  report.warnings = reader.warnings();
  return report;
}

absl::StatusOr<ConvertReport> ConvertTrace(const std::string& in, const std::string& out,
                                           TraceFormat format, const ConvertOptions& options) {
  TraceReaderOptions reader_options = options.reader;
  if (options.sort) {
    reader_options.reorder_window = std::numeric_limits<int64_t>::max();
    reader_options.reorder_bytes = kMostSortedBytes;
  }
  absl::StatusOr<std::unique_ptr<TraceReader>> reader = OpenTrace(in, reader_options);
  if (!reader.ok()) return reader.status();
  if (options.wrap) *reader = options.wrap(*std::move(reader));
  absl::StatusOr<std::unique_ptr<ByteSink>> sink = OpenByteSink(out);
  if (!sink.ok()) return sink.status();
  return CopyTrace(**reader, *MakeTraceWriter(*std::move(sink), format, options.native));
}

}  // namespace kvblocks::sim
