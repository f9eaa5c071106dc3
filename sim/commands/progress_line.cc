#include "sim/commands/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "sim/report/latency_metrics.h"

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

class ReaderWithProgress final : public ForwardingReader {
 public:
  ReaderWithProgress(std::unique_ptr<TraceReader> reader, ProgressLine* line)
      : ForwardingReader(std::move(reader)), line_(line) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override {
    constexpr int64_t kRowsBetween = 16;
    auto more = ForwardingReader::Next(out);
    if (!more.ok() || !*more) {
      line_->Clear();
    } else if (++num_rows_ % kRowsBetween == 0) {
      line_->UpdateReading(progress(), num_rows_, counters().bad_rows);
    }
    return more;
  }
  absl::Status Restart() override {
    num_rows_ = 0;
    return ForwardingReader::Restart();
  }

 private:
  ProgressLine* const line_;
  int64_t num_rows_ = 0;
};

std::string Eta(double share, double elapsed) {
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
      progress.num_waiting, 100 * hit, Eta(Share(progress.read), elapsed())));
}

void ProgressLine::UpdateReading(const ReadProgress& read, int64_t num_rows, int64_t num_errors,
                                 const std::string& noun) {
  if (!IsDue()) return;
  Show(absl::StrFormat("%s, %d %s, %.0f/s, %d errors%s", ShareRead(read), num_rows, noun,
                       static_cast<double>(num_rows) / elapsed(), num_errors,
                       Eta(Share(read), elapsed())));
}

void ProgressLine::UpdatePoints(int64_t num_done, int64_t num_points, int64_t num_problems,
                                double share) {
  if (!IsDue()) return;
  std::string text = absl::StrFormat("%d of %d points, %.0f %% of the work, %.1f s", num_done,
                                     num_points, 100 * share, elapsed());
  if (num_problems > 0) absl::StrAppendFormat(&text, ", %d without figures", num_problems);
  Show(text + Eta(share, elapsed()));
}

void ProgressLine::UpdateCount(int64_t done, int64_t all, const std::string& noun) {
  if (!IsDue()) return;
  const double rate = static_cast<double>(done) / elapsed();
  std::string text = all > 0 ? absl::StrFormat("%d of %d", done, all) : absl::StrFormat("%d", done);
  absl::StrAppendFormat(&text, " %s, %.3g/s", noun, rate);
  if (done > 0 && done < all) {
    absl::StrAppendFormat(&text, ", ETA %.0f s", static_cast<double>(all - done) / rate);
  }
  Show(text);
}

void ProgressLine::Clear() {
  if (!is_dirty_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  is_dirty_ = false;
}

std::unique_ptr<TraceReader> WithProgress(std::unique_ptr<TraceReader> reader, ProgressLine* line) {
  if (!line->is_shown()) return reader;
  return std::make_unique<ReaderWithProgress>(std::move(reader), line);
}

}  // namespace kvblocks::sim
