// TraceFuzzInput: what the trace fuzzers make of their bytes - reader options, then a file.
//
//   byte 0   the format: p auto, q mooncake, r azure, s native, t native-text, u records (below),
//            v coding, a ragpulse (with the lengths below), b bailian, c burstgpt, d vidur,
//            e llmservingsim, f dynamo, g lmcache, h aiperf, i applied-compute, j sharegpt,
//            k vllm-custom, l aiperf-profile, m vllm-bench, n request-log, o fields (as below),
//            x sharegpt with sessions, y bailian and z dynamo with closed loops, { otel-genai,
//            | tracelab. Not drawn: workload, where a short file describes any number of requests.
//   byte 1   flags; @ none, and its low bits: 1 skip_bad_rows, 2 require_sorted, 4 ids_are_unique,
//            8 spread, 16 selection and speed-up, 32 small windows and lines; 128 the file is
//            compressed on the way, with gzip if 64 is set (byte 0xc0), else with zstd (0x80)
//   the rest the file. For u: native records, each after its length in two bytes, big-endian; magic
//            and footer are put around them, so that a fuzzer need not find a checksum.

#ifndef KVBLOCKS_SIM_TESTING_TRACE_FUZZ_INPUT_H_
#define KVBLOCKS_SIM_TESTING_TRACE_FUZZ_INPUT_H_

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/trace/byte_source.h"
#include "sim/trace/record_stream.h"
#include "sim/trace/trace.pb.h"
#include "sim/trace/trace_reader.h"
#include "tests/fuzz/fuzz_input.h"

