#include "sim/commands/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/commands/replay_input.h"
#include "sim/commands/replay_setup.h"
#include "sim/report/metrics.h"
#include "sim/simulation.h"

namespace kvblocks::sim {

namespace {

constexpr double kNsPerMs = 1e6;

using Point = std::vector<double>;

// The least value of `f` near the start, without derivatives. The same function and start give the
// same steps. REQUIRES: at least one number.
Point NelderMead(const Point& start, double first_step, int max_evaluations,
                 const std::function<double(const Point&)>& f) {
  constexpr double kTolerance = 1e-7;  // of the values at the corners
  struct Corner {
    double value;
    Point point;
  };
  const size_t n = start.size();
  int evaluations = 0;
  const auto corner = [&](Point point) {
    ++evaluations;
    const double value = f(point);
    return Corner{value, std::move(point)};
  };
  std::vector<Corner> corners = {corner(start)};
  for (size_t i = 0; i < n; ++i) {
    Point moved = start;
    moved[i] += first_step;
    corners.push_back(corner(std::move(moved)));
  }
  const auto by_value = [](const Corner& a, const Corner& b) { return a.value < b.value; };
  while (true) {
    std::ranges::stable_sort(corners, by_value);
    if (evaluations >= max_evaluations ||
        corners.back().value - corners.front().value <= kTolerance) {
      return corners.front().point;
    }
    Point centre(n, 0.0);
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) centre[j] += corners[i].point[j] / static_cast<double>(n);
    }
    // From the worst corner through the centre of the others, `factor` times as far.
    const auto along = [&](double factor) {
      Point point(n);
      for (size_t j = 0; j < n; ++j) {
        point[j] = centre[j] + factor * (corners.back().point[j] - centre[j]);
      }
      return corner(std::move(point));
    };
    Corner reflected = along(-1.0);
    if (reflected.value < corners.front().value) {
      Corner further = along(-2.0);
      corners.back() = further.value < reflected.value ? std::move(further) : std::move(reflected);
      continue;
    }
    if (reflected.value < corners[n - 1].value) {
      corners.back() = std::move(reflected);
      continue;
    }
    Corner nearer = reflected.value < corners.back().value ? along(-0.5) : along(0.5);
    if (nearer.value < std::min(reflected.value, corners.back().value)) {
      corners.back() = std::move(nearer);
      continue;
    }
    for (size_t i = 1; i <= n; ++i) {
      Point shrunk(n);
      for (size_t j = 0; j < n; ++j) {
        shrunk[j] = (corners[0].point[j] + corners[i].point[j]) / 2;
      }
      corners[i] = corner(std::move(shrunk));
    }
  }
}

struct ConstantKind {
  const char* field;
  bool is_time;
  double start, low, high;  // microseconds, or a ratio
};

constexpr ConstantKind kOfTables[] = {{"time_per_layer", true, 10, 0.1, 2000},
                                      {"time_per_sequence", true, 4, 0.1, 5000},
                                      {"prefill_factor", false, 1.15, 0.2, 10},
                                      {"prefill_time_per_layer", true, 100, 0.1, 5000}};
constexpr ConstantKind kOfRoofline[] = {{"compute_efficiency", false, 0.6, 0.05, 1},
                                        {"memory_efficiency", false, 0.85, 0.05, 1},
                                        {"time_per_layer", true, 30, 0.1, 2000},
                                        {"time_per_sequence", true, 4, 0.1, 5000}};

std::string TextOf(const ConstantKind& kind, double value) {
  value = std::clamp(value, kind.low, kind.high);
  if (!kind.is_time) return absl::StrFormat("%.4g", value);
  return FormatDuration(std::llround(value * 1000) * kNanosecond);
}

void SetConstant(const ConstantKind& kind, double value, ReplayConfig* config) {
  const auto* field = ReplayConfig::descriptor()->FindFieldByName(kind.field);
  const auto* reflection = config->GetReflection();
  if (kind.is_time) {
    reflection->SetString(config, field, TextOf(kind, value));
  } else {
    reflection->SetDouble(config, field, std::clamp(value, kind.low, kind.high));
  }
  // The experts' share follows the others', as far as one run can tell.
  if (std::string(kind.field) == "prefill_factor") {
    config->set_expert_prefill_factor(std::clamp(value, kind.low, kind.high));
  }
}

struct RequestTimes {
  double ttft_ms = -1, tpot_ms = -1, e2e_ms = -1;
};
struct TimeKind {
  const char* name;
  double RequestTimes::*member;
};
constexpr TimeKind kTimes[] = {{"TTFT", &RequestTimes::ttft_ms},
                               {"TPOT", &RequestTimes::tpot_ms},
                               {"E2E", &RequestTimes::e2e_ms}};

