#include "kvblocks/sim/trace/trace_formats.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/sim/trace/measurement.h"
#include "kvblocks/sim/trace/native_reader.h"

namespace kvblocks::sim {
namespace {

OpenedRows MakeNative(std::unique_ptr<ByteSource> source, const TraceReaderOptions& options,
                      RowLog* log) {
  return MakeNativeReader(std::move(source), options, log);
}

struct FormatRow {
  const char* name;
  MakeReader* make = nullptr;  // null: a preset of fields, or a measurement
};
constexpr std::array<FormatRow, 23> kFormatRows = {{
    {"mooncake", MakeMooncakeReader},
    {"azure"},
    {"coding", MakeCodingSessionReader},
    {"native", MakeNative},
    {"native-text", MakeNativeTextReader},
    {"workload", MakeWorkloadReader},
    {"ragpulse", MakeRagPulseReader},
    {"bailian", MakeBailianReader},
    {"burstgpt"},
    {"vidur"},
    {"llmservingsim", MakeLlmServingSimReader},
    {"dynamo", MakeDynamoReader},
    {"lmcache"},
    {"aiperf", MakeAiperfReader},
    {"applied-compute", MakeAppliedComputeReader},
    {"tracelab", MakeTraceLabReader},
    {"sharegpt", MakeShareGptReader},
    {"vllm-custom"},
    {"aiperf-profile"},
    {"vllm-bench"},
    {"request-log"},
    {"otel-genai"},
    {"fields", MakeFieldMapReader},
}};

// An option that only some formats have, and whether it says something.
struct FormatOption {
  const char* flag;
  bool is_set;
  std::string value;
  std::vector<std::string> formats;
};

absl::Status CheckOptionsOfFormats(const std::string& format, const TraceReaderOptions& options) {
  const TraceReaderOptions initial;
  const FormatOption all[] = {
      {"--fields", !options.fields.empty(), options.fields, {"fields"}},
      {"--rag-order", options.rag_order != initial.rag_order, options.rag_order, {"ragpulse"}},
      {"--rag-lengths", !options.rag_lengths.empty(), options.rag_lengths, {"ragpulse"}},
      {"--model-filter", !options.model_filter.empty(), options.model_filter, {"burstgpt"}},
      {"--log-type", !options.log_type.empty(), options.log_type, {"burstgpt"}},
      {"--closed-loop", options.closed_loop, "true", {"bailian", "dynamo"}},
      {"--bytes-per-token",
       options.bytes_per_token != initial.bytes_per_token,
       absl::StrCat(options.bytes_per_token),
       {"sharegpt", "vllm-custom"}},
      {"--sharegpt", options.sharegpt != initial.sharegpt, options.sharegpt, {"sharegpt"}},
  };
  for (const FormatOption& option : all) {
    const auto& formats = option.formats;
    if (!option.is_set || std::find(formats.begin(), formats.end(), format) != formats.end()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(option.flag, ": got ", Shown(option.value), " for a trace of the format ",
                     format, ", expected one of the format ", absl::StrJoin(formats, " or ")));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& TraceFormats() {
  static const std::vector<std::string>* const names = [] {
    auto* list = new std::vector<std::string>;
    for (const FormatRow& row : kFormatRows) list->push_back(row.name);
    return list;
  }();
  return *names;
}

OpenedRows MakeReaderOfFormat(const std::string& format, std::unique_ptr<ByteSource> source,
                              const TraceReaderOptions& options, RowLog* log) {
  for (const FormatRow& row : kFormatRows) {
    if (row.name != format) continue;
    if (absl::Status status = CheckOptionsOfFormats(format, options); !status.ok()) return status;
    if (row.make != nullptr) return row.make(std::move(source), options, log);
    return IsMeasurementFormat(format)
               ? MakeMeasurementReader(std::move(source), format, options, log)
               : MakePresetReader(format, std::move(source), options, log);
  }
  return absl::InvalidArgumentError(absl::StrCat("--trace-format: got ", Shown(format),
                                                 ", expected auto, ",
                                                 absl::StrJoin(TraceFormats(), ", ")));
}

}  // namespace kvblocks::sim
