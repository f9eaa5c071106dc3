#include "sim/gen/workload_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "checks/field_error.h"
#include "checks/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "kvblocks/config_source.h"
#include "sim/gen/distributions.h"

namespace kvblocks::sim {
namespace {

namespace pb = ::kvblocks::workload::v1;

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr double kMostRate = 1e6;
// Nothing arrives after 1e9 seconds; so these are 1000 sessions.
constexpr double kLeastRate = 1e-6;
// Of its highest value, that a rate has on average: what is drawn is thrown away otherwise.
constexpr double kLeastMeanShare = 1e-4;
constexpr double kMostTokens = static_cast<double>(kMostPromptTokens);

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
    KVBLOCKS_RETURN_IF_ERROR(
        First(CheckRange("bucket", histogram.bucket(i), i == 0 ? 0 : histogram.bucket(i - 1) + 1,
                         kMostBucket),
              CheckRange("count", histogram.count(i), 1, (int64_t{1} << 40) - total)));
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

absl::Status CheckLimits(const Message& message);

// One value of a field against its limits, or all within it.
absl::Status CheckField(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool has_limits = field.options().HasExtension(pb::limits);
  const pb::Limits& limits = field.options().GetExtension(pb::limits);
  const bool is_list = field.is_repeated();
  if (!is_list && field.has_presence() && !reflection.HasField(message, &field) &&
      !limits.needed()) {
    return absl::OkStatus();
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    const Message& inner = is_list ? reflection.GetRepeatedMessage(message, &field, index)
                                   : reflection.GetMessage(message, &field);
    const auto* shape = dynamic_cast<const pb::Distribution*>(&inner);
    if (shape != nullptr && !has_limits) return absl::OkStatus();
    const auto* histogram = dynamic_cast<const pb::Histogram*>(&inner);
    return WithFieldPrefix(shape != nullptr ? CheckDistribution(*shape, limits.low(), limits.high())
                           : histogram != nullptr ? CheckHistogram(*histogram)
                                                  : CheckLimits(inner),
                           is_list ? absl::StrCat(field.name(), "[", index, "]") : field.name());
  }
  if (!has_limits) return absl::OkStatus();
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
    const int64_t value = is_list ? reflection.GetRepeatedInt64(message, &field, index)
                                  : reflection.GetInt64(message, &field);
    return CheckRange(field.name(), value, static_cast<int64_t>(limits.low()),
                      static_cast<int64_t>(limits.high()));
  }
  const double value = reflection.GetDouble(message, &field);
  return limits.above() ? Above0(field.name(), value, limits.high())
                        : InRange(field.name(), value, limits.low(), limits.high());
}

// Every field that is there, or must be, against the limits that workload.proto states.
absl::Status CheckLimits(const Message& message) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    const int size = field.is_repeated() ? message.GetReflection()->FieldSize(message, &field) : 1;
    for (int index = 0; index < size; ++index) {
      KVBLOCKS_RETURN_IF_ERROR(CheckField(message, field, index));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSteps(const pb::Arrivals::Steps& steps) {
  double sum = 0, all_seconds = 0, most = 0;
  for (const pb::Arrivals::Step& step : steps.step()) {
    sum += step.rate() * step.for_s();
    all_seconds += step.for_s();
    most = std::max(most, step.rate());
  }
  if (sum == 0) return FieldError("step", "no rate above 0", "one at least");
  const double least = std::max(kLeastRate, kLeastMeanShare * most);
  if (sum / all_seconds >= least) return absl::OkStatus();
  return FieldError("step", absl::StrCat("a mean rate of ", sum / all_seconds),
                    absl::StrCat("at least ", least, ", for rates up to ", most));
}

// What the limits of fields do not say.
absl::Status CheckArrivals(const pb::Arrivals& arrivals) {
  if (arrivals.process_case() == pb::Arrivals::PROCESS_NOT_SET) {
    return FieldError("poisson", "no process",
                      "poisson, gamma, weibull, constant, closed, onoff, diurnal, ramp, steps or "
                      "replay");
  }
  const pb::Arrivals::OnOff& onoff = arrivals.onoff();
  if (arrivals.has_onoff() && onoff.on_rate() * onoff.on_s() < kLeastMeanShare) {
    return Refuse(
        "onoff.on_rate", onoff.on_rate(),
        absl::StrCat("at least ", kLeastMeanShare / onoff.on_s(), ", a session in 10000 stays"));
  }
  if (arrivals.has_ramp()) {
    return InRange("ramp.to_rate", arrivals.ramp().to_rate(),
                   std::max(kLeastRate, kLeastMeanShare * arrivals.ramp().from_rate()), kMostRate);
  }
  if (arrivals.has_steps()) return WithFieldPrefix(CheckSteps(arrivals.steps()), "steps");
  if (arrivals.has_replay() && arrivals.replay().gap_ns().empty()) {
    return FieldError("replay.gap_ns", "none", "one gap at least");
  }
  return absl::OkStatus();
}

absl::Status CheckAgent(const pb::Kind::Agent& agent) {
  if (agent.context_limit() > 0 && !agent.has_summary_tokens()) {
    return FieldError("summary_tokens", "none", "the length of the summary at the context limit");
  }
  if (agent.delegate() == 0) return absl::OkStatus();
  return First(CheckRange("subagents", agent.subagents(), 1, 64),
               WithFieldPrefix(CheckDistribution(agent.subagent_steps(), 0, 1024),
                               "subagent_steps"));
}

absl::Status CheckKind(const pb::Kind& kind) {
  if (kind.rank_correlation() != 0 && (kind.user().has_zipf() || kind.answer().has_zipf())) {
    return FieldError("rank_correlation", absl::StrCat(kind.rank_correlation()),
                      "0 where a length is of the shape zipf");
  }
  if (kind.has_fewshot()) {
    const pb::Kind::FewShot& few = kind.fewshot();
    KVBLOCKS_RETURN_IF_ERROR(
        CheckRange("fewshot.pool", few.pool(), few.examples(), kMostPromptTokens));
  }
  if (kind.has_rag()) {
    const pb::Kind::Retrieval& rag = kind.rag();
    // So that those that are drawn twice do not take long to replace.
    const int64_t most = std::min<int64_t>(256, (rag.documents() + 3) / 4);
    KVBLOCKS_RETURN_IF_ERROR(CheckRange("rag.per_question", rag.per_question(), 1, most));
    if (!pb::Kind::Retrieval::Order_IsValid(rag.order())) {
      return FieldError("rag.order", absl::StrCat(static_cast<int>(rag.order())),
                        "RANK, SORTED or RANDOM");
    }
  }
  return WithFieldPrefix(kind.has_agent() ? CheckAgent(kind.agent()) : absl::OkStatus(), "agent");
}

absl::Status CheckPhase(const pb::Phase& phase) {
  const int size = phase.depth_size();
  if (phase.distance_size() != size || phase.older_size() != size || phase.count_size() != size) {
    return FieldError(
        "depth", absl::StrCat(size, " values"),
        absl::StrCat("as many as distance, older and count have (", phase.distance_size(), ", ",
                     phase.older_size(), ", ", phase.count_size(), ")"));
  }
  const int32_t most_tokens = BucketOf(kMostPromptTokens);
  int64_t total = 0;
  for (int i = 0; i < size; ++i) {
    KVBLOCKS_RETURN_IF_ERROR(
        First(CheckRange("depth", phase.depth(i), 1, most_tokens),
              CheckRange("distance", phase.distance(i), 1, kMostBucket),
              CheckRange("older", phase.older(i), 0, 8),
              CheckRange("count", phase.count(i), 1, phase.requests() - total)));
    total += phase.count(i);
  }
  const auto last = [](const pb::Histogram& values, int64_t most) {
    return CheckRange("bucket", values.bucket(values.bucket_size() - 1), 0, BucketOf(most));
  };
  return First(
      last(phase.new_tokens(), kMostPromptTokens), last(phase.output(), kMostPromptTokens),
      WithFieldPrefix(last(phase.gap_ns(), int64_t{10'000'000} * 1'000'000'000), "gap_ns"));
}

}  // namespace

absl::Status CheckDistribution(const pb::Distribution& shape, double low, double high) {
  const double min = shape.has_min() ? shape.min() : low;
  const double max = shape.has_max() ? shape.max() : high;
  KVBLOCKS_RETURN_IF_ERROR(First(InRange("min", min, low, high), InRange("max", max, min, high)));
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
  KVBLOCKS_RETURN_IF_ERROR(CheckLimits(workload));
  if (workload.has_fit()) {
    if (workload.kind_size() > 0 || workload.has_arrivals() || workload.sessions() > 0) {
      return FieldError("fit", "beside sessions, arrivals or kinds", "the one or the other");
    }
    if (workload.fit().phase_size() == 0) return FieldError("fit.phase", "none", "one at least");
    for (int i = 0; i < workload.fit().phase_size(); ++i) {
      KVBLOCKS_RETURN_IF_ERROR(
          WithFieldPrefix(CheckPhase(workload.fit().phase(i)), absl::StrCat("fit.phase[", i, "]")));
    }
    return absl::OkStatus();
  }
  if (workload.sessions() == 0 && workload.requests() == 0) {
    return FieldError("sessions", "0", "how many sessions, or how many requests");
  }
  if (!workload.has_arrivals()) {
    return FieldError("arrivals", "none",
                      "when sessions begin, as in arrivals { poisson { rate: 10 } }");
  }
  KVBLOCKS_RETURN_IF_ERROR(WithFieldPrefix(CheckArrivals(workload.arrivals()), "arrivals"));
  if (workload.kind_size() == 0) {
    return FieldError("kind", "none", "one kind of session at least");
  }
  for (int i = 0; i < workload.kind_size(); ++i) {
    KVBLOCKS_RETURN_IF_ERROR(
        WithFieldPrefix(CheckKind(workload.kind(i)), absl::StrCat("kind[", i, "]")));
  }
  return absl::OkStatus();
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
