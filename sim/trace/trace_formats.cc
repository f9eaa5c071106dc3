#include "kvblocks/sim/trace/trace_formats.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/sim/trace/agent_readers.h"
#include "kvblocks/sim/trace/coding_session_reader.h"
#include "kvblocks/sim/trace/csv_readers.h"
#include "kvblocks/sim/trace/field_map_reader.h"
#include "kvblocks/sim/trace/hash_readers.h"
#include "kvblocks/sim/trace/measurement.h"
#include "kvblocks/sim/trace/mooncake_reader.h"
#include "kvblocks/sim/trace/native_reader.h"
#include "kvblocks/sim/trace/ragpulse_reader.h"
#include "kvblocks/sim/trace/text_readers.h"
#include "kvblocks/sim/trace/workload_reader.h"

namespace kvblocks::sim {
namespace {

using Source = std::unique_ptr<ByteSource>;
using Opened = absl::StatusOr<std::unique_ptr<RowSource>>;
using MakeReader = Opened (*)(Source, const TraceReaderOptions&, RowLog*);

template <const char* format>
Opened MakeMeasured(Source source, const TraceReaderOptions& options, RowLog* log) {
  return MakeMeasurementReader(std::move(source), format, options, log);
}
constexpr char kAiperfProfile[] = "aiperf-profile";
constexpr char kVllmBench[] = "vllm-bench";
constexpr char kRequestLog[] = "request-log";
constexpr char kOtelGenAi[] = "otel-genai";

Opened MakeNative(Source source, const TraceReaderOptions& options, RowLog* log) {
  return MakeNativeReader(std::move(source), options, log);
}

struct FormatRow {
  const char* name;
  MakeReader make;
};
constexpr std::array<FormatRow, 23> kFormatRows = {{
    {"mooncake", MakeMooncakeReader},
    {"azure", MakeAzureReader},
    {"coding", MakeCodingSessionReader},
    {"native", MakeNative},
    {"native-text", MakeNativeTextReader},
    {"workload", MakeWorkloadReader},
    {"ragpulse", MakeRagPulseReader},
    {"bailian", MakeBailianReader},
    {"burstgpt", MakeBurstGptReader},
    {"vidur", MakeVidurReader},
    {"llmservingsim", MakeLlmServingSimReader},
    {"dynamo", MakeDynamoReader},
    {"lmcache", MakeLmcacheReader},
    {"aiperf", MakeAiperfReader},
    {"applied-compute", MakeAppliedComputeReader},
    {"tracelab", MakeTraceLabReader},
    {"sharegpt", MakeShareGptReader},
    {"vllm-custom", MakeVllmDatasetReader},
    {kAiperfProfile, MakeMeasured<kAiperfProfile>},
    {kVllmBench, MakeMeasured<kVllmBench>},
    {kRequestLog, MakeMeasured<kRequestLog>},
    {kOtelGenAi, MakeMeasured<kOtelGenAi>},
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

Opened MakeReaderOfFormat(const std::string& format, Source source,
                          const TraceReaderOptions& options, RowLog* log) {
  for (const FormatRow& row : kFormatRows) {
    if (row.name != format) continue;
    if (absl::Status status = CheckOptionsOfFormats(format, options); !status.ok()) return status;
    return row.make(std::move(source), options, log);
  }
  return absl::InvalidArgumentError(absl::StrCat("--trace-format: got ", Shown(format),
                                                 ", expected auto, ",
                                                 absl::StrJoin(TraceFormats(), ", ")));
}

}  // namespace kvblocks::sim
