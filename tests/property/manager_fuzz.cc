// The harness of the property tests with bytes for its random numbers, so that a fuzzer which sees
// what is covered can look for sequences of calls that seldom occur.

#include <rapidcheck.h>

#include <vector>

#include "tests/fuzz/fuzz_input.h"
#include "tests/property/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvblocks::property;
  kvblocks::fuzz::FuzzInput input(data, size);
  const auto number = [&input] { return static_cast<uint64_t>(input.Word()) >> 2; };
  std::vector<uint64_t> stores;
  while (stores.size() < kStoresPerShape) stores.push_back(number());
  const Scenario scenario = MakeScenario(DrawShape(stores), number());
  try {
    const auto harness = Harness::Create(scenario);
    if (harness == nullptr) return 0;
    for (int steps = 0; steps < 60 && !input.empty(); ++steps) {
      const int kind = input.Byte() % 100;
      harness->Run({.kind = kind, .numbers = number()});
    }
    harness->Finish();
  } catch (const rc::detail::CaseResult& found) {
    FUZZ_EXPECT(false, found.description);
  }
  return 0;
}