class TimesByRow final : public RequestRowSink {
 public:
  void OnRow(const RequestRow& row) override {
    if (!row.latency) return;
    const auto ms = [](SimTime time) { return static_cast<double>(time) / 1e9; };
    RequestTimes& times = rows[row.request->spec.row];
    times.ttft_ms = ms(row.latency->ttft);
    times.e2e_ms = ms(row.latency->e2e);
    if (row.latency->tpot) times.tpot_ms = ms(*row.latency->tpot);
  }
  std::map<int64_t, RequestTimes> rows;
};

struct Run {
  std::vector<RequestTimes> requests;  // as the measurement has them
  double duration_ms = 0;
  std::string time_source;
};

class Calibrator {
 public:
  Calibrator(const ReplayConfig& config, const Measurement& measurement,
             const CalibrationProgress& progress)
      : config_(config), measurement_(measurement), progress_(progress) {}

  absl::StatusOr<CalibrationResult> Fit(const std::vector<std::string>& fields);

 private:
  absl::Status ReadMeasured();
  absl::Status ChooseConstants(const std::vector<std::string>& fields);
  absl::StatusOr<Run> Replay(const ReplayConfig& config);
  ReplayConfig ConfigAt(const Point& point) const;
  double Loss(const Run& run) const;
  std::vector<MetricError> ErrorsOf(const Run& run, int parity) const;
  void AddSensitivity(const Point& best, const Run& run, CalibrationResult* result);

  const ReplayConfig& config_;
  const Measurement& measurement_;
  std::vector<ConstantKind> constants_;
  std::vector<RequestTimes> measured_;
  double measured_duration_ms_ = 0;
  const CalibrationProgress& progress_;
  int64_t num_replays_ = 0;
};

bool IsFitted(size_t index) { return index % 2 == 0; }

absl::Status Calibrator::ReadMeasured() {
  int64_t first = -1, last = -1;
  for (const MeasuredRequest& request : measurement_.requests) {
    const auto ms = [](int64_t ns) { return ns < 0 ? -1 : static_cast<double>(ns) / kNsPerMs; };
    measured_.push_back(request.failed() ? RequestTimes()
                                         : RequestTimes{ms(request.ttft_ns), ms(request.tpot_ns),
                                                        ms(request.latency_ns)});
    if (request.failed() || request.start_ns < 0 || request.latency_ns < 0) continue;
    first = first < 0 ? request.start_ns : std::min(first, request.start_ns);
    last = std::max(last, request.start_ns + request.latency_ns);
  }
  if (last > first && first >= 0) {
    measured_duration_ms_ = static_cast<double>(last - first) / kNsPerMs;
  }
  const bool has_times = std::ranges::any_of(measured_, [](const RequestTimes& t) {
    return t.ttft_ms > 0 || t.tpot_ms > 0 || t.e2e_ms > 0;
  });
  if (!has_times) {
    return InvalidArgument(measurement_.file, ": no TTFT, TPOT or latency of any request");
  }
  return absl::OkStatus();
}

absl::Status Calibrator::ChooseConstants(const std::vector<std::string>& fields) {
  KVBLOCKS_ASSIGN_OR_RETURN(const auto setup, MakeReplaySetup(config_));
  const std::string source(setup.step_time->source());
  if (absl::StartsWith(source, "measured kernels")) {
    constants_.assign(std::begin(kOfTables), std::end(kOfTables));
  } else if (absl::StartsWith(source, "roofline")) {
    constants_.assign(std::begin(kOfRoofline), std::end(kOfRoofline));
  } else {
    return InvalidArgument("--time: got ", config_.time(),
                           ", which has no constants, expected auto, "
                           "table or roofline");
  }
  if (fields.empty()) return absl::OkStatus();
  std::vector<ConstantKind> chosen;
  std::vector<std::string> names;
  for (const ConstantKind& kind : constants_) names.push_back(kind.field);
  for (std::string field : fields) {
    std::ranges::replace(field, '-', '_');
    const auto it = std::ranges::find(names, field);
    if (it == names.end()) {
      return InvalidArgument("--fit: got \"", field, "\", expected some of ",
                             absl::StrJoin(names, ", "));
    }
    chosen.push_back(constants_[static_cast<size_t>(it - names.begin())]);
  }
  constants_ = std::move(chosen);
  return absl::OkStatus();
}

ReplayConfig Calibrator::ConfigAt(const Point& point) const {
  ReplayConfig config = config_;
  for (size_t i = 0; i < constants_.size(); ++i) {
    SetConstant(constants_[i], std::exp(point[i]), &config);
  }
  config.set_calibration(measurement_.file);
  return config;
}

