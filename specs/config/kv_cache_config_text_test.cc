#include "specs/config/kv_cache_config_proto.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kGood[] =
    "# Two groups.\n"
    "num_blocks: 1024\n"
    "groups {\n"
    "  spec { full_attention { block_size: 16 num_kv_heads: 8 head_size: 128 dtype: \"bf16\" } }\n"
    "  layer_names: [\"a\", \"b\"]\n"
    "}\n"
    "groups {\n"
    "  spec {\n"
    "    sliding_window {\n"
    "      block_size: 16\n"
    "      num_kv_heads: 8\n"
    "      head_size: 128\n"
    "      dtype: \"fp8_e4m3\"\n"
    "      quant_mode: \"fp8_per_tensor\"\n"
    "      sliding_window: 1024\n"
    "    }\n"
    "  }\n"
    "  layer_names: \"c\"\n"
    "  is_draft: true\n"
    "}\n"
    "scheduler_block_size: 16\n"
    "hash_block_size: 16\n";

// kGood with the first `from` replaced by `to`.
std::string With(const std::string& from, const std::string& to) {
  std::string text = kGood;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string ErrorOf(std::string_view text) {
  const auto config = KvCacheConfigFromText(text, "pool.txtpb");
  if (config.ok()) return "accepted";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(KvCacheConfigTextTest, EmptyAndBlankFilesLackNumBlocks) {
  for (const char* text : {"", "\n\n", "# nothing\n"}) {
    EXPECT_EQ(ErrorOf(text),
              "pool.txtpb:1:1: error: num_blocks: got nothing, expected a number from 1 to "
              "2147483646");
  }
}

// One row per field: what to write instead of it, and the place and reason of the refusal.
struct BadField {
  std::string from;
  std::string to;
  std::string error;
};

class BadFieldTest : public ::testing::TestWithParam<BadField> {};

TEST_P(BadFieldTest, IsReportedWhereItStands) {
  EXPECT_EQ(ErrorOf(With(GetParam().from, GetParam().to)), "pool.txtpb:" + GetParam().error);
}

constexpr char kWindow[] = "groups[1].spec.sliding_window.";

std::vector<BadField> BadFields() {
  std::vector<BadField> rows;
  const std::string range = ", expected a number from 1 to 2147483646";
  const std::string positive = ", expected at least 1";
  for (const std::string bad : {"0", "-1", "2147483648", "9223372036854775807"}) {
    rows.push_back({"1024", bad, "2:1: error: num_blocks: got " + bad + range});
  }
  const auto tokens = [&](const std::string& field, const std::string& value, int line) {
    const std::string at = std::to_string(line) + ":7: error: " + kWindow + field;
    for (const std::string bad : {"0", "-1", "-9223372036854775808"}) {
      rows.push_back({"      " + field + ": " + value + "\n", "      " + field + ": " + bad + "\n",
                      at + ": got " + bad + positive});
    }
    // Missing: reported at the enclosing message.
    rows.push_back({"      " + field + ": " + value + "\n", "",
                    "9:5: error: " + std::string(kWindow) + field + ": got nothing" + positive});
  };
  tokens("block_size", "16", 10);
  tokens("num_kv_heads", "8", 11);
  tokens("head_size", "128", 12);
  tokens("sliding_window", "1024", 15);
  rows.push_back({"      head_size: 128", "      head_size: 9223372036854775807",
                  "10:7: error: groups[1].spec.sliding_window.block_size: got a page of more than "
                  "9223372036854775807 bytes, expected a page that fits 63 bits (lower "
                  "block_size, num_kv_heads or head_size)"});
  rows.push_back({"      dtype: \"fp8_e4m3\"\n", "",
                  "9:5: error: groups[1].spec.sliding_window.dtype: got nothing, expected the "
                  "storage type, \"bf16\" for one"});
  rows.push_back({"\"fp8_e4m3\"", "\"fp9\"",
                  "13:7: error: groups[1].spec.sliding_window.dtype: got \"fp9\", expected one of "
                  "bf16, fp16, fp32, uint8, int8, fp8_e4m3, fp8_e5m2, bfloat16, float16, half, "
                  "float32, float"});
  rows.push_back({"\"fp8_per_tensor\"", "\"fp8\"",
                  "14:7: error: groups[1].spec.sliding_window.quant_mode: got \"fp8\", expected "
                  "one of none, fp8_per_tensor, int8_per_token_head, fp8_per_token_head, "
                  "int4_per_token_head, nvfp4, fp8_ds_mla, nvfp4_ds_mla"});
  rows.push_back({"      dtype: \"fp8_e4m3\"", "      page_size_padded: 7 dtype: \"fp8_e4m3\"",
                  "13:7: error: groups[1].spec.sliding_window.page_size_padded: got 7, expected "
                  "at least the unpadded page of 32768 bytes"});
  for (const std::string field : {"scheduler_block_size", "hash_block_size"}) {
    const std::string line = field == "hash_block_size" ? "22" : "21";
    for (const std::string bad : {"0", "-16"}) {
      rows.push_back({"\n" + field + ": 16", "\n" + field + ": " + bad,
                      line + ":1: error: " + field + ": got " + bad + positive});
    }
  }
  rows.push_back({"\nscheduler_block_size: 16", "\nscheduler_block_size: 24",
                  "21:1: error: scheduler_block_size: got 24, expected a multiple of "
                  "hash_block_size 16"});
  rows.push_back({"  layer_names: \"c\"\n", "",
                  "7:1: error: groups[1].layer_names: got nothing, expected at least one name"});
  rows.push_back(
      {"\"c\"", "\"\"", "18:3: error: groups[1].layer_names[0]: got \"\", expected a name"});
  rows.push_back(
      {"\"c\"", "\"\\377\"",
       "18:3: error: groups[1].layer_names[0]: got \"\\xff\", expected printable ASCII"});
  // E-16
  rows.push_back({"\"c\"", "\"b\"",
                  "18:3: error: groups[1].layer_names[0]: got \"b\", expected every layer cache in "
                  "exactly one group (also at groups[0].layer_names[1])"});
  return rows;
}

INSTANTIATE_TEST_SUITE_P(AllFields, BadFieldTest, ::testing::ValuesIn(BadFields()));

TEST(KvCacheConfigTextTest, NumbersBeyond64BitsNameTheirField) {
  EXPECT_EQ(ErrorOf(With("1024", "99999999999999999999")),
            "pool.txtpb:2:13: error: num_blocks: got 99999999999999999999, expected a 64-bit "
            "integer");
  EXPECT_THAT(ErrorOf(With("head_size: 128 dtype", "head_size: -9223372036854775809 dtype")),
              HasSubstr("error: head_size: got -9223372036854775809, expected a 64-bit integer"));
  EXPECT_EQ(ErrorOf(With("1024", "many")),
            "pool.txtpb:2:13: error: num_blocks: got many, expected an integer");
}

TEST(KvCacheConfigTextTest, UnknownFieldIsReportedWithTheKnownOnes) {
  EXPECT_EQ(ErrorOf("num_blocks: 1\n\tblock_size: 16\n"),
            "pool.txtpb:2:2: error: block_size: got a field that KvCacheConfig does not have, "
            "expected one of num_blocks, groups, scheduler_block_size, hash_block_size, native");
}

// E-3
TEST(KvCacheConfigTextTest, UnsupportedKindIsReportedWithTheSupportedOnes) {
  for (const std::string kind : {"circular_buffer", "turboquant"}) {
    EXPECT_EQ(ErrorOf("num_blocks: 1\ngroups {\n  spec { " + kind + " { block_size: 16 } }\n}\n"),
              "pool.txtpb:3:10: error: spec: got unsupported kind " + kind +
                  ", expected one of full_attention, mla_attention, sink_full_attention, "
                  "sliding_window, sliding_window_mla, chunked_local_attention, mamba, "
                  "cross_attention, encoder_only_attention, hidden_state, ring");
  }
  EXPECT_THAT(ErrorOf("num_blocks: 1\ngroups {\n  spec { }\n  layer_names: \"a\"\n}\n"),
              StartsWith("pool.txtpb:3:3: error: groups[0].spec.kind: got nothing, expected one of "
                         "full_attention, "));
  EXPECT_THAT(ErrorOf("num_blocks: 1\n\n groups {\n  layer_names: \"a\"\n}\n"),
              StartsWith("pool.txtpb:3:2: error: groups[0].spec: got nothing, expected a spec"));
}

TEST(KvCacheConfigTextTest, ReadsStatesAndPointsAtTheWrongOne) {
  const std::string before = "num_blocks: 9\ngroups { layer_names: \"a\" spec { mamba {\n";
  const std::string states =
      "block_size: 64\nstates { shape: [3, 8] dtype: \"bf16\" }\n"
      "states {\n shape: 2\n dtype: \"fp32\" }\ncache_mode: \"align\"\n"
      "num_speculative_blocks: 2\n";
  const auto config = KvCacheConfigFromText(before + states + "} } }\n", "pool.txtpb");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->groups[0].spec.ToString(),
            "mamba(block_size=64, states=3x8xbf16+2xfp32, cache_mode=align, "
            "num_speculative_blocks=2, page_bytes=56)");
  std::string wrong = states;
  wrong.replace(wrong.find("shape: 2"), 8, "shape: 0");
  EXPECT_EQ(ErrorOf(before + wrong + "} } }\n"),
            "pool.txtpb:6:2: error: groups[0].spec.mamba.states[1].shape[0]: got 0, expected at "
            "least 1");
}

// BM-2
TEST(KvCacheConfigTextTest, EncoderOnlyGroupIsRefusedWhereItsSpecStands) {
  EXPECT_THAT(
      ErrorOf("num_blocks: 9\ngroups { layer_names: \"a\"\n  spec { encoder_only_attention { "
              "block_size: 16 num_kv_heads: 1 head_size: 8 dtype: \"bf16\" } } }\n"),
      StartsWith("pool.txtpb:3:3: error: groups[0].spec: got encoder_only_attention"));
}

TEST(KvCacheConfigTextTest, RepeatedNamesInAListPointAtTheList) {
  EXPECT_THAT(ErrorOf(With("[\"a\", \"b\"]", "[\"a\", \"a\"]")),
              ::testing::MatchesRegex("pool.txtpb:5:.*: error: groups\\[0\\].layer_names\\[1\\]: "
                                      "got \"a\", .*"));
}

TEST(KvCacheConfigTextTest, SyntaxErrorsHaveAPlace) {
  EXPECT_THAT(ErrorOf("num_blocks: 1\ngroups {\n"), StartsWith("pool.txtpb:3:1: error: "));
  EXPECT_THAT(ErrorOf("num_blocks 1"), StartsWith("pool.txtpb:1:12: error: "));
  EXPECT_THAT(ErrorOf("num_blocks: 1 num_blocks: 2"), StartsWith("pool.txtpb:1:"));
  EXPECT_THAT(ErrorOf(With("full_attention", "mla_attention { } full_attention")),
              HasSubstr("mla_attention"));
  EXPECT_THAT(ErrorOf(std::string("\0\0\xff", 3)), StartsWith("pool.txtpb:1:"));
  EXPECT_THAT(ErrorOf("\x1f\x8b binary"), StartsWith("pool.txtpb:1:"));
}

TEST(KvCacheConfigTextTest, DeepNestingIsRefused) {
  std::string text = "num_blocks: 1 groups { spec ";
  for (int i = 0; i < 500'000; ++i) text += "{ full_attention ";
  EXPECT_THAT(ErrorOf(text), StartsWith("pool.txtpb:1:"));
}

// --- JSON ---

std::string JsonErrorOf(std::string_view json) {
  const auto config = KvCacheConfigFromJson(json, "pool.json");
  if (config.ok()) return "accepted";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

constexpr char kGoodJson[] = R"({
  "num_blocks": 1024,
  "groups": [
    {"spec": {"full_attention": {"block_size": 16, "num_kv_heads": 8, "head_size": 128,
                                 "dtype": "bf16"}},
     "layer_names": ["a", "b"]},
    {"spec": {"slidingWindow": {"blockSize": "16", "numKvHeads": 8, "headSize": 128,
                                "dtype": "fp8_e4m3", "quantMode": "fp8_per_tensor",
                                "slidingWindow": 1024, "page_size_padded": null}},
     "layerNames": ["\u0063"], "isDraft": true}
  ],
  "schedulerBlockSize": 16, "hash_block_size": 16
}
)";

TEST(KvCacheConfigJsonTest, IsTheSameConfigAsInText) {
  const auto config = KvCacheConfigFromJson(kGoodJson, "pool.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, *KvCacheConfigFromText(kGood, "pool.txtpb"));
}

TEST(KvCacheConfigJsonTest, RefusalsPointAtTheFieldInTheJson) {
  EXPECT_EQ(JsonErrorOf("{\"num_blocks\": 1,\n  \"groups\": [{\"spec\": {\"slidingWindow\":\n"
                        "    {\"blockSize\": 0, \"numKvHeads\": 1, \"headSize\": 8,\n"
                        "     \"slidingWindow\": 4, \"dtype\": \"bf16\"}}}]}"),
            "pool.json:3:6: error: groups[0].spec.sliding_window.block_size: got 0, expected at "
            "least 1");
  EXPECT_EQ(JsonErrorOf("{\"num_blocks\": 1,\n  \"groups\": [{\"spec\": {\"slidingWindow\":\n"
                        "    {\"blockSize\": 16}}}]}"),
            "pool.json:2:24: error: groups[0].spec.sliding_window.num_kv_heads: got nothing, "
            "expected at least 1");
  EXPECT_EQ(JsonErrorOf("{\"num_blocks\": 1, \"blockSize\": 16}"),
            "pool.json:1:19: error: blockSize: got a field that KvCacheConfig does not have, "
            "expected one of num_blocks, groups, scheduler_block_size, hash_block_size, native");
  EXPECT_EQ(JsonErrorOf("{\"num_blocks\": true}"),
            "pool.json:1:16: error: num_blocks: got true, expected an integer");
  EXPECT_EQ(JsonErrorOf("{\"num_blocks\": 99999999999999999999}"),
            "pool.json:1:16: error: num_blocks: got 99999999999999999999, expected a 64-bit "
            "integer");
  EXPECT_THAT(JsonErrorOf("{\"num_blocks\": 1,\n \"groups\": {\"spec\": {\"spiral\": {}}}}"),
              StartsWith("pool.json:2:22: error: spec: got unsupported kind spiral, expected"));
}

TEST(KvCacheConfigJsonTest, RefusesWhatIsNotJson) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "1:1: error: got the end of the text, expected \"{\""},
      {"num_blocks: 1", "1:1: error: got \"n\", expected \"{\""},
      {"{num_blocks: 1}", "1:2: error: got \"n\", expected \"\\\"\""},
      {"{\"num_blocks\": 1,}", "1:18: error: got \"}\", expected \"\\\"\""},
      {"{\"num_blocks\": 1} x", "1:19: error: got text behind the object, expected nothing"},
      {"{\"num_blocks\": 1 # blocks\n}", "1:18: error: got \"#\", expected \"}\""},
      {"{\"num_blocks\": 010}", "1:16: error: got \"010\", expected a value"},
      {"{\"num_blocks\": 0x10}", "1:16: error: got \"0x10\", expected a value"},
      {"{\"num_blocks\": t}", "1:16: error: got \"t\", expected a value"},
      {"{\"num_blocks\": }", "1:16: error: got nothing, expected a value"},
      {"{\"num_blocks\"", "1:14: error: got the end of the text, expected \":\""},
      {"{\"num_blocks\": nullx}", "1:20: error: got \"x\", expected \"}\""},
      {"{\"num_blocks\": 1, \"numBlocks\": 2}",
       "1:19: error: got \"numBlocks\" twice in one object, expected each field once"},
      {"{\"groups\": [], \"groups\": []}",
       "1:16: error: got \"groups\" twice in one object, expected each field once"},
      {"{\"a b\": 1}", "1:2: error: got \"a b\", expected the name of a field"},
      {"{\"a\": \"\\x41\"}", "1:9: error: got an escape that JSON does not have"},
      {"{\"a\": \"\n\"}", "1:8: error: got a control character inside a string"},
      {"{\"a\": \"b", "1:9: error: got the end of the text, expected the end of a string"},
      {"{\"groups\": [{} {}]}", "1:16: error: got \"{\", expected \"]\""},
  };
  for (const auto& [json, error] : rows) {
    EXPECT_EQ(JsonErrorOf(json), "pool.json:" + std::string(error)) << json;
  }
}

