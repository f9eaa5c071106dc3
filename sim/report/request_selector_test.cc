#include "kvblocks/sim/report/request_life.h"

#include "gtest/gtest.h"

namespace kvblocks::sim {
namespace {

bool Matches(std::string_view text, const TraceRequest& request) {
  const auto selector = RequestSelector::Parse(text);
  EXPECT_TRUE(selector.ok()) << selector.status();
  return selector->Matches(request);
}

TEST(RequestSelectorTest, SelectsById) {
  TraceRequest request;
  request.row = 4;
  request.line = 6;
  request.id = "chat";
  EXPECT_TRUE(Matches("chat", request));
  EXPECT_TRUE(Matches("id:chat", request));
  EXPECT_FALSE(Matches("chat2", request));
  EXPECT_FALSE(Matches("4", request));
  request.id = "row:9";
  EXPECT_TRUE(Matches("id:row:9", request));
  EXPECT_FALSE(Matches("row:9", request));
}

TEST(RequestSelectorTest, SelectsByRowAndLine) {
  TraceRequest request;
  request.row = 4;
  request.line = 6;
  request.id = "chat";
  EXPECT_TRUE(Matches("row:4", request));
  EXPECT_FALSE(Matches("row:6", request));
  EXPECT_TRUE(Matches("line:6", request));
  EXPECT_FALSE(Matches("line:4", request));
}

TEST(RequestSelectorTest, RefusesWhatSelectsNothing) {
  for (const char* text : {"", "id:", "row:", "row:x", "row:-1", "row:1.5", "line:0",
                           "line:", "row:99999999999999999999"}) {
    EXPECT_FALSE(RequestSelector::Parse(text).ok()) << text;
  }
  EXPECT_EQ(RequestSelector::Parse("line:0").status().message(),
            "got \"line:0\", expected a whole number of 1 or more behind the colon");
}

}  // namespace
}  // namespace kvblocks::sim
