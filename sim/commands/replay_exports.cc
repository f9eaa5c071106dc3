#include "sim/commands/replay_exports.h"

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "sim/commands/output.h"
#include "sim/report/open_metrics.h"

namespace kvblocks::sim {
namespace {

constexpr int64_t kBytesPerMegabyte = 1'000'000;

}  // namespace

ServerMetrics::Options ServerMetricsOf(const ReplaySetup& setup) {
  const auto& config = setup.config;
  const auto yes_or_no = [](bool value) { return std::string(value ? "True" : "False"); };
  return {
      .model = setup.model,
      .max_model_len = setup.simulation.manager.max_model_len,
      .count_attempts = setup.metrics.hit_rates.legacy_counters,
      .has_connector = setup.tiers.has_value(),
      .num_draft_tokens = setup.simulation.scheduler.num_draft_tokens,
      .cache_config = {
          {"block_size", absl::StrCat(setup.simulation.kv_cache.groups.front().spec.block_size())},
          {"num_gpu_blocks", absl::StrCat(setup.simulation.kv_cache.num_blocks)},
          {"cache_dtype", config.kv_cache_dtype()},
          {"enable_prefix_caching", yes_or_no(config.prefix_caching())},
          {"gpu_memory_utilization", absl::StrCat(config.memory_utilization())}}};
}

void ReplayExports::AddOptions(OptionParser* options, const std::string& group) {
  options->Add(
      {.name = "--steps",
       .unit = "FILE",
       .help = "one row per step, for kvsim compare; - is standard output, without a table",
       .group = group,
       .file = FileUse::kWritten},
      &steps_);
  options->AddFlag(
      {.name = "--step-requests",
       .help = "with the tokens and new blocks of each request in the rows of --steps",
       .group = group,
       .needs = "--steps"},
      &step_requests_);
  options->Add({.name = "--perfetto",
                .unit = "FILE",
                .help = "a timeline for ui.perfetto.dev; - is standard output, without a table",
                .group = group,
                .file = FileUse::kWritten},
               &perfetto_);
  options->Add({.name = "--perfetto-limit",
                .unit = "MB",
                .help = "its largest size, before compression [100]",
                .group = group,
                .needs = "--perfetto"},
               1, 1'000'000, &perfetto_limit_);
  options->Add({.name = "--metrics",
                .unit = "FILE",
                .help = "what a server's /metrics would show at the end, as OpenMetrics text; - is "
                        "standard output, without a table",
                .group = group,
                .file = FileUse::kWritten},
               &metrics_);
  options->Add({.name = "--metrics-tick",
                .unit = "TIME",
                .help = "a point per tick instead, with timestamps, for Prometheus to take as "
                        "history; doubled for long runs",
                .group = group,
                .needs = "--metrics"},
               &metrics_tick_);
  options->Add({.name = "--metrics-epoch",
                .unit = "SECONDS",
                .help = "Unix time of the run's time 0 in these timestamps [0]",
                .group = group,
                .needs = "--metrics-tick"},
               0, 100'000'000'000, &metrics_epoch_);
}

bool ReplayExports::is_asked_for() const {
  return !steps_.empty() || !perfetto_.empty() || !metrics_.empty();
}

absl::Status ReplayExports::Check() const {
  if (metrics_tick_.empty()) return absl::OkStatus();
  const auto tick = ParseDuration(metrics_tick_);
  if (tick.ok() && *tick >= kMillisecond) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--metrics-tick: got \"", metrics_tick_,
                                                 "\", expected a time of at least 1ms, like 15s"));
}

absl::Status ReplayExports::Open(const std::vector<std::string>& replicas) {
  replicas_.resize(replicas.size());
  for (size_t r = 0; r < replicas.size(); ++r) replicas_[r].name = replicas[r];
  if (!steps_.empty()) {
    auto sink = OpenByteSink(steps_);
    if (!sink.ok()) return sink.status();
    step_file_ = std::make_unique<StepFile>(*std::move(sink), step_requests_, replicas.size() > 1);
  }
  if (!perfetto_.empty()) {
    auto sink = OpenByteSink(perfetto_);
    if (!sink.ok()) return sink.status();
    const int64_t limit = perfetto_limit_ * kBytesPerMegabyte;
    timeline_file_ = std::make_unique<TimelineFile>(
        *std::move(sink), limit > 0 ? limit : TimelineFile::kDefaultMaxBytes);
  }
  if (!metrics_.empty()) {
    auto sink = OpenByteSink(metrics_);
    if (!sink.ok()) return sink.status();
    metrics_sink_ = *std::move(sink);
  }
  return absl::OkStatus();
}

void ReplayExports::Attach(size_t replica, const ReplaySetup& setup, ReplayMetricsOptions* metrics,
                           std::vector<EngineObserver*>* observers) {
  Writers& own = replicas_[replica];
  if (timeline_file_ != nullptr) {
    own.timeline = std::make_unique<Timeline>(timeline_file_.get(), replica,
                                              absl::ascii_isdigit(own.name[0])
                                                  ? absl::StrCat("replica ", own.name)
                                                  : own.name);
    observers->push_back(own.timeline.get());
  }
  if (metrics_sink_ != nullptr) {
    ServerMetrics::Options options = ServerMetricsOf(setup);
    options.engine = own.name;
    if (!metrics_tick_.empty()) options.tick = *ParseDuration(metrics_tick_);
    if (metrics_epoch_ > 0) options.epoch_seconds = metrics_epoch_;
    own.server = std::make_unique<ServerMetrics>(std::move(options));
    if (metrics->rows != nullptr) own.rows.Add(metrics->rows);
    own.rows.Add(own.server.get());
    metrics->rows = &own.rows;
    metrics->admissions = own.server.get();
    metrics->latency.sink = own.server.get();
    observers->push_back(own.server.get());
  }
  if (step_file_ != nullptr) {
    own.steps = std::make_unique<StepRows>(step_file_.get(), own.name);
    observers->push_back(own.steps.get());
  }
}

absl::Status ReplayExports::Close() {
  if (step_file_ != nullptr) {
    if (absl::Status status = UnlessReaderGone(step_file_->Close()); !status.ok()) return status;
  }
  if (timeline_file_ != nullptr) {
    if (absl::Status status = UnlessReaderGone(timeline_file_->Close()); !status.ok())
      return status;
    if (const std::string left_out = timeline_file_->DescribeLeftOut(); !left_out.empty()) {
      std::fprintf(stderr, "--perfetto: %s; --perfetto-limit=MB takes more\n", left_out.c_str());
    }
  }
  if (metrics_sink_ != nullptr) {
    std::vector<std::string> texts;
    for (const Writers& own : replicas_) texts.push_back(own.server->Text());
    absl::Status status = metrics_sink_->Write(MergeOpenMetrics(texts));
    if (status.ok()) status = metrics_sink_->Close();
    if (!UnlessReaderGone(status).ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
