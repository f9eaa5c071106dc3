#include "kvblocks/sim/commands/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "kvblocks/sim/report/latency_metrics.h"

namespace kvblocks::sim {
namespace {

constexpr std::chrono::milliseconds kInterval(100);

double Share(const ReadProgress& read) {
  return read.bytes_total == 0
             ? 0.0
             : static_cast<double>(read.bytes_read) / static_cast<double>(read.bytes_total);
}

std::string ShareRead(const ReadProgress& read) {
  return read.bytes_total == 0 ? "trace read" : absl::StrFormat("%3.0f %% read", 100 * Share(read));
}

bool WantsJson() {
  const char* wanted = std::getenv("KVSIM_PROGRESS");
  return wanted != nullptr && std::string_view(wanted) == "json";
}

std::string Eta(const ReadProgress& read, double elapsed) {
  const double share = Share(read);
  if (share <= 0 || share >= 1) return "";
  return absl::StrFormat(", ETA %.0f s", elapsed / share - elapsed);
}

}  // namespace

ProgressLine::ProgressLine(bool quiet)
    : is_json_(WantsJson()),
      is_shown_(!quiet && (is_json_ || isatty(STDERR_FILENO) == 1)),
      start_(Clock::now()),
      next_(start_ + kInterval) {}

ProgressLine::~ProgressLine() { Clear(); }

bool ProgressLine::IsDue() {
  if (!is_shown_) return false;
  const Clock::time_point now = Clock::now();
  if (now < next_) return false;
  next_ = now + kInterval;
  elapsed_ = std::chrono::duration<double>(now - start_).count();
  return true;
}

void ProgressLine::Show(const std::string& text) {
  // The texts are ours: nothing in them needs escaping.
  std::fprintf(stderr, is_json_ ? "{\"progress\": \"%s\"}\n" : "\r\033[K%s", text.c_str());
  std::fflush(stderr);
  is_dirty_ = !is_json_;
}

void ProgressLine::Update(const SimulationProgress& progress, int64_t hit_tokens,
                          int64_t queried_tokens) {
  if (!IsDue()) return;
  const double simulated = Seconds(progress.now);
  const double hit = queried_tokens == 0
                         ? 0.0
                         : static_cast<double>(hit_tokens) / static_cast<double>(queried_tokens);
  Show(absl::StrFormat(
      "%s, %.0f s simulated (%.0f x), %.0f requests/s, %d running, %d waiting, hit rate %.1f %%%s",
      ShareRead(progress.read), simulated, simulated / elapsed(),
      static_cast<double>(progress.num_done) / elapsed(), progress.num_running,
      progress.num_waiting, 100 * hit, Eta(progress.read, elapsed())));
}

void ProgressLine::UpdateReading(const ReadProgress& read, int64_t num_rows, int64_t num_errors) {
  if (!IsDue()) return;
  Show(absl::StrFormat("%s, %d rows, %d errors%s", ShareRead(read), num_rows, num_errors,
                       Eta(read, elapsed())));
}

void ProgressLine::Clear() {
  if (!is_dirty_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  is_dirty_ = false;
}

}  // namespace kvblocks::sim
