// KvCacheManager::CheckInvariants: tables, lists outside of them and the pool must agree.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kvblocks/checks/status_text.h"
#include "kvblocks/managers/kv_cache_manager.h"

namespace kvblocks {
namespace {

// How many blocks with wrong reference counts a message names.
constexpr size_t kMostNamed = 20;

std::string Place(const Request& request, GroupId group, int64_t position) {
  return absl::StrCat("request ", request.id(), ", group ", group, ", position ", position);
}

}  // namespace

absl::Status KvCacheManager::CheckInvariants() const {
  if (absl::Status status = pool_->CheckInvariants(); !status.ok()) return status;
  // References as the tables and the lists outside them add up, and the group whose tables use a
  // block.
  std::vector<int64_t> references(static_cast<size_t>(pool_->num_blocks()), 0);
  std::vector<GroupId> used_by(static_cast<size_t>(pool_->num_blocks()), -1);
  for (const Request* request : holders_) {
    for (GroupId g = 0; g < num_groups(); ++g) {
      if (absl::Status status = CheckTable(*request, g, references, used_by); !status.ok()) {
        return status;
      }
    }
    if (request->quiet_slots_ > QuietSlots(*request)) {
      return BrokenInvariant("request ", request->id(), ": ", request->quiet_slots_,
                             " slots count as quiet, expected at most ", QuietSlots(*request));
    }
  }
  for (const auto& [id, count] : outside_references_) references[static_cast<size_t>(id)] += count;
  for (const BlockCopy& copy : copies_) {
    ++references[static_cast<size_t>(copy.source)];
    ++references[static_cast<size_t>(copy.target)];
  }
  return CheckReferences(references);
}

absl::Status KvCacheManager::CheckTable(const Request& request, GroupId g,
                                        std::vector<int64_t>& references,
                                        std::vector<GroupId>& used_by) const {
  const GroupBlocks& held = request.groups_[static_cast<size_t>(g)];
  const auto wrong = [&](int64_t position, const std::string& what) {
    return BrokenInvariant(Place(request, g, position), ": ", what);
  };
  const int64_t size = static_cast<int64_t>(held.table.size());
  const int64_t first_output =
      BlockSize(group(g).block_size()).CeilDiv(request.num_prompt_tokens_);
  if (held.num_leading_nulls > size || held.num_cached > size ||
      (held.num_output_nulls > 0 && first_output + held.num_output_nulls > size)) {
    return wrong(size,
                 absl::StrCat("the table has ", size, " blocks but counts ", held.num_leading_nulls,
                              " nulls, ", held.num_output_nulls, " nulls behind the prompt and ",
                              held.num_cached, " registered"));
  }
  for (int64_t i = 0; i < size; ++i) {
    const BlockId id = held.table[static_cast<size_t>(i)];
    const bool is_skipped = i < held.num_leading_nulls ||
                            (i >= first_output && i < first_output + held.num_output_nulls);
    const bool may_be_null = group(g).spec().kind() == KvCacheSpecKind::kMamba;
    if ((id == kNullBlockId) != is_skipped &&
        !(id == kNullBlockId && may_be_null)) {
      return wrong(i,
                   absl::StrCat("block ", id, " but ", held.num_leading_nulls, " leading nulls",
                                held.num_output_nulls == 0
                                    ? std::string()
                                    : absl::StrCat(" and ", held.num_output_nulls,
                                                   " behind the prompt")));
    }
    if (id == kNullBlockId) continue;
    const KvCacheBlock& block = pool_->block(id);
    if (pool_->chunks() != nullptr &&
        pool_->chunks()->ClassOfPage(id) != pool_->chunks()->ClassOfGroup(g)) {
      return wrong(i, absl::StrCat("block ", id, " is no page of the group's class"));
    }
    if (block.is_permanent) return wrong(i, absl::StrCat("block ", id, " is permanent"));
    ++references[static_cast<size_t>(id)];
    GroupId& user = used_by[static_cast<size_t>(id)];
    if (user != -1 && user != g) {
      return wrong(i, absl::StrCat("block ", id, " is used by group ", user, ", too"));
    }
    user = g;
    if (!block.has_key()) continue;
    if (block.key_group != g) {
      return wrong(i, absl::StrCat("block ", id, " has a key of group ", block.key_group));
    }
    const int64_t block_size = group(g).block_size();
    const int64_t partial = pool_->partial_tokens(id);
    const int64_t covered = partial > 0 ? partial : (i + 1) * block_size;
    const bool has_hash = covered > i * block_size && covered <= (i + 1) * block_size &&
                          covered <= request.content_.num_hashed_tokens();
    if (!has_hash ||
        !(pool_->hash(id) == request.content_.HashOfBlock(covered / hash_block_size() - 1, 1))) {
      return wrong(i, absl::StrCat("block ", id, " has the key of another content"));
    }
  }
  return absl::OkStatus();
}

absl::Status KvCacheManager::CheckReferences(const std::vector<int64_t>& references) const {
  std::vector<BlockId> wrong;
  for (BlockId id = 1; id < pool_->num_blocks(); ++id) {
    const KvCacheBlock& block = pool_->block(id);
    const int64_t expected = references[static_cast<size_t>(id)] + (block.is_permanent ? 1 : 0);
    if (block.ref_count != expected) wrong.push_back(id);
  }
  if (wrong.empty()) return absl::OkStatus();
  std::string text;
  for (size_t i = 0; i < std::min(wrong.size(), kMostNamed); ++i) {
    const BlockId id = wrong[i];
    absl::StrAppend(&text, i == 0 ? "" : "; ", "block ", id, " counts ", pool_->block(id).ref_count,
                    " references, tables and lists hold ", references[static_cast<size_t>(id)],
                    " (", HoldersOf(id), ")");
  }
  if (wrong.size() > kMostNamed) {
    absl::StrAppend(&text, "; and ", wrong.size() - kMostNamed, " more");
  }
  return BrokenInvariant(text);
}

std::string KvCacheManager::HoldersOf(BlockId id) const {
  std::string text;
  for (const Request* request : holders_) {
    for (GroupId g = 0; g < num_groups(); ++g) {
      const std::vector<BlockId>& table = request->groups_[static_cast<size_t>(g)].table;
      for (size_t i = 0; i < table.size(); ++i) {
        if (table[i] != id) continue;
        absl::StrAppend(&text, text.empty() ? "" : "; ",
                        Place(*request, g, static_cast<int64_t>(i)));
      }
    }
  }
  if (const auto it = outside_references_.find(id); it != outside_references_.end()) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", it->second, " popped or pinned");
  }
  for (const BlockCopy& copy : copies_) {
    if (copy.source != id && copy.target != id) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", "to be copied from ", copy.source, " to ",
                    copy.target);
  }
  return text.empty() ? "held by nobody" : text;
}

}  // namespace kvblocks
