// RetentionRules: what a server asks the block manager to keep when a request ends
// (KvCacheManager::Retain).
//
//   first:tokens=1024:priority=80,session:ttl=5min
//
// Each rule names a part of the request's tokens; all rules apply, in their order:
//   first    the first `tokens`: a system prompt whose length the operator knows
//   shared   leading blocks that at least `uses` requests used while they were cached
//   session  all tokens, if the request belongs to a session
//   all      all tokens
// With `priority` (1 to 100, 50) and `ttl` (a duration; for good).

#ifndef KVBLOCKS_SIM_ENGINE_RETENTION_RULES_H_
#define KVBLOCKS_SIM_ENGINE_RETENTION_RULES_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/cost/sim_time.h"

namespace kvblocks {
struct RetainParams;
}

namespace kvblocks::sim {

struct SimRequest;

struct RetentionRule {
  enum class Kind { kFirst, kShared, kSession, kAll };
  Kind kind = Kind::kAll;
  int64_t tokens = 0;  // of kFirst
  int64_t uses = 1;    // of kShared
  int32_t priority = 50;
  std::optional<SimTime> ttl = std::nullopt;

  friend bool operator==(const RetentionRule&, const RetentionRule&) = default;
};

// Empty for an empty text. InvalidArgument quotes the rule and says what is expected.
absl::StatusOr<std::vector<RetentionRule>> ParseRetentionRules(std::string_view text);

// What a rule asks for when this request ends; empty: nothing.
std::optional<RetainParams> ParamsOf(const RetentionRule& rule, const SimRequest& request);

}  // namespace kvblocks::sim

#endif  // KVBLOCKS_SIM_ENGINE_RETENTION_RULES_H_
