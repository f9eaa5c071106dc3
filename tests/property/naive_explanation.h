// NaiveHistory and Expectation: a naive model of the explanations of look-ups. It keeps a list of
// everything that was ever registered and removed, and states the rules of each group token by
// token.

#ifndef KVBLOCKS_TESTS_PROPERTY_NAIVE_EXPLANATION_H_
#define KVBLOCKS_TESTS_PROPERTY_NAIVE_EXPLANATION_H_

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/lookup_explanation.h"

namespace kvblocks::property {

using Key = std::pair<std::array<uint64_t, 4>, GroupId>;

// A request, and what its prompt and outputs are in plain words.
struct Known {
  std::unique_ptr<Request> request;
  PrefixContent::Options content;
  std::vector<TokenId> tokens;  // output included

  // Names for the tokens before `end`, without and with whatever else colours them. Where hashes
  // have lookahead, `end` is that of the tokens they cover.
  std::string Plain(int64_t end) const {
    return absl::StrJoin(tokens.begin(), tokens.begin() + end, ",");
  }
  std::string Coloured(int64_t end) const {
    std::string name = absl::StrCat(Plain(end), "|", content.lora_name, "|", content.cache_salt);
    for (const MultimodalFeature& feature : content.features) {
      if (feature.offset < end) absl::StrAppend(&name, "|", feature.identifier, feature.offset);
    }
    return name;
  }
  bool IsColoured(int64_t end) const { return Coloured(end) != Plain(end) + "||"; }
};

inline std::string Show(MissReason reason, GroupId group, const std::optional<Absence>& absence) {
  return absl::StrCat(std::string(MissReasonName(reason)), " of group ", group, ", ",
                      absence ? Describe(*absence) : "");
}

// Remembers everything, and answers from the last `memory` events.
class NaiveHistory {
 public:
  NaiveHistory(const KvCacheManager& manager, size_t memory)
      : manager_(manager), memory_(memory), taken_(manager.pool().num_blocks_taken()) {}

  Key KeyOf(const PrefixContent& content, GroupId g, int64_t block) const {
    const int64_t per_block = manager_.group(g).block_size() / manager_.hash_block_size();
    return {content.HashOfBlock(block, per_block).words, g};
  }

  // Call before and after anything that changes the manager; with the request that allocates.
  void Before(const Request* request = nullptr) {
    keys_.clear();
    scratch_.clear();
    for (BlockId id = 0; id < manager_.pool().num_blocks(); ++id) keys_.push_back(KeyOfBlock(id));
    classes_.clear();
    if (const PageChunks* chunks = manager_.pool().chunks()) {
      for (int32_t c = 0; c < chunks->num_chunks(); ++c)
        classes_.push_back(chunks->ClassOfChunk(c));
    }
    for (GroupId g = 0; request != nullptr && g < manager_.num_groups(); ++g) {
      const auto* mamba = manager_.group(g).spec().get_if<MambaSpec>();
      if (mamba == nullptr) continue;
      const auto table = manager_.GetBlocks(*request, g);
      const auto scratch = static_cast<size_t>(mamba->options().num_speculative_blocks);
      for (size_t i = table.size() - std::min(scratch, table.size()); i < table.size(); ++i) {
        scratch_.insert(table[i]);
      }
    }
  }
  void AfterAllocation(const Known& known, const NewBlocks& taken) {
    std::set<BlockId> fresh;
    const auto take = [&](GroupId g, absl::Span<const BlockId> ids) {
      int64_t count = 0;
      for (BlockId id : ids) {
        // States' tables also grow by null blocks and by scratch blocks that move.
        if (id == kNullBlockId || scratch_.count(id) > 0 || !fresh.insert(id).second) continue;
        ++count;
        for (BlockId lost : LostFor(id, g)) {
          auto& key = keys_[static_cast<size_t>(lost)];
          if (key) Remove(*key, /*was_reused=*/true);
          key.reset();
        }
      }
      taken_ += count;
    };
    for (GroupId g = 0; g < manager_.num_groups(); ++g) {
      // Before the others, perhaps where a scratch block was.
      const auto checkpoint = manager_.GetStateCheckpoint(*known.request, g);
      if (checkpoint) take(g, {&checkpoint->block, 1});
      take(g, taken.blocks(g));
    }
    for (GroupId g = 0; g < manager_.num_groups(); ++g) {
      const auto table = manager_.GetBlocks(*known.request, g);
      for (size_t i = 0; i < table.size(); ++i) {
        const auto key = KeyOfBlock(table[i]);
        if (!key || (keys_[static_cast<size_t>(table[i])] && !fresh.count(table[i]))) continue;
        ++blocks_[*key];
        const int64_t end =
            static_cast<int64_t>(i + 1) * manager_.group(g).block_size() + Lookahead();
        if (known.IsColoured(end)) variants_.emplace_back(known.Plain(end), known.Coloured(end));
      }
    }
  }
  void AfterRemoval() {
    for (BlockId id = 0; id < manager_.pool().num_blocks(); ++id) {
      const auto& key = keys_[static_cast<size_t>(id)];
      if (key && !KeyOfBlock(id)) Remove(*key, /*was_reused=*/false);
    }
  }

