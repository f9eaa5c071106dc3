#include "sim/commands/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_format.h"
#include "sim/report/latency_metrics.h"

namespace kvblocks::sim {
namespace {

constexpr std::chrono::milliseconds kInterval(100);

}  // namespace

ProgressLine::ProgressLine(bool quiet)
    : is_shown_(!quiet && isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      next_(start_ + kInterval) {}

ProgressLine::~ProgressLine() { Clear(); }

void ProgressLine::Update(const SimulationProgress& progress, int64_t hit_tokens,
                          int64_t queried_tokens) {
  if (!is_shown_) return;
  const Clock::time_point now = Clock::now();
  if (now < next_) return;
  next_ = now + kInterval;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double simulated = Seconds(progress.now);
  std::string read = "trace read";
  std::string eta;
  if (progress.read.bytes_total > 0) {
    const double share = static_cast<double>(progress.read.bytes_read) /
                         static_cast<double>(progress.read.bytes_total);
    read = absl::StrFormat("%3.0f %% read", 100 * share);
    if (share > 0 && share < 1) eta = absl::StrFormat(", ETA %.0f s", elapsed / share - elapsed);
  }
  const double hit = queried_tokens == 0
                         ? 0.0
                         : static_cast<double>(hit_tokens) / static_cast<double>(queried_tokens);
  std::fprintf(stderr, "\r\033[K%s",
               absl::StrFormat("%s, %.0f s simulated (%.0f x), %.0f requests/s, %d running, %d "
                               "waiting, hit rate %.1f %%%s",
                               read, simulated, simulated / elapsed,
                               static_cast<double>(progress.num_done) / elapsed,
                               progress.num_running, progress.num_waiting, 100 * hit, eta)
                   .c_str());
  std::fflush(stderr);
  is_dirty_ = true;
}

void ProgressLine::Clear() {
  if (!is_dirty_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  is_dirty_ = false;
}

}  // namespace kvblocks::sim
