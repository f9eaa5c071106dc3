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
#include "sim/testing/trace_fuzz_input.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/convert.h"
#include "sim/trace/row_source.h"
#include "sim/trace/trace_facts.h"
#include "sim/trace/validation.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;

// A file of our own per format, what is in it, and how much an infinite cache would hit.
struct Sample {
  const char* file;
  const char* format;
  int64_t shared_tokens;
  const char* requests;  // as Texts says them
};

constexpr Sample kSamples[] = {
    {"ragpulse/0_trace.jsonl", "ragpulse", 98,
     "1 at 12: 71+9, session 2/0, ids of 71\n"
     "0 at 30: 69+12, session 1/0, ids of 69\n"
     "2 at 45.5: 77+20, session 1/1, ids of 77\n"},
    {"bailian.jsonl", "bailian", 64,
     "0 at 0.25: 40+24, id 7, session 1/0, ids 9001 9002 9003, class text\n"
     "1 at 1.5: 33+10, id 8, session 2/0, ids 9001 9002, class search\n"
     "2 at 20.125: 80+16, id 9, session 1/1, ids 9001 9002 9004 9005 9006, class text\n"
     "3 at 21: 16+1, id 11, session 3/3, ids 9007, class text\n"},
    {"burstgpt.csv", "burstgpt", 0,
     "0 at 3: 100+20\n"
     "1 at 4.5: 50+0\n"
     "2 at 9: 64+8\n"},
    {"burstgpt_sessions.csv", "burstgpt", 0,
     "0 at 3: 100+20, session 1/0\n"
     "1 at 60: 140+30, session 1/1\n"},
    {"azure_2024.csv", "azure", 0,
     "0 at 86399.00993: 2399+7\n"
     "1 at 86400.017335: 76+15\n"
     "2 at 259201: 129+44\n"},
    {"vidur.csv", "vidur", 0,
     "0 at 0: 128+16\n"
     "1 at 0.4: 64+32\n"
     "2 at 1.25: 300+4\n"},
    {"vidur_lengths.csv", "vidur", 0,
     "0 at 0: 128+16\n"
     "1 at 0: 64+32\n"},
    {"llmservingsim.jsonl", "llmservingsim", 0,
     "0 at 0: 20+3\n"
     "3 at 0.0005: 24+2\n"
     "1 at 0.001: 30+5, session 1/0\n"
     "2 by 0.001: 48+6, session 1/1, after 1, thinks 2\n"},
    {"llmservingsim_ids.jsonl", "llmservingsim", 4,
     "0 at 0: 4+2, ids 5 6 7 8, output 9 10\n"
     "1 at 2.5: 7+1, ids of 7, output 12\n"},
    {"../coding_sessions.jsonl", "coding", 24,
     "0 at 0: 9+3, id one/0, session 1/0, ids 1 2\n"
     "1 by 0: 14+2, id one/1, session 1/1, after 0, thinks 2.5, ids 1 2 3\n"
     "2 at 0: 8+1, id two/0, session 2/0, ids 1 2\n"
     "3 by 0: 4+1, id two/1/0, session 2/1, after 2, thinks 1, ids 9\n"
     "4 by 0: 8+1, id two/1/1, session 2/2, after 3, thinks 0.5, ids 9 1\n"
     "5 by 0: 5+1, id two/2/0, session 2/3, after 2, thinks 1, ids 9\n"
     "6 by 0: 12+4, id two/3, session 2/4, after 2 4 5, thinks 1.5, ids 1 2 3\n"},
    {"dynamo.jsonl", "dynamo", 192,
     "0 at 32000: 130+16, id r1, session 1/0, ids -3567488908834179720 -1 3\n"
     "1 at 32003: 128+8, id r2, session 2/0, ids -3567488908834179720 4\n"
     "2 at 32006: 200+4, id r3, session 1/1, ids -3567488908834179720 -1 5\n"},
    {"lmcache.jsonl", "lmcache", 256,
     "0 at 0.123: 600+0, id r1, ids 31 -1\n"
     "1 at 1.5000001: 512+0, id r2, ids 31 42\n"},
    {"aiperf.jsonl", "aiperf", 800,
     "0 at 0: 700+100, session 1/0, all ids 0 1\n"
     "2 by 0: 1000+50, session 1/1, after 0, thinks 2, all ids 0 1 2\n"
     "1 at 0.25: 64+10, session 2/0, all ids 0\n"},
    {"applied_compute.jsonl", "applied-compute", 2450,
     "0 at 0: 1000+100, session 1/0, all ids 0 1 2\n"
     "1 by 0: 1150+200, session 1/1, after 0, thinks 1.5, all ids 0 1 2\n"
     "2 by 0: 1750+30, session 1/2, after 1, thinks 0.25, all ids 0 1 2 3\n"
     "3 at 0: 600+10, session 2/0, all ids 0 1\n"},
    {"tracelab.jsonl", "tracelab", 1740,
     "0 at 0: 1000+100, session 1/0, all ids of 18\n"
     "1 at 0: 700+20, session 2/0, all ids of 12\n"
     "2 by 0: 1150+30, session 1/1, after 0, thinks 1.5, all ids of 19\n"
     "3 by 0: 800+40, session 2/1, after 1, thinks 3, all ids of 14\n"},
    {"sharegpt.json", "sharegpt", 0,
     "0 at 0: 10+9, ids of 10, output of 9\n"},
    {"vllm_custom.jsonl", "vllm-custom", 5,
     "0 at 0: 8+12, ids of 8\n"
     "1 at 0: 8+20, ids of 8, priority 1\n"},
    {"vllm_custom_ids.jsonl", "vllm-custom", 3,
     "0 at 0: 4+2, ids 1 2 3 4\n"
     "1 at 0.0125: 5+2, ids 1 2 3 5 6\n"},
    {"aiperf_profile.jsonl", "aiperf-profile", 0,
     "0 at 32001: 512+8, session 1/0\n"
     "1 at 32002: 64+14, session 2/0\n"},
    {"vllm_bench.json", "vllm-bench", 0,
     "0 at 27536.5: 100+3\n"
     "1 at 27537: 200+2\n"},
    {"request_log.jsonl", "request-log", 0,
     "0 at 32000.5: 100+11, id bench-0\n"
     "1 at 32000.75: 40+1, id bench-1\n"},
    {"otel_genai.jsonl", "otel-genai", 0,
     "0 at 32000: 512+64, id 0a, session 1/0\n"
     "1 at 32001: 600+3, id 0c, session 1/1\n"},
    {"workload.txtpb", "workload", 160,
     "0 at 1: 52+12, session 1/0, all ids 3778530814612996096 3778530814612996097 "
     "4090840995273375744 2067863065882263552\n"
     "1 at 2: 52+12, session 1048577/0, all ids 3778530814612996096 3778530814612996097 "
     "3370690259807371264 1523554735118876672\n"
     "2 at 6: 84+12, session 1/1, after 0, thinks 5, all ids 3778530814612996096 "
     "3778530814612996097 4090840995273375744 2067863065882263552 2999123727993536512 "
     "4386538902237741056\n"
     "3 at 7: 84+12, session 1048577/1, after 1, thinks 5, all ids 3778530814612996096 "
     "3778530814612996097 3370690259807371264 1523554735118876672 4107904329748316160 "
     "4063425631321325568\n"},
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

TEST(TraceFormatsTest, EachSampleIsRecognisedAndHoldsWhatItHolds) {
  for (const Sample& sample : kSamples) {
    SCOPED_TRACE(sample.file);
    const auto facts = ComputeTraceFacts(*MustOpen(PathOf(sample.file)), {16});
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->info.format, sample.format);
    EXPECT_EQ(facts->shared_tokens, sample.shared_tokens);
    EXPECT_EQ(Texts(RequestsOf(PathOf(sample.file))), sample.requests);
  }
}