namespace kvblocks::sim {

struct TraceFuzzInput {
  TraceReaderOptions options;
  std::string file;
};

inline std::string NativeFileOf(std::string_view rest) {
  std::string file(kNativeMagic);
  RecordHash hash;
  trace::v1::Record footer;
  trace::v1::Footer& sums = *footer.mutable_footer();
  while (rest.size() >= 2) {
    const size_t length = std::min<size_t>(
        static_cast<uint8_t>(rest[0]) * 256u + static_cast<uint8_t>(rest[1]), rest.size() - 2);
    const std::string bytes(rest.substr(2, length));
    rest.remove_prefix(2 + length);
    AppendRecord(bytes, &file, &hash);
    trace::v1::Record record;
    if (!record.ParseFromString(bytes) || !record.has_request()) continue;
    sums.set_num_requests(sums.num_requests() + 1);
    sums.set_input_tokens(sums.input_tokens() + record.request().input_length());
    sums.set_output_tokens(sums.output_tokens() + record.request().output_length());
  }
  sums.set_xxh64_of_records(hash.value());
  AppendRecord(footer.SerializeAsString(), &file, &hash);
  return file;
}

inline std::string Compressed(std::string bytes, bool as_gzip) {
  std::string out(ZSTD_compressBound(bytes.size()) + 64, '\0');
  if (!as_gzip) {
    out.resize(ZSTD_compress(out.data(), out.size(), bytes.data(), bytes.size(), 1));
    return out;
  }
  z_stream stream = {};
  constexpr int kGzipWindow = 15 + 16;
  FUZZ_EXPECT(deflateInit2(&stream, 1, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) == Z_OK,
              "zlib begins");
  out.resize(deflateBound(&stream, bytes.size()));
  stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  FUZZ_EXPECT(deflate(&stream, Z_FINISH) == Z_STREAM_END, "zlib ends");
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

inline TraceFuzzInput MakeTraceFuzzInput(const uint8_t* data, size_t size) {
  fuzz::FuzzInput input(data, size);
  TraceFuzzInput out;
  constexpr const char* kFormats[] = {
      "auto",           "ragpulse",   "bailian",     "burstgpt",        "vidur",    "llmservingsim",
      "dynamo",         "lmcache",    "aiperf",      "applied-compute", "sharegpt", "vllm-custom",
      "aiperf-profile", "vllm-bench", "request-log", "fields",          "auto",     "mooncake",
      "azure",          "native",     "native-text", "native",          "coding",   "auto",
      "sharegpt",       "bailian",    "dynamo",      "otel-genai",      "tracelab", "auto",
      "auto",           "auto"};
  constexpr uint8_t kRecords = 21;
  static const auto* const side_files = new std::map<std::string, std::string>{
      {"1_sys_prompt.jsonl", "{\"sys_prompt_id\": 1, \"token_length\": 16}"},
      {"2_passages.jsonl",
       "{\"passage_id\": 1, \"token_length\": 5}\n"
       "{\"passage_id\": 2, \"token_length\": 0}"},
      {"3_history.jsonl", "{\"history_id\": 1, \"token_length\": 1}"},
      {"4_user_input.jsonl", "{\"user_input_id\": 1, \"token_length\": 3}"},
      {"5_web_search.jsonl", ""}};
  const uint8_t format = input.Byte() & 31;
  const uint8_t flags = input.Byte();
  out.options.format = kFormats[format];
  if (out.options.format == "ragpulse") out.options.side_files = side_files;
  if (out.options.format == "fields") {
    out.options.fields =
        "input_length=i,output_length=o,arrival_s=t,ids=h,session=s,think_ms=d,tenant=n";
    out.options.trace_block_size = 16;
  }
  if (format == 24) out.options.sharegpt = "sessions";
  out.options.closed_loop = format == 25 || format == 26;
  out.options.skip_bad_rows = (flags & 1) != 0;
  out.options.require_sorted = (flags & 2) != 0;
  out.options.ids_are_unique = (flags & 4) != 0;
  out.options.spread = (flags & 8) != 0;
  if ((flags & 16) != 0) {
    out.options.start_ns = 1;
    out.options.end_ns = int64_t{1} << 62;
    out.options.sample = {3, 4};
    out.options.limit = 20;
    out.options.rebase = true;
    out.options.speedup = {1, 3};
  }
  out.options.zstd_window_log = 20;
  out.options.reorder_bytes = 1 << 20;
  out.options.max_line_bytes = 1 << 20;
  if ((flags & 32) != 0) {
    out.options.reorder_window = 1;
    out.options.max_line_bytes = 200;
    out.options.max_errors = 1;
  }
  const std::string_view rest = input.Rest();
  out.file = format == kRecords ? NativeFileOf(rest) : std::string(rest);
  if ((flags & 128) != 0) out.file = Compressed(out.file, /*as_gzip=*/(flags & 64) != 0);
  return out;
}

// Compression bombs take long and show nothing new; byte_source_fuzz looks at them. A fuzzer reads
// a file several times, and an input has a second with sanitizers: 430 KB of one-letter lines take
// 95 ms in kvsim validate and 2.6 s here.
inline bool IsLarge(const TraceFuzzInput& input) {
  const std::string_view magic = std::string_view(input.file).substr(0, 2);
  if (magic != "\x1f\x8b" && magic != "\x28\xb5") return false;
  constexpr size_t kMost = 64 << 10;
  const auto source = ByteSourceOfString(input.file, input.options.zstd_window_log);
  std::string chunk(16 << 10, '\0');
  for (size_t total = 0; total < kMost;) {
    const auto n = source->Read(chunk.data(), chunk.size());
    if (!n.ok() || *n == 0) return false;
    total += *n;
  }
  return true;
}

// Delivers a text in parts of `size` bytes.
class PartsSource final : public ByteSource {
 public:
  PartsSource(std::string text, size_t size) : text_(std::move(text)), size_(size) {}
  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    const size_t n = text_.copy(out, std::min(size, size_), position_);
    position_ += n;
    return n;
  }
  int64_t bytes_read() const override { return static_cast<int64_t>(position_); }
  int64_t bytes_total() const override { return static_cast<int64_t>(text_.size()); }

 private:
  std::string text_;
  size_t size_;
  size_t position_ = 0;
};

// Rows as they are in a file written in this order.
inline std::vector<TraceRequest> Renumbered(std::vector<TraceRequest> requests) {
  std::map<int64_t, int64_t> row_of_row;
  for (TraceRequest& request : requests) {
    const int64_t row = static_cast<int64_t>(row_of_row.size());
    row_of_row[request.row] = row;
    request.row = row;
    request.line = 0;
    for (int64_t& dependency : request.waits_for) dependency = row_of_row.at(dependency);
    std::sort(request.waits_for.begin(), request.waits_for.end());
  }
  return requests;
}

struct TraceFuzzResult {
  absl::Status status;
  std::vector<TraceRequest> requests;
};

inline TraceFuzzResult ReadToTheEnd(TraceReader& reader) {
  TraceFuzzResult result;
  while (true) {
    TraceRequest request;
    const auto more = reader.Next(request);
    result.status = more.status();
    if (!more.ok() || !*more) return result;
    result.requests.push_back(std::move(request));
  }
}

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_TESTING_TRACE_FUZZ_INPUT_H_