  // A reset takes each key out once, in the order of the blocks that look-ups find for them.
  void BeforeReset() {
    for (BlockId id = 1; id < manager_.pool().num_blocks(); ++id) {
      const auto key = KeyOfBlock(id);
      if (!key || manager_.pool().FindCached(manager_.pool().hash(id), key->second) != id) continue;
      blocks_[*key] = 0;
      removals_.push_back({*key, taken_, /*was_reused=*/false});
    }
  }

  int64_t num_blocks_taken() const { return taken_; }
  size_t num_removals() const { return removals_.size(); }
  bool IsCached(const Key& key) const {
    const auto it = blocks_.find(key);
    return it != blocks_.end() && it->second > 0;
  }

  // Why a block is absent. `plain` has the same tokens and nothing else.
  Absence WhyAbsent(const Known& known, const Request& plain, GroupId g, int64_t block) const {
    if (memory_ == 0) return {.reason = MissReason::kNotCached};
    const Removal* own = FindRemoval(KeyOf(known.request->content(), g, block));
    if (own != nullptr) {
      return {.reason = own->was_reused ? MissReason::kEvicted : MissReason::kRemoved,
              .num_blocks_since = taken_ - own->taken};
    }
    const Key plain_key = KeyOf(plain.content(), g, block);
    const int64_t end = (block + 1) * manager_.group(g).block_size() + Lookahead();
    bool elsewhere = IsCached(plain_key) || FindRemoval(plain_key) != nullptr;
    for (size_t i = variants_.size(); i > variants_.size() - std::min(variants_.size(), memory_);) {
      --i;
      if (variants_[i].first != known.Plain(end)) continue;
      elsewhere = elsewhere || variants_[i].second != known.Coloured(end);
      break;
    }
    return {.reason = elsewhere ? MissReason::kSaltOrAdapter : MissReason::kFirstUse};
  }

 private:
  int64_t Lookahead() const { return manager_.options().num_hash_lookahead_tokens; }

  // What taking a block costs the cache: a chunk that changes hands loses all its pages.
  std::vector<BlockId> LostFor(BlockId id, GroupId g) {
    const PageChunks* chunks = manager_.pool().chunks();
    if (chunks == nullptr) return {id};
    const auto chunk = static_cast<size_t>(PlaceOfPage(id, chunks->ids_per_chunk()).chunk);
    if (classes_[chunk] == chunks->ClassOfGroup(g)) return {id};
    classes_[chunk] = chunks->ClassOfGroup(g);
    std::vector<BlockId> lost;
    for (BlockId i = 1; i < manager_.pool().num_blocks(); ++i) {
      if (PlaceOfPage(i, chunks->ids_per_chunk()).chunk == static_cast<int64_t>(chunk)) {
        lost.push_back(i);
      }
    }
    return lost;
  }

  struct Removal {
    Key key;
    int64_t taken;
    bool was_reused;
  };

