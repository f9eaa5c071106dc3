#include "sim/commands/replica_kinds.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "sim/commands/option_table.h"
#include "sim/fleet/fleet.h"

namespace kvblocks::sim {

using ::kvblocks::config::v1::ReplayConfig;

namespace {

// What one replica can have otherwise than another. The version of the engine is not among it: the
// defaults of other options follow from it. Nor is how long clients wait.
bool IsOfOneReplica(const std::string& field) {
  for (const ReplayOption& option : ReplayOptions()) {
    if (field != option.name()) continue;
    return !option.setting->of_all() && option.section != kWorkloadGroup &&
           option.section != kReportGroup && option.section != kFleetGroup;
  }
  return false;
}

// Where the settings of a part begin: behind a colon that an option's name and "=" follow. Values
// may have colons themselves.
std::vector<std::string> SplitSettings(const std::string& text) {
  std::vector<std::string> settings;
  size_t begin = 0;
  for (size_t colon = text.find(':'); colon != std::string::npos;
       colon = text.find(':', colon + 1)) {
    const std::string rest = text.substr(colon + 1);
    const size_t equals = rest.find('=');
    if (equals == std::string::npos || !OptionField(rest.substr(0, equals)).ok()) continue;
    settings.push_back(text.substr(begin, colon - begin));
    begin = colon + 1;
  }
  settings.push_back(text.substr(begin));
  return settings;
}

// "2:device=h200:tensor-parallel=2".
absl::Status ParseKind(const std::string& part, ReplicaKind* kind) {
  std::string settings = part;
  const size_t colon = part.find(':');
  const std::string first = part.substr(0, colon);
  if (first.find_first_not_of("0123456789") == std::string::npos) {
    const auto most = static_cast<int64_t>(Fleet::kMostReplicas);
    if (!absl::SimpleAtoi(first, &kind->count) || kind->count < 1 || kind->count > most) {
      return absl::InvalidArgumentError(absl::StrCat("got ", first.empty() ? "nothing" : first,
                                                     " replicas, expected 1 to ", most));
    }
    settings = colon == std::string::npos ? "" : part.substr(colon + 1);
    if (settings.empty()) return absl::OkStatus();
  }
  for (const std::string& setting : SplitSettings(settings)) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("got \"", setting, "\", expected OPTION=VALUE, like device=h200"));
    }
    const std::string value = setting.substr(equals + 1);
    const auto field = OptionField(setting.substr(0, equals));
    if (!field.ok()) return field.status();
    if (!IsOfOneReplica(*field)) {
      return absl::InvalidArgumentError(absl::StrCat(
          FlagName(*field), ": got \"", value,
          "\", expected none here: all replicas have the same; "
          "what may differ are options of pool, scheduler, drafts, model, device and time"));
    }
    if (absl::Status status = SetOption(*field, value, &kind->given); !status.ok()) return status;
    absl::StrAppend(&kind->options, kind->options.empty() ? "" : " ", FlagName(*field).substr(2),
                    "=", value);
  }
  kind->config.MergeFrom(kind->given);
  return CheckOptionRanges(kind->config);
}

}  // namespace

absl::StatusOr<std::vector<ReplicaKind>> ReplicaKinds(const ReplayConfig& config) {
  if (config.replica().empty()) {
    const int64_t of_roles = config.prefill_replicas() + config.decode_replicas();
    return std::vector<ReplicaKind>{{.count = of_roles > 0 ? of_roles : config.replicas(),
                                     .config = config}};
  }
  std::vector<ReplicaKind> kinds;
  int64_t sum = 0;
  const std::vector<std::string> parts = absl::StrSplit(config.replica(), ';');
  for (size_t i = 0; i < parts.size(); ++i) {
    ReplicaKind kind = {.config = config};
    if (absl::Status status = ParseKind(parts[i], &kind); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--replica, part ", i + 1, " \"", parts[i], "\": ", status.message()));
    }
    sum += kind.count;
    kinds.push_back(std::move(kind));
  }
  if (sum > static_cast<int64_t>(Fleet::kMostReplicas)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--replica: got ", sum, " replicas, expected at most ", Fleet::kMostReplicas));
  }
  if (config.replicas() > 1 && config.replicas() != sum) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--replicas: got ", config.replicas(), ", expected ", sum, " as --replica lists, or none"));
  }
  return kinds;
}

}  // namespace kvblocks::sim
