#include "sim/example/example_workload.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "sim/trace/byte_source.h"
#include "sim/trace/trace_facts.h"
#include "sim/trace/trace_reader.h"

namespace kvblocks::sim {
namespace {

constexpr char kExample[] = "sim/example/mixed.jsonl.gz";

TEST(ExampleWorkloadTest, ShippedFileIsWhatTheGeneratorMakes) {
  auto source = OpenByteSource(kExample);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_LT((*source)->bytes_total(), 300000);
  std::string content;
  std::string chunk(65536, '\0');
  while (true) {
    auto n = (*source)->Read(chunk.data(), chunk.size());
    ASSERT_TRUE(n.ok()) << n.status();
    if (*n == 0) break;
    content.append(chunk, 0, *n);
  }
  EXPECT_TRUE(content == MakeExampleWorkload()) << "run //sim/example:make_example";
}

TEST(ExampleWorkloadTest, FactsArePinned) {
  auto reader = OpenTrace(kExample, {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto facts = ComputeTraceFacts(**reader, {16, 64});
  ASSERT_TRUE(facts.ok()) << facts.status();
  SCOPED_TRACE(FormatTraceFacts(*facts));
  EXPECT_TRUE((*reader)->warnings().empty());
  EXPECT_EQ(facts->requests, 0);
}

}  // namespace
}  // namespace kvblocks::sim