  std::optional<Key> KeyOfBlock(BlockId id) const {
    const KvCacheBlock& block = manager_.pool().block(id);
    if (!block.has_key()) return std::nullopt;
    return Key{manager_.pool().hash(id).words, block.key_group};
  }
  void Remove(const Key& key, bool was_reused) {
    if (--blocks_[key] == 0) removals_.push_back({key, taken_, was_reused});
  }
  const Removal* FindRemoval(const Key& key) const {
    for (size_t i = removals_.size(); i > removals_.size() - std::min(removals_.size(), memory_);) {
      --i;
      if (removals_[i].key == key) return &removals_[i];
    }
    return nullptr;
  }

  const KvCacheManager& manager_;
  const size_t memory_;
  std::vector<int32_t> classes_;  // of the chunks, before the call
  int64_t taken_;
  std::vector<std::optional<Key>> keys_;  // of all blocks, before
  std::set<BlockId> scratch_;             // of the request that allocates, before
  std::map<Key, int> blocks_;
  std::vector<Removal> removals_;
  std::vector<std::pair<std::string, std::string>> variants_;  // plain and coloured names
};

// The rules, token by token.
class Expectation {
 public:
  Expectation(const KvCacheManager& manager, const NaiveHistory& history, const Known& known)
      : manager_(manager), history_(history), known_(known) {
    plain_ = manager.NewRequest({.id = "plain", .content = {.token_ids = known.tokens}}).value();
    n_ = known.request->num_tokens();
    unit_ = manager.num_groups() == 1 ? Size(0) : manager.scheduler_block_size();
    for (GroupId g = 0; g < manager.num_groups(); ++g) has_full_ = has_full_ || IsFull(g);
    const int64_t lookahead = manager.options().num_hash_lookahead_tokens;
    while (hashed_ + manager.hash_block_size() + lookahead <= n_) {
      hashed_ += manager.hash_block_size();
    }
  }
  bool IsHashed(int64_t end) const { return end <= hashed_; }
  // V-46: no request can use the blocks of others.
  bool IsLookedUp(GroupId g) const {
    const KvCacheSpec& spec = manager_.group(g).spec();
    return spec.kind() != KvCacheSpecKind::kRing && !spec.options().bounded_replay;
  }

  int64_t Size(GroupId g) const { return manager_.group(g).block_size(); }
  bool IsFull(GroupId g) const { return manager_.group(g).is_full_type(); }
  bool HasBlock(GroupId g, int64_t block) const {
    return IsHashed((block + 1) * Size(g)) &&
           history_.IsCached(history_.KeyOf(known_.request->content(), g, block));
  }
  bool HasToken(GroupId g, int64_t token) const { return HasBlock(g, token / Size(g)); }
  Absence Why(GroupId g, int64_t block) const {
    Absence absence = history_.WhyAbsent(known_, *plain_, g, block);
    // The request that made the blocks of the full groups computed these tokens.
    if (absence.reason == MissReason::kFirstUse && !IsFull(g) &&
        FullGroupsKnow((block + 1) * Size(g))) {
      absence.reason = MissReason::kNotKept;
    }
    return absence;
  }
  bool FullGroupsKnow(int64_t end) const {
    for (GroupId g = 0; g < manager_.num_groups(); ++g) {
      if (!IsFull(g)) continue;
      for (int64_t t = 0; t < end; ++t) {
        if ((t / Size(g) + 1) * Size(g) > known_.request->content().num_hashed_tokens())
          return false;
        if (!HasToken(g, t)) return false;
      }
    }
    return has_full_;
  }

