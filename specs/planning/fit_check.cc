#include "kvblocks/specs/planning/fit_check.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace kvblocks {
namespace {

std::string OnWorker(const Plan& plan, int worker) {
  return plan.workers.size() == 1 ? "" : "worker " + std::to_string(worker) + ": ";
}

// The two numbers so that they differ where they do.
std::pair<std::string, std::string> InReadableUnits(int64_t needed, int64_t available) {
  if (Gibibytes(needed) != Gibibytes(available)) return {Gibibytes(needed), Gibibytes(available)};
  return {Grouped(needed) + " bytes", Grouped(available) + " bytes"};
}

PlanError DoesNotFit(const Plan& plan, int worker, int64_t length, int64_t longest) {
  const int64_t needed = plan.NeededBytes(length, worker);
  const int64_t available = plan.workers[worker].available_bytes;
  const auto [needed_text, available_text] = InReadableUnits(needed, available);
  PlanError error = {.code = PlanErrorCode::kRequestDoesNotFit,
                     .message = OnWorker(plan, worker) + "one request of " + Grouped(length) +
                                " tokens needs " + needed_text + " of KV cache, " + available_text +
                                " are available",
                     .worker = worker,
                     .needed = needed,
                     .available = available};
  if (longest > 0) {
    error.message += "; longest length that fits: " + Grouped(longest);
    error.longest_length = longest;
  }
  return error;
}

PlanError NoLengthFits(const Plan& plan, int worker) {
  const int64_t needed = plan.NeededBytes(1, worker);
  const int64_t available = plan.workers[worker].available_bytes;
  return {.code = PlanErrorCode::kNoLengthFits,
          .message = OnWorker(plan, worker) + "no length fits: " + Grouped(available) +
                     " bytes are available for KV cache, a request of one token needs " +
                     Grouped(needed) + " bytes",
          .worker = worker,
          .needed = needed,
          .available = available};
}

}  // namespace

std::optional<FittedLength> FitLength(const Plan& plan, const PoolSize& pool,
                                      const PlanOptions& options, std::vector<PlanError>* errors) {
  const bool automatic = options.limits.max_model_len == 0;
  FittedLength fitted = {.length = automatic ? options.longest_automatic_len
                                             : options.limits.max_model_len};
  const int64_t wanted = fitted.length;
  bool ok = true;
  for (size_t w = 0; w < plan.workers.size(); ++w) {
    const WorkerPlan& worker = plan.workers[w];
    // A worker without layers fits everything.
    if (std::ranges::all_of(worker.group_page_bytes, [](int64_t page) { return page == 0; })) {
      continue;
    }
    const int64_t longest = plan.capacity.LongestLength(OwnUnits(pool, worker, options), wanted);
    if (longest == wanted) continue;
    if (automatic && longest > 0) {
      if (longest < fitted.length) fitted = {longest, static_cast<int>(w)};
      continue;
    }
    ok = false;
    errors->push_back(automatic ? NoLengthFits(plan, static_cast<int>(w))
                                : DoesNotFit(plan, static_cast<int>(w), wanted, longest));
  }
  if (!ok) return std::nullopt;
  return fitted;
}

std::string Gibibytes(int64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

std::string Grouped(int64_t number) {
  std::string text = std::to_string(number);
  const size_t first_digit = number < 0 ? 1 : 0;
  for (size_t i = text.size(); i > first_digit + 3;) {
    i -= 3;
    text.insert(i, ",");
  }
  return text;
}

}  // namespace kvblocks
