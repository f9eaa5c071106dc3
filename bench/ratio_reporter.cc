#include "kvblocks/bench/ratio_reporter.h"

#include <cstdio>

namespace kvblocks::bench {

void RatioReporter::ReportRuns(const std::vector<Run>& runs) {
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

void RatioReporter::Finalize() {
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

}  // namespace kvblocks::bench
