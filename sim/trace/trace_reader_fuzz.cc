// Trace files: whatever the bytes, reading ends, says where a file is wrong, keeps the promises of
// TraceReader, and reads the same again after Restart. What was read can be measured and hashed. A
// validation finds errors in the same files.

#include <set>
#include <string>
#include <vector>

#include "sim/testing/trace_fuzz_input.h"
#include "sim/trace/content_keys.h"
#include "sim/trace/trace_facts.h"
#include "sim/trace/trace_reader.h"
#include "sim/trace/validation.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::sim;

void CheckRequests(const TraceReader& reader, const std::vector<TraceRequest>& requests) {
  std::set<int64_t> rows;
  int64_t last_ns = 0;
  const int64_t block = reader.info().block_tokens;
  for (const TraceRequest& r : requests) {
    FUZZ_EXPECT(r.arrival_ns >= last_ns, "arrivals decrease");
    last_ns = r.arrival_ns;
    FUZZ_EXPECT(rows.insert(r.row).second && r.row >= 0, "a row came twice");
    FUZZ_EXPECT(r.line > 0 && !r.id.empty(), "no line or id");
    FUZZ_EXPECT(r.input_length >= 0 && r.output_length >= 0 &&
                    r.input_length + r.output_length <= kMaxTraceLength,
                "lengths");
    FUZZ_EXPECT(r.min_tokens >= 0 && r.think_ns >= 0 && r.abort_after_ns >= 0, "negative");
    FUZZ_EXPECT(r.min_tokens <= kMaxTraceLength, "min_tokens " + std::to_string(r.min_tokens));
    FUZZ_EXPECT(
        r.output_ids.empty() || static_cast<int64_t>(r.output_ids.size()) == r.output_length,
        "output ids");
    FUZZ_EXPECT(r.has_arrival || !r.waits_for.empty(), "arrives never");
    int64_t before = -1;
    for (const int64_t row : r.waits_for) {
      FUZZ_EXPECT(row > before && row < r.row && rows.count(row) > 0, "waits_for");
      before = row;
    }
    const int64_t ids = static_cast<int64_t>(r.content_ids.size());
    const int64_t described = r.input_length + (r.ids_cover_output ? r.output_length : 0);
    const int64_t full = block > 0 ? described / block : 0;
    FUZZ_EXPECT(ids == full || (block > 1 && described % block != 0 && ids == full + 1),
                "content ids");
  }
}

void HashAndMeasure(const TraceReader& reader, const std::vector<TraceRequest>& requests) {
  TraceFactsBuilder facts(reader.info(), {1, 16});
  for (const TraceRequest& r : requests) {
    facts.Add(r);
    if (r.input_length > 4096 || reader.info().block_tokens > 4096) continue;
    // In two steps and in one.
    std::vector<absl::uint128> once, twice;
    ContentKeys a(reader.info(), r, 16);
    a.AppendBlocks(r, r.input_length, &once);
    ContentKeys b(reader.info(), r, 16);
    b.AppendBlocks(r, r.input_length / 2, &twice);
    b.AppendBlocks(r, r.input_length, &twice);
    FUZZ_EXPECT(once == twice, "keys depend on the steps");
  }
  FormatTraceFacts(facts.Finish());
}

// A validation finds errors where and only where a read of the whole file does, and says of each
// what it is about.
void CheckValidation(const TraceFuzzInput& input) {
  ValidationOptions options;
  options.reader = input.options;
  options.max_messages = 5;
  const auto validation = ValidateTraceString(input.file, "file", options);
  FUZZ_EXPECT(validation.ok(), validation.status().ToString());
  for (const TraceProblem& problem : validation->problems) {
    FUZZ_EXPECT(problem.line >= 0 && problem.column >= 0, problem.text);
    const ProblemParts parts = SplitProblem(problem.text);
    FUZZ_EXPECT(!parts.what.empty(), problem.text);
  }
  FUZZ_EXPECT(validation->num_requests + validation->num_bad_rows == validation->num_rows,
              "rows are neither good nor bad");

  TraceReaderOptions strict;
  strict.format = input.options.format;
  strict.require_sorted = input.options.require_sorted;
  strict.ids_are_unique = input.options.ids_are_unique;
  strict.zstd_window_log = input.options.zstd_window_log;
  strict.max_line_bytes = input.options.max_line_bytes;
  strict.fields = input.options.fields;
  strict.trace_block_size = input.options.trace_block_size;
  strict.side_files = input.options.side_files;
  strict.sharegpt = input.options.sharegpt;
  strict.closed_loop = input.options.closed_loop;
  strict.reorder_window = input.options.reorder_window;
  strict.reorder_bytes = input.options.reorder_bytes;
  absl::Status status;
  const auto reader = OpenTraceString(input.file, "file", strict);
  status = reader.ok() ? ReadToTheEnd(**reader).status : reader.status();
  FUZZ_EXPECT(status.ok() == (validation->num_errors() == 0), status.ToString());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const TraceFuzzInput input = MakeTraceFuzzInput(data, size);
  if (IsLarge(input)) return 0;
  CheckValidation(input);
  const auto reader = OpenTraceString(input.file, "file", input.options);
  if (!reader.ok()) {
    const std::string message(reader.status().message());
    FUZZ_EXPECT(message.rfind("file:", 0) == 0, message);
    return 0;
  }
  const TraceFuzzResult first = ReadToTheEnd(**reader);
  CheckRequests(**reader, first.requests);
  if (!first.status.ok()) {
    const std::string message(first.status.message());
    FUZZ_EXPECT(message.rfind("file:", 0) == 0, message);
  }
  TraceRequest request;
  const auto more = (*reader)->Next(request);
  FUZZ_EXPECT(more.status() == first.status && !more.value_or(false), "goes on after the end");
  FUZZ_EXPECT(static_cast<int>((*reader)->warnings().size()) <= input.options.max_errors + 1,
              "more warnings than wanted");

  const absl::Status restarted = (*reader)->Restart();
  FUZZ_EXPECT(restarted.ok(), restarted.ToString());
  const TraceFuzzResult second = ReadToTheEnd(**reader);
  FUZZ_EXPECT(second.status == first.status && second.requests == first.requests,
              "reads something else after Restart");
  HashAndMeasure(**reader, first.requests);
  return 0;
}