  // Tokens before `end` that the token at `end` sees, and in a window at least one.
  int64_t FirstSeen(GroupId g, int64_t end) const {
    const KvCacheSpec& spec = manager_.group(g).spec();
    if (spec.sliding_window()) {
      return std::max<int64_t>(0, std::min(end - 1, end - *spec.sliding_window() + 1));
    }
    if (spec.attention_chunk_size()) return end - end % *spec.attention_chunk_size();
    if (spec.kind() == KvCacheSpecKind::kMamba) return std::max<int64_t>(0, end - 1);
    return 0;
  }
  std::optional<int64_t> MissingToken(GroupId g, int64_t end) const {
    for (int64_t t = FirstSeen(g, end) / Size(g) * Size(g); t < end; ++t) {
      if (!HasToken(g, t)) return t;
    }
    return std::nullopt;
  }
  bool AllServe(int64_t end) const {
    for (GroupId g = 0; g < manager_.num_groups(); ++g) {
      if (IsLookedUp(g) && MissingToken(g, end)) return false;
    }
    return true;
  }
  bool FullGroupsHold(int64_t end) const {
    for (GroupId g = 0; g < manager_.num_groups(); ++g) {
      if (IsFull(g) && MissingToken(g, end)) return false;
    }
    return true;
  }
  // The longest hit if no draft group dropped anything.
  int64_t Undropped() const {
    int64_t end = std::min(n_ - 1, hashed_) / unit_ * unit_;
    while (end > 0 && !AllServe(end)) end -= unit_;
    return end;
  }

  struct Token {
    MissReason reason = MissReason::kNotCached;
    GroupId group = -1;
    std::optional<Absence> absence = std::nullopt;
    friend bool operator==(const Token&, const Token&) = default;
  };
  Token Absent(GroupId g, int64_t token) const {
    const Absence absence = Why(g, token / Size(g));
    return {absence.reason, g, absence};
  }
  std::optional<Token> Veto(int64_t end) const {
    for (GroupId g = 0; g < manager_.num_groups(); ++g) {
      if (IsFull(g) || !IsLookedUp(g)) continue;
      const auto missing = MissingToken(g, end);
      if (missing) return Token{MissReason::kGroupVeto, g, Why(g, *missing / Size(g))};
    }
    return std::nullopt;
  }

  // What is explained behind a hit of whose end so many tokens are computed again.
  void SetReplayed(int64_t num_hit_tokens, int64_t num_tokens) {
    replayed_until_ = num_tokens == 0 ? 0 : num_hit_tokens + num_tokens;
  }

  Token At(int64_t token, const Token& before) const {
    if (token < replayed_until_) {
      GroupId window = 0;
      while (!manager_.group(window).spec().options().bounded_replay) ++window;
      return {MissReason::kGroupVeto, window, Absence{.reason = MissReason::kNotKept}};
    }
    const int64_t end = (token / unit_ + 1) * unit_;
    if (end > n_) {
      return {n_ < unit_ ? MissReason::kShorterThanABlock : MissReason::kPartialBlock};
    }
    if (!IsHashed(end)) return {MissReason::kLookahead};
    if (token < Undropped()) {
      GroupId draft = 0;
      while (manager_.group(draft).draft_margin() == 0) ++draft;
      return {MissReason::kDraftDrop, draft};
    }
    if (has_full_) {
      if (!FullGroupsHold(token + 1)) {
        for (GroupId g = 0; g < manager_.num_groups(); ++g) {
          if (IsFull(g) && !HasToken(g, token)) return Absent(g, token);
        }
        return before;
      }
      if (!FullGroupsHold(end)) return {MissReason::kAlignment};
      if (end == n_) return {MissReason::kLastToken};
      return Veto(end).value_or(Token());
    }
    for (GroupId g = 0; g < manager_.num_groups(); ++g) {
      if (!IsLookedUp(g)) continue;
      for (int64_t t = end - unit_; t < end; ++t) {
        if (t / Size(g) >= FirstSeen(g, end) / Size(g) && !HasToken(g, t)) return Absent(g, t);
      }
    }
    return Veto(end).value_or(Token{MissReason::kLastToken});
  }

 private:
  const KvCacheManager& manager_;
  const NaiveHistory& history_;
  const Known& known_;
  std::unique_ptr<Request> plain_;
  int64_t n_, unit_;
  int64_t hashed_ = 0;
  int64_t replayed_until_ = 0;
  bool has_full_ = false;
};

}  // namespace kvblocks::property

#endif  // KVBLOCKS_TESTS_PROPERTY_NAIVE_EXPLANATION_H_
