#include "kvblocks/tests/property/comparison.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvblocks::property {
std::string HashNames::Add(const LiveRequest& request) {
  const auto hashes = request.real->content().hashes();
  const std::vector<std::string>& names = request.model.prefix_names;
  if (hashes.size() != names.size()) {
    return absl::StrCat("INV-29: ", hashes.size(), " hashes, expected ", names.size());
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const auto [by_hash, new_hash] = names_.emplace(hashes[i].words, names[i]);
    const auto [by_name, new_name] = hashes_.emplace(names[i], hashes[i].words);
    if (by_hash->second != names[i]) return "INV-29: different contents have equal hashes";
    if (by_name->second != hashes[i].words) return "INV-29: equal contents have different hashes";
  }
  return "";
}

std::string HashNames::NameOf(const BlockHash& hash) const {
  const auto it = names_.find(hash.words);
  return it == names_.end() ? "?" : it->second;
}

std::string Difference(const KvCacheManager& manager, const oracle::Manager& model,
                       const std::vector<LiveRequest>& requests, const HashNames& names) {
  const BlockPool& pool = manager.pool();
  const std::vector<BlockId> queue = pool.WalkFree();
  if (queue != model.pool().queue()) {
    return absl::StrCat("queue ", Show(queue), ", oracle ", Show(model.pool().queue()));
  }
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& real = pool.block(id);
    const oracle::Block& block = model.pool().blocks()[static_cast<size_t>(id)];
    if (pool.chunks() != nullptr && pool.chunks()->ClassOfPage(id) != model.pool().ClassOf(id)) {
      return absl::StrCat("block ", id, " is a page of class ", pool.chunks()->ClassOfPage(id),
                          ", oracle ", model.pool().ClassOf(id));
    }
    if (real.ref_count != block.ref_count || real.is_permanent != block.is_permanent) {
      return absl::StrCat("block ", id, " has ref ", real.ref_count, ", oracle ", block.ref_count);
    }
    if (real.has_key() != block.key.has_value()) {
      return absl::StrCat("block ", id, real.has_key() ? " has a" : " has no",
                          " key, unlike the oracle's");
    }
    if (pool.partial_tokens(id) != block.partial_tokens) {
      return absl::StrCat("block ", id, " has a key of ", pool.partial_tokens(id),
                          " tokens, oracle ", block.partial_tokens);
    }
    if (block.key &&
        (real.key_group != block.key->group || names.NameOf(pool.hash(id)) != block.key->prefix)) {
      return absl::StrCat("block ", id, " has another key than the oracle's");
    }
    std::vector<oracle::Key> further;
    for (const auto& [hash, group] : pool.further_keys(id)) {
      further.push_back({names.NameOf(hash), group});
    }
    if (further != block.further) {
      return absl::StrCat("block ", id, " has ", further.size(), " further keys, oracle ",
                          block.further.size(), ", or others");
    }
  }
  if (pool.num_keys() != static_cast<int64_t>(model.pool().table().size())) {
    return absl::StrCat(pool.num_keys(), " keys, oracle ", model.pool().table().size());
  }
  for (const auto& entry : model.pool().table()) {
    const auto& key = entry.first;  // no structured binding: clang 14 lets no lambda use one
    const auto& ids = entry.second;
    const BlockHash hash = names.HashOf(key.prefix);
    if (pool.FindCached(hash, key.group) != ids.front()) {
      return absl::StrCat("a key's first block is ", pool.FindCached(hash, key.group), ", oracle ",
                          ids.front());
    }
    // Of blocks that it is the first key of.
    std::vector<BlockId> first = ids;
    std::erase_if(first, [&](BlockId id) {
      return model.pool().blocks()[static_cast<size_t>(id)].key != key;
    });
    const auto all = pool.table().FindAll(hash, key.group);
    if (all != first) return absl::StrCat("a key has blocks ", Show(all), ", oracle ", Show(first));
  }
  for (const LiveRequest& request : requests) {
    if (manager.HoldsBlocks(*request.real) != request.model.is_known) {
      return absl::StrCat(request.real->id(), " holds blocks on one side only");
    }
    for (size_t g = 0; g < request.model.tables.size(); ++g) {
      const auto table = manager.GetBlocks(*request.real, static_cast<GroupId>(g));
      const std::vector<BlockId> real(table.begin(), table.end());
      if (real != request.model.tables[g].blocks) {
        return absl::StrCat("table ", g, " of ", request.real->id(), " is ", Show(real),
                            ", oracle ", Show(request.model.tables[g].blocks));
      }
    }
  }
  if (std::abs(manager.usage() - model.pool().usage()) > 1e-12) {
    return absl::StrCat("usage ", manager.usage(), ", oracle ", model.pool().usage());
  }
  return "";
}

std::vector<oracle::Event> Translate(const std::vector<KvEvent>& events, const HashNames& names) {
  using Kind = oracle::Event::Kind;
  std::vector<oracle::Event> result;
  for (const KvEvent& event : events) {
    oracle::Event out;
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      out.kind = Kind::kStored;
      out.group = stored->group_idx;
      for (const BlockHash& hash : stored->block_hashes) out.prefixes.push_back(names.NameOf(hash));
      if (stored->parent_block_hash) out.parent = names.NameOf(*stored->parent_block_hash);
      out.token_ids = stored->token_ids;
      out.block_size = stored->block_size;
      out.lora_name = stored->lora_name;
      for (const auto& keys : stored->extra_keys) {
        out.extra_keys.push_back(keys.value_or(ExtraKeys()));
      }
      if (stored->lookahead_token_ids) {
        for (const auto& tokens : *stored->lookahead_token_ids) {
          out.lookahead.emplace_back(tokens.begin(), tokens.end());
        }
      }
      out.spec_kind = std::string(stored->kv_cache_spec_kind);
      out.sliding_window = stored->kv_cache_spec_sliding_window;
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      out.kind = removed->reason == RemovalReason::kReused ? Kind::kReused : Kind::kEvicted;
      out.group = removed->group_idx;
      out.prefixes.push_back(names.NameOf(removed->block_hash));
    }
    result.push_back(std::move(out));
  }
  return result;
}

std::string EventMirror::Apply(const std::vector<KvEvent>& events, bool one_per_registration) {
  for (const KvEvent& event : events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      const auto size = static_cast<int64_t>(stored->block_hashes.size());
      const auto tokens = static_cast<int64_t>(stored->token_ids.size());
      const bool fits = one_per_registration
                            ? tokens >= std::max<int64_t>(size, 1) * stored->block_size
                            : size > 0 && tokens == size * stored->block_size;
      if (!fits || static_cast<int64_t>(stored->extra_keys.size()) != size ||
          stored->medium != kGpuMedium) {
        return "INV-25: the lengths of a BlockStored do not fit";
      }
      for (const BlockHash& hash : stored->block_hashes) {
        ++counts_[{hash.words, stored->group_idx}];
      }
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      const auto it = counts_.find({removed->block_hash.words, removed->group_idx});
      if (it == counts_.end()) return "INV-25: more blocks removed than stored";
      if (--it->second == 0) counts_.erase(it);
    } else {
      counts_.clear();
    }
  }
  return "";
}

std::string EventMirror::Difference(const BlockPool& pool) const {
  std::map<Key, int> counts;
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    if (pool.block(id).has_key()) ++counts[{pool.hash(id).words, pool.block(id).key_group}];
    for (const auto& [hash, group] : pool.further_keys(id)) ++counts[{hash.words, group}];
  }
  return counts == counts_ ? "" : "INV-25: the events do not add up to the table";
}

}  // namespace kvblocks::property
