// AllocateSlots on both sides of a Harness, and what must hold of each (INV-16 to INV-24).

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/property/harness.h"

namespace kvblocks::property {

oracle::Outcome Harness::Allocate(LiveRequest& request, oracle::AllocateParams params,
                                  const LiveRequest* from) {
  if (from != nullptr) params.hits = &from->model_hits;
  AllocateSlotsParams real;
  real.num_new_tokens = params.num_new;
  real.computed_blocks = from == nullptr ? nullptr : &from->real_hits;
  real.num_lookahead_tokens = params.num_lookahead;
  real.num_external_computed_tokens = params.num_external;
  real.delay_cache_blocks = params.delay;
  real.full_sequence_must_fit = params.gate;
  real.reserved_blocks = params.reserved;
  real.has_scheduled_requests = params.has_scheduled;
  real.num_encoder_tokens = params.num_encoder;

  const Snapshot before = Take(*manager_, requests_);
  const oracle::Request old_model = request.model;
  const int64_t hit_tokens = from == nullptr ? 0 : from->model_hits.tokens;
  // Nonsense is refused, so no slots need to be predicted for it.
  const auto sane = [](int64_t n) { return n >= 0 && n < (int64_t{1} << 40); };
  const bool predictable = sane(params.num_new) && sane(params.num_lookahead) &&
                           sane(params.num_external) && sane(request.model.num_computed);
  const int64_t total = predictable ? model_.TotalComputed(request.model, params) : 0;
  const bool is_stale = !request.model.is_known && !model_.HoldsHits(request.model, params);
  const int64_t slots = predictable ? std::min(total + params.num_new + params.num_lookahead,
                                               scenario_.options.max_model_len)
                                    : 0;
  std::vector<std::vector<BlockId>> expected;
  const int64_t need_before = predictable ? model_.Need(request.model, params, slots, false) : 0;
  const size_t copies_before = model_.copies().size();
  const oracle::Outcome outcome = model_.Allocate(request.model, params, &expected);
  const auto result = manager_->AllocateSlots(*request.real, real);
  Log(absl::StrCat("alloc ", request.real->id(), ": new ", params.num_new, ", hit ", hit_tokens,
                   from != nullptr && from != &request ? " of another" : "", ", lookahead ",
                   params.num_lookahead, ", external ", params.num_external, ", delay ",
                   params.delay, ", gate ", params.gate, ", reserved ", params.reserved,
                   ", scheduled ", params.has_scheduled, ", computed ", request.model.num_computed,
                   ", inflight ", request.model.num_inflight, ", tokens ",
                   request.model.content.num_tokens(), " -> ",
                   !result.ok()          ? "refused"
                   : result->has_value() ? "ok"
                                         : "no space"));
  Expect(result.ok() == (outcome != oracle::Outcome::kInvalid),
         absl::StrCat("refused on one side: ", result.status().ToString()));
  if (!result.ok()) {
    Expect(absl::IsInvalidArgument(result.status()), result.status().ToString());
    Expect(before == Take(*manager_, requests_), "INV-17: a refused call changed something");
    return outcome;
  }
  Expect(result->has_value() == (outcome == oracle::Outcome::kOk), "no space on one side");
  counts_.no_space += !result->has_value();
  has_stale_tables_ = has_stale_tables_ || (is_stale && result->has_value());
  if (old_model.is_known || result->has_value()) {
    const int64_t processed = std::max<int64_t>(0, total - request.model.num_inflight);
    const int64_t counted = old_model.is_known ? processed : total;
    const bool trimmed = !params.gate || outcome == oracle::Outcome::kOk ||
                         Take(*manager_, requests_).tables != before.tables;
    if (trimmed) request.max_processed = std::max(request.max_processed, counted);
  }
  if (result->has_value()) {
    const NewBlocks& blocks = **result;
    Expect(blocks.num_groups() == expected.size(), "number of groups in the result");
    int64_t sum = 0;
    for (size_t g = 0; g < expected.size(); ++g) {
      const auto got = blocks.blocks(static_cast<GroupId>(g));
      Expect(std::equal(got.begin(), got.end(), expected[g].begin(), expected[g].end()),
             absl::StrCat("new blocks of group ", g));
      sum += static_cast<int64_t>(got.size());
    }
    Expect(blocks.num_blocks() == sum, "NewBlocks::num_blocks");
    request.max_slots = std::max(request.max_slots, slots);
    if (request.model.status != oracle::Status::kFinished) {
      request.SetStatus(oracle::Status::kRunning);
    }
  }
  const size_t num_copies = model_.copies().size() - copies_before;
  (old_model.is_known ? counts_.state_copies : counts_.hit_copies) +=
      static_cast<int64_t>(num_copies);
  if (result->has_value()) {
    counts_.hits += !old_model.is_known && hit_tokens > 0;
    CheckCheckpoints(request);
  }
  if (!has_stale_tables_) CheckAllocation(request, params, before, need_before, num_copies);
  return outcome;
}

// What a step exports on its way, and how much of a sequence a ring holds.
void Harness::CheckCheckpoints(const LiveRequest& request) {
  for (size_t g = 0; g < model_.groups().size(); ++g) {
    const oracle::GroupTable& table = request.model.tables[g];
    const int64_t rows = model_.groups()[g].block_size();
    counts_.short_tables += model_.groups()[g].is_ring() && request.max_slots > rows;
    counts_.checkpoints += table.checkpoint > 0;
    const auto real = manager_->GetStateCheckpoint(*request.real, static_cast<GroupId>(g));
    Expect(real.has_value() == (table.checkpoint > 0), "a checkpoint on one side only");
    if (!real) continue;
    const auto column = static_cast<size_t>(oracle::CeilDiv(table.checkpoint, rows) - 1);
    Expect(real->num_tokens == table.checkpoint && real->block == table.blocks[column],
           absl::StrCat("checkpoint of ", real->num_tokens, " tokens in block ", real->block,
                        ", oracle ", table.checkpoint, " in ", table.blocks[column]));
  }
}

void Harness::CheckAllocation(const LiveRequest& request, const oracle::AllocateParams& params,
                              const Snapshot& before, int64_t need, size_t num_copies) {
  const Snapshot after = Take(*manager_, requests_);
  const size_t index = static_cast<size_t>(&request - requests_.data());
  const bool ok = request.model.is_known && !(after == before) &&
                  (after.refs != before.refs || after.tables != before.tables);
  int64_t trimmed = 0;
  if (before.holds[index]) {
    ExpectEmpty(BrokenTableInvariant(*manager_, before.tables[index], after.tables[index]));
    for (size_t g = 0; g < before.tables[index].size(); ++g) {
      for (size_t i = 0; i < before.tables[index][g].size(); ++i) {
        const BlockId id = before.tables[index][g][i];
        const std::vector<BlockId>& now = after.tables[index][g];
        const oracle::GroupRules& rules = model_.groups()[g];
        const bool moved =
            rules.is_mamba() && static_cast<int64_t>(i) + rules.num_scratch() >=
                                    static_cast<int64_t>(before.tables[index][g].size());
        const bool given_back = id != kNullBlockId && now[i] == kNullBlockId && !moved;
        trimmed += given_back && before.refs[static_cast<size_t>(id)] == 1;
        counts_.old_outputs += given_back && rules.spec.output_window();
      }
    }
  }
  for (size_t i = 0; i < requests_.size(); ++i) {
    Expect(i == index || before.tables[i] == after.tables[i], "INV-17: another table changed");
  }
  const bool grew = after.holds[index] && after.tables[index] != before.tables[index];
  const bool took = after.num_free() < before.num_free() + trimmed || (ok && grew);
  if (!took && trimmed == 0) return;
  if (after.num_free() == before.num_free() + trimmed && need > 0) {  // no space
    for (size_t b = 0; b < after.refs.size(); ++b) {
      Expect(after.refs[b] <= before.refs[b], "INV-17: a reference rose without success");
    }
    Expect(after.key_groups == before.key_groups, "INV-17: keys changed without success");
    return;
  }
  Expect(before.num_free() + trimmed - after.num_free() == need,
         absl::StrCat("INV-16: ", need, " blocks predicted, ", before.num_free() + trimmed,
                      " free became ", after.num_free()));
  for (size_t g = 0; g < after.tables[index].size(); ++g) {
    const oracle::GroupRules& rules = model_.groups()[g];
    const int64_t size = static_cast<int64_t>(after.tables[index][g].size());
    const int64_t old_size = static_cast<int64_t>(before.tables[index][g].size());
    const bool has_own_layout = rules.has_own_layout();
    Expect(size >= std::max(old_size, has_own_layout
                                          ? 0
                                          : oracle::CeilDiv(request.max_slots, rules.block_size())),
           "INV-18: a table is too short");
    int64_t span = request.max_slots - request.max_processed;
    const int64_t real = request.model.tables[g].num_real();
    std::optional<int64_t> cap = rules.admission_cap;
    // Hits and external tokens come with all their output; later steps give back what is old of it.
    if (rules.output_cap && before.holds[index]) {
      span = request.max_slots - (request.model.num_computed - request.model.num_inflight);
      cap = oracle::CeilDiv(request.model.num_prompt, rules.block_size()) + *rules.output_cap;
    }
    Expect(!cap || span > *scenario_.options.max_in_flight_tokens || real <= *cap,
           absl::StrCat("INV-24: ", real, " real blocks in group ", g));
  }
  // INV-22: without a trim, and except for adopted hits, blocks come off the front of the queue.
  // (Pages in chunks do not always: the oracle says which.)
  if (trimmed > 0 || params.num_external > 0 || !before.page_classes.empty()) return;
  std::vector<BlockId> taken;
  std::vector<BlockId> adopted;
  for (size_t g = 0; g < after.tables[index].size(); ++g) {
    const std::vector<BlockId>& table = after.tables[index][g];
    size_t first_new = before.holds[index] ? before.tables[index][g].size()
                       : params.hits && g < params.hits->lists.size() ? params.hits->lists[g].size()
                                                                      : 0;
    // The copy of the hit's end, which a group takes before all others (V-117).
    BlockId copied = kNullBlockId;
    if (!before.holds[index] && first_new > 0 && table[first_new - 1] != kNullBlockId &&
        table[first_new - 1] != params.hits->lists[g].back()) {
      copied = table[--first_new];
      taken.push_back(copied);
      adopted.push_back(params.hits->lists[g].back());  // the source
    }
    for (size_t i = 0; i < table.size(); ++i) {
      if (table[i] == kNullBlockId || table[i] == copied) continue;
      // Scratch blocks of states move to the end of their table, and what a step exports may stand
      // where one was.
      const bool was_held = before.holds[index] ? before.refs[static_cast<size_t>(table[i])] > 0
                                                : i < first_new;
      (was_held ? adopted : taken).push_back(table[i]);
    }
  }
  // Blocks that take over a registered state are in no table.
  if (before.holds[index] && num_copies > 0) return;
  std::vector<BlockId> queue;
  for (BlockId id : before.queue) {
    if (before.holds[index] || std::find(adopted.begin(), adopted.end(), id) == adopted.end()) {
      queue.push_back(id);
    }
  }
  Expect(taken.size() <= queue.size() && std::equal(taken.begin(), taken.end(), queue.begin()),
         "INV-22: blocks were not taken from the front of the queue");
}

}  // namespace kvblocks::property
