#include "sim/gen/workload_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checks/field_error.h"
#include "google/protobuf/text_format.h"
#include "kvblocks/config_source.h"
#include "sim/gen/buckets.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::workload::v1;

constexpr int64_t kMostCount = int64_t{1} << 40;
constexpr double kMostSeconds = 1e7;
constexpr double kMostRate = 1e6;
// Nothing arrives after 1e9 seconds; so these are 1000 sessions.
constexpr double kLeastRate = 1e-6;
constexpr double kLeastStaySeconds = 1e-3;
// Of its highest value, that a rate has on average: what is drawn is thrown away otherwise.
constexpr double kLeastMeanShare = 1e-4;
constexpr double kMostTokens = static_cast<double>(kMostPromptTokens);
constexpr int64_t kMostEntities = int64_t{1} << 24;

absl::Status Refuse(std::string_view field, double value, std::string_view expected) {
  return FieldError(field, absl::StrCat(value), expected);
}

// Not a number fails, too.
absl::Status InRange(std::string_view field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(field, value, absl::StrCat(low, " to ", high));
}

absl::Status Above0(std::string_view field, double value, double high) {
  if (value > 0 && value <= high) return absl::OkStatus();
  return Refuse(field, value, absl::StrCat("above 0, at most ", high));
}

// The first one that is wrong.
template <typename... Statuses>
absl::Status First(const Statuses&... statuses) {
  absl::Status first;
  ((first.ok() ? first = statuses : first), ...);
  return first;
}

absl::Status CheckHistogram(const pb::Histogram& histogram) {
  if (histogram.bucket_size() == 0 || histogram.bucket_size() != histogram.count_size()) {
    return FieldError("count", absl::StrCat(histogram.count_size()),
                      absl::StrCat("one for each of ", histogram.bucket_size(),
                                   " buckets, at least one"));
  }
  int64_t total = 0;
  for (int i = 0; i < histogram.bucket_size(); ++i) {
    const absl::Status status =
        First(CheckRange("bucket", histogram.bucket(i), i == 0 ? 0 : histogram.bucket(i - 1) + 1,
                         kMostBucket),
              CheckRange("count", histogram.count(i), 1, kMostCount - total));
    if (!status.ok()) return status;
    total += histogram.count(i);
  }
  return absl::OkStatus();
}

absl::Status CheckLogNormal(const pb::Distribution::LogNormal& shape, double high) {
  return First(Above0("median", shape.median(), high),
               shape.p90() >= shape.median() && shape.p90() <= high
                   ? absl::OkStatus()
                   : Refuse("p90", shape.p90(), absl::StrCat("the median to ", high)));
}

