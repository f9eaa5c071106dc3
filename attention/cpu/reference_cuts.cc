#include "attention/cpu/reference_cuts.h"

#include "checks/ceil_div.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention {
std::vector<int64_t> CutsOf(const SplitPolicy& policy, int64_t kv_len, int64_t block_size) {
  int64_t step = 0;
  if (policy.kind == SplitPolicy::Kind::kFixed) step = policy.value;
  if (policy.kind == SplitPolicy::Kind::kCount && policy.value > 0) {
    step = CeilDiv(CeilDiv(kv_len, block_size), policy.value) * block_size;
  }
  std::vector<int64_t> cuts;
  if (step <= 0) return cuts;
  for (int64_t cut = step; cut < kv_len; cut += step) cuts.push_back(cut);
  return cuts;
}

std::vector<int64_t> CutsOf(const SplitPlan& plan, int64_t request, int64_t kv_len) {
  const int64_t first_key = FirstKey(kv_len, plan.type);
  std::vector<int64_t> cuts;
  // The first piece begins where the request's visible keys do, which is no cut.
  for (int64_t n = plan.split_offsets[request] + 1; n < plan.split_offsets[request + 1]; ++n) {
    const int64_t cut = first_key + plan.ranges[n].begin_tile * plan.tile;
    if (cut < kv_len) cuts.push_back(cut);
  }
  return cuts;
}

std::vector<int64_t> CutsAt(int64_t position, int64_t kv_len) {
  if (position <= 0 || position >= kv_len) return {};
  return {position};
}

}  // namespace kvblocks::attention
