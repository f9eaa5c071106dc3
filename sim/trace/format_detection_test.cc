#include "sim/trace/format_detection.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/convert.h"
#include "sim/trace/row_source.h"
#include "sim/trace/trace_facts.h"
#include "sim/trace/validation.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;

// A file of our own per format, and what is in it.
struct Sample {
  const char* file;
  const char* format;
  int64_t requests;
  int64_t input;
  int64_t output;
  int64_t sessions;
  int64_t shared_tokens;  // that an infinite cache would hit
};

constexpr Sample kSamples[] = {
    {"ragpulse/0_trace.jsonl", "ragpulse", 3, 217, 41, 2, 98},
    {"bailian.jsonl", "bailian", 4, 169, 51, 3, 64},
    {"burstgpt.csv", "burstgpt", 3, 214, 28, 0, 0},
    {"burstgpt_sessions.csv", "burstgpt", 2, 240, 50, 1, 0},
    {"azure_2024.csv", "azure", 3, 2604, 66, 0, 0},
    {"vidur.csv", "vidur", 3, 492, 52, 0, 0},
    {"vidur_lengths.csv", "vidur", 2, 192, 48, 0, 0},
    {"llmservingsim.jsonl", "llmservingsim", 4, 122, 16, 1, 0},
    {"llmservingsim_ids.jsonl", "llmservingsim", 2, 11, 3, 0, 4},
    {"../coding_sessions.jsonl", "coding", 7, 60, 13, 2, 24},
    {"dynamo.jsonl", "dynamo", 3, 458, 28, 2, 192},
    {"lmcache.jsonl", "lmcache", 2, 1112, 0, 0, 256},
    {"aiperf.jsonl", "aiperf", 3, 1764, 160, 2, 800},
    {"applied_compute.jsonl", "applied-compute", 4, 4500, 340, 2, 2450},
    {"tracelab.jsonl", "tracelab", 4, 3650, 190, 2, 1740},
    {"sharegpt.json", "sharegpt", 1, 10, 9, 0, 0},
    {"vllm_custom.jsonl", "vllm-custom", 2, 16, 32, 0, 5},
    {"vllm_custom_ids.jsonl", "vllm-custom", 2, 9, 4, 0, 3},
    {"aiperf_profile.jsonl", "aiperf-profile", 2, 576, 22, 2, 0},
    {"vllm_bench.json", "vllm-bench", 2, 300, 5, 0, 0},
    {"request_log.jsonl", "request-log", 2, 140, 12, 0, 0},
    {"otel_genai.jsonl", "otel-genai", 2, 1112, 67, 1, 0},
    {"workload.txtpb", "workload", 4, 272, 48, 2, 160},
};

std::string PathOf(const std::string& file) { return "sim/trace/testdata/formats/" + file; }

std::string ContentOf(const std::string& file) {
  std::ifstream in(PathOf(file), std::ios::binary);
  EXPECT_TRUE(in) << file;
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

std::vector<TraceRequest> RequestsOf(const std::string& path,
                                     const TraceReaderOptions& options = {}) {
  return MustRead(*MustOpen(path, options));
}

// Rows as they are in a file written in this order, without what a conversion may change.
std::vector<TraceRequest> Renumbered(std::vector<TraceRequest> requests) {
  std::map<int64_t, int64_t> row_of_row;
  for (TraceRequest& request : requests) {
    const int64_t row = static_cast<int64_t>(row_of_row.size());
    row_of_row[request.row] = row;
    request.row = row;
    request.line = 0;
    request.id.clear();
    for (int64_t& dependency : request.waits_for) dependency = row_of_row.at(dependency);
    std::sort(request.waits_for.begin(), request.waits_for.end());
  }
  return requests;
}

TEST(TraceFormatsTest, EachSampleIsRecognisedAndHoldsWhatItHolds) {
  for (const Sample& sample : kSamples) {
    SCOPED_TRACE(sample.file);
    const auto facts = ComputeTraceFacts(*MustOpen(PathOf(sample.file)), {16});
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->info.format, sample.format);
    EXPECT_EQ(facts->requests, sample.requests);
    EXPECT_EQ(facts->input.total, sample.input);
    EXPECT_EQ(facts->output.total, sample.output);
    EXPECT_EQ(facts->sessions, sample.sessions);
    EXPECT_EQ(facts->shared_tokens, sample.shared_tokens);
  }
}