absl::Status CheckArrivals(const pb::Arrivals& arrivals) {
  const auto rate = [](double value) { return InRange("rate", value, kLeastRate, kMostRate); };
  const auto seconds = [](std::string_view field, double value) {
    return Above0(field, value, kMostSeconds);
  };
  switch (arrivals.process_case()) {
    case pb::Arrivals::kPoisson:
      return WithFieldPrefix(rate(arrivals.poisson().rate()), "poisson");
    case pb::Arrivals::kGamma:
      return WithFieldPrefix(
          First(rate(arrivals.gamma().rate()), InRange("cv", arrivals.gamma().cv(), 0.01, 100)),
          "gamma");
    case pb::Arrivals::kWeibull:
      return WithFieldPrefix(First(rate(arrivals.weibull().rate()),
                                   InRange("shape", arrivals.weibull().shape(), 0.1, 100)),
                             "weibull");
    case pb::Arrivals::kConstant:
      return WithFieldPrefix(rate(arrivals.constant().rate()), "constant");
    case pb::Arrivals::kClosed: {
      const pb::Arrivals::Closed& closed = arrivals.closed();
      absl::Status status = CheckRange("users", closed.users(), 1, kMostEntities);
      if (status.ok() && closed.has_think_s()) {
        status = WithFieldPrefix(CheckDistribution(closed.think_s(), 0, kMostSeconds), "think_s");
      }
      return WithFieldPrefix(status, "closed");
    }
    case pb::Arrivals::kOnoff: {
      const pb::Arrivals::OnOff& onoff = arrivals.onoff();
      return WithFieldPrefix(
          First(InRange("on_rate", onoff.on_rate(), kLeastRate, kMostRate),
                InRange("off_rate", onoff.off_rate(), 0, kMostRate),
                InRange("on_s", onoff.on_s(), kLeastStaySeconds, kMostSeconds),
                InRange("off_s", onoff.off_s(), kLeastStaySeconds, kMostSeconds),
                onoff.on_rate() * onoff.on_s() < kLeastMeanShare
                    ? Refuse("on_rate", onoff.on_rate(),
                             absl::StrCat("at least ", kLeastMeanShare / onoff.on_s(),
                                          ", a session in 10000 stays"))
                    : absl::OkStatus()),
          "onoff");
    }
    case pb::Arrivals::kDiurnal: {
      const pb::Arrivals::Diurnal& diurnal = arrivals.diurnal();
      return WithFieldPrefix(First(rate(diurnal.rate()), InRange("swing", diurnal.swing(), 0, 1),
                                   seconds("period_s", diurnal.period_s())),
                             "diurnal");
    }
    case pb::Arrivals::kRamp: {
      const pb::Arrivals::Ramp& ramp = arrivals.ramp();
      return WithFieldPrefix(First(InRange("from_rate", ramp.from_rate(), 0, kMostRate),
                                   InRange("to_rate", ramp.to_rate(),
                                           std::max(kLeastRate, kLeastMeanShare * ramp.from_rate()),
                                           kMostRate),
                                   seconds("over_s", ramp.over_s())),
                             "ramp");
    }
    case pb::Arrivals::kSteps: {
      double sum = 0, all_seconds = 0, most = 0;
      for (int i = 0; i < arrivals.steps().step_size(); ++i) {
        const pb::Arrivals::Step& step = arrivals.steps().step(i);
        const absl::Status status = First(InRange("rate", step.rate(), 0, kMostRate),
                                          seconds("for_s", step.for_s()));
        if (!status.ok()) return WithFieldPrefix(status, absl::StrCat("steps.step[", i, "]"));
        sum += step.rate() * step.for_s();
        all_seconds += step.for_s();
        most = std::max(most, step.rate());
      }
      if (sum == 0) return FieldError("steps.step", "no rate above 0", "one at least");
      const double least = std::max(kLeastRate, kLeastMeanShare * most);
      if (sum / all_seconds >= least) return absl::OkStatus();
      return FieldError("steps.step", absl::StrCat("a mean rate of ", sum / all_seconds),
                        absl::StrCat("at least ", least, ", for rates up to ", most));
    }
    case pb::Arrivals::kReplay: {
      for (const int64_t gap : arrivals.replay().gap_ns()) {
        const absl::Status status =
            CheckRange("replay.gap_ns", gap, 0, static_cast<int64_t>(kMostSeconds * 1e9));
        if (!status.ok()) return status;
      }
      return arrivals.replay().gap_ns_size() > 0
                 ? absl::OkStatus()
                 : FieldError("replay.gap_ns", "none", "one gap at least");
    }
    case pb::Arrivals::PROCESS_NOT_SET:
      break;
  }
  return FieldError("poisson", "no process", "poisson, gamma, weibull, constant, closed, onoff, "
                    "diurnal, ramp, steps or replay");
}

absl::Status CheckTokens(std::string_view field, const pb::Distribution& shape) {
  return WithFieldPrefix(CheckDistribution(shape, 0, kMostTokens), field);
}

absl::Status CheckAgent(const pb::Kind::Agent& agent) {
  const absl::Status status =
      First(CheckTokens("tool_tokens", agent.tool_tokens()),
            agent.has_tool_s() ? WithFieldPrefix(CheckDistribution(agent.tool_s(), 0, kMostSeconds),
                                                 "tool_s")
                               : absl::OkStatus(),
            CheckRange("context_limit", agent.context_limit(), 0, kMostPromptTokens),
            InRange("delegate", agent.delegate(), 0, 1));
  if (!status.ok()) return status;
  if (agent.context_limit() > 0 && !agent.has_summary_tokens()) {
    return FieldError("summary_tokens", "none", "the length of the summary at the context limit");
  }
  if (agent.has_summary_tokens()) {
    if (auto s = CheckTokens("summary_tokens", agent.summary_tokens()); !s.ok()) return s;
  }
  if (agent.delegate() == 0) return absl::OkStatus();
  return First(CheckRange("subagents", agent.subagents(), 1, 64),
               WithFieldPrefix(CheckDistribution(agent.subagent_steps(), 0, 1024),
                               "subagent_steps"));
}

