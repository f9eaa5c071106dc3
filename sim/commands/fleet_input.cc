#include "kvblocks/sim/commands/fleet_input.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kvblocks/sim/cost/sim_time.h"
#include "kvblocks/sim/trace/decimal.h"

namespace kvblocks::sim {
namespace {

constexpr const char* kFleetGroup = "Several replicas";
constexpr uint32_t kAll = ~uint32_t{0};

constexpr uint32_t Of(RouterKind kind) { return uint32_t{1} << static_cast<uint32_t>(kind); }
constexpr uint32_t kScoring =
    Of(RouterKind::kPrefix) | Of(RouterKind::kPrefixApproximate) | Of(RouterKind::kOracle);

struct RouterOptionText {
  const char* name;
  const char* unit;
  const char* help;
  uint32_t routers;  // that look at it
};

// In the order of FleetInput::Option.
constexpr RouterOptionText kRouterOptions[] = {
    {.name = "--router", .unit = "NAME",
     .help = "round-robin, random, least-requests, least-tokens, two-choices, session, prefix, "
     "prefix-approximate or oracle [round-robin]",
     .routers = kAll},
    {.name = "--router-seed", .unit = "N",
     .help = "of what routers draw at random, and of lost events [0]",
     .routers = kScoring | Of(RouterKind::kRandom) | Of(RouterKind::kTwoChoices) | Of(RouterKind::kSession)},
    {.name = "--hit-weight", .unit = "W",
     .help = "of a block of the prompt that a replica holds [1]",
     .routers = kScoring},
    {.name = "--load-weight", .unit = "W",
     .help = "of a block of tokens that its requests have [1]",
     .routers = kScoring},
    {.name = "--queue-weight", .unit = "W",
     .help = "of a block of prompts that wait there [0]",
     .routers = kScoring},
    {.name = "--router-temperature", .unit = "BLOCKS",
     .help = "draw the replica, with odds e^(score / BLOCKS) [0: the best]",
     .routers = kScoring},
    {.name = "--session-factor", .unit = "F",
     .help = "a session leaves a replica with more than F times the mean number of requests; 0: never "
     "[1.25]",
     .routers = Of(RouterKind::kSession)},
    {.name = "--router-tree-blocks", .unit = "N",
     .help = "blocks that prefix-approximate remembers per replica [100000]",
     .routers = Of(RouterKind::kPrefixApproximate)},
    {.name = "--router-delay", .unit = "TIME",
     .help = "from a request's arrival until it is sent on [0s]",
     .routers = kAll},
    {.name = "--event-delay", .unit = "TIME",
     .help = "from a step's end until the router knows of its blocks [0s]",
     .routers = Of(RouterKind::kPrefix)},
    {.name = "--event-loss", .unit = "SHARE",
     .help = "of the replicas' event batches that never arrive [0]",
     .routers = Of(RouterKind::kPrefix)},
};

absl::Status BadOption(const char* name, const std::string& text, const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": got \"", text, "\", expected ", expected));
}

}  // namespace

void FleetInput::AddOptions(OptionParser* options) {
  options->Add({.name = "--replicas",
                .unit = "N",
                .help = "engines like this one behind a router [1]",
                .group = kFleetGroup},
               1, static_cast<int64_t>(Fleet::kMostReplicas), &num_replicas_);
  for (size_t i = 0; i < kNumOptions; ++i) {
    options->Add({.name = kRouterOptions[i].name,
                  .unit = kRouterOptions[i].unit,
                  .help = kRouterOptions[i].help,
                  .group = kFleetGroup},
                 &texts_[i]);
  }
  scale_.AddOptions(options, kFleetGroup);
}

absl::StatusOr<FleetOptions> FleetInput::Configure() const {
  FleetOptions options;
  RouterOptions& router = options.router;
  if (texts_[kRouter]) {
    const auto kind = ParseRouter(*texts_[kRouter]);
    if (!kind.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--router: ", kind.status().message()));
    }
    router.kind = *kind;
  }
  struct Number {
    Option option;
    int64_t* out;
    int exponent;  // of ten
    int64_t least, most;
    const char* expected;
  };
  int64_t seed = 0;
  constexpr int64_t kMostWeight = 1'000'000 * kMillion;
  constexpr const char* kWeight = "a number from 0 to 1000000 with at most 6 decimals";
  const Number numbers[] = {
      {kSeed, &seed, 0, 0, INT64_MAX, "a whole number of at least 0"},
      {kHitWeight, &router.hit_weight, 6, 0, kMostWeight, kWeight},
      {kLoadWeight, &router.load_weight, 6, 0, kMostWeight, kWeight},
      {kQueueWeight, &router.queue_weight, 6, 0, kMostWeight, kWeight},
      {kTemperature, &router.temperature, 6, 0, kMostWeight, kWeight},
      {kSessionFactor, &router.session_factor, 6, 0, kMostWeight,
       "0, or a number from 1 to 1000000 with at most 6 decimals"},
      {kTreeBlocks, &router.tree_blocks, 0, 1, int64_t{1} << 31, "a whole number from 1 to 2147483648"},
      {kEventLoss, &options.event_loss, 6, 0, kMillion,
       "a share from 0 to 1 with at most 6 decimals"},
  };
  for (size_t i = 0; i < kNumOptions; ++i) {
    if (!texts_[i]) continue;
    const RouterOptionText& option = kRouterOptions[i];
    if (!is_fleet()) {
      return absl::InvalidArgumentError(
          absl::StrCat(option.name, " needs --replicas of at least 2"));
    }
    if ((option.routers & Of(router.kind)) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(option.name, " means nothing to --router=",
                       std::string(RouterName(router.kind))));
    }
  }
  for (const Number& number : numbers) {
    if (!texts_[number.option]) continue;
    const std::string& text = *texts_[number.option];
    const auto value = ParseScaledDecimal(text, number.exponent);
    const bool is_below_mean = number.option == kSessionFactor && value.ok() && *value > 0 &&
                               *value < kMillion;
    if (!value.ok() || *value < number.least || *value > number.most || is_below_mean) {
      return BadOption(kRouterOptions[number.option].name, text, number.expected);
    }
    *number.out = *value;
  }
  router.seed = static_cast<uint64_t>(seed);
  for (const auto& [option, out] : {std::pair<Option, SimTime*>(kRouterDelay, &options.router_delay),
                                    {kEventDelay, &options.event_delay}}) {
    if (!texts_[option]) continue;
    const auto time = ParseDuration(*texts_[option]);
    if (!time.ok()) {
      return BadOption(kRouterOptions[option].name, *texts_[option], "a time with a unit, such as 5ms");
    }
    *out = *time;
  }
  auto scaling = scale_.Configure(num_replicas_);
  if (!scaling.ok()) return scaling.status();
  options.scaling = *std::move(scaling);
  options.num_live = static_cast<int32_t>(num_replicas_);
  return options;
}

}  // namespace kvblocks::sim
