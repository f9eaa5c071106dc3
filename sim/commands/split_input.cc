#include "kvblocks/sim/commands/split_input.h"

#include <initializer_list>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/commands/option_table.h"
#include "kvblocks/sim/cost/sim_time.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kSplitGroup = "Prefill and decode replicas";
constexpr const char* kRouters =
    "round-robin|random|least-requests|least-tokens|two-choices|session|prefix|prefix-approximate|oracle";
constexpr int64_t kMostGigabytes = 1'000'000;

struct SplitOptionText {
  const char* name;
  const char* unit;
  const char* help;
};

// In the order of SplitInput::Option.
constexpr SplitOptionText kSplitOptions[] = {
    {.name = "--prefill-router",
     .unit = kRouters,
     .help = "as --router, with its weights at their defaults [least-tokens]"},
    {.name = "--decode-router", .unit = kRouters, .help = "likewise [least-tokens]"},
    {.name = "--first-token",
     .unit = "prefill|decode",
     .help = "whose token the client gets first [prefill]"},
    {.name = "--link-bandwidth",
     .unit = "GB/S",
     .help = "10^9 bytes per second, of each device's link [50]"},
    {.name = "--link-latency", .unit = "TIME", .help = "of each transfer, beside its bytes [0s]"},
    {.name = "--link-sharing",
     .unit = "equal|fifo",
     .help = "transfers get equal parts, or go one after the other [equal]"},
    {.name = "--link-scope",
     .unit = "shared|decode",
     .help = "one link for all transfers, or one into each decode replica [shared]"},
    {.name = "--transfer",
     .unit = "missing|all",
     .help = "what travels: what the decode replica lacks, or the whole prompt [missing]"},
    {.name = "--local-tokens",
     .unit = "N",
     .help = "prompts of which the decode replica lacks at most so many tokens are computed there [0]"},
};

template <typename Value>
absl::Status SetChoice(const SplitOptionText& option, const std::optional<std::string>& text,
                       std::initializer_list<std::pair<const char*, Value>> choices, Value* out) {
  if (!text) return absl::OkStatus();
  std::string expected;
  for (const auto& [name, value] : choices) {
    if (*text == name) {
      *out = value;
      return absl::OkStatus();
    }
    absl::StrAppend(&expected, expected.empty() ? "one of " : ", ", name);
  }
  return BadOption(option.name, *text, expected);
}

absl::Status SetNumber(const SplitOptionText& option, const std::optional<std::string>& text,
                       int64_t low, int64_t high, int64_t* out) {
  if (!text) return absl::OkStatus();
  int64_t number;
  if (!absl::SimpleAtoi(*text, &number) || number < low || number > high) {
    return BadOption(option.name, *text, absl::StrCat("a whole number from ", low, " to ", high));
  }
  *out = number;
  return absl::OkStatus();
}

absl::Status SetRouter(const SplitOptionText& option, const std::optional<std::string>& text,
                       RouterKind* kind) {
  return SetChoice<RouterKind>(option, text,
                               {{"round-robin", RouterKind::kRoundRobin},
                                {"random", RouterKind::kRandom},
                                {"least-requests", RouterKind::kLeastRequests},
                                {"least-tokens", RouterKind::kLeastTokens},
                                {"two-choices", RouterKind::kTwoChoices},
                                {"session", RouterKind::kSession},
                                {"prefix", RouterKind::kPrefix},
                                {"prefix-approximate", RouterKind::kPrefixApproximate},
                                {"oracle", RouterKind::kOracle}},
                               kind);
}

}  // namespace

void SplitInput::AddOptions(OptionParser* options, bool with_replicas) {
  if (with_replicas) {
    const auto most = static_cast<int64_t>(SplitFleet::kMostReplicas);
    options->Add({.name = "--prefill-replicas",
                  .unit = "P",
                  .help = "engines that compute prompts; with --decode-replicas",
                  .group = kSplitGroup,
                  .needs = "--decode-replicas"},
                 1, most, &num_prefill_);
    options->Add({.name = "--decode-replicas",
                  .unit = "D",
                  .help = "engines that decode what these computed",
                  .group = kSplitGroup,
                  .needs = "--prefill-replicas"},
                 1, most, &num_decode_);
  }
  for (size_t i = 0; i < kNumOptions; ++i) {
    options->Add({.name = kSplitOptions[i].name,
                  .unit = kSplitOptions[i].unit,
                  .help = kSplitOptions[i].help,
                  .group = kSplitGroup,
                  .needs = with_replicas ? "--prefill-replicas" : "--split-replicas"},
                 &texts_[i]);
  }
}

absl::StatusOr<SplitPlan> SplitInput::Configure(const ReplaySetup& setup) const {
  SplitPlan plan{.num_prefill = num_prefill_, .num_decode = num_decode_, .options = {}};
  SplitOptions& options = plan.options;
  int64_t gigabytes = 50;
  for (const absl::Status& status :
       {SetRouter(kSplitOptions[kPrefillRouter], texts_[kPrefillRouter], &options.prefill_router.kind),
        SetRouter(kSplitOptions[kDecodeRouter], texts_[kDecodeRouter], &options.decode_router.kind),
        SetChoice<FirstToken>(kSplitOptions[kFirstToken], texts_[kFirstToken],
                              {{"prefill", FirstToken::kPrefill}, {"decode", FirstToken::kDecode}},
                              &options.first_token),
        SetNumber(kSplitOptions[kLinkBandwidth], texts_[kLinkBandwidth], 1, kMostGigabytes, &gigabytes),
        SetChoice<LinkSharing>(kSplitOptions[kLinkSharing], texts_[kLinkSharing],
                               {{"equal", LinkSharing::kEqualParts}, {"fifo", LinkSharing::kFifo}},
                               &options.link.sharing),
        SetChoice<LinkScope>(
            kSplitOptions[kLinkScope], texts_[kLinkScope],
            {{"shared", LinkScope::kShared}, {"decode", LinkScope::kPerDecodeReplica}}, &options.scope),
        SetChoice<bool>(kSplitOptions[kTransfer], texts_[kTransfer], {{"missing", false}, {"all", true}},
                        &options.charges_hits),
        SetNumber(kSplitOptions[kLocalTokens], texts_[kLocalTokens], 0, int64_t{1} << 40,
                  &options.max_local_tokens)}) {
    if (!status.ok()) return status;
  }
  if (const auto& text = texts_[kLinkLatency]) {
    const auto time = ParseDuration(*text);
    if (!time.ok()) {
      return BadOption(kSplitOptions[kLinkLatency].name, *text, "a time with a unit, such as 5ms");
    }
    options.link.latency = *time;
  }
  if (setup.block_bytes == 0) {
    return absl::InvalidArgumentError(
        "the native layout has no blocks of one size to transfer; choose another --layout");
  }
  const auto& groups = setup.simulation.kv_cache.groups;
  for (const KvCacheGroup& group : groups) {
    if (group.spec.kind() != KvCacheSpecKind::kCrossAttention) continue;
    return absl::InvalidArgumentError(
        "--prefill-replicas and --decode-replicas: got groups of cross attention, expected none: what "
        "encoders made is not transferred");
  }
  options.bytes_per_token = setup.block_bytes / groups.front().spec.block_size();
  options.link.bytes_per_second = gigabytes * 1'000'000'000;
  return plan;
}

}  // namespace kvblocks::sim
