#include "sim/trace/validation.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/testing/trace_fuzz_input.h"
#include "sim/testing/trace_testing.h"
#include "sim/trace/row_source.h"
#include "sim/trace/trace_problem.h"

namespace kvblocks::sim {
namespace {

using testing::HasSubstr;

TraceValidation Validated(std::string content, const ValidationOptions& options = {}) {
  auto validation = ValidateTraceString(std::move(content), "t", options);
  EXPECT_TRUE(validation.ok()) << validation.status();
  return validation.ok() ? *std::move(validation) : TraceValidation();
}

std::string Messages(const TraceValidation& validation) {
  std::string text;
  for (const TraceProblem& problem : validation.problems) {
    text += ProblemMessage(validation.file, problem) + "\n";
  }
  return text;
}

// --- One fault of each kind in each format ---

enum class Format { kMooncake, kAzure, kNative };

struct Fault {
  const char* name;
  Format format;
  ProblemKind kind;
  ProblemSeverity severity;
  int64_t line;
  const char* text;  // within the message
  // Appended to two good rows; if it begins with '!', the rest is the whole file.
  std::string content;
};

std::string GoodRows(Format format) {
  switch (format) {
    case Format::kMooncake:
      return R"({"request_id": "a", "timestamp": 0, "input_length": 20, "output_length": 1, "block_size": 16, "hash_ids": [1, 2]}
{"request_id": "b", "timestamp": 5, "input_length": 32, "output_length": 1, "block_size": 16, "hash_ids": [1, 3]}
)";
    case Format::kAzure:
      return "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.97,4808,10\r\n"
             "2023-11-16 18:17:04,3180,8\r\n";
    case Format::kNative:
      return "header { version: 1 block_tokens: 16 }\n\n"
             "request { id: 1 input_length: 20 output_length: 1 ids: [1, 1] }\n\n"
             "request { id: 2 arrival_delta_ns: 5 input_length: 32 output_length: 1 ids: [1, 2] "
             "}\n\n";
  }
  return "";
}

std::string FileWith(const Fault& fault) {
  std::string content =
      fault.content[0] == '!' ? fault.content.substr(1) : GoodRows(fault.format) + fault.content;
  if (fault.format != Format::kNative || content[0] != 'h') return content;
  const auto binary = NativeTextToBinary(content, "t");
  EXPECT_TRUE(binary.ok()) << binary.status();
  return binary.ok() ? *binary : "";
}

#define FIELDS(fields) "{\"request_id\": \"c\", " fields "}\n"
#define LENGTHS "\"input_length\": 32, \"output_length\": 1, \"block_size\": 16"
#define IDS "\"hash_ids\": [1, 4]"

const ProblemSeverity kError = ProblemSeverity::kError;
const ProblemSeverity kWarning = ProblemSeverity::kWarning;
const ProblemSeverity kNote = ProblemSeverity::kNote;

std::vector<Fault> Faults() {
  using enum ProblemKind;
  const Format m = Format::kMooncake, a = Format::kAzure, n = Format::kNative;
  std::string truncated = *NativeTextToBinary(GoodRows(n), "t");
  truncated.resize(truncated.size() - 4);
  std::string flipped = *NativeTextToBinary(GoodRows(n), "t");
  flipped[flipped.size() - 2] ^= 1;
  std::string two_headers = GoodRows(n) + "header { version: 1 }\n";
  // Header, a record of field 5, a request.
  const std::string later =
      NativeFileOf(std::string("\0\4\x0a\2\x08\1\0\2\x2a\0\0\x08\x12\6\x08\3\x18\1\x20\1", 20));
  const std::string gzip("\x1f\x8b\x08\0\0\0\0\0\0\x03\x01\x05", 12);
  return {
      {"MooncakeNoFormat", m, kFormat, kError, 1, "expected a known trace record", "!{\"a\": 1}"},
      {"MooncakeEmpty", m, kFormat, kError, 1, "got an empty file", "!"},
      {"MooncakeUnsupported", m, kFormat, kError, 1, "does not read", "!PAR1"},
      {"MooncakeTruncatedGzip", m, kStream, kError, 1, "truncated gzip stream", "!" + gzip},
      {"MooncakeSyntax", m, kSyntax, kError, 3, "JSON: got", "{\"timestamp\": 5,,}\n"},
      {"MooncakeOtherJson", m, kSyntax, kError, 3, "JSON: got", "[1, 2]\n"},
      {"MooncakeMissing", m, kMissingField, kError, 3, "field input_length: got nothing",
       FIELDS("\"timestamp\": 6, \"output_length\": 1, \"block_size\": 16, " IDS)},
      {"MooncakeNoTimestamp", m, kMissingField, kError, 3, "field timestamp",
       FIELDS(LENGTHS ", " IDS)},
      {"MooncakeTwice", m, kRepeatedField, kError, 3, "field input_length: got it twice",
       FIELDS("\"timestamp\": 6, \"input_tokens\": 32, " LENGTHS ", " IDS)},
      {"MooncakeValue", m, kValue, kError, 3, "timestamp: got \"-1\"",
       FIELDS("\"timestamp\": -1, " LENGTHS ", " IDS)},
      {"MooncakeSum", m, kLength, kError, 3, "input plus output length",
       FIELDS(
           "\"timestamp\": 6, \"input_length\": 8, \"output_length\": 2147483647, \"block_size\": "
           "16, \"hash_ids\": [1]")},
      {"MooncakeIds", m, kContentIds, kError, 3, "got 1, expected 2 for 32 tokens",
       FIELDS("\"timestamp\": 6, " LENGTHS ", \"hash_ids\": [1]")},
      {"MooncakeOutputIds", m, kOutputIds, kError, 3, "output token ids: got 2, expected 1",
       FIELDS("\"timestamp\": 6, \"output_token_ids\": [1, 2], " LENGTHS ", " IDS)},
      {"MooncakeBlockSize", m, kBlockSize, kError, 3, "block_size: got 8, expected 16",
       FIELDS("\"timestamp\": 6, \"input_length\": 8, \"output_length\": 1, \"block_size\": 8, "
              "\"hash_ids\": [1]")},
      {"MooncakeDuplicate", m, kDuplicateId, kError, 3, "request_id: got \"a\", also that of row 1",
       "{\"request_id\": \"a\", \"timestamp\": 6, " LENGTHS ", " IDS "}\n"},
      {"MooncakeMixed", m, kMixedIds, kError, 3, "expected one as in the rows before",
       "{\"timestamp\": 6, " LENGTHS ", " IDS "}\n"},
      {"MooncakeDependency", m, kDependency, kError, 3, "wait_for: got \"z\"",
       FIELDS("\"timestamp\": 6, \"wait_for\": [\"a\", \"z\"], " LENGTHS ", " IDS)},
      {"MooncakeCycle", m, kDependency, kError, 3, "the request itself",
       FIELDS("\"timestamp\": 6, \"wait_for\": [\"c\"], " LENGTHS ", " IDS)},
      {"MooncakeBackwards", m, kOrder, kNote, 3, "got 4 ms, expected at least 5 ms as on line 2",
       FIELDS("\"timestamp\": 4, " LENGTHS ", " IDS)},
      {"MooncakeParents", m, kIdParents, kNote, 3, "block id: got 3 after other ids than on line 2",
       FIELDS("\"timestamp\": 6, " LENGTHS ", \"hash_ids\": [2, 3]")},
      {"MooncakeTokens", m, kIdTokens, kWarning, 3, "block id 2: got 16 tokens, expected 4",
       FIELDS("\"timestamp\": 6, " LENGTHS ", \"hash_ids\": [1, 2]")},
      {"MooncakeBlank", m, kBlankLine, kWarning, 3, "blank lines: got 2",
       "\n \n" FIELDS("\"timestamp\": 6, " LENGTHS ", " IDS)},
      {"MooncakeUnknownField", m, kUnknownField, kNote, 3, "field: got \"priorty\"",
       FIELDS("\"timestamp\": 6, \"priorty\": 3, " LENGTHS ", " IDS)},
      {"MooncakeEmptyPrompt", m, kEmptyPrompt, kWarning, 3, "input length: got 0",
       FIELDS("\"timestamp\": 6, \"input_length\": 0, \"output_length\": 1, \"block_size\": 16, "
              "\"hash_ids\": []")},
      {"MooncakeZeroOutput", m, kZeroOutput, kNote, 3, "--zero-output",
       FIELDS("\"timestamp\": 6, \"input_length\": 16, \"output_length\": 0, \"block_size\": 16, "
              "\"hash_ids\": [1]")},

      {"AzureHeader", a, kFormat, kError, 1, "CSV header: got", "!TIMESTAMP,Tokens\n"},
      {"AzureTruncatedZstd", a, kStream, kError, 1, "zstd",
       std::string("!\x28\xb5\x2f\xfd\x20", 6)},
      {"AzureFields", a, kSyntax, kError, 4, "CSV row: got 2 fields", "2023-11-16 18:17:05,1\r\n"},
      {"AzureTimestamp", a, kValue, kError, 4, "TIMESTAMP: got \"yesterday\"", "yesterday,1,1\n"},
      {"AzureDay", a, kValue, kError, 4, "expected a day from 2023-11-16 on",
       "2023-11-15 18:17:05,1,1\n"},

      {"NativeMagic", n, kFormat, kError, 1, "expected a JSON object", "!XVTRACE1"},
      {"NativeVersion", n, kFormat, kError, 1, "version: got 2, expected 1",
       "!header { version: 2 }\n"},
      {"NativeTruncated", n, kStream, kError, 4, "truncated record", "!" + truncated},
      {"NativeChecksum", n, kStream, kError, 4, "footer xxh64_of_records", "!" + flipped},
      {"NativeSecondHeader", n, kStream, kError, 4, "a second header", "!" + two_headers},
      {"NativeNegativeTime", n, kValue, kError, 4, "timestamp: got -1 ns",
       "request { id: 3 arrival_delta_ns: -6 input_length: 1 output_length: 1 }\n"},
      {"NativeString", n, kValue, kError, 4, "tenant: got string 3, expected below 1",
       "request { id: 3 input_length: 1 output_length: 1 tenant: 3 }\n"},
      {"NativeUnknownRecord", n, kUnknownRecord, kWarning, 2, "does not know", "!" + later},
  };
}

class ValidationFaults : public testing::TestWithParam<Fault> {};

TEST_P(ValidationFaults, AreReportedWithLineKindAndMessage) {
  const Fault& fault = GetParam();
  const std::string file = FileWith(fault);
  const TraceValidation validation = Validated(file);
  const TraceProblem* found = nullptr;
  for (const TraceProblem& problem : validation.problems) {
    if (problem.kind == fault.kind && problem.severity == fault.severity) found = &problem;
  }
  ASSERT_NE(found, nullptr) << Messages(validation);
  EXPECT_EQ(found->line, fault.line);
  EXPECT_THAT(found->text, HasSubstr(fault.text));
  EXPECT_EQ(validation.num_errors() > 0, fault.severity == kError) << Messages(validation);
  EXPECT_EQ(validation.is_complete,
            fault.kind != ProblemKind::kFormat && fault.kind != ProblemKind::kStream);
  // Every error that a validation finds is one that a replay refuses the trace for, and the
  // reverse.
  EXPECT_EQ(ReadTrace(file).ok(), validation.num_errors() == 0);
  int64_t sum = 0;
  for (const ProblemCount& count : validation.counts) sum += count.count;
  EXPECT_EQ(sum, validation.num_errors() + validation.num_warnings() + validation.num_notes());
}

INSTANTIATE_TEST_SUITE_P(All, ValidationFaults, testing::ValuesIn(Faults()),
                         [](const testing::TestParamInfo<Fault>& fault) {
                           return std::string(fault.param.name);
                         });

TEST(ValidationTest, EveryKindOfProblemHasAFault) {
  std::set<ProblemKind> seen;
  for (const Fault& fault : Faults()) seen.insert(fault.kind);
  for (int i = 0; i < kNumProblemKinds; ++i) {
    EXPECT_TRUE(seen.contains(static_cast<ProblemKind>(i)))
        << ProblemKindName(static_cast<ProblemKind>(i));
  }
}

TEST(ValidationTest, OptionsMakeNotesErrors) {
  ValidationOptions options;
  options.reader.require_sorted = true;
  const TraceValidation sorted = Validated(Row("5") + Row("4"), options);
  EXPECT_EQ(sorted.num_errors(), 1);
  EXPECT_THAT(Messages(sorted),
              HasSubstr("t:2: error: timestamp: got 4 ms, expected at least 5 ms as on line 1 "
                        "(kvsim convert --sort)"));
  options.reader.require_sorted = false;
  options.reader.ids_are_unique = true;
  const std::string row =
      R"({"timestamp": 6, "input_length": 32, "output_length": 1, "block_size": 16, "hash_ids": )";
  const TraceValidation ids = Validated(row + "[1, 2]}\n" + row + "[3, 2]}\n", options);
  EXPECT_THAT(Messages(ids),
              HasSubstr("t:2: error: block id: got 2 after other ids than on line 1"));
  options.reader.reorder_window = 1;
  const TraceValidation late = Validated(Row("5") + Row("6") + Row("1"), options);
  EXPECT_THAT(Messages(late), HasSubstr("t:3: error: timestamp: got 1000000 ns"));
}

// A kilobyte of gzip may hold as many as take a second to write down.
TEST(ValidationTest, TextsThatNobodyReadsAreNotMade) {
  class Notes final : public TraceListener {
   public:
    void OnProblem(const TraceProblem& problem) override {
      EXPECT_EQ(problem.kind, ProblemKind::kIdParents);
      EXPECT_EQ(problem.text, "");
      ++num_problems;
    }
    bool KeepsText(ProblemSeverity, ProblemKind) const override { return false; }
    int num_problems = 0;
  } notes;
  std::string trace;
  for (int row = 0; row < 40; ++row) {
    trace +=
        R"({"timestamp": 1, "input_length": 8000, "output_length": 1, "block_size": 16, "hash_ids": [1)";
    for (int i = 1; i < 500; ++i) trace += ",1";
    trace += "]}\n";
  }
  TraceReaderOptions reader;
  reader.check_ids = true;
  reader.listener = &notes;
  ASSERT_TRUE(ReadTrace(trace, reader).ok());
  EXPECT_EQ(notes.num_problems, 40 * 499);
  ValidationOptions options;
  options.max_messages = 2;
  const TraceValidation validation = Validated(trace, options);
  EXPECT_EQ(validation.num_notes(), 40 * 499);
  ASSERT_EQ(validation.problems.size(), 2u);
  EXPECT_THAT(validation.problems[1].text, HasSubstr("block id: got 1 after other ids"));
}

TEST(ValidationTest, GoesOnAfterBadRowsAndCountsAll) {
  std::string trace;
  for (int i = 0; i < 100; ++i) trace += Row(i % 2 == 0 ? std::to_string(i) : "-1");
  trace += "{\n";
  ValidationOptions options;
  options.max_messages = 3;
  const TraceValidation validation = Validated(trace, options);
  EXPECT_TRUE(validation.is_complete);
  EXPECT_EQ(validation.num_rows, 101);
  EXPECT_EQ(validation.num_bad_rows, 51);
  EXPECT_EQ(validation.num_requests, 50);
  EXPECT_EQ(validation.input_tokens, 50 * 8);
  EXPECT_EQ(validation.output_tokens, 50 * 2);
  EXPECT_EQ(validation.last_arrival_ns, 98000000);
  EXPECT_EQ(validation.num_errors(), 51);
  EXPECT_EQ(validation.problems.size(), 4u) << "three of one kind, one of the other";
  ASSERT_EQ(validation.counts.size(), 2u);
  EXPECT_EQ(validation.counts[0].kind, ProblemKind::kSyntax);
  EXPECT_EQ(validation.counts[0].first_line, 101);
  EXPECT_EQ(validation.counts[1].count, 50);
}

TEST(ValidationTest, RowsBeforeABreakCount) {
  const std::string binary = *NativeTextToBinary(GoodRows(Format::kNative), "t");
  const TraceValidation validation = Validated(binary.substr(0, binary.size() - 4));
  EXPECT_FALSE(validation.is_complete);
  EXPECT_EQ(validation.num_requests, 2);
  EXPECT_EQ(validation.input_tokens, 52);
}

TEST(ValidationTest, FactsOfACleanTrace) {
  const TraceValidation validation =
      Validated(Row("1000", R"("session_id": "s")") + Row("3000", R"("session_id": "t")") +
                Row("2000", R"("session_id": "s", "priority": 3)"));
  EXPECT_TRUE(validation.is_complete);
  EXPECT_EQ(validation.num_errors() + validation.num_warnings(), 0);
  EXPECT_EQ(validation.info.format, "mooncake");
  EXPECT_EQ(validation.dialect, "with block_size, session_id, priority");
  EXPECT_EQ(validation.num_sessions, 2);
  EXPECT_EQ(validation.num_waiting, 1);
  EXPECT_EQ(validation.num_backwards, 1);
  EXPECT_EQ(validation.first_arrival_ns, 1000000000);
  EXPECT_EQ(validation.last_arrival_ns, 3000000000);
  EXPECT_EQ(Validated(R"({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [0]})")
                .dialect,
            "fields as published");
}

TEST(ValidationTest, SelectionPlaysNoPart) {
  ValidationOptions options;
  options.reader.limit = 1;
  options.reader.start_ns = 5;
  options.reader.speedup = {1, 1000000000000};
  EXPECT_EQ(Validated(Row("1000000") + Row("2000000"), options).num_requests, 2);
}

TEST(ValidationTest, AFileThatIsNotThereIsNotATrace) {
  EXPECT_FALSE(ValidateTrace("/nosuchfolder/trace.jsonl", {}).ok());
  EXPECT_FALSE(ValidateTrace("/", {}).ok());
  ValidationOptions options;
  options.reader.format = "parquet";
  EXPECT_FALSE(ValidateTraceString("x", "t", options).ok());
}

TEST(TraceProblemTest, KindsHaveNamesOfTheirOwnAndMeanings) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumProblemKinds; ++i) {
    const ProblemKind kind = static_cast<ProblemKind>(i);
    EXPECT_TRUE(names.insert(ProblemKindName(kind)).second) << i;
    EXPECT_EQ(ProblemKindName(kind).find_first_not_of("abcdefghijklmnopqrstuvwxyz-"),
              std::string_view::npos);
    EXPECT_FALSE(ProblemKindMeaning(kind).empty()) << i;
  }
}

