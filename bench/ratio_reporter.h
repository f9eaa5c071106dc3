// RatioReporter: after the usual console lines, one table with the nanoseconds per operation of the
// library and of the naive reference side by side.
//
// A benchmark is named OPERATION/kvblocks or, if the reference can do it, OPERATION/naive, and says
// how many operations it did through SetItemsProcessed.

#ifndef KVBLOCKS_BENCH_RATIO_REPORTER_H_
#define KVBLOCKS_BENCH_RATIO_REPORTER_H_

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"

namespace kvblocks::bench {

class RatioReporter : public benchmark::ConsoleReporter {
 public:
  RatioReporter() : ConsoleReporter(OO_None) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      had_error_ |= run.error_occurred;
      const auto rate = run.counters.find("items_per_second");
      // With repetitions, the median stands for them.
      const bool counts =
          run.run_type == Run::RT_Iteration ? run.repetitions <= 1 : run.aggregate_name == "median";
      if (rate == run.counters.end() || !counts) continue;
      std::string name = run.run_name.function_name;
      const size_t slash = name.find('/');
      const bool naive = name.find("/naive") != std::string::npos;
      name.resize(slash == std::string::npos ? name.size() : slash);
      if (rows_.find(name) == rows_.end()) order_.push_back(name);
      (naive ? rows_[name].naive_ns : rows_[name].library_ns) = 1e9 / rate->second;
    }
  }
  void Finalize() override {
    ConsoleReporter::Finalize();
    std::printf("\n%-40s %14s %14s %8s\n", "ns per operation", "kvblocks", "naive", "ratio");
    for (const std::string& name : order_) {
      const Row& row = rows_[name];
      std::printf("%-40s %14.1f", name.c_str(), row.library_ns);
      if (row.naive_ns > 0) std::printf(" %14.1f", row.naive_ns);
      if (row.library_ns > 0 && row.naive_ns > 0) {
        std::printf(" %7.1fx", row.naive_ns / row.library_ns);
      }
      std::printf("\n");
    }
  }

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
