#include "sim/curve/possible_pools.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sim/report/human_table.h"

namespace kvblocks::sim {

bool HasOnePass(const KvCacheConfig& config) {
  if (config.groups.size() != 1 || config.native) return false;
  const KvCacheSpecKind kind = config.groups[0].spec.kind();
  return kind == KvCacheSpecKind::kFullAttention || kind == KvCacheSpecKind::kMlaAttention;
}

OrderRunOptions OrderRunOptionsOf(const SimulationConfig& simulation) {
  OrderRunOptions run;
  run.blocks.block_tokens = simulation.kv_cache.groups[0].spec.block_size();
  run.blocks.hash_lookahead_tokens = simulation.manager.num_hash_lookahead_tokens;
  run.blocks.drops_last_hit = simulation.manager.use_eagle;
  run.blocks.max_model_len = simulation.manager.max_model_len;
  run.blocks.zero_output = simulation.zero_output;
  run.free_order = simulation.manager.free_order;
  return run;
}

PossiblePoolsObserver::PossiblePoolsObserver(const SimulationConfig& simulation,
                                             int64_t block_bytes, int64_t max_references)
    : block_bytes_(block_bytes), max_references_(max_references) {
  if (!simulation.manager.enable_caching) {
    not_known_ = "prefix caching is off";
  } else if (!HasOnePass(simulation.kv_cache)) {
    not_known_ =
        "windows, states or several groups decide together what is hit; kvsim curve replays sizes";
  } else {
    options_ = OrderRunOptionsOf(simulation);
  }
}

void PossiblePoolsObserver::OnRunStart(const RunInfo& info) {
  if (!not_known_.empty()) return;
  pass_.emplace(Pass{
      RequestBlocks(*info.trace, options_.blocks),
      OrderCurve(
          {.free_order = options_.free_order, .drops_last_hit = options_.blocks.drops_last_hit})});
}

void PossiblePoolsObserver::OnArrival(const SimRequest& request, SimTime) {
  if (!pass_) return;
  request_ = request.spec;
  CurveRequest blocks;
  if (!pass_->blocks.Make(request_, &blocks)) return;
  pass_->curve.Add(blocks);
  if (pass_->curve.sums().num_references <= max_references_) return;
  pass_.reset();
  not_known_ = absl::StrCat("more than ", WithThousands(max_references_),
                            " blocks to follow; kvsim curve does");
}

void PossiblePoolsObserver::Fill(::kvblocks::report::v1::PossiblePools* out) {
  constexpr double kGib = 1073741824.0;
  out->set_not_known(not_known_);
  if (!pass_) return;
  const int64_t smallest = pass_->curve.sums().smallest_pool;
  const HitCurve curve = pass_->curve.Finish();
  if (curve.max_hits() == 0) {
    out->set_not_known("no cache of any size could hit a block");
    return;
  }
  for (const int64_t percent : {50, 90, 99}) {
    auto* answer = out->add_answers();
    answer->set_share_of_possible(static_cast<double>(percent) / 100);
    const int64_t num_blocks =
        std::max(curve.SmallestPool((curve.max_hits() * percent + 99) / 100), smallest);
    answer->set_num_blocks(num_blocks);
    answer->set_gib(static_cast<double>(num_blocks) * static_cast<double>(block_bytes_) / kGib);
  }
}

}  // namespace kvblocks::sim
