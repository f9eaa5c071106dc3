#include "kvblocks/block_pool/eviction/eviction_policies.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/block_pool/eviction/arc_policy.h"
#include "kvblocks/block_pool/eviction/eviction_index.h"
#include "kvblocks/block_pool/eviction/hazard_policy.h"
#include "kvblocks/block_pool/eviction/retention_policies.h"
#include "kvblocks/checks/status_text.h"

namespace kvblocks {
namespace {

template <typename Policy>
std::unique_ptr<EvictionPolicy> Make(int32_t num_blocks, const CachedPrefixes&) {
  return std::make_unique<Policy>(num_blocks);
}

std::unique_ptr<EvictionPolicy> MakeHazard(int32_t num_blocks, const CachedPrefixes& prefixes) {
  return std::make_unique<HazardPolicy>(num_blocks, &prefixes);
}

std::unique_ptr<EvictionOrder> MakeIndex(const EvictionPolicyFactory& policy,
                                         std::vector<uint8_t> is_chained_group,
                                         const BlockRecords* records, int32_t most_retained) {
  return std::make_unique<EvictionIndex>(policy, std::move(is_chained_group), records,
                                         most_retained);
}

EvictionPolicyFactory WithIndex(EvictionPolicyFactory policy) {
  policy.make_order = MakeIndex;
  policy.order_bytes = EvictionIndex::BytesFor;
  return policy;
}

const std::array<EvictionPolicyFactory, 5>& Known() {
  static const auto* const known = new std::array<EvictionPolicyFactory, 5>{{
      WithIndex({.name = "arc", .make = Make<ArcPolicy>, .policy_bytes = ArcPolicy::BytesFor}),
      WithIndex({.name = "hazard",
                 .make = MakeHazard,
                 .may_follow_queue = true,
                 .policy_bytes = HazardPolicy::BytesFor}),
      WithIndex({.name = "lru"}),
      WithIndex({.name = "priority",
                 .make = Make<PriorityPolicy>,
                 .ranks_retained = true,
                 .policy_bytes = PriorityPolicy::BytesFor}),
      WithIndex({.name = "ttl",
                 .make = Make<TtlPolicy>,
                 .ranks_retained = true,
                 .policy_bytes = TtlPolicy::BytesFor}),
  }};
  return *known;
}

}  // namespace

EvictionPolicyFactory CustomEvictionPolicy(std::string name, EvictionPolicyFactory::Make make) {
  return WithIndex({.name = std::move(name), .make = std::move(make)});
}

absl::StatusOr<EvictionPolicyFactory> ParseEvictionPolicy(std::string_view name) {
  for (const EvictionPolicyFactory& factory : Known()) {
    if (factory.name == name) return factory;
  }
  return InvalidArgument("eviction_policy is \"", std::string(name), "\", expected ",
                         EvictionPolicyNames());
}

std::string EvictionPolicyNames(bool with_retention) {
  std::string names;
  for (const EvictionPolicyFactory& factory : Known()) {
    if (factory.ranks_retained && !with_retention) continue;
    absl::StrAppend(&names, names.empty() ? "" : "|", factory.name);
  }
  return names;
}

}  // namespace kvblocks
