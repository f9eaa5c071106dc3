#include "sim/sweep/point_runner.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "checks/status_macros.h"
#include "google/protobuf/util/json_util.h"
#include "kvblocks/check.h"
#include "sim/commands/fleet_replay.h"
#include "sim/run_in_parallel.h"

namespace kvblocks::sim {

namespace pb = ::kvblocks::sweep::v1;

namespace {

absl::Status SystemError(const std::string& path, const char* what) {
  return InvalidArgument(path, ": ", what, ": ", std::strerror(errno));
}

}  // namespace

absl::StatusOr<std::string> ResultLine(const pb::PointResult& result) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string line;
  const auto status = google::protobuf::util::MessageToJsonString(result, &line, options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("a result cannot be written as JSON: ", std::string(status.message())));
  }
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line + "\n";
}

absl::StatusOr<ResultLines> ParseResultLines(std::string_view text, const std::string& file) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  ResultLines lines;
  size_t begin = 0;
  for (int64_t line = 1;; ++line) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;
    auto result = std::make_unique<pb::PointResult>();
    const std::string json(text.substr(begin, end - begin));
    begin = end + 1;
    if (json.empty()) continue;
    const auto status = google::protobuf::util::JsonStringToMessage(json, result.get(), options);
    if (!status.ok() || result->name().empty()) {
      return InvalidArgument(file, ":", line, ": error: expected a result of a sweep as JSON",
                             status.ok() ? ", with its name" : "");
    }
    lines.results.push_back(std::move(result));
  }
  // A text of any kind must not be shortened because it lacks a line end.
  constexpr std::string_view kStart = "{\"name\":";
  if (begin < text.size() && begin == 0 &&
      kStart.substr(0, text.size()) != text.substr(0, kStart.size())) {
    return InvalidArgument(file, ":1: error: expected results of a sweep, one JSON text per line");
  }
  lines.whole_bytes = begin;
  return lines;
}

absl::StatusOr<std::unique_ptr<ResultLog>> ResultLog::Open(const std::string& path, bool retry) {
  std::unique_ptr<ResultLog> log(new ResultLog);
  if (path.empty()) return log;
  KVBLOCKS_RETURN_IF_ERROR(log->Read(path, retry));
  return log;
}

ResultLog::~ResultLog() {
  if (file_ >= 0) close(file_);
}

absl::Status ResultLog::Read(const std::string& path, bool retry) {
  path_ = path;
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) return SystemError(path, "cannot be opened for results");
  struct stat facts;
  if (fstat(file_, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return InvalidArgument(path, ": expected a regular file for results, which can be read again");
  }
  if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(
        absl::StrCat(path, ": another program writes results to it; wait, or name another file"));
  }
  std::string text(static_cast<size_t>(facts.st_size), '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got =
        pread(file_, text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path, "cannot be read");
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(size);
  KVBLOCKS_ASSIGN_OR_RETURN(auto lines, ParseResultLines(text, path));
  for (auto& result : lines.results) {
    if (retry && !result->problem().empty()) continue;
    const std::string name = result->name();
    results_[name] = std::move(result);
  }
  num_read_ = static_cast<int64_t>(results_.size());
  const size_t begin = lines.whole_bytes;
  num_torn_bytes_ = static_cast<int64_t>(text.size() - begin);
  if (num_torn_bytes_ > 0 && ftruncate(file_, static_cast<off_t>(begin)) != 0) {
    return SystemError(path, "its last line is not whole and cannot be cut off");
  }
  return absl::OkStatus();
}

const pb::PointResult* ResultLog::Find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto it = results_.find(name);
  return it == results_.end() ? nullptr : it->second.get();
}

