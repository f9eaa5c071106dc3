#include "examples/engine/safetensors.h"

#include <bit>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvblocks::engine {
namespace {

// A file of this header and so many bytes 0, 1, 2, ... behind it.
std::string Write(const std::string& name, const std::string& header, int bytes,
                  int64_t length = -1) {
  const std::string path = ::testing::TempDir() + name;
  std::ofstream out(path, std::ios::binary);
  const uint64_t stated = length < 0 ? header.size() : static_cast<uint64_t>(length);
  out.write(reinterpret_cast<const char*>(&stated), 8);
  out << header;
  for (int i = 0; i < bytes; ++i) out.put(static_cast<char>(i));
  return path;
}

std::string Refused(const std::string& header, int bytes, int64_t length = -1) {
  const std::string path = Write("refused.safetensors", header, bytes, length);
  const auto opened = Safetensors::Open({path});
  return opened.ok() ? "" : std::string(opened.status().message()).substr(path.size() + 2);
}

TEST(SafetensorsTest, ReadsWhatItIsAskedFor) {
  const std::string path = Write("good.safetensors",
                                 R"({"__metadata__": {"format": "pt"},
          "halves": {"dtype": "F16", "shape": [1, 2], "data_offsets": [0, 4]},
          "ints": {"dtype": "I32", "shape": [1], "data_offsets": [4, 8]},
          "brains": {"dtype": "BF16", "shape": [2], "data_offsets": [8, 12]}})",
                                 12);
  const auto file = Safetensors::Open({path});
  ASSERT_TRUE(file.ok()) << file.status();
  // Bytes 0, 1: 0x0100, a subnormal; 2, 3: 0x0302.
  EXPECT_EQ(*file->Floats("halves", {1, 2}),
            (std::vector<float>{0x100 * 0x1p-24f, 0x302 * 0x1p-24f}));
  EXPECT_EQ(*file->Ints("ints", {1}), std::vector<int32_t>{0x07060504});
  EXPECT_EQ(*file->Floats("brains", {2}), (std::vector<float>{std::bit_cast<float>(0x09080000),
                                                              std::bit_cast<float>(0x0b0a0000)}));
  EXPECT_EQ(*file->ShapeOf("brains"), std::vector<int64_t>{2});
  EXPECT_FALSE(file->Has("none"));
}

TEST(SafetensorsTest, RefusesAnotherShapeOrType) {
  const std::string path = Write(
      "one.safetensors", R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", 8);
  const auto file = Safetensors::Open({path});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Floats("a", {1, 2}).status().message(),
            path + ": a: shape is [2], expected [1, 2]");
  EXPECT_EQ(file->Ints("a", {2}).status().message(),
            path + ": a: dtype is F32, expected one of I32");
  EXPECT_EQ(file->Floats("b", {2}).status().message(), path + ": no tensor b among 1");
  EXPECT_EQ(Safetensors::Open({path, path}).status().message(),
            path + ": a: the name is there twice; expected each once");
}

TEST(SafetensorsTest, RefusesHostileHeaders) {
  EXPECT_EQ(Refused("{}", 0, int64_t{1} << 62),
            "the header has 4611686018427387904 bytes by its length, expected at most 2");
  EXPECT_NE(Refused("{]", 0).find("the header is no JSON object"), std::string::npos);
  EXPECT_NE(Refused("[]", 0).find("the header is no JSON object"), std::string::npos);
  const auto tensor = [](const std::string& rest) {
    return R"({"a": {"dtype": "F32", )" + rest + "}}";
  };
  EXPECT_EQ(Refused(R"({"a": 1})", 0), "a: expected an object with dtype, shape and data_offsets");
  EXPECT_EQ(Refused(tensor(R"("shape": [1], "data_offsets": [0, 8])"), 4),
            "a: data_offsets are 0 and 8, of 4 bytes that the file has behind its header");
  EXPECT_EQ(Refused(tensor(R"("shape": [1], "data_offsets": [4, 0])"), 4),
            "a: data_offsets are 4 and 0, of 4 bytes that the file has behind its header");
  EXPECT_EQ(Refused(tensor(R"("shape": [2], "data_offsets": [0, 4])"), 4),
            "a: shape [2] of F32 takes 8 bytes, data_offsets give it 4");
  EXPECT_NE(Refused(tensor(R"("shape": [4611686018427387904, 4], "data_offsets": [0, 0])"), 0)
                .find("is too large"),
            std::string::npos);
  for (const char* bad :
       {R"("shape": [-1], "data_offsets": [0, 4])", R"("shape": [1.5], "data_offsets": [0, 4])",
        R"("shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 4])",
        R"("shape": [1], "data_offsets": [0])", R"("shape": [1])"}) {
    EXPECT_EQ(Refused(tensor(bad), 4),
              "a: expected a shape of at most 8 whole numbers and two data_offsets")
        << bad;
  }
  EXPECT_NE(Safetensors::OpenModel(::testing::TempDir() + "nowhere")
                .status()
                .message()
                .find("no model*.safetensors"),
            std::string::npos);
}

}  // namespace
}  // namespace kvblocks::engine
