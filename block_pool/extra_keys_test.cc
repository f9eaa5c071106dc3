#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kvblocks/block_pool/prefix_content.h"

namespace kvblocks {
namespace {

using ::testing::HasSubstr;
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

TEST(ExtraKeysTest, SortedDisjointFeaturesAreValid) {
  EXPECT_TRUE(ValidateFeatures({}).ok());
  EXPECT_TRUE(ValidateFeatures({{"a", 0, 1}}).ok());
  EXPECT_TRUE(ValidateFeatures({{"a", 0, 4}, {"b", 4, 1}, {"b", 9, 3}}).ok());
  EXPECT_TRUE(ValidateFeatures({{"a", kMax - 1, 1}}).ok());
}

TEST(ExtraKeysTest, InvalidFeaturesAreRefusedByIndexValueAndLimit) {
  struct Case {
    std::vector<MultimodalFeature> features;
    const char* message;
  };
  const Case cases[] = {
      {{{"a", 0, 0}}, "multimodal feature 0 has length 0, expected at least 1"},
      {{{"a", 0, 3}, {"b", 5, -2}}, "multimodal feature 1 has length -2, expected at least 1"},
      {{{"a", -1, 3}}, "multimodal feature 0 starts at token -1, expected at least 0"},
      {{{"a", 0, 4}, {"b", 3, 1}}, "multimodal feature 1 starts at token 3, expected at least 4"},
      {{{"a", 8, 4}, {"b", 0, 4}}, "must be sorted by offset and must not overlap"},
      {{{"a", 0, 4}, {"a", 0, 4}}, "multimodal feature 1 starts at token 0, expected at least 4"},
      {{{"a", 1, kMax}}, "ends beyond the range of 64 bits"},
      {{{"a", kMax, 1}}, "ends beyond the range of 64 bits"},
      {{{"a", 0, std::numeric_limits<int64_t>::min()}}, "expected at least 1"},
  };
  for (const Case& c : cases) {
    const absl::Status status = ValidateFeatures(c.features);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message));
  }
}

TEST(ExtraKeysTest, DifferentListsHaveDifferentEncodings) {
  using Kind = ExtraKey::Kind;
  const std::vector<ExtraKeys> lists = {
      {{Kind::kLora, "ab", 0}},
      {{Kind::kSalt, "ab", 0}},
      {{Kind::kPromptEmbedding, "ab", 0}},
      {{Kind::kMultimodal, "ab", 0}},
      {{Kind::kMultimodal, "ab", 1}},
      {{Kind::kMultimodal, "ab", -1}},
      {{Kind::kLora, "a", 0}, {Kind::kLora, "b", 0}},
      {{Kind::kLora, "b", 0}, {Kind::kLora, "a", 0}},
      {{Kind::kLora, "", 0}, {Kind::kLora, "ab", 0}},
      {{Kind::kLora, "ab", 0}, {Kind::kLora, "", 0}},
      {{Kind::kLora, "", 0}},
      // V-52: the path counts, apart from the name.
      {{Kind::kLora, "ab", 0, "p"}},
      {{Kind::kLora, "ab", 0, "q"}},
      {{Kind::kLora, "abp", 0}},
      {{Kind::kLora, "a", 0, "bp"}},
      {{Kind::kLora, "", 0, "ab"}},
      {{Kind::kLora, std::string("a\0b", 3), 0}},
      // The encoding of one key inside the value of another.
      {{Kind::kLora, EncodeExtraKeys({{Kind::kLora, "ab", 0}}), 0}},
  };
  std::set<std::string> encodings;
  std::set<std::string> as_cbor;
  for (const ExtraKeys& list : lists) {
    encodings.insert(EncodeExtraKeys(list));
    as_cbor.insert(EncodeExtraKeysAsCbor(list));
  }
  EXPECT_EQ(encodings.size(), lists.size());
  EXPECT_EQ(as_cbor.size(), lists.size());
}

}  // namespace
}  // namespace kvblocks