TEST(TraceProblemTest, MessagesReadBack) {
  TraceProblem problem;
  problem.line = 17;
  problem.column = 3;
  problem.text = "JSON: got x, expected y (z)";
  EXPECT_EQ(ProblemMessage("a/b:c.jsonl", problem),
            "a/b:c.jsonl:17:3: error: JSON: got x, expected y (z)");
  TraceProblem parsed;
  ASSERT_TRUE(ParseProblem("a/b:c.jsonl",
                           absl::DataLossError(ProblemMessage("a/b:c.jsonl", problem)), &parsed));
  EXPECT_EQ(parsed.line, 17);
  EXPECT_EQ(parsed.column, 3);
  EXPECT_EQ(parsed.text, problem.text);
  EXPECT_EQ(parsed.kind, ProblemKind::kStream);
  problem.column = 0;
  ASSERT_TRUE(ParseProblem("f", absl::UnimplementedError(ProblemMessage("f", problem)), &parsed));
  EXPECT_EQ(parsed.column, 0);
  EXPECT_EQ(parsed.kind, ProblemKind::kFormat);
}

TEST(TraceProblemTest, OtherStatusesAreNotAboutTheContent) {
  TraceProblem parsed;
  for (const char* message :
       {"f: error: cannot open: No such file or directory", "--speedup: got 0", "", "f:", "f:x",
        "f:1", "f:99999999999999999999: error: x", "g:1: error: x", "f::1: error: x"}) {
    EXPECT_FALSE(ParseProblem("f", absl::InvalidArgumentError(message), &parsed)) << message;
  }
}

