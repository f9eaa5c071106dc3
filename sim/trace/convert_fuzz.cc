// Conversion: what can be read can be written, and reads back equal - except what the writer
// names as lost, and from where a request stands in its file.

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/testing/trace_fuzz_input.h"
#include "sim/trace/convert.h"
#include "sim/trace/trace_facts.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::sim;

struct Copy {
  absl::Status written;
  std::set<std::string> losses;
  std::string bytes;
};

Copy Write(const TraceInfo& info, const std::vector<TraceRequest>& requests, TraceFormat format) {
  Copy copy;
  auto sink = ByteSinkToString(&copy.bytes);
  NativeWriterOptions narrow;
  narrow.copy_window = 3;
  narrow.copy_window_ids = 20;
  const auto writer = MakeTraceWriter(std::move(sink), format, narrow);
  copy.written = writer->Begin(info);
  for (const TraceRequest& request : requests) {
    if (copy.written.ok()) copy.written = writer->Write(request);
  }
  if (copy.written.ok()) copy.written = writer->Finish();
  copy.losses = writer->losses();
  return copy;
}

std::vector<TraceRequest> ReadBack(const Copy& copy) {
  FUZZ_EXPECT(copy.written.ok(), copy.written.ToString());
  const auto reader = OpenTraceString(copy.bytes, "copy", {});
  FUZZ_EXPECT(reader.ok(), reader.status().ToString() + "\n" + copy.bytes);
  TraceFuzzResult result = ReadToTheEnd(**reader);
  FUZZ_EXPECT(result.status.ok(), result.status.ToString() + "\n" + copy.bytes);
  for (TraceRequest& request : result.requests) request.line = 0;
  return std::move(result.requests);
}

// What an infinite cache would hit.
int64_t SharedTokens(const std::string& bytes) {
  const auto reader = OpenTraceString(bytes, "copy", {});
  FUZZ_EXPECT(reader.ok(), reader.status().ToString());
  const auto facts = ComputeTraceFacts(**reader, {});
  FUZZ_EXPECT(facts.ok(), facts.status().ToString());
  return facts->shared_tokens;
}

void ExpectEqual(const std::vector<TraceRequest>& a, const std::vector<TraceRequest>& b,
                 const std::string& bytes) {
  FUZZ_EXPECT(a.size() == b.size(), bytes);
  for (size_t i = 0; i < a.size(); ++i) {
    FUZZ_EXPECT(a[i] == b[i], "request " + std::to_string(i) + " differs\n" + bytes);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const TraceFuzzInput input = MakeTraceFuzzInput(data, size);
  if (IsLarge(input)) return 0;
  const auto reader = OpenTraceString(input.file, "file", input.options);
  if (!reader.ok()) return 0;
  // What was read before an error makes a trace as well.
  const std::vector<TraceRequest> requests = Renumbered(ReadToTheEnd(**reader).requests);
  const TraceInfo& info = (*reader)->info();

  const Copy native = Write(info, requests, TraceFormat::kNative);
  std::vector<TraceRequest> expected = requests;
  std::vector<TraceRequest> got = ReadBack(native);
  if (!native.losses.empty()) {  // only request ids can be lost
    for (auto* list : {&expected, &got}) {
      for (TraceRequest& request : *list) request.id.clear();
    }
  }
  ExpectEqual(expected, got, native.bytes);

  if (requests.empty()) return 0;  // no row: a JSONL file of nothing, which has no format
  const Copy mooncake = Write(info, requests, TraceFormat::kMooncake);
  if (!mooncake.written.ok()) {
    FUZZ_EXPECT(info.scope != ContentScope::kGlobal && info.block_tokens == 1,
                mooncake.written.ToString());
  } else if (mooncake.losses.empty()) {
    ExpectEqual(requests, ReadBack(mooncake), mooncake.bytes);
  } else {
    ReadBack(mooncake);
  }
  if (mooncake.written.ok()) {
    FUZZ_EXPECT(SharedTokens(mooncake.bytes) == SharedTokens(native.bytes), mooncake.bytes);
  }

  if (requests.front().arrival_ns < 86400000000000) {
    const Copy csv = Write(info, requests, TraceFormat::kCsv);
    // Counted from the day in this note a time can fall behind the year 9999.
    if (!csv.written.ok() && info.notes.count("day_one") > 0) return 0;
    const std::vector<TraceRequest> plain = ReadBack(csv);
    FUZZ_EXPECT(plain.size() == requests.size(), "number of rows");
    for (size_t i = 0; i < plain.size(); ++i) {
      FUZZ_EXPECT(plain[i].arrival_ns == requests[i].arrival_ns &&
                      plain[i].input_length == requests[i].input_length &&
                      plain[i].output_length == requests[i].output_length,
                  "row " + std::to_string(i) + " of the CSV");
    }
  }
  return 0;
}