absl::Status ResultLog::Append(const pb::PointResult& result) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto line, ResultLine(result));
  const std::lock_guard lock(mutex_);
  results_[result.name()] = std::make_unique<pb::PointResult>(result);
  if (file_ < 0) return absl::OkStatus();
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t put = write(file_, line.data() + written, line.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(path_, "a result cannot be written");
    written += static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

using ::kvblocks::config::v1::ReplayConfig;
using ::kvblocks::report::v1::Report;

namespace {

pb::Pressure PressureOf(const Report& report, const ReplayConfig& config) {
  constexpr double kSomebody = 0.5, kFull = 0.95, kPoolFull = 0.9;
  pb::Pressure pressure;
  const auto most_seqs = static_cast<double>(config.max_num_seqs());
  double waiting = 0, seqs_full = 0, pool_full = 0;
  for (const auto& point : report.series().points()) {
    if (point.waiting() < kSomebody) continue;
    waiting += 1;
    if (point.running() >= kFull * most_seqs) seqs_full += 1;
    if (point.usage() >= kPoolFull) pool_full += 1;
  }
  const auto all = static_cast<double>(std::max(report.series().points_size(), 1));
  pressure.set_waiting_share(waiting / all);
  pressure.set_seqs_full_share(seqs_full / all);
  pressure.set_pool_full_share(pool_full / all);
  return pressure;
}

// What is for charts of one run, and most of its bytes.
void Shorten(Report* report) {
  report->clear_series();
  report->clear_hit_prefix_length();
  report->clear_first_missing_block();
  report->clear_hit_groups();
  if (report->has_router()) report->mutable_router()->clear_decision_series();
  auto* latency = report->mutable_latency();
  for (auto* distribution :
       {latency->mutable_queueing(), latency->mutable_ttft(), latency->mutable_e2e(),
        latency->mutable_tpot()}) {
    distribution->clear_quantiles_ms();
  }
  if (latency->has_prefill()) latency->mutable_prefill()->clear_quantiles_ms();
  if (latency->has_itl()) latency->mutable_itl()->clear_quantiles_ms();
  if (latency->has_normalized()) latency->mutable_normalized()->clear_quantiles_ms();
}

absl::Status ReplayPoint(const PlannedPoint& planned, DecodedTraces* traces,
                         pb::PointResult* result) {
  KVBLOCKS_RETURN_IF_ERROR(planned.status);
  // Which one replica does not need, but which a file can have for it, too.
  KVBLOCKS_RETURN_IF_ERROR(MakeFleetOptions(planned.config).status());
  KVBLOCKS_ASSIGN_OR_RETURN(const auto replay, FleetReplay::Create(planned.config));
  KVBLOCKS_ASSIGN_OR_RETURN(const auto trace, traces->Get(planned.config));
  DecodedReader reader(trace.get(), replay->setup().reader.speedup);
  KVBLOCKS_RETURN_IF_ERROR(replay->Run(&reader, {}));
  Report* report = result->mutable_report();
  replay->Fill(reader, report);
  if (!replay->is_fleet()) *result->add_pressures() = PressureOf(*report, report->config());
  for (auto& replica : *report->mutable_replicas()) {
    Report* one = replica.mutable_report();
    *result->add_pressures() =
        PressureOf(*one, one->has_config() ? one->config() : report->config());
    Shorten(one);
  }
  Shorten(report);
  return absl::OkStatus();
}

// In no unit; for the order, and for how much is left. Each request costs, and each block of it;
// a pool of few blocks has preemptions, and exact steps look at everybody each time.
double EstimateCost(const PlannedPoint& planned) {
  const ReplayConfig& config = planned.config;
  const auto block = static_cast<double>(std::max<int64_t>(config.block_size(), 1));
  double cost = 1 + 16 / (config.block_size() == 0 ? 16.0 : block);
  if (config.num_blocks() > 0) cost *= 1 + 2000 / static_cast<double>(config.num_blocks());
  if (config.exact_steps()) cost *= 10;
  if (config.check_invariants()) cost *= 100;
  if (config.limit() > 0) cost *= static_cast<double>(config.limit()) / 1e5;
  return cost;
}

}  // namespace

pb::PointResult RunPoint(const PlannedPoint& planned, DecodedTraces* traces) {
  pb::PointResult result;
  result.set_name(planned.name);
  for (const pb::Setting& setting : planned.settings) *result.add_settings() = setting;
  if (absl::Status status = ReplayPoint(planned, traces, &result); !status.ok()) {
    result.clear_report();
    result.clear_pressures();
    result.set_problem(std::string(status.message()));
    if (result.problem().empty()) result.set_problem("failed without a message");
  }
  return result;
}

PointRunner::PointRunner(DecodedTraces* traces, ResultLog* log, int num_threads,
                         ProgressLine* progress)
    : traces_(traces), log_(log), num_threads_(num_threads), progress_(progress) {
  if (num_threads_ == 0) {
    num_threads_ = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  }
}

absl::StatusOr<std::vector<pb::PointResult>> PointRunner::Run(
    const std::vector<PlannedPoint>& points) {
  std::vector<const PlannedPoint*> to_run;
  absl::flat_hash_map<std::string, bool> is_known;
  double cost = 0;
  for (const PlannedPoint& point : points) {
    if (!is_known.emplace(point.name, true).second || log_->Find(point.name) != nullptr) continue;
    to_run.push_back(&point);
    cost += EstimateCost(point);
  }
  std::stable_sort(to_run.begin(), to_run.end(), [](const PlannedPoint* a, const PlannedPoint* b) {
    return EstimateCost(*a) > EstimateCost(*b);
  });
  std::mutex mutex;
  absl::Status written;
  double done_cost = 0;
  int64_t num_done = 0, num_problems = 0;
  std::vector<std::function<void()>> tasks;
  for (const PlannedPoint* point : to_run) {
    tasks.push_back([&, point] {
      {
        const std::lock_guard lock(mutex);
        if (!written.ok()) return;  // nothing that is replayed now could be kept
      }
      const pb::PointResult result = RunPoint(*point, traces_);
      const absl::Status appended = log_->Append(result);
      const std::lock_guard lock(mutex);
      if (!appended.ok()) written = appended;
      ++num_done;
      num_problems += !result.problem().empty();
      done_cost += EstimateCost(*point);
      if (progress_ != nullptr) {
        progress_->UpdatePoints(num_done, static_cast<int64_t>(tasks.size()), num_problems,
                                done_cost / cost);
      }
    });
  }
  RunInParallel(num_threads_, tasks);
  if (progress_ != nullptr) progress_->Clear();
  if (!written.ok()) return written;
  num_run_ += static_cast<int64_t>(tasks.size());
  std::vector<pb::PointResult> results;
  results.reserve(points.size());
  for (const PlannedPoint& point : points) {
    results.push_back(*log_->Find(point.name));
    // A finished point may have been asked for in other words.
    results.back().clear_settings();
    for (const pb::Setting& setting : point.settings) *results.back().add_settings() = setting;
  }
  return results;
}

}  // namespace kvblocks::sim