absl::Status CheckKind(const pb::Kind& kind) {
  absl::Status status =
      First(kind.has_share() ? Above0("share", kind.share(), 1e9) : absl::OkStatus(),
            CheckTokens("user", kind.user()), CheckTokens("answer", kind.answer()),
            InRange("rank_correlation", kind.rank_correlation(), -1, 1),
            InRange("fork", kind.fork(), 0, 1), InRange("duplicate", kind.duplicate(), 0, 1));
  const auto check = [&status](const absl::Status& next) {
    if (status.ok()) status = next;
  };
  if (kind.has_turns()) check(WithFieldPrefix(CheckDistribution(kind.turns(), 0, 1024), "turns"));
  if (kind.has_think_s()) {
    check(WithFieldPrefix(CheckDistribution(kind.think_s(), 0, kMostSeconds), "think_s"));
  }
  if (kind.has_samples()) check(CheckRange("samples", kind.samples(), 1, 256));
  if (kind.rank_correlation() != 0 && (kind.user().has_zipf() || kind.answer().has_zipf())) {
    check(FieldError("rank_correlation", absl::StrCat(kind.rank_correlation()),
                     "0 where a length is of the shape zipf"));
  }
  if (kind.has_system()) {
    check(WithFieldPrefix(First(CheckRange("groups", kind.system().groups(), 1, kMostEntities),
                                InRange("alpha", kind.system().alpha(), 0, 10),
                                CheckTokens("tokens", kind.system().tokens())),
                          "system"));
  }
  if (kind.has_fewshot()) {
    const pb::Kind::FewShot& few = kind.fewshot();
    check(WithFieldPrefix(First(CheckRange("examples", few.examples(), 1, 256),
                                CheckRange("pool", few.pool(), few.examples(), kMostEntities),
                                CheckTokens("tokens", few.tokens())),
                          "fewshot"));
  }
  if (kind.has_rag()) {
    const pb::Kind::Retrieval& rag = kind.rag();
    check(WithFieldPrefix(
        First(CheckRange("documents", rag.documents(), 1, kMostEntities),
              InRange("alpha", rag.alpha(), 0, 3),
              // So that those that are drawn twice do not take long to replace.
              CheckRange("per_question", rag.per_question(), 1, std::min<int64_t>(
                  256, (rag.documents() + 3) / 4)),
              CheckTokens("tokens", rag.tokens()),
              pb::Kind::Retrieval::Order_IsValid(rag.order())
                  ? absl::OkStatus()
                  : FieldError("order", absl::StrCat(static_cast<int>(rag.order())),
                               "RANK, SORTED or RANDOM")),
        "rag"));
  }
  if (kind.has_agent()) check(WithFieldPrefix(CheckAgent(kind.agent()), "agent"));
  return status;
}

absl::Status CheckPhase(const pb::Phase& phase) {
  absl::Status status =
      First(CheckRange("requests", phase.requests(), 1, kMostCount),
            WithFieldPrefix(CheckHistogram(phase.gap_ns()), "gap_ns"),
            WithFieldPrefix(CheckHistogram(phase.new_tokens()), "new_tokens"),
            WithFieldPrefix(CheckHistogram(phase.output()), "output"),
            InRange("rank_correlation", phase.rank_correlation(), -1, 1));
  const int size = phase.depth_size();
  if (status.ok() && (phase.distance_size() != size || phase.older_size() != size ||
                      phase.count_size() != size)) {
    status = FieldError("depth", absl::StrCat(size, " values"),
                        absl::StrCat("as many as distance, older and count have (",
                                     phase.distance_size(), ", ", phase.older_size(), ", ",
                                     phase.count_size(), ")"));
  }
  const int32_t most_tokens = BucketOf(kMostPromptTokens);
  int64_t total = 0;
  for (int i = 0; status.ok() && i < size; ++i) {
    status = First(CheckRange("depth", phase.depth(i), 1, most_tokens),
                   CheckRange("distance", phase.distance(i), 1, kMostBucket),
                   CheckRange("older", phase.older(i), 0, 8),
                   CheckRange("count", phase.count(i), 1, phase.requests() - total));
    total += phase.count(i);
  }
  for (const auto* lengths : {&phase.new_tokens(), &phase.output()}) {
    if (!status.ok()) break;
    status = CheckRange("bucket", lengths->bucket(lengths->bucket_size() - 1), 0, most_tokens);
  }
  if (status.ok()) {
    const pb::Histogram& gaps = phase.gap_ns();
    status = WithFieldPrefix(CheckRange("bucket", gaps.bucket(gaps.bucket_size() - 1), 0,
                                        BucketOf(static_cast<int64_t>(kMostSeconds * 1e9))),
                             "gap_ns");
  }
  return status;
}

}  // namespace

