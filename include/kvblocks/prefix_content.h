// What a block hash covers: tokens, extra keys and lookahead tokens.

#ifndef KVBLOCKS_PREFIX_CONTENT_H_
#define KVBLOCKS_PREFIX_CONTENT_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvblocks/block.h"

// PrefixContent: a request as prefix caching sees it - its tokens, its extra keys, and the chain of
// block hashes.
//
// Always: there is one hash per complete run of hash_block_size tokens that has L tokens behind it,
// and the hashes are a function of the content alone: growing it in any number of steps gives the
// hashes of a new content with the same tokens. Draft tokens are never part of it.
//
// L is 0 without lookahead hashes (PrefixHashing::num_lookahead_tokens). A lookahead hash names a
// block together with the L tokens after it, for drafters whose KV at a position depends on the
// tokens that follow.
//
// A content can be made in three ways. From token ids: hashes are computed here, each token once.
// From hashes: a caller that knows the content (a simulator, a gateway) gives one hash per block,
// and no token ids can be reported. From both: for an engine that hashes by itself and wants its
// tokens reported.
//
// Extra keys are what else belongs to the content of a block. Per block, in this order: the LoRA
// name with the adapter's path; one entry per multimodal feature that reaches into the block, with
// the feature's offset relative to the block's start (negative if it began earlier); the cache
// salt, in the block that starts at token 0 only, since the hash chain carries it on; the digest of
// the block's prompt embeddings. No entry at all is "none".
//
// Cost: appending is O(new tokens); HashOfBlock is O(1) at any multiple of the hash block size.
// Single-threaded.

namespace kvblocks {

// An image, a sound, ...: `length` placeholder tokens from `offset` on, whose content `identifier`
// names.
struct MultimodalFeature {
  std::string identifier = {};
  int64_t offset = 0;
  int64_t length = 0;

  friend bool operator==(const MultimodalFeature&, const MultimodalFeature&) = default;
};

struct ExtraKey {
  enum class Kind : uint8_t { kLora = 1, kMultimodal = 2, kSalt = 3, kPromptEmbedding = 4 };

  Kind kind = Kind::kLora;
  std::string value = {};
  int64_t offset = 0;     // kMultimodal only
  std::string path = {};  // kLora only: of the adapter; never in events

  friend bool operator==(const ExtraKey&, const ExtraKey&) = default;
};
using ExtraKeys = std::vector<ExtraKey>;

// InvalidArgument for a feature of no length, a negative offset, or features that are unsorted or
// overlap.
absl::Status ValidateFeatures(absl::Span<const MultimodalFeature> features);

// An injective byte form, for hashing. Never called for an empty list: that is "none".
std::string EncodeExtraKeys(const ExtraKeys& keys);
// The same as vLLM hashes them: a CBOR array of ["lora", name, path], ["mm", identifier, offset],
// ["cache_salt", salt] and ["prompt_embeds", digest], the digest as bytes and the others as texts.
std::string EncodeExtraKeysAsCbor(const ExtraKeys& keys);

// How contents are hashed: shared by all requests of one manager.
struct PrefixHashing {
  BlockHasher hasher;
  int64_t hash_block_size = 16;
  // L: tokens after a block that its hash covers, too. At most 255, and then blocks of at most
  // 16,777,215 tokens.
  int64_t num_lookahead_tokens = 0;
  // Contents with extra keys also hash their tokens alone, to recognise them under others.
  bool keep_plain_hashes = false;
};

// InvalidArgument for numbers that PrefixHashing cannot have.
absl::Status ValidateHashSizes(int64_t hash_block_size, int64_t num_lookahead_tokens);

class PrefixContent {
 public:
  struct Options {
    std::vector<TokenId> token_ids = {};
    std::string lora_name = {};  // empty: none
    // Of the adapter that the name stands for: under another path it is another content.
    std::string lora_path = {};
    std::optional<int64_t> lora_id = std::nullopt;
    std::string cache_salt = {};  // empty: none
    std::vector<MultimodalFeature> features = {};
    // For a prompt given as embeddings: a digest of rows [begin, end), or "" where the rows are
    // ordinary tokens.
    std::function<std::string(int64_t begin, int64_t end)> embedding_digest = nullptr;
    // Reported in events, no part of the content.
    std::optional<std::string> session_id = std::nullopt;
    // Of the tokens' blocks, as for FromHashes, computed by the caller: then nothing is hashed
    // here, now or later (AppendTokens).
    std::optional<std::vector<BlockHash>> hashes = std::nullopt;
  };