absl::StatusOr<Run> Calibrator::Replay(const ReplayConfig& config) {
  ++num_replays_;
  // Two searches, one more of each constant, and those before and after.
  if (progress_) progress_(num_replays_, static_cast<int64_t>(81 * constants_.size() + 2));
  KVBLOCKS_ASSIGN_OR_RETURN(auto setup, MakeReplaySetup(config));
  KVBLOCKS_ASSIGN_OR_RETURN(auto reader, OpenReplayTrace(config, setup.reader));
  reader = WithMeasuredArrivals(std::move(reader), measurement_);
  TimesByRow rows;
  setup.metrics.rows = &rows;
  ReplayMetrics metrics(setup.metrics);
  KVBLOCKS_ASSIGN_OR_RETURN(auto simulation, MakeSimulation(setup, reader.get(), {&metrics}));
  KVBLOCKS_RETURN_IF_ERROR(simulation->Run());
  ::kvblocks::report::v1::Report report;
  metrics.Fill(simulation->result(), &report);
  Run run{.requests = std::vector<RequestTimes>(measured_.size()),
          .duration_ms = report.throughput().duration_s() * 1000,
          .time_source = std::string(setup.step_time->source())};
  size_t num_matched = 0;
  for (const auto& [row, times] : rows.rows) {
    if (row < 0 || row >= static_cast<int64_t>(measured_.size())) continue;
    run.requests[static_cast<size_t>(row)] = times;
    ++num_matched;
  }
  if (2 * num_matched < measured_.size()) {
    return InvalidArgument(measurement_.file, ": ", measured_.size(), " requests, of which ",
                           num_matched,
                           " are in the workload, expected a workload of the same rows");
  }
  return run;
}

// Squared logarithms, see the header.
double Calibrator::Loss(const Run& run) const {
  constexpr double kWeightOfRequests = 0.1;
  double loss = 0;
  for (const auto& [name, member] : kTimes) {
    double measured = 0, replayed = 0, squares = 0;
    int64_t count = 0;
    for (size_t i = 0; i < measured_.size(); ++i) {
      const double m = measured_[i].*member, r = run.requests[i].*member;
      if (!IsFitted(i) || m <= 0 || r <= 0) continue;
      measured += m;
      replayed += r;
      const double log = std::log(r / m);
      squares += log * log;
      ++count;
    }
    if (count == 0) continue;
    const double log = std::log(replayed / measured);
    loss += log * log + kWeightOfRequests * squares / static_cast<double>(count);
  }
  if (measured_duration_ms_ > 0 && run.duration_ms > 0) {
    const double log = std::log(run.duration_ms / measured_duration_ms_);
    loss += log * log;
  }
  return loss;
}

double QuantileOf(std::vector<double> values, double q) {
  std::ranges::sort(values);
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  return values[std::min(values.size(), std::max<size_t>(rank, 1)) - 1];
}

double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Parity 0: fitted requests, 1: held-out ones, -1: all, the duration included.
std::vector<MetricError> Calibrator::ErrorsOf(const Run& run, int parity) const {
  std::vector<MetricError> errors;
  for (const TimeKind& metric : kTimes) {
    std::vector<double> measured, replayed;
    for (size_t i = 0; i < measured_.size(); ++i) {
      const double m = measured_[i].*metric.member, r = run.requests[i].*metric.member;
      if ((parity >= 0 && IsFitted(i) != (parity == 0)) || m <= 0 || r <= 0) continue;
      measured.push_back(m);
      replayed.push_back(r);
    }
    if (measured.empty()) continue;
    const auto percent = [](double r, double m) { return 100 * (r / m - 1); };
    const auto at = [&](double q) {
      return percent(QuantileOf(replayed, q), QuantileOf(measured, q));
    };
    errors.push_back({.metric = metric.name,
                      .measured_ms = MeanOf(measured),
                      .mean_percent = percent(MeanOf(replayed), MeanOf(measured)),
                      .p50_percent = at(0.5),
                      .p90_percent = at(0.9),
                      .p99_percent = at(0.99)});
  }
  if (parity < 0 && measured_duration_ms_ > 0) {
    MetricError duration{.metric = "duration", .measured_ms = measured_duration_ms_};
    duration.mean_percent = 100 * (run.duration_ms / measured_duration_ms_ - 1);
    errors.push_back(duration);
  }
  return errors;
}