TEST(KvCacheConfigJsonTest, NumbersInStringsAreNumbersAndOtherStringsAreNot) {
  EXPECT_EQ(JsonErrorOf("{\"num_blocks\": \"12\"}"), "accepted");
  EXPECT_EQ(JsonErrorOf("{\"num_blocks\": \"010\"}"),
            "pool.json:1:16: error: num_blocks: got \"010\", expected an integer");
  EXPECT_EQ(JsonErrorOf("{\"num_blocks\": 1.5}"),
            "pool.json:1:16: error: num_blocks: got 1.5, expected an integer");
}

TEST(KvCacheConfigJsonTest, DeepNestingIsRefused) {
  std::string json = "{\"groups\": ";
  json.append(1'000'000, '[');
  EXPECT_THAT(JsonErrorOf(json), HasSubstr("error: got more than 32 levels"));
  std::string objects = "{\"groups\": ";
  for (int i = 0; i < 100'000; ++i) objects += "{\"x\":";
  EXPECT_THAT(JsonErrorOf(objects), HasSubstr("error: got more than 32 levels"));
}

TEST(KvCacheConfigTextTest, LayersMayBeCountedInsteadOfNamed) {
  const auto config = KvCacheConfigFromText(With("layer_names: \"c\"", "num_layers: 3"), "f");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->groups[1].layer_names,
            (std::vector<std::string>{"groups[1].layers[0]", "groups[1].layers[1]",
                                      "groups[1].layers[2]"}));
  EXPECT_EQ(ErrorOf(With("layer_names: \"c\"", "layer_names: \"c\" num_layers: 3")),
            "pool.txtpb:18:20: error: groups[1].num_layers: got 3, expected either layer_names or "
            "num_layers (remove one of them)");
  for (const char* bad : {"0", "-1", "10001"}) {
    EXPECT_EQ(ErrorOf(With("layer_names: \"c\"", std::string("num_layers: ") + bad)),
              std::string("pool.txtpb:18:3: error: groups[1].num_layers: got ") + bad +
                  ", expected a number from 1 to 10000");
  }
}

class LoadKvCacheConfigTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = ::testing::TempDir() + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
};

TEST_F(LoadKvCacheConfigTest, ReadsAFile) {
  const auto config = LoadKvCacheConfig(Write("good.txtpb", kGood));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, *KvCacheConfigFromText(kGood, "same"));
}

TEST_F(LoadKvCacheConfigTest, ReadsJsonByItsFirstBrace) {
  const auto config = LoadKvCacheConfig(Write("good.json", std::string("\n \t") + kGoodJson));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(*config, *KvCacheConfigFromText(kGood, "same"));
}

TEST_F(LoadKvCacheConfigTest, MissingFileIsNotFound) {
  const std::string path = ::testing::TempDir() + "/no-such-file";
  const absl::Status status = LoadKvCacheConfig(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), StartsWith(path + ": error: cannot read the file"));
  EXPECT_FALSE(LoadKvCacheConfig("").ok());
}

TEST_F(LoadKvCacheConfigTest, DirectoryIsRefused) {
  const absl::Status status = LoadKvCacheConfig(::testing::TempDir()).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("directory"));
}

TEST_F(LoadKvCacheConfigTest, UnreadableFileIsRefused) {
  const std::string path = Write("secret.txtpb", kGood);
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  if (std::ifstream(path).is_open()) GTEST_SKIP() << "this user reads files of mode 0";
  EXPECT_EQ(LoadKvCacheConfig(path).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(LoadKvCacheConfigTest, FileBeyondTheLimitIsRefusedAndOneAtTheLimitIsRead) {
  std::string text = kGood;
  text.append(kMaxConfigBytes - text.size(), '\n');
  EXPECT_TRUE(LoadKvCacheConfig(Write("limit.txtpb", text)).ok());
  text.push_back('\n');
  const std::string path = Write("large.txtpb", text);
  EXPECT_THAT(std::string(LoadKvCacheConfig(path).status().message()),
              StartsWith(path + ": error: got more than 16777216 bytes"));
  EXPECT_FALSE(KvCacheConfigFromText(text, "f").ok());
}

TEST_F(LoadKvCacheConfigTest, EndlessInputIsCutOff) {
  EXPECT_THAT(std::string(LoadKvCacheConfig("/dev/zero").status().message()),
              HasSubstr("got more than 16777216 bytes"));
}

}  // namespace
}  // namespace kvblocks