  // `hashing` null: nothing is hashed (prefix caching off). InvalidArgument for invalid features,
  // a path without a LoRA name, invalid hashing, or a wrong number of hashes.
  static absl::StatusOr<PrefixContent> FromTokens(Options options,
                                                  std::shared_ptr<const PrefixHashing> hashing);

  // A content of `num_tokens` whose block hashes the caller computed: floor((num_tokens - L) /
  // hash_block_size) of them, none below L tokens, else InvalidArgument. `session_id` as in
  // Options.
  static absl::StatusOr<PrefixContent> FromHashes(
      int64_t num_tokens, std::vector<BlockHash> hashes,
      std::shared_ptr<const PrefixHashing> hashing,
      std::optional<std::string> session_id = std::nullopt);

  // Accepted output tokens, at the end. InvalidArgument if this content was made from hashes alone.
  // Where the caller computes the hashes, with exactly those of the blocks that become complete.
  absl::Status AppendTokens(absl::Span<const TokenId> tokens,
                            absl::Span<const BlockHash> hashes = {});
  // The same for a content made from hashes: exactly the blocks that `num_tokens` more tokens
  // complete.
  absl::Status AppendHashedTokens(int64_t num_tokens, absl::Span<const BlockHash> hashes);

  int64_t num_tokens() const { return num_tokens_; }
  bool has_token_ids() const { return has_token_ids_; }
  const std::vector<TokenId>& token_ids() const { return token_ids_; }
  // Null where nothing is hashed.
  const std::shared_ptr<const PrefixHashing>& hashing() const { return hashing_; }
  const std::string& lora_name() const { return lora_name_; }
  std::optional<int64_t> lora_id() const { return lora_id_; }
  const std::optional<std::string>& session_id() const { return session_id_; }

  // 0 without hashing.
  int64_t hash_block_size() const { return hash_block_size_; }
  // L; 0 without hashing.
  int64_t num_lookahead_tokens() const { return hashing_ ? hashing_->num_lookahead_tokens : 0; }
  absl::Span<const BlockHash> hashes() const { return hashes_; }
  int64_t num_hashed_tokens() const {
    return static_cast<int64_t>(hashes_.size()) * hash_block_size_;
  }

  // Hash of block `index` at a block size of `hashes_per_block` hash blocks: the last fine hash
  // inside the block. REQUIRES: (index + 1) * hashes_per_block <= hashes().size().
  const BlockHash& HashOfBlock(int64_t index, int64_t hashes_per_block) const {
    return hashes_[static_cast<size_t>((index + 1) * hashes_per_block - 1)];
  }
  // The same, checked: InvalidArgument out of range or for a block size that is no multiple of the
  // hash block size.
  absl::StatusOr<BlockHash> HashOfBlockAt(int64_t index, int64_t block_size) const;

  // The hash that the block would have without extra keys; equal to HashOfBlock if it has none
  // up to there. REQUIRES: knows_plain_hashes(), and as HashOfBlock.
  const BlockHash& PlainHashOfBlock(int64_t index, int64_t hashes_per_block) const {
    return plain_hashes_.empty()
               ? HashOfBlock(index, hashes_per_block)
               : plain_hashes_[static_cast<size_t>((index + 1) * hashes_per_block - 1)];
  }
  // Never of a content made with hashes, nor of prompt embeddings, whose token ids mean nothing.
  bool knows_plain_hashes() const {
    return has_token_ids_ && hashes_here_ && hashing_ && hashing_->keep_plain_hashes &&
           !embedding_digest_;
  }
  bool has_extra_keys() const {
    return !lora_name_.empty() || !cache_salt_.empty() || !features_.empty() || embedding_digest_;
  }

  // Extra keys of tokens [begin, end); empty means none.
  ExtraKeys ExtraKeysOf(int64_t begin, int64_t end) const;
  // As an event shows them for block [begin, end): with those of its lookahead tokens, and without
  // adapter paths.
  ExtraKeys ReportedExtraKeysOf(int64_t begin, int64_t end) const;
  // The L tokens after a block that ends at `end`. REQUIRES: has_token_ids(), and the block is
  // hashed.
  absl::Span<const TokenId> LookaheadTokens(int64_t end) const {
    return TokensAt(end, num_lookahead_tokens());
  }

 private:
  friend class PrefixContentPeer;  // of tests that need two contents with one hash

  PrefixContent() = default;
  absl::Span<const TokenId> TokensAt(int64_t begin, int64_t count) const {
    return absl::MakeConstSpan(token_ids_)
        .subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  }
  static int64_t NumHashes(const PrefixHashing* hashing, int64_t num_tokens);
  void HashCompleteBlocks();

