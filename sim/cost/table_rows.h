// Rows of measured tables: some counts behind an optional name, then a time in microseconds.

#ifndef KVBLOCKS_SIM_COST_TABLE_ROWS_H_
#define KVBLOCKS_SIM_COST_TABLE_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/sim/cost/sim_time.h"

namespace kvblocks::sim {

struct TableRow {
  int64_t line = 0;
  std::string name;
  std::vector<int64_t> counts;
  SimTime time = 0;
};

// CSV under exactly these columns: `name_column` unless it is empty, `columns`, and time_us. Messages
// name `file` and the line. InvalidArgument without a row.
absl::StatusOr<std::vector<TableRow>> ReadTableRows(const std::string& text,
                                                    const std::string& file,
                                                    const std::string& name_column,
                                                    const std::vector<std::string>& columns);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COST_TABLE_ROWS_H_
