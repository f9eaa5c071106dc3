#include "tests/events/event_mirror.h"

#include <variant>

#include "absl/strings/str_cat.h"

namespace kvblocks::testing {
namespace {

std::string Name(const EventMirror::Key& key) {
  return absl::StrCat(BlockHash{key.first}.ToHex().substr(0, 16), " of group ", key.second);
}

}  // namespace

absl::Status EventMirror::Apply(std::span<const KvEvent> events,
                                const ParentMayBeMissing& may_be_missing) {
  for (const KvEvent& event : events) {
    if (std::holds_alternative<AllBlocksCleared>(event)) {
      counts_.clear();
      stored_.clear();
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      const Key key(removed->block_hash.words, removed->group_idx);
      const auto found = counts_.find(key);
      if (found == counts_.end()) {
        return absl::InternalError(absl::StrCat("removed but not stored: ", Name(key)));
      }
      if (--found->second == 0) counts_.erase(found);
    } else if (absl::Status status = ApplyStored(std::get<BlockStored>(event), may_be_missing);
               !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status EventMirror::ApplyStored(const BlockStored& stored,
                                      const ParentMayBeMissing& may_be_missing) {
  if (stored.block_hashes.empty()) return absl::InternalError("a stored event without blocks");
  if (stored.extra_keys.size() != stored.block_hashes.size()) {
    return absl::InternalError("not one entry of extra keys per block");
  }
  const size_t tokens = stored.block_hashes.size() * static_cast<size_t>(stored.block_size);
  if (!stored.token_ids.empty() && stored.token_ids.size() != tokens) {
    return absl::InternalError(
        absl::StrCat(stored.token_ids.size(), " token ids, expected ", tokens));
  }
  std::optional<Words> parent;
  if (stored.parent_block_hash) parent = stored.parent_block_hash->words;
  if (parent && stored_.count({*parent, stored.group_idx}) == 0 &&
      !(may_be_missing && may_be_missing(stored))) {
    return absl::InternalError(absl::StrCat(
        "stored before its parent: ", Name({stored.block_hashes.front().words, stored.group_idx})));
  }
  for (const BlockHash& hash : stored.block_hashes) {
    const Key key(hash.words, stored.group_idx);
    const auto [it, inserted] = parents_.try_emplace(key, parent);
    if (!inserted && it->second != parent) {
      return absl::InternalError(absl::StrCat("stored under two parents: ", Name(key)));
    }
    ++counts_[key];
    stored_.insert(key);
    parent = hash.words;
  }
  return absl::OkStatus();
}

absl::Status EventMirror::CompareWith(const BlockPool& pool) const {
  std::map<Key, int64_t> expected;
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& block = pool.block(id);
    if (block.has_key()) ++expected[{pool.hash(id).words, block.key_group}];
    for (const auto& [hash, group] : pool.further_keys(id)) ++expected[{hash.words, group}];
  }
  for (const auto& [key, count] : expected) {
    const auto found = counts_.find(key);
    if (found == counts_.end() || found->second != count) {
      return absl::InternalError(absl::StrCat(Name(key), ": the pool holds ", count,
                                              " blocks, the events say ",
                                              found == counts_.end() ? 0 : found->second));
    }
  }
  for (const auto& [key, count] : counts_) {
    if (expected.count(key) == 0) {
      return absl::InternalError(
          absl::StrCat(Name(key), ": the pool holds none, the events say ", count));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblocks::testing