void Calibrator::AddSensitivity(const Point& best, const Run& run, CalibrationResult* result) {
  const auto mean = [&](const Run& of, double RequestTimes::*member) {
    double sum = 0;
    for (const RequestTimes& times : of.requests) sum += std::max(times.*member, 0.0);
    return sum;
  };
  for (size_t i = 0; i < constants_.size(); ++i) {
    const ConstantKind& kind = constants_[i];
    FittedConstant constant{.field = kind.field,
                            .before = TextOf(kind, kind.start),
                            .after = TextOf(kind, std::exp(best[i]))};
    // Downwards where upwards is out of range.
    const double step = std::exp(best[i]) * 1.1 > kind.high ? -std::log(1.1) : std::log(1.1);
    Point moved = best;
    moved[i] += step;
    const auto changed = Replay(ConfigAt(moved));
    if (changed.ok()) {
      const double sign = step > 0 ? 1 : -1;
      const auto percent = [&](double RequestTimes::*member) {
        const double before = mean(run, member);
        return before > 0 ? sign * 100 * (mean(*changed, member) / before - 1) : 0;
      };
      constant.ttft_percent = percent(&RequestTimes::ttft_ms);
      constant.tpot_percent = percent(&RequestTimes::tpot_ms);
      constant.duration_percent = sign * 100 * (changed->duration_ms / run.duration_ms - 1);
    }
    constexpr double kNothing = 0.05;
    constant.is_identified = std::abs(constant.ttft_percent) > kNothing ||
                             std::abs(constant.tpot_percent) > kNothing ||
                             std::abs(constant.duration_percent) > kNothing;
    result->constants.push_back(std::move(constant));
  }
}

absl::StatusOr<CalibrationResult> Calibrator::Fit(const std::vector<std::string>& fields) {
  KVBLOCKS_RETURN_IF_ERROR(ReadMeasured());
  KVBLOCKS_RETURN_IF_ERROR(ChooseConstants(fields));
  CalibrationResult result;
  KVBLOCKS_ASSIGN_OR_RETURN(const auto before, Replay(config_));
  result.before = ErrorsOf(before, -1);

  Point start;
  for (const ConstantKind& kind : constants_) start.push_back(std::log(kind.start));
  absl::Status failure = absl::OkStatus();
  const auto loss = [&](const Point& point) {
    // Outside the limits a constant has no further effect; the way back must be downhill.
    double beyond = 0;
    for (size_t i = 0; i < constants_.size(); ++i) {
      const double low = std::log(constants_[i].low), high = std::log(constants_[i].high);
      beyond += std::max({0.0, low - point[i], point[i] - high});
    }
    const auto run = Replay(ConfigAt(point));
    if (run.ok()) return Loss(*run) + beyond;
    if (failure.ok()) failure = run.status();
    return 1e9;
  };
  // Wide steps first; then again from there, because the corners may have met beside the valley.
  const auto most = static_cast<int>(40 * constants_.size());
  Point best = NelderMead(start, 0.8, most, loss);
  best = NelderMead(best, -0.3, most, loss);
  if (!failure.ok()) return failure;
  result.config = ConfigAt(best);
  KVBLOCKS_ASSIGN_OR_RETURN(const auto run, Replay(result.config));
  result.time_source = run.time_source;
  result.fitted = ErrorsOf(run, 0);
  result.held_out = ErrorsOf(run, 1);
  result.all = ErrorsOf(run, -1);
  AddSensitivity(best, run, &result);
  result.num_fitted = static_cast<int64_t>((measured_.size() + 1) / 2);
  result.num_held_out = static_cast<int64_t>(measured_.size() / 2);
  result.num_replays = num_replays_;
  return result;
}

}  // namespace

absl::StatusOr<CalibrationResult> Calibrate(const ReplayConfig& config,
                                            const Measurement& measurement,
                                            const std::vector<std::string>& fields,
                                            const CalibrationProgress& progress) {
  return Calibrator(config, measurement, progress).Fit(fields);
}

namespace {

class MeasuredArrivals final : public ForwardingReader {
 public:
  MeasuredArrivals(std::unique_ptr<TraceReader> reader, const Measurement& measurement)
      : ForwardingReader(std::move(reader)), measurement_(measurement) {}

  absl::StatusOr<bool> Next(TraceRequest& out) override {
    auto more = ForwardingReader::Next(out);
    if (!more.ok() || !*more) return more;
    if (out.row < static_cast<int64_t>(measurement_.requests.size())) {
      last_ = measurement_.requests[static_cast<size_t>(out.row)].start_ns -
              measurement_.requests.front().start_ns;
    }
    out.arrival_ns = last_;
    return true;
  }
  absl::Status Restart() override {
    last_ = 0;
    return ForwardingReader::Restart();
  }

 private:
  const Measurement& measurement_;
  int64_t last_ = 0;
};

}  // namespace

std::unique_ptr<TraceReader> WithMeasuredArrivals(std::unique_ptr<TraceReader> reader,
                                                  const Measurement& measurement) {
  int64_t before = 0;
  for (size_t i = 0; i < measurement.requests.size(); ++i) {
    const MeasuredRequest& request = measurement.requests[i];
    if (request.row != static_cast<int64_t>(i) || request.start_ns < before) return reader;
    before = request.start_ns;
  }
  return std::make_unique<MeasuredArrivals>(std::move(reader), measurement);
}

}  // namespace kvblocks::sim
