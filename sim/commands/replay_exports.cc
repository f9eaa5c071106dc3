#include "kvblocks/sim/commands/replay_exports.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/output.h"

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

std::vector<std::pair<const char*, std::string>> ReplayExports::Outputs() const {
  std::vector<std::pair<const char*, std::string>> outputs;
  if (!perfetto_.empty()) outputs.emplace_back("--perfetto", perfetto_);
  if (!metrics_.empty()) outputs.emplace_back("--metrics", metrics_);
  return outputs;
}

absl::Status ReplayExports::Check() const {
  if (metrics_tick_.empty()) return absl::OkStatus();
  const auto tick = ParseDuration(metrics_tick_);
  if (tick.ok() && *tick >= kMillisecond) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--metrics-tick: got \"", metrics_tick_,
                                                 "\", expected a time of at least 1ms, like 15s"));
}

absl::Status ReplayExports::Open(const ReplaySetup& setup, ReplayMetricsOptions* metrics,
                                 std::vector<EngineObserver*>* observers) {
  if (!perfetto_.empty()) {
    auto sink = OpenByteSink(perfetto_);
    if (!sink.ok()) return sink.status();
    const int64_t limit = perfetto_limit_ * kBytesPerMegabyte;
    timeline_ = std::make_unique<Timeline>(*std::move(sink),
                                           limit > 0 ? limit : Timeline::kDefaultMaxBytes);
    observers->push_back(timeline_.get());
  }
  if (!metrics_.empty()) {
    auto sink = OpenByteSink(metrics_);
    if (!sink.ok()) return sink.status();
    metrics_sink_ = *std::move(sink);
    ServerMetrics::Options options = ServerMetricsOf(setup);
    if (!metrics_tick_.empty()) options.tick = *ParseDuration(metrics_tick_);
    if (metrics_epoch_ > 0) options.epoch_seconds = metrics_epoch_;
    server_ = std::make_unique<ServerMetrics>(std::move(options));
    if (metrics->rows != nullptr) rows_.Add(metrics->rows);
    rows_.Add(server_.get());
    metrics->rows = &rows_;
    metrics->admissions = server_.get();
    metrics->latency.sink = server_.get();
    observers->push_back(server_.get());
  }
  return absl::OkStatus();
}

absl::Status ReplayExports::Close() {
  if (timeline_ != nullptr) {
    if (absl::Status status = UnlessReaderGone(timeline_->Close()); !status.ok()) return status;
    if (const std::string left_out = timeline_->DescribeLeftOut(); !left_out.empty()) {
      std::fprintf(stderr, "--perfetto: %s; --perfetto-limit=MB takes more\n", left_out.c_str());
    }
  }
  if (server_ != nullptr) {
    absl::Status status = metrics_sink_->Write(server_->Text());
    if (status.ok()) status = metrics_sink_->Close();
    if (!UnlessReaderGone(status).ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::sim
