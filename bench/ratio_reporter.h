// RatioReporter: after the usual console lines, one table with the nanoseconds per operation of the
// library and of the naive reference side by side.
//
// A benchmark is named OPERATION/kvblocks or, if the reference can do it, OPERATION/naive, and says
// how many operations it did through SetItemsProcessed.

#ifndef KVBLOCKS_BENCH_RATIO_REPORTER_H_
#define KVBLOCKS_BENCH_RATIO_REPORTER_H_

#include <map>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"

namespace kvblocks::bench {

class RatioReporter : public benchmark::ConsoleReporter {
 public:
  RatioReporter() : ConsoleReporter(OO_None) {}

  void ReportRuns(const std::vector<Run>& runs) override;
  void Finalize() override;

  bool had_error() const { return had_error_; }

 private:
  struct Row {
    double library_ns = 0;
    double naive_ns = 0;
  };
  std::vector<std::string> order_;
  std::map<std::string, Row> rows_;
  bool had_error_ = false;
};

}  // namespace kvblocks::bench

#endif  // KVBLOCKS_BENCH_RATIO_REPORTER_H_
