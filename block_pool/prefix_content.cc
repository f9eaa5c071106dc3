#include "kvblocks/prefix_content.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "block_pool/cbor.h"
#include "kvblocks/check.h"

namespace kvblocks {
namespace {

template <typename T>
void AppendRaw(T value, std::string& out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

absl::Status WrongHashCount(size_t got, int64_t expected, int64_t num_tokens,
                            const PrefixHashing* hashing) {
  const int64_t lookahead = hashing == nullptr ? 0 : hashing->num_lookahead_tokens;
  return InvalidArgument(
      "got ", got, " block hashes with ", num_tokens, " tokens, expected ", expected,
      ": one per block of ", hashing == nullptr ? 0 : hashing->hash_block_size,
      " tokens that they complete",
      lookahead == 0 ? "" : absl::StrCat(" with ", lookahead, " tokens behind it"));
}

absl::Status CheckHashing(const PrefixHashing* hashing) {
  if (hashing == nullptr) return absl::OkStatus();
  return ValidateHashSizes(hashing->hash_block_size, hashing->num_lookahead_tokens);
}

// A path follows the value of a LoRA key that has one; this bit of the kind says so.
constexpr uint8_t kHasPath = 0x80;

}  // namespace

absl::Status ValidateFeatures(absl::Span<const MultimodalFeature> features) {
  int64_t end = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    const MultimodalFeature& feature = features[i];
    if (feature.length <= 0) {
      return InvalidArgument("multimodal feature ", i, " has length ", feature.length,
                             ", expected at least 1");
    }
    if (feature.offset < end) {
      return InvalidArgument("multimodal feature ", i, " starts at token ", feature.offset,
                             ", expected at least ", end,
                             ": features must be sorted by offset and must not overlap");
    }
    if (feature.length > std::numeric_limits<int64_t>::max() - feature.offset) {
      return InvalidArgument("multimodal feature ", i, " of length ", feature.length, " at token ",
                             feature.offset, " ends beyond the range of 64 bits");
    }
    end = feature.offset + feature.length;
  }
  return absl::OkStatus();
}

std::string EncodeExtraKeys(const ExtraKeys& keys) {
  std::string out;
  AppendRaw<uint32_t>(static_cast<uint32_t>(keys.size()), out);
  for (const ExtraKey& key : keys) {
    const uint8_t path_bit = key.path.empty() ? 0 : kHasPath;
    AppendRaw<uint8_t>(static_cast<uint8_t>(key.kind) | path_bit, out);
    AppendRaw<int64_t>(key.offset, out);
    AppendRaw<uint64_t>(key.value.size(), out);
    out.append(key.value);
    if (path_bit == 0) continue;
    AppendRaw<uint64_t>(key.path.size(), out);
    out.append(key.path);
  }
  return out;
}

std::string EncodeExtraKeysAsCbor(const ExtraKeys& keys) {
  std::string out;
  cbor::AppendArray(keys.size(), out);
  for (const ExtraKey& key : keys) {
    switch (key.kind) {
      case ExtraKey::Kind::kLora:
        cbor::AppendArray(3, out);
        cbor::AppendText("lora", out);
        cbor::AppendText(key.value, out);
        cbor::AppendText(key.path, out);
        break;
      case ExtraKey::Kind::kMultimodal:
        cbor::AppendArray(3, out);
        cbor::AppendText("mm", out);
        cbor::AppendText(key.value, out);
        cbor::AppendInt(key.offset, out);
        break;
      case ExtraKey::Kind::kSalt:
        cbor::AppendArray(2, out);
        cbor::AppendText("cache_salt", out);
        cbor::AppendText(key.value, out);
        break;
      case ExtraKey::Kind::kPromptEmbedding:
        cbor::AppendArray(2, out);
        cbor::AppendText("prompt_embeds", out);
        cbor::AppendBytes(key.value, out);
        break;
    }
  }
  return out;
}

absl::Status ValidateHashSizes(int64_t hash_block_size, int64_t num_lookahead_tokens) {
  if (hash_block_size < 1) {
    return InvalidArgument("hash_block_size is ", hash_block_size, ", expected at least 1 token");
  }
  if (num_lookahead_tokens < 0 || num_lookahead_tokens > BlockHasher::kMaxLookaheadTokens) {
    return InvalidArgument("number of lookahead tokens of block hashes is ", num_lookahead_tokens,
                           ", expected 0 to ", BlockHasher::kMaxLookaheadTokens);
  }
  if (num_lookahead_tokens > 0 && hash_block_size > BlockHasher::kMaxLookaheadBlockSize) {
    return InvalidArgument("hash_block_size is ", hash_block_size, ", expected at most ",
                           BlockHasher::kMaxLookaheadBlockSize, " with lookahead hashes");
  }
  return absl::OkStatus();
}

absl::StatusOr<PrefixContent> PrefixContent::FromTokens(
    Options options, std::shared_ptr<const PrefixHashing> hashing) {
  if (absl::Status status = CheckHashing(hashing.get()); !status.ok()) return status;
  if (absl::Status status = ValidateFeatures(options.features); !status.ok()) return status;
  if (options.lora_name.empty() && !options.lora_path.empty()) {
    return InvalidArgument("lora_path is \"", options.lora_path,
                           "\" without a lora_name, expected both or none");
  }
  PrefixContent content;
  content.hash_block_size_ = hashing ? hashing->hash_block_size : 0;
  content.hashing_ = std::move(hashing);
  content.num_tokens_ = static_cast<int64_t>(options.token_ids.size());
  content.token_ids_ = std::move(options.token_ids);
  content.lora_name_ = std::move(options.lora_name);
  content.lora_path_ = std::move(options.lora_path);
  content.lora_id_ = options.lora_id;
  content.cache_salt_ = std::move(options.cache_salt);
  content.features_ = std::move(options.features);
  content.embedding_digest_ = std::move(options.embedding_digest);
  content.session_id_ = std::move(options.session_id);
  if (!options.hashes) {
    content.HashCompleteBlocks();
    return content;
  }
  const int64_t expected = NumHashes(content.hashing_.get(), content.num_tokens_);
  if (static_cast<int64_t>(options.hashes->size()) != expected) {
    return WrongHashCount(options.hashes->size(), expected, content.num_tokens_,
                          content.hashing_.get());
  }
  content.hashes_here_ = false;
  content.hashes_ = *std::move(options.hashes);
  return content;
}

absl::StatusOr<PrefixContent> PrefixContent::FromHashes(
    int64_t num_tokens, std::vector<BlockHash> hashes,
    std::shared_ptr<const PrefixHashing> hashing, std::optional<std::string> session_id) {
  if (absl::Status status = CheckHashing(hashing.get()); !status.ok()) return status;
  if (num_tokens < 0) {
    return InvalidArgument("number of tokens is ", num_tokens, ", expected 0 or more");
  }
  PrefixContent content;
  content.hash_block_size_ = hashing ? hashing->hash_block_size : 0;
  const int64_t expected = NumHashes(hashing.get(), num_tokens);
  if (static_cast<int64_t>(hashes.size()) != expected) {
    return WrongHashCount(hashes.size(), expected, num_tokens, hashing.get());
  }
  content.hashing_ = std::move(hashing);
  content.num_tokens_ = num_tokens;
  content.has_token_ids_ = content.hashes_here_ = false;
  content.hashes_ = std::move(hashes);
  content.session_id_ = std::move(session_id);
  return content;
}

absl::Status PrefixContent::AppendTokens(absl::Span<const TokenId> tokens,
                                         absl::Span<const BlockHash> hashes) {
  if (!has_token_ids_) {
    return InvalidArgument(
        "this content was made from block hashes: append with AppendHashedTokens");
  }
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t expected = hashes_here_ ? 0
                                        : NumHashes(hashing_.get(), num_tokens_ + count) -
                                              static_cast<int64_t>(hashes_.size());
  if (static_cast<int64_t>(hashes.size()) != expected) {
    if (hashes_here_) {
      return InvalidArgument("got ", hashes.size(),
                             " block hashes for a content that hashes its tokens, expected 0");
    }
    return WrongHashCount(hashes.size(), expected, count, hashing_.get());
  }
  hashes_.insert(hashes_.end(), hashes.begin(), hashes.end());
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  num_tokens_ += count;
  if (hashes_here_) HashCompleteBlocks();
  return absl::OkStatus();
}

absl::Status PrefixContent::AppendHashedTokens(int64_t num_tokens,
                                               absl::Span<const BlockHash> hashes) {
  if (has_token_ids_) {
    return InvalidArgument("this content was made from token ids: append with AppendTokens");
  }
  if (num_tokens < 0) {
    return InvalidArgument("number of appended tokens is ", num_tokens, ", expected 0 or more");
  }
  if (num_tokens > std::numeric_limits<int64_t>::max() - num_tokens_) {
    return InvalidArgument("number of appended tokens is ", num_tokens, ": with the ", num_tokens_,
                           " before them, more than 64 bits can count");
  }
  const int64_t total = num_tokens_ + num_tokens;
  const int64_t expected = NumHashes(hashing_.get(), total) - static_cast<int64_t>(hashes_.size());
  if (static_cast<int64_t>(hashes.size()) != expected) {
    return WrongHashCount(hashes.size(), expected, num_tokens, hashing_.get());
  }
  hashes_.insert(hashes_.end(), hashes.begin(), hashes.end());
  num_tokens_ = total;
  return absl::OkStatus();
}

absl::StatusOr<BlockHash> PrefixContent::HashOfBlockAt(int64_t index, int64_t block_size) const {
  if (hash_block_size_ == 0 || block_size <= 0 || block_size % hash_block_size_ != 0) {
    return InvalidArgument("block size ", block_size,
                           " is not a positive multiple of the hash block size ", hash_block_size_);
  }
  const int64_t per_block = block_size / hash_block_size_;
  const int64_t available = static_cast<int64_t>(hashes_.size()) / per_block;
  if (index < 0 || index >= available) {
    return InvalidArgument("block ", index, " of ", block_size, " tokens has no hash: there are ",
                           available, " complete blocks");
  }
  return HashOfBlock(index, per_block);
}

ExtraKeys PrefixContent::ExtraKeysOf(int64_t begin, int64_t end) const {
  ExtraKeys keys;
  if (!lora_name_.empty()) keys.push_back({ExtraKey::Kind::kLora, lora_name_, 0, lora_path_});
  // Features are sorted and disjoint, so their ends are sorted too.
  auto feature = std::partition_point(
      features_.begin(), features_.end(),
      [begin](const MultimodalFeature& f) { return f.offset + f.length <= begin; });
  for (; feature != features_.end() && feature->offset < end; ++feature) {
    keys.push_back({ExtraKey::Kind::kMultimodal, feature->identifier, feature->offset - begin});
  }
  if (begin == 0 && !cache_salt_.empty()) keys.push_back({ExtraKey::Kind::kSalt, cache_salt_, 0});
  if (embedding_digest_) {
    if (std::string digest = embedding_digest_(begin, end); !digest.empty()) {
      keys.push_back({ExtraKey::Kind::kPromptEmbedding, std::move(digest), 0});
    }
  }
  return keys;
}

ExtraKeys PrefixContent::ReportedExtraKeysOf(int64_t begin, int64_t end) const {
  ExtraKeys keys = ExtraKeysOf(begin, end + num_lookahead_tokens());
  for (ExtraKey& key : keys) key.path.clear();
  return keys;
}

int64_t PrefixContent::NumHashes(const PrefixHashing* hashing, int64_t num_tokens) {
  if (hashing == nullptr) return 0;
  return std::max<int64_t>(num_tokens - hashing->num_lookahead_tokens, 0) /
         hashing->hash_block_size;
}

void PrefixContent::HashCompleteBlocks() {
  if (!hashing_) return;
  const BlockHasher& hasher = hashing_->hasher;
  const auto done = static_cast<int64_t>(hashes_.size());
  const int64_t complete = NumHashes(hashing_.get(), num_tokens_);
  if (complete == done) return;
  const int64_t num_lookahead = num_lookahead_tokens();
  if (!has_extra_keys()) {
    hashes_.resize(static_cast<size_t>(complete));
    const int64_t num_new = (complete - done) * hash_block_size_;
    hasher.HashChain(done == 0 ? hasher.root() : hashes_[static_cast<size_t>(done) - 1],
                     TokensAt(done * hash_block_size_, num_new + num_lookahead),
                     absl::MakeSpan(hashes_).subspan(static_cast<size_t>(done)),
                     static_cast<size_t>(num_lookahead));
    return;
  }
  for (int64_t i = done; i < complete; ++i) {
    const int64_t begin = i * hash_block_size_;
    const int64_t end = begin + hash_block_size_;
    const auto tokens = TokensAt(begin, hash_block_size_);
    const auto lookahead = LookaheadTokens(end);
    const ExtraKeys keys = ExtraKeysOf(begin, end + num_lookahead);
    std::optional<std::string> encoded;
    if (!keys.empty()) {
      encoded = hasher.uses_cbor() ? EncodeExtraKeysAsCbor(keys) : EncodeExtraKeys(keys);
    }
    const BlockHash& parent = i == 0 ? hasher.root() : hashes_.back();
    hashes_.push_back(hasher.Hash(parent, tokens, encoded, lookahead));
    if (knows_plain_hashes()) {
      const BlockHash& plain_parent = i == 0 ? hasher.root() : plain_hashes_.back();
      plain_hashes_.push_back(hasher.Hash(plain_parent, tokens, std::nullopt, lookahead));
    }
  }
}

}  // namespace kvblocks