TEST(TraceFormatsTest, EachSampleIsGood) {
  for (const Sample& sample : kSamples) {
    ValidationOptions options;
    options.reader.check_ids = true;
    const auto validation = ValidateTrace(PathOf(sample.file), options);
    ASSERT_TRUE(validation.ok()) << validation.status();
    EXPECT_EQ(validation->num_bad_rows, 0) << sample.file;
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
    // Only ids that are no numbers are lost.
    auto before = Renumbered(RequestsOf(PathOf(sample.file))),
         after = Renumbered(RequestsOf(native));
    for (auto* requests : {&before, &after}) {
      for (TraceRequest& request : *requests) request.id.clear();
    }
    EXPECT_EQ(after, before);
    // What one cache could hit is the same in Mooncake's form, too.
    const std::string mooncake = testing::TempDir() + "/sample.jsonl";
    ASSERT_TRUE(ConvertTrace(native, mooncake, TraceFormat::kMooncake, {}).ok());
    const auto facts = ComputeTraceFacts(*MustOpen(mooncake), {16});
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->info.format, "mooncake");
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

TEST(TraceFormatsTest, OptionsChangeWhatASampleHolds) {
  TraceReaderOptions closed_loop, sessions, fields;
  closed_loop.closed_loop = true;
  sessions.sharegpt = "sessions";
  fields.fields =
      "arrival=when,session=user,output_length=completion_tokens,input_length=prompt_tokens,"
      "ids=blocks";
  fields.trace_block_size = 16;
  EXPECT_EQ(Texts(RequestsOf(PathOf("bailian.jsonl"), closed_loop)),
            "0 at 0.25: 40+24, id 7, session 1/0, ids 9001 9002 9003, class text\n"
            "1 at 1.5: 33+10, id 8, session 2/0, ids 9001 9002, class search\n"
            "2 at 20.125: 80+16, id 9, session 1/1, after 0, ids 9001 9002 9004 9005 9006, "
            "class text\n"
            "3 at 21: 16+1, id 11, session 3/3, ids 9007, class text\n");
  EXPECT_EQ(Texts(RequestsOf(PathOf("dynamo.jsonl"), closed_loop)),
            "0 at 32000: 130+16, id r1, session 1/0, ids -3567488908834179720 -1 3\n"
            "1 by 32000: 128+8, id r2, session 2/0, after 0, thinks 0.5, "
            "ids -3567488908834179720 4\n"
            "2 by 32000: 200+4, id r3, session 1/1, after 0, thinks 3.5, "
            "ids -3567488908834179720 -1 5\n");
  EXPECT_EQ(Texts(RequestsOf(PathOf("sharegpt.json"), sessions)),
            "0 at 0: 10+9, session 1/0, ids of 10, output of 9\n"
            "1 by 0: 26+4, session 1/1, after 0, ids of 26, "
            "output 2210555681 3581503827 991496447 2123905782\n"
            "2 at 0: 4+2, session 2/0, ids 3632011794 2520435804 2123905782 2334517355, "
            "output 2366719176 2123905782\n");
  EXPECT_EQ(Texts(RequestsOf(PathOf("fields.csv"), fields)),
            "0 at 64800: 40+5, session 1/0, ids 1 2 3\n"
            "1 at 64801.5: 35+6, session 2/0, ids 1 2 4\n");
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
