// What tests of whole models share.

#ifndef KVBLOCKS_EXAMPLES_ENGINE_ENGINE_FIXTURE_H_
#define KVBLOCKS_EXAMPLES_ENGINE_ENGINE_FIXTURE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/engine/golden.h"
#include "gtest/gtest.h"

namespace kvblocks::engine {

// Of each request's last admission, by row.
class Hits final : public sim::EngineObserver {
 public:
  void OnAdmission(const sim::AdmissionRecord& record, sim::SimTime) override {
    tokens[record.request->spec.row] = record.num_hit_tokens;
  }
  std::map<int64_t, int64_t> tokens;
};

class EngineTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string Folder() { return absl::StrCat("examples/engine/testdata/", GetParam()); }

  Outcome Run(Settings settings) { return Run(std::move(settings), golden_); }
  Outcome Run(Settings settings, const Golden& golden,
              const std::vector<sim::EngineObserver*>& observers = {}) {
    auto outcome = ServeGolden(model_, std::move(settings), golden, observers);
    EXPECT_TRUE(outcome.ok()) << outcome.status();
    if (!outcome.ok()) return {};
    EXPECT_EQ(outcome->served.result.num_finished, golden.num_requests());
    return *std::move(outcome);
  }
  Outcome ExpectGolden(const Settings& settings) { return ExpectGolden(settings, golden_); }
  Outcome ExpectGolden(const Settings& settings, const Golden& golden,
                       const std::vector<sim::EngineObserver*>& observers = {}) {
    Outcome outcome = Run(settings, golden, observers);
    EXPECT_EQ(outcome.num_wrong_tokens, 0);
    EXPECT_LT(outcome.max_error, kTolerance);
    RecordProperty("max_error", absl::StrCat(outcome.max_error));
    return outcome;
  }

  const Model model_ = Model::Load(Folder()).value();
  const Golden golden_ = Golden::Read(Folder());
};

}  // namespace kvblocks::engine

#endif  // KVBLOCKS_EXAMPLES_ENGINE_ENGINE_FIXTURE_H_
