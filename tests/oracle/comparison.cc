#include "tests/oracle/comparison.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvblocks::oracle {
namespace {

// Whether the library finds the same blocks for a key of the block `id`.
bool FindsTheSame(const BlockPool& pool, const Pool& model, BlockId id, const BlockHash& hash,
                  GroupId group, const Key& key, const ContentNumbers& numbers) {
  return group == key.group && numbers.Of(hash) == numbers.Of(key.prefix) &&
         pool.FindCached(hash, group) == model.Find(key) && pool.HasKey(id, hash, group);
}

std::string KeyDifference(const BlockPool& pool, const Pool& model, BlockId id,
                          const ContentNumbers& numbers) {
  const KvCacheBlock& real = pool.block(id);
  const Block& block = model.blocks()[static_cast<size_t>(id)];
  if (real.has_key() != block.key.has_value()) return "has a key on one side only";
  if (pool.partial_tokens(id) != block.partial_tokens) {
    return absl::StrCat("has a key of ", pool.partial_tokens(id), " tokens, oracle ",
                        block.partial_tokens);
  }
  const auto further = pool.further_keys(id);
  if (further.size() != block.further.size()) {
    return absl::StrCat("has ", further.size(), " further keys, oracle ", block.further.size());
  }
  if (!block.key) return "";
  bool same = FindsTheSame(pool, model, id, pool.hash(id), real.key_group, *block.key, numbers);
  for (size_t i = 0; i < further.size(); ++i) {
    same = same && FindsTheSame(pool, model, id, further[i].hash, further[i].group,
                                block.further[i], numbers);
  }
  if (!same) return "has another key, or the key other blocks";
  std::vector<BlockId> holders = model.table().at(*block.key);
  if (!real.has_duplicates && holders.size() == 1) return "";
  // Of blocks that it is the first key of.
  std::erase_if(holders, [&](BlockId holder) {
    return model.blocks()[static_cast<size_t>(holder)].key != block.key;
  });
  const auto found = pool.table().FindAll(pool.hash(id), real.key_group);
  if (found == holders) return "";
  return absl::StrCat("has a key with blocks ", Show(found), ", oracle ", Show(holders));
}

}  // namespace

std::string Show(absl::Span<const BlockId> ids) {
  return absl::StrCat("[", absl::StrJoin(ids, ","), "]");
}

bool ContentNumbers::Add(absl::Span<const BlockHash> hashes,
                         const std::vector<std::string>& names) {
  if (hashes.size() != names.size()) return false;
  for (size_t i = 0; i < names.size(); ++i) {
    const int next = static_cast<int>(by_name_.size());
    const int by_name = by_name_.try_emplace(names[i], next).first->second;
    if (by_hash_.try_emplace(hashes[i].words[0], next).first->second != by_name) return false;
  }
  return true;
}

int ContentNumbers::Of(const BlockHash& hash) const {
  const auto it = by_hash_.find(hash.words[0]);
  return it == by_hash_.end() ? -1 : it->second;
}

int ContentNumbers::Of(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? -1 : it->second;
}

std::string PoolDifference(const BlockPool& pool, const Pool& model,
                           const ContentNumbers& numbers) {
  const std::vector<BlockId> queue = model.queue();
  if (pool.WalkFree() != queue) {
    return absl::StrCat("queue ", Show(pool.WalkFree()), ", oracle ", Show(queue));
  }
  int64_t live = 0, cached = 0, keyed = 0, pages = 0;
  for (BlockId id = 0; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& real = pool.block(id);
    const Block& block = model.blocks()[static_cast<size_t>(id)];
    if (id != kNullBlockId) {
      const int page_class = model.ClassOf(id);
      pages += page_class >= 0;
      if (pool.chunks() != nullptr && pool.chunks()->ClassOfPage(id) != page_class) {
        return absl::StrCat("block ", id, " is a page of class ", pool.chunks()->ClassOfPage(id),
                            ", oracle ", page_class);
      }
      if (real.ref_count != block.ref_count || real.is_permanent != block.is_permanent) {
        return absl::StrCat("block ", id, " has ref ", real.ref_count, ", oracle ",
                            block.ref_count);
      }
      live += !real.is_permanent && real.ref_count > 0;
    }
    if (std::string problem = KeyDifference(pool, model, id, numbers); !problem.empty()) {
      return absl::StrCat("block ", id, " ", problem);
    }
    keyed += real.has_key();
    cached += real.has_key() && real.ref_count == 0;
  }
  const struct {
    const char* what;
    int64_t real, expected;
  } counters[] = {
      {"free blocks", pool.num_free(), model.num_free()},
      {"live blocks", pool.num_live(), live},
      {"cached free blocks", pool.num_cached_unreferenced(), cached},
      {"blocks with a key", pool.num_keyed_blocks(), keyed},
      {"keys", pool.num_keys(), std::ssize(model.table())},
      {"evictions", pool.num_evictions(), model.num_evictions()},
      {"pages", pool.num_live() + pool.num_permanent() + pool.num_free(), pages},
  };
  for (const auto& [what, real, expected] : counters) {
    if (real != expected) return absl::StrCat(real, " ", what, ", oracle ", expected);
  }
  // With chunks a sum of fractions, in another order.
  if (std::abs(pool.usage() - model.usage()) > (model.is_native() ? 1e-12 : 0.0)) {
    return absl::StrCat("usage ", pool.usage(), ", oracle ", model.usage());
  }
  return "";
}

