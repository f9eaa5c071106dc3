#include "sim/tiers/tier_text.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "checks/status_macros.h"
#include "kvblocks/check.h"
#include "sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

constexpr char kSettings[] =
    "read=SPEED, write=SPEED, latency=TIME, fifo, chunk=BLOCKS, policy=NAME, store=NAME, "
    "layout=NAME, total, exclusive, prompt-only or shared";

absl::Status Bad(const std::string& tier, const std::string& what) {
  return InvalidArgument("tier: got \"", tier, "\", expected ", what);
}

std::optional<int64_t> ReadBytes(absl::string_view text) {
  const auto bytes = ParseBytes(std::string_view(text.data(), text.size()));
  return bytes && *bytes <= Link::kMaxBytes ? bytes : std::nullopt;
}

std::optional<int64_t> ReadCount(absl::string_view text, int64_t most) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > most) return std::nullopt;
  return value;
}

struct Speed {
  std::optional<int64_t> bytes_per_second;  // empty: free
};
std::optional<Speed> ReadSpeed(absl::string_view text) {
  if (text == "free") return Speed{};
  if (!absl::ConsumeSuffix(&text, "/s")) return std::nullopt;
  const auto bytes = ReadBytes(text);
  if (!bytes || *bytes > 1'000'000'000'000'000) return std::nullopt;
  return Speed{bytes};
}

// A status of a setting whose value is one of a list.
template <typename Parsed, typename Value>
absl::Status Take(const std::string& tier, const absl::StatusOr<Parsed>& parsed, Value* out) {
  if (!parsed.ok()) return InvalidArgument("tier: in \"", tier, "\", ", parsed.status().message());
  *out = *parsed;
  return absl::OkStatus();
}

struct Draft {
  SimTier tier;
  std::optional<Speed> read, write;
  SimTime latency = 0;
  LinkSharing sharing = LinkSharing::kEqualParts;
  bool is_total = false;
};

absl::Status TakeSetting(const std::string& text, const std::string& setting, Draft* draft) {
  const std::pair<std::string, std::string> field =
      absl::StrSplit(setting, absl::MaxSplits('=', 1));
  const auto& [name, value] = field;
  offload::TierOptions& options = draft->tier.options;
  if (name == "read" || name == "write") {
    const auto speed = ReadSpeed(value);
    if (!speed) return Bad(text, absl::StrCat(name, "=SPEED as 50GB/s, at most 1000TB/s, or free"));
    (name == "read" ? draft->read : draft->write) = *speed;
  } else if (name == "latency") {
    const auto latency = ParseDuration(value);
    if (!latency.ok() || *latency < 0 || *latency > 3600 * kSecond) {
      return Bad(text, "latency=TIME of at most 1h, as latency=10us");
    }
    draft->latency = *latency;
  } else if (name == "chunk") {
    const auto count = ReadCount(value, 1 << 20);
    if (!count) return Bad(text, "chunk=1 to 1048576");
    options.blocks_per_chunk = *count;
  } else if (name == "policy") {
    return Take(text, offload::ParseTierPolicy(value), &options.policy);
  } else if (name == "store") {
    return Take(text, offload::ParseWritePolicy(value), &options.write_policy);
  } else if (name == "layout") {
    return Take(text, offload::ParseSlotLayout(value), &options.layout);
  } else if (setting == "fifo") {
    draft->sharing = LinkSharing::kFifo;
  } else if (setting == "total") {
    draft->is_total = true;
  } else if (setting == "exclusive") {
    options.exclusive = true;
  } else if (setting == "prompt-only") {
    options.prompt_only = true;
  } else if (setting == "shared") {
    draft->tier.is_shared = true;
  } else {
    return Bad(text, absl::StrCat(kSettings, " instead of \"", setting, "\""));
  }
  return absl::OkStatus();
}

absl::StatusOr<SimTier> ParseTier(const std::string& text, int64_t num_devices) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() < 2 || parts[0].empty()) {
    return Bad(text, absl::StrCat("NAME:SIZE:read=SPEED, then ", kSettings));
  }
  Draft draft;
  offload::TierOptions& options = draft.tier.options;
  options.name = parts[0];
  absl::string_view size = parts[1];
  if (absl::ConsumeSuffix(&size, "chunks")) {
    const auto count = ReadCount(size, offload::kMostSlots);
    if (!count) return Bad(text, absl::StrCat("1 to ", offload::kMostSlots, " chunks"));
    options.capacity_slots = *count;
  } else {
    const auto bytes = ReadBytes(size);
    if (!bytes) return Bad(text, "a size as 64GiB, 500GB or 1000chunks behind the name");
    options.capacity_bytes = *bytes;
  }
  for (size_t i = 2; i < parts.size(); ++i) {
    KVBLOCKS_RETURN_IF_ERROR(TakeSetting(text, parts[i], &draft));
  }
  if (!draft.read) return Bad(text, "read=SPEED in it, as read=50GB/s or read=free");
  if (!draft.write) draft.write = draft.read;
  if (draft.is_total) {
    options.capacity_bytes /= num_devices;
    for (Speed* speed : {&*draft.read, &*draft.write}) {
      if (speed->bytes_per_second) {
        speed->bytes_per_second = std::max<int64_t>(1, *speed->bytes_per_second / num_devices);
      }
    }
  }
  if (draft.read->bytes_per_second) {
    draft.tier.read = {*draft.read->bytes_per_second, draft.latency, draft.sharing};
  }
  if (draft.write->bytes_per_second) {
    draft.tier.write = {*draft.write->bytes_per_second, draft.latency, draft.sharing};
  }
  return draft.tier;
}

}  // namespace

absl::StatusOr<std::vector<SimTier>> ParseTiers(std::string_view text, int64_t num_devices) {
  std::vector<SimTier> tiers;
  if (text.empty()) return tiers;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    KVBLOCKS_ASSIGN_OR_RETURN(auto tier, ParseTier(part, num_devices));
    if (!tier.is_shared && !tiers.empty() && tiers.back().is_shared) {
      return Bad(part, absl::StrCat("shared in it, as \"", tiers.back().options.name,
                                    "\" before it is"));
    }
    tiers.push_back(std::move(tier));
  }
  return tiers;
}

}  // namespace kvblocks::sim