TEST(TraceFormatsTest, EachSampleIsGood) {
  for (const Sample& sample : kSamples) {
    ValidationOptions options;
    options.reader.check_ids = true;
    const auto validation = ValidateTrace(PathOf(sample.file), options);
    ASSERT_TRUE(validation.ok()) << validation.status();
    EXPECT_EQ(validation->num_requests, sample.requests) << sample.file;
    for (const TraceProblem& problem : validation->problems) {
      if (problem.severity == ProblemSeverity::kNote) continue;
      ADD_FAILURE() << ProblemMessage(sample.file, problem);
    }
  }
}

// SM-50.
TEST(TraceFormatsTest, EachSampleIsTheSameInTheNativeForm) {
  for (const Sample& sample : kSamples) {
    SCOPED_TRACE(sample.file);
    const std::string native = testing::TempDir() + "/sample.kvt.gz";
    const auto report = ConvertTrace(PathOf(sample.file), native, TraceFormat::kNative, {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(Renumbered(RequestsOf(native)), Renumbered(RequestsOf(PathOf(sample.file))));
    // What one cache could hit is the same in Mooncake's form, too.
    const std::string mooncake = testing::TempDir() + "/sample.jsonl";
    ASSERT_TRUE(ConvertTrace(native, mooncake, TraceFormat::kMooncake, {}).ok());
    const auto facts = ComputeTraceFacts(*MustOpen(mooncake), {16});
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->info.format, "mooncake");
    EXPECT_EQ(facts->input.total, sample.input);
    EXPECT_EQ(facts->shared_tokens, sample.shared_tokens);
  }
}

TEST(TraceFormatsTest, EverySampleCutAnywhereIsReadOrRefusedWithItsLine) {
  for (const Sample& sample : kSamples) {
    if (std::string(sample.format) == "ragpulse") continue;  // see hash_readers_test.cc
    const std::string content = ContentOf(sample.file);
    for (size_t size = 0; size < content.size(); ++size) {
      const std::string error = TraceError(content.substr(0, size));
      if (error.empty()) continue;
      EXPECT_THAT(error, testing::StartsWith("t:")) << sample.file << " " << size;
    }
  }
}

// Every number of every sample replaced by what no number may be.
TEST(TraceFormatsTest, WrongValuesAreErrorsThatNameThem) {
  for (const Sample& sample : kSamples) {
    // Texts have no numbers; RAGPulse has a test of its own.
    if (std::string(sample.format) == "ragpulse" || std::string(sample.format) == "sharegpt")
      continue;
    SCOPED_TRACE(sample.file);
    const std::string content = ContentOf(sample.file);
    const bool is_csv = std::string(sample.file).find(".csv") != std::string::npos;
    TraceReaderOptions options;
    options.format = sample.format;
    int64_t num_refused = 0;
    for (const char* bad : {"-7", "18446744073709551616", "1e400", "nan", "{}", "[[[]]]", "\"x\"",
                            "true", "\"\\u0000\""}) {
      for (size_t begin = 0; begin < content.size();) {
        begin = content.find_first_of("0123456789", begin);
        if (begin == std::string::npos) break;
        const size_t end = content.find_first_not_of("0123456789.", begin);
        // Parts of names and of texts are not numbers.
        const char before = begin == 0 ? ' ' : content[begin - 1];
        const std::string text =
            content.substr(0, begin) + bad + content.substr(std::min(end, content.size()));
        begin = end;
        if (before != ' ' && before != ',' && before != '[') continue;
        const std::string error = TraceError(text, options);
        if (error.empty()) continue;
        ++num_refused;
        EXPECT_THAT(error, testing::StartsWith("t:")) << text;
        EXPECT_THAT(error, HasSubstr("error: ")) << text;
        // A workload is a configuration file, whose syntax protobuf complains about.
        const bool is_workload = std::string(sample.format) == "workload";
        EXPECT_THAT(error, HasSubstr(is_workload && error.find("got ") == std::string::npos
                                         ? "xpected "
                                         : "got "))
            << text;
      }
    }
    EXPECT_GT(num_refused, is_csv ? 4 : 8);
  }
}

TEST(TraceFormatsTest, NulsDeepNestingAndHugeCountsAreRefused) {
  const std::string nuls(100, '\0');
  const std::string deep = std::string(5000, '[');
  for (const std::string& format : TraceFormats()) {
    if (format == "ragpulse" || format == "fields" || format == "native") continue;
    SCOPED_TRACE(format);
    TraceReaderOptions options;
    options.format = format;
    for (const std::string& text : {nuls, "{" + nuls + "}\n", deep, "{\"a\": " + deep + "}\n",
                                    "[{\"conversations\": " + deep + "}]"}) {
      EXPECT_NE(TraceError(text, options), "") << text.substr(0, 40);
    }
  }
}

TEST(TraceFormatsTest, UnknownFormatsAreRefusedWithAListOfAll) {
  TraceReaderOptions options;
  options.format = "moonshine";
  const std::string error = TraceError("{}", options);
  EXPECT_THAT(error, HasSubstr("--trace-format: got \"moonshine\", expected auto, mooncake,"));
  for (const std::string& format : TraceFormats()) EXPECT_THAT(error, HasSubstr(format));
}

TEST(TraceFormatsTest, OptionsOfOtherFormatsAreRefused) {
  TraceReaderOptions options;
  options.model_filter = "ModelA";
  EXPECT_THAT(TraceError(ContentOf("vidur.csv"), options),
              HasSubstr("--model-filter: got \"ModelA\" for a trace of the format vidur, expected "
                        "one of the format burstgpt"));
  options = {};
  options.closed_loop = true;
  EXPECT_THAT(TraceError(ContentOf("lmcache.jsonl"), options), HasSubstr("bailian or dynamo"));
  options = {};
  options.sharegpt = "sessions";
  EXPECT_THAT(TraceError(ContentOf("aiperf.jsonl"), options), HasSubstr("--sharegpt"));
  options.sharegpt = "all";
  EXPECT_THAT(TraceError(ContentOf("sharegpt.json"), options),
              HasSubstr("--sharegpt: got \"all\""));
}

TEST(TraceFormatsTest, ParquetIsRefusedByName) {
  EXPECT_THAT(TraceError("PAR1\x15\x04"), ::testing::AllOf(HasSubstr("format: got Parquet"),
                                                           HasSubstr("kvblocks.Trace.read(FILE)")));
}

constexpr const char* kRecord =
    R"({"timestamp": 0, "input_length": 8, "output_length": 1, "hash_ids": [1]})";

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

std::string Head(const std::string& text, size_t part, size_t max_bytes = 1 << 26) {
  std::unique_ptr<ByteSource> source = std::make_unique<PartsSource>(text, part);
  auto head = PeekHead(&source, max_bytes);
  EXPECT_TRUE(head.ok());
  return *head;
}

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST(FormatDetectionTest, BlanksBeforeTheFirstRecordAreLookedAtOnce) {
  const double start = CpuSeconds();
  for (const char blank : {' ', '\n', '\r', 'x', '\0'}) {
    const std::string text(4 << 20, blank);
    EXPECT_EQ(Head(text + "\n" + kRecord + "\n", 64).size() / 64, text.size() / 64 + 1);
    EXPECT_FALSE(DetectFormat(text, "t").ok());
  }
  // About 0.3 s; looking again with every part took hours.
  EXPECT_LT(CpuSeconds() - start, 60);
}

TEST(FormatDetectionTest, ReadsUpToTheEndOfTheFirstLineWithText) {
  const std::string blanks = "\xef\xbb\xbf \n\t\r\n  ";
  for (const size_t part : {1, 2, 3, 5, 1000}) {
    const std::string text = blanks + kRecord + "\n" + std::string(2000, 'y');
    const std::string head = Head(text, part);
    EXPECT_GE(head.size(), blanks.size() + 1 + std::string(kRecord).size()) << part;
    EXPECT_LT(head.size(), blanks.size() + 1 + std::string(kRecord).size() + part) << part;
    EXPECT_EQ(DetectFormat(head, "t").value_or("none"), "mooncake") << part;
  }
}

TEST(FormatDetectionTest, NulsAreNoBlanks) {
  const std::string nuls(8, '\0');
  for (const std::string& text : {nuls, nuls + "\n" + kRecord}) {
    const auto format = DetectFormat(text, "t");
    ASSERT_FALSE(format.ok());
    EXPECT_THAT(std::string(format.status().message()), HasSubstr("t:1:"));
    EXPECT_THAT(std::string(format.status().message()), Not(HasSubstr("empty")));
  }
}

TEST(FormatDetectionTest, SaysThatThereAreOnlyBlanks) {
  EXPECT_EQ(DetectFormat("", "t").status().message(),
            "t:1: error: format: got an empty file, expected a first record");
  EXPECT_EQ(DetectFormat(" \n  ", "t").status().message(),
            "t:2: error: format: got an empty file, with nothing but blanks in its first 4 bytes, "
            "expected a first record");
}

}  // namespace
}  // namespace kvblocks::sim