std::string TableDifference(const KvCacheManager& manager, const kvblocks::Request& real,
                            const Request& model) {
  if (manager.HoldsBlocks(real) != model.is_known) {
    return absl::StrCat(real.id(), " holds blocks on one side only");
  }
  for (size_t g = 0; g < model.tables.size(); ++g) {
    const auto table = manager.GetBlocks(real, static_cast<GroupId>(g));
    if (table == absl::MakeConstSpan(model.tables[g].blocks)) continue;
    return absl::StrCat("table ", g, " of ", real.id(), " is ", Show(table), ", oracle ",
                        Show(model.tables[g].blocks));
  }
  return "";
}

std::string EventDifference(const std::vector<KvEvent>& events, const std::vector<Event>& expected,
                            const ContentNumbers& numbers) {
  using Kind = Event::Kind;
  if (events.size() != expected.size()) {
    return absl::StrCat(events.size(), " events, oracle ", expected.size());
  }
  const auto is_same = [&](const BlockHash& hash, const std::string& name) {
    return numbers.Of(hash) == numbers.Of(name);
  };
  for (size_t i = 0; i < expected.size(); ++i) {
    const Event& want = expected[i];
    const char* problem = nullptr;
    if (const auto* stored = std::get_if<BlockStored>(&events[i])) {
      const size_t size = want.prefixes.size();
      if (want.kind != Kind::kStored || stored->group_idx != want.group ||
          stored->block_size != want.block_size || stored->token_ids != want.token_ids ||
          stored->lora_name != want.lora_name || stored->medium != kGpuMedium ||
          stored->kv_cache_spec_kind != want.spec_kind ||
          stored->kv_cache_spec_sliding_window != want.sliding_window) {
        problem = "stored event";
      } else if (stored->parent_block_hash.has_value() == want.parent.empty() ||
                 (!want.parent.empty() && !is_same(*stored->parent_block_hash, want.parent))) {
        problem = "parent of a stored event";
      } else if (stored->block_hashes.size() != size || stored->extra_keys.size() != size) {
        problem = "length of a stored event";
      } else if (stored->lookahead_token_ids.value_or(decltype(want.lookahead)()) !=
                 want.lookahead) {
        problem = "lookahead tokens of a stored event";
      }
      for (size_t k = 0; k < size && problem == nullptr; ++k) {
        if (!is_same(stored->block_hashes[k], want.prefixes[k]) ||
            stored->extra_keys[k].has_value() == want.extra_keys[k].empty() ||
            stored->extra_keys[k].value_or(ExtraKeys()) != want.extra_keys[k]) {
          problem = "block of a stored event";
        }
      }
    } else if (const auto* removed = std::get_if<BlockRemoved>(&events[i])) {
      const Kind kind = removed->reason == RemovalReason::kReused ? Kind::kReused : Kind::kEvicted;
      if (want.kind != kind || removed->group_idx != want.group || removed->medium != kGpuMedium ||
          !is_same(removed->block_hash, want.prefixes.at(0))) {
        problem = "removed event";
      }
    } else if (want.kind != Kind::kCleared) {
      problem = "kind of event";
    }
    if (problem != nullptr) return absl::StrCat("event ", i, ": ", problem);
  }
  return "";
}

std::string HitDifference(const ComputedBlocks& hits, const Hits& expected) {
  if (hits.num_tokens() != expected.tokens) {
    return absl::StrCat("hit of ", hits.num_tokens(), " tokens, oracle ", expected.tokens);
  }
  if (hits.num_replayed_tokens() != expected.replayed) {
    return absl::StrCat("replayed ", hits.num_replayed_tokens(), ", oracle ", expected.replayed);
  }
  if (hits.shared_prefix_boundary() != expected.boundary) {
    return absl::StrCat("shared prefix boundary ", hits.shared_prefix_boundary(), ", oracle ",
                        expected.boundary);
  }
  if (hits.num_groups() != expected.lists.size()) return "number of hit lists";
  for (size_t g = 0; g < expected.lists.size(); ++g) {
    const auto list = hits.blocks(static_cast<GroupId>(g));
    if (list == absl::MakeConstSpan(expected.lists[g])) continue;
    return absl::StrCat("hits ", Show(list), " in group ", g, ", oracle ", Show(expected.lists[g]));
  }
  return "";
}

std::string StatsDifference(const PrefixCacheStats& stats, const Stats& expected) {
  const bool same = stats.requests == expected.requests && stats.queries == expected.queries &&
                    stats.hits == expected.hits &&
                    stats.preempted_requests == expected.preempted_requests &&
                    stats.preempted_queries == expected.preempted_queries &&
                    stats.preempted_hits == expected.preempted_hits &&
                    stats.reset == expected.reset;
  return same ? "" : "statistics differ";
}

}  // namespace kvblocks::oracle