absl::Status CheckDistribution(const pb::Distribution& shape, double low, double high) {
  const double min = shape.has_min() ? shape.min() : low;
  const double max = shape.has_max() ? shape.max() : high;
  absl::Status status = First(InRange("min", min, low, high), InRange("max", max, min, high));
  if (!status.ok()) return status;
  switch (shape.shape_case()) {
    case pb::Distribution::kFixed:
      return InRange("fixed", shape.fixed(), low, high);
    case pb::Distribution::kUniform:
      return WithFieldPrefix(
          First(InRange("low", shape.uniform().low(), low, high),
                InRange("high", shape.uniform().high(), shape.uniform().low(), high)),
          "uniform");
    case pb::Distribution::kLognormal:
      return WithFieldPrefix(CheckLogNormal(shape.lognormal(), high), "lognormal");
    case pb::Distribution::kExponential:
      return Above0("exponential", shape.exponential(), high);
    case pb::Distribution::kGeometric:
      return InRange("geometric", shape.geometric(), 1, high);
    case pb::Distribution::kZipf:
      return WithFieldPrefix(First(InRange("alpha", shape.zipf().alpha(), 0, 10),
                                   CheckRange("n", shape.zipf().n(), 1,
                                              static_cast<int64_t>(std::min(high, kMostTokens)))),
                             "zipf");
    case pb::Distribution::kMixture:
      return WithFieldPrefix(
          First(WithFieldPrefix(CheckLogNormal(shape.mixture().a(), high), "a"),
                WithFieldPrefix(CheckLogNormal(shape.mixture().b(), high), "b"),
                InRange("second", shape.mixture().second(), 0, 1)),
          "mixture");
    case pb::Distribution::kHistogram:
      return WithFieldPrefix(CheckHistogram(shape.histogram()), "histogram");
    case pb::Distribution::SHAPE_NOT_SET:
      break;
  }
  return FieldError("fixed", "no shape", "fixed, uniform, lognormal, exponential, geometric, zipf, "
                    "mixture or histogram");
}

bool LooksLikeWorkload(std::string_view line) {
  constexpr std::string_view kField = "workload";
  if (line.substr(0, kField.size()) != kField) return false;
  const size_t next = line.find_first_not_of(" \t", kField.size());
  return next != std::string_view::npos && line[next] == ':';
}

absl::Status CheckWorkload(const pb::Workload& workload) {
  absl::Status status =
      First(CheckRange("requests", workload.requests(), 0, kMostCount),
            CheckRange("sessions", workload.sessions(), 0, kMostCount),
            workload.has_block_tokens()
                ? CheckRange("block_tokens", workload.block_tokens(), 1, kMostEntities)
                : absl::OkStatus());
  if (!status.ok()) return status;
  if (workload.has_fit()) {
    if (workload.kind_size() > 0 || workload.has_arrivals() || workload.sessions() > 0) {
      return FieldError("fit", "beside sessions, arrivals or kinds", "the one or the other");
    }
    if (workload.fit().phase_size() == 0) return FieldError("fit.phase", "none", "one at least");
    for (int i = 0; i < workload.fit().phase_size(); ++i) {
      status = CheckPhase(workload.fit().phase(i));
      if (!status.ok()) return WithFieldPrefix(status, absl::StrCat("fit.phase[", i, "]"));
    }
    return absl::OkStatus();
  }
  if (workload.sessions() == 0 && workload.requests() == 0) {
    return FieldError("sessions", "0", "how many sessions, or how many requests");
  }
  if (!workload.has_arrivals()) {
    return FieldError("arrivals", "none", "when sessions begin, as in "
                      "arrivals { poisson { rate: 10 } }");
  }
  status = WithFieldPrefix(CheckArrivals(workload.arrivals()), "arrivals");
  if (status.ok() && workload.kind_size() == 0) {
    status = FieldError("kind", "none", "one kind of session at least");
  }
  for (int i = 0; status.ok() && i < workload.kind_size(); ++i) {
    status = WithFieldPrefix(CheckKind(workload.kind(i)), absl::StrCat("kind[", i, "]"));
  }
  return status;
}

absl::StatusOr<pb::Workload> ParseWorkload(std::string_view text, std::string_view file) {
  pb::Workload workload;
  const auto source = ConfigSource::Parse(text, file, ConfigSyntax::kText, workload);
  if (!source.ok()) return source.status();
  if (absl::Status status = CheckWorkload(workload); !status.ok()) return source->Locate(status);
  return workload;
}

std::string PrintWorkload(const pb::Workload& workload) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  std::string text;
  printer.PrintToString(workload, &text);
  // A name that is empty is not printed, and the file would not be recognised.
  return workload.workload().empty() ? absl::StrCat("workload: \"\"\n", text) : text;
}

}  // namespace kvblocks::sim
