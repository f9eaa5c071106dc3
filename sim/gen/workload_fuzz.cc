// Specifications of workloads: any text is refused with its place, or is one that reads back the
// same when it is printed and makes the same sensible requests twice (SM-54, SM-56).

#include <memory>
#include <string>

#include "sim/gen/generator.h"
#include "sim/gen/workload_spec.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

using namespace kvblocks::sim;

// Lengths that only take time and memory are left to other tests.
bool IsSmall(const kvblocks::workload::v1::Workload& workload) {
  constexpr int64_t kEnough = 4096;
  const std::string text = PrintWorkload(workload);
  for (size_t i = 0, digits = 0; i < text.size(); ++i) {
    digits = text[i] >= '0' && text[i] <= '9' ? digits + 1 : 0;
    if (digits > 4 || (text[i] == 'e' && digits > 0)) return false;
  }
  for (const auto& kind : workload.kind()) {
    if (kind.agent().delegate() > 0 && kind.turns().geometric() > 8) return false;
    if (kind.rag().per_question() > 16 || kind.samples() > 4) return false;
  }
  return text.size() < static_cast<size_t>(kEnough);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvblocks::fuzz::FuzzInput input(data, size);
  const auto workload = ParseWorkload(input.Rest(), "file");
  if (!workload.ok()) {
    FUZZ_EXPECT(workload.status().message().rfind("file:", 0) == 0,
                std::string(workload.status().message()));
    return 0;
  }
  const std::string printed = PrintWorkload(*workload);
  const auto again = ParseWorkload(printed, "printed");
  FUZZ_EXPECT(again.ok(), printed);
  FUZZ_EXPECT(PrintWorkload(*again) == printed, printed);
  if (!IsSmall(*workload)) return 0;
  ExpectedFactsOf(*workload);
  const std::unique_ptr<Generator> first = MakeGenerator(*workload);
  const std::unique_ptr<Generator> second = MakeGenerator(*again);
  GeneratedRequest a, b;
  int64_t before_ns = 0;
  for (int64_t row = 0; row < 50 && *first->Next(&a); ++row) {
    FUZZ_EXPECT(*second->Next(&b), printed);
    FUZZ_EXPECT(a.content_ids == b.content_ids && a.arrival_ns == b.arrival_ns, printed);
    FUZZ_EXPECT(a.arrival_ns >= before_ns, printed);
    FUZZ_EXPECT(a.input_length >= 1 && a.output_length >= 1, printed);
    FUZZ_EXPECT(a.waits_for.empty() || (a.waits_for.front() >= 0 && a.waits_for.back() < row),
                printed);
    const int64_t described = a.input_length + (a.ids_cover_output ? a.output_length : 0);
    const int64_t block = BlockTokens(*workload);
    FUZZ_EXPECT(static_cast<int64_t>(a.content_ids.size()) == (described + block - 1) / block,
                printed);
    before_ns = a.arrival_ns;
  }
  return 0;
}