  std::shared_ptr<const PrefixHashing> hashing_;
  int64_t hash_block_size_ = 0;
  int64_t num_tokens_ = 0;
  bool has_token_ids_ = true;
  bool hashes_here_ = true;  // not by the caller
  std::vector<TokenId> token_ids_;
  std::vector<BlockHash> hashes_;
  std::vector<BlockHash> plain_hashes_;  // where known and extra keys make a difference
  std::string lora_name_;
  std::string lora_path_;
  std::optional<int64_t> lora_id_;
  std::string cache_salt_;
  std::vector<MultimodalFeature> features_;
  std::function<std::string(int64_t, int64_t)> embedding_digest_;
  std::optional<std::string> session_id_;
};

// BlockTokens: the tokens and extra keys that cached blocks stand for, so that a hit can be
// compared with what it claims to be instead of trusting its hash.
//
// Two contents with one hash then give a miss, never each other's blocks. Only the block itself is
// compared, with the tokens after it for lookahead hashes. The prefixes before it are equal if
// the blocks before it are compared, too, as they are for every kind of attention that reads them.
//
// Cost: 4 bytes per token slot of the pool, and the bytes of extra keys where there are any;
// O(tokens of a block) per registration and per hit. Single-threaded.

class BlockTokens {
 public:
  // `block_size`: of the largest blocks, with the tokens after them that hashes cover.
  BlockTokens(int64_t num_blocks, int64_t block_size)
      : block_size_(block_size),
        tokens_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size)),
        num_tokens_(static_cast<size_t>(num_blocks)) {}

  int64_t block_size() const { return block_size_; }

  // The block now stands for tokens [begin, end) of `content`. REQUIRES: a content with token ids
  // that hashed them; they and the lookahead tokens are at most block_size().
  void Store(BlockId id, const PrefixContent& content, int64_t begin, int64_t end) {
    end += content.num_lookahead_tokens();
    std::copy(content.token_ids().begin() + begin, content.token_ids().begin() + end, TokensOf(id));
    num_tokens_[static_cast<size_t>(id)] = static_cast<int32_t>(end - begin);
    if (const ExtraKeys keys = content.ExtraKeysOf(begin, end); !keys.empty()) {
      extra_keys_[id] = EncodeExtraKeys(keys);
    } else {
      extra_keys_.erase(id);
    }
  }

  // The block `to` gets the content of another one.
  void Copy(BlockId from, BlockId to) {
    num_tokens_[static_cast<size_t>(to)] = num_tokens_[static_cast<size_t>(from)];
    std::copy_n(TokensOf(from), num_tokens_[static_cast<size_t>(to)], TokensOf(to));
    if (const auto keys = extra_keys_.find(from); keys != extra_keys_.end()) {
      std::string copy = keys->second;
      extra_keys_[to] = std::move(copy);
    } else {
      extra_keys_.erase(to);
    }
  }

  // Whether the block stands for just these; false for a content without token ids. REQUIRES: as
  // Store.
  bool Matches(BlockId id, const PrefixContent& content, int64_t begin, int64_t end) const {
    const int64_t length = end + content.num_lookahead_tokens() - begin;
    return num_tokens_[static_cast<size_t>(id)] == length && StartsWith(id, content, begin, end);
  }
  // Whether the block stands for these and maybe more. False also where the extra keys of what it
  // stands for are not those of the tokens asked for, as when an image begins behind them: nobody
  // knows which keys belong to which tokens.
  bool StartsWith(BlockId id, const PrefixContent& content, int64_t begin, int64_t end) const {
    end += content.num_lookahead_tokens();
    if (!content.has_token_ids() || num_tokens_[static_cast<size_t>(id)] < end - begin)
      return false;
    if (!std::equal(content.token_ids().begin() + begin, content.token_ids().begin() + end,
                    TokensOf(id))) {
      return false;
    }
    const ExtraKeys keys = content.ExtraKeysOf(begin, end);
    const auto held = extra_keys_.find(id);
    if (keys.empty()) return held == extra_keys_.end();
    return held != extra_keys_.end() && held->second == EncodeExtraKeys(keys);
  }

 private:
  TokenId* TokensOf(BlockId id) {
    return tokens_.data() + static_cast<size_t>(id) * static_cast<size_t>(block_size_);
  }
  const TokenId* TokensOf(BlockId id) const { return const_cast<BlockTokens*>(this)->TokensOf(id); }

  int64_t block_size_;
  std::vector<TokenId> tokens_;
  std::vector<int32_t> num_tokens_;                       // per block
  absl::flat_hash_map<BlockId, std::string> extra_keys_;  // encoded; absent: none
};

}  // namespace kvblocks

#endif  // KVBLOCKS_PREFIX_CONTENT_H_
