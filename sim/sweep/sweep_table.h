// What a sweep came to, for people and for programs: a table, CSV, and the report behind both.

#ifndef KVBLOCKS_SIM_SWEEP_SWEEP_TABLE_H_
#define KVBLOCKS_SIM_SWEEP_SWEEP_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "sim/sweep/sweep.pb.h"
#include "sim/sweep/sweep_metrics.h"

namespace kvblocks::sim {

// Leaves out what no point has.
void DropEmptyMetrics(const std::vector<::kvblocks::sweep::v1::PointResult>& results,
                      std::vector<SweepMetric>* metrics);

// The rows in the order of `results`. `front`: metrics of the Pareto front; none: no front.
// `on_front`: which results are on it, or the answer of a search.
::kvblocks::sweep::v1::SweepReport MakeSweepReport(
    const std::vector<::kvblocks::sweep::v1::PointResult>& results,
    const std::vector<SweepMetric>& metrics, const std::vector<SweepMetric>& front,
    const std::vector<bool>& on_front);

// Lines of any width: a column per option and metric. `max_rows`: of the table; the rest is
// counted.
std::string FormatSweep(const ::kvblocks::sweep::v1::SweepReport& report,
                        const std::vector<SweepMetric>& metrics, int64_t max_rows, bool color);

// One row per point, with a header: index, name, options, metrics, front, problem.
std::string SweepCsv(const ::kvblocks::sweep::v1::SweepReport& report);

// A value as tables show it; "n/a" for none.
std::string MetricCell(const SweepMetric& metric, const ::kvblocks::sweep::v1::SweepRow& row);
// The value that a row's settings have for an option; empty: none.
std::string SettingOf(const ::kvblocks::sweep::v1::SweepRow& row, const std::string& option);

// How the page of `kvsim sweep --html` shows the metrics.
::kvblocks::sweep::v1::ShownMetrics DescribeMetrics(const std::vector<SweepMetric>& metrics);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_SWEEP_SWEEP_TABLE_H_
