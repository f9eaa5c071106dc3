// The report of `kvsim plan`: a model's cache on a device, planned under both policies.

#ifndef KVBLOCKS_SIM_COMMANDS_PLAN_REPORT_H_
#define KVBLOCKS_SIM_COMMANDS_PLAN_REPORT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/config.pb.h"
#include "sim/report/plan.pb.h"

namespace kvblocks::sim {

struct PlanQuestions {
  // Where concurrency is stated; those beyond the limit are left out, and none stands for a few
  // powers of two.
  std::vector<int64_t> lengths = {};
  // Whether so many requests of `length` tokens fit at once; 0: that is not asked. A length of 0
  // stands for the longest.
  int64_t requests = 0;
  int64_t length = 0;
};

// `config.plan()` is not looked at: both policies are planned. A max_model_len of 0 stands for the
// model's own limit. That the length or the requests do not fit is part of the report.
absl::StatusOr<::kvblocks::report::v1::PlanReport> MakePlanReport(
    const ::kvblocks::config::v1::ReplayConfig& config, PlanQuestions questions = {});

// Whether max_model_len, and the requests asked about, fit under a policy; false for one that is
// not in the report.
bool Fits(const ::kvblocks::report::v1::PlanReport& report, std::string_view policy);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_COMMANDS_PLAN_REPORT_H_