TEST(TraceProblemTest, TextsSplitIntoTheirParts) {
  const auto split = [](std::string_view text) {
    const ProblemParts parts = SplitProblem(text);
    return parts.what + "|" + parts.got + "|" + parts.expected + "|" + parts.hint;
  };
  EXPECT_EQ(split("number of block ids: got 1, expected 3 or 2 for 1300 tokens (--x)"),
            "number of block ids|1|3 or 2 for 1300 tokens|--x");
  EXPECT_EQ(split("input_length: got -8, expected 0"), "input_length|-8|0|");
  EXPECT_EQ(split("wait_for: got \"a\", the request itself, expected no cycle"),
            "wait_for|\"a\", the request itself|no cycle|");
  // Values may hold what stands around them.
  EXPECT_EQ(split("id: got \"x: got y, expected z (w)\", expected a number (at (1))"),
            "id|\"x: got y, expected z (w)\"|a number|at (1)");
  EXPECT_EQ(split("truncated record length"), "truncated record length|||");
  EXPECT_EQ(split(", expected x: got y"), ", expected x: got y|||");
  EXPECT_EQ(split("a: got , expected (x)"), "a||(x)|");
  EXPECT_EQ(split("a: got b, expected c )"), "a|b|c )|");
  EXPECT_EQ(split(""), "|||");
}

}  // namespace
}  // namespace kvblocks::sim
