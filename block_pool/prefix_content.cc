#include "kvblocks/block_pool/prefix_content.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblocks {
namespace {

template <typename T>
void AppendRaw(T value, std::string& out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

absl::Status WrongHashCount(size_t got, int64_t expected, int64_t num_tokens, int64_t block_size) {
  return absl::InvalidArgumentError(
      absl::StrCat("got ", got, " block hashes with ", num_tokens, " tokens, expected ", expected,
                   ": one per block of ", block_size, " tokens that they complete"));
}

absl::Status CheckHashing(const PrefixHashing* hashing) {
  if (hashing == nullptr || hashing->hash_block_size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("hash_block_size is ", hashing->hash_block_size, ", expected at least 1 token"));
}

}  // namespace

absl::Status ValidateFeatures(absl::Span<const MultimodalFeature> features) {
  int64_t end = 0;
  for (size_t i = 0; i < features.size(); ++i) {
    const MultimodalFeature& feature = features[i];
    if (feature.length <= 0) {
      return absl::InvalidArgumentError(absl::StrCat("multimodal feature ", i, " has length ",
                                                     feature.length, ", expected at least 1"));
    }
    if (feature.offset < end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "multimodal feature ", i, " starts at token ", feature.offset, ", expected at least ",
          end, ": features must be sorted by offset and must not overlap"));
    }
    if (feature.length > std::numeric_limits<int64_t>::max() - feature.offset) {
      return absl::InvalidArgumentError(absl::StrCat("multimodal feature ", i, " of length ",
                                                     feature.length, " at token ", feature.offset,
                                                     " ends beyond the range of 64 bits"));
    }
    end = feature.offset + feature.length;
  }
  return absl::OkStatus();
}

std::string EncodeExtraKeys(const ExtraKeys& keys) {
  std::string out;
  AppendRaw<uint32_t>(static_cast<uint32_t>(keys.size()), out);
  for (const ExtraKey& key : keys) {
    AppendRaw<uint8_t>(static_cast<uint8_t>(key.kind), out);
    AppendRaw<int64_t>(key.offset, out);
    AppendRaw<uint64_t>(key.value.size(), out);
    out.append(key.value);
  }
  return out;
}

absl::StatusOr<PrefixContent> PrefixContent::FromTokens(
    Options options, std::shared_ptr<const PrefixHashing> hashing) {
  if (absl::Status status = CheckHashing(hashing.get()); !status.ok()) return status;
  if (absl::Status status = ValidateFeatures(options.features); !status.ok()) return status;
  PrefixContent content;
  content.hash_block_size_ = hashing ? hashing->hash_block_size : 0;
  content.hashing_ = std::move(hashing);
  content.num_tokens_ = static_cast<int64_t>(options.token_ids.size());
  content.token_ids_ = std::move(options.token_ids);
  content.lora_name_ = std::move(options.lora_name);
  content.lora_id_ = options.lora_id;
  content.cache_salt_ = std::move(options.cache_salt);
  content.features_ = std::move(options.features);
  content.embedding_digest_ = std::move(options.embedding_digest);
  content.HashCompleteBlocks();
  return content;
}

absl::StatusOr<PrefixContent> PrefixContent::FromHashes(
    int64_t num_tokens, std::vector<BlockHash> hashes,
    std::shared_ptr<const PrefixHashing> hashing) {
  if (absl::Status status = CheckHashing(hashing.get()); !status.ok()) return status;
  if (num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("number of tokens is ", num_tokens, ", expected 0 or more"));
  }
  PrefixContent content;
  content.hash_block_size_ = hashing ? hashing->hash_block_size : 0;
  const int64_t expected = hashing ? num_tokens / hashing->hash_block_size : 0;
  if (static_cast<int64_t>(hashes.size()) != expected) {
    return WrongHashCount(hashes.size(), expected, num_tokens, content.hash_block_size_);
  }
  content.hashing_ = std::move(hashing);
  content.num_tokens_ = num_tokens;
  content.has_token_ids_ = false;
  content.hashes_ = std::move(hashes);
  return content;
}

absl::Status PrefixContent::AppendTokens(absl::Span<const TokenId> tokens) {
  if (!has_token_ids_) {
    return absl::InvalidArgumentError(
        "this content was made from block hashes: append with AppendHashedTokens");
  }
  token_ids_.insert(token_ids_.end(), tokens.begin(), tokens.end());
  num_tokens_ += static_cast<int64_t>(tokens.size());
  HashCompleteBlocks();
  return absl::OkStatus();
}

absl::Status PrefixContent::AppendHashedTokens(int64_t num_tokens,
                                               absl::Span<const BlockHash> hashes) {
  if (has_token_ids_) {
    return absl::InvalidArgumentError(
        "this content was made from token ids: append with AppendTokens");
  }
  if (num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("number of appended tokens is ", num_tokens, ", expected 0 or more"));
  }
  if (num_tokens > std::numeric_limits<int64_t>::max() - num_tokens_) {
    return absl::InvalidArgumentError(absl::StrCat("number of appended tokens is ", num_tokens,
                                                   ": with the ", num_tokens_,
                                                   " before them, more than 64 bits can count"));
  }
  const int64_t total = num_tokens_ + num_tokens;
  const int64_t expected =
      hash_block_size_ == 0 ? 0 : total / hash_block_size_ - static_cast<int64_t>(hashes_.size());
  if (static_cast<int64_t>(hashes.size()) != expected) {
    return WrongHashCount(hashes.size(), expected, num_tokens, hash_block_size_);
  }
  hashes_.insert(hashes_.end(), hashes.begin(), hashes.end());
  num_tokens_ = total;
  return absl::OkStatus();
}

absl::StatusOr<BlockHash> PrefixContent::HashOfBlockAt(int64_t index, int64_t block_size) const {
  if (hash_block_size_ == 0 || block_size <= 0 || block_size % hash_block_size_ != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block size ", block_size,
                     " is not a positive multiple of the hash block size ", hash_block_size_));
  }
  const int64_t per_block = block_size / hash_block_size_;
  const int64_t available = static_cast<int64_t>(hashes_.size()) / per_block;
  if (index < 0 || index >= available) {
    return absl::InvalidArgumentError(absl::StrCat("block ", index, " of ", block_size,
                                                   " tokens has no hash: there are ", available,
                                                   " complete blocks"));
  }
  return HashOfBlock(index, per_block);
}

ExtraKeys PrefixContent::ExtraKeysOf(int64_t begin, int64_t end) const {
  ExtraKeys keys;
  if (!lora_name_.empty()) keys.push_back({ExtraKey::Kind::kLora, lora_name_, 0});
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

void PrefixContent::HashCompleteBlocks() {
  if (!hashing_) return;
  const int64_t complete = num_tokens_ / hash_block_size_;
  if (!has_extra_keys()) {
    const size_t done = hashes_.size();
    hashes_.resize(static_cast<size_t>(complete));
    const auto new_hashes = absl::MakeSpan(hashes_).subspan(done);
    const auto block_size = static_cast<size_t>(hash_block_size_);
    hashing_->hasher.HashChain(
        done == 0 ? hashing_->hasher.root() : hashes_[done - 1],
        absl::MakeConstSpan(token_ids_).subspan(done * block_size, new_hashes.size() * block_size),
        new_hashes);
    return;
  }
  for (int64_t i = static_cast<int64_t>(hashes_.size()); i < complete; ++i) {
    const int64_t begin = i * hash_block_size_;
    const BlockHash& parent = i == 0 ? hashing_->hasher.root() : hashes_.back();
    const auto tokens =
        absl::MakeConstSpan(token_ids_)
            .subspan(static_cast<size_t>(begin), static_cast<size_t>(hash_block_size_));
    const ExtraKeys keys = ExtraKeysOf(begin, begin + hash_block_size_);
    const std::string encoded = keys.empty() ? std::string() : EncodeExtraKeys(keys);
    hashes_.push_back(hashing_->hasher.Hash(
        parent, tokens, keys.empty() ? std::nullopt : std::optional<std::string_view>(encoded)));
    if (knows_plain_hashes()) {
      const BlockHash& plain_parent = i == 0 ? hashing_->hasher.root() : plain_hashes_.back();
      plain_hashes_.push_back(hashing_->hasher.Hash(plain_parent, tokens, std::nullopt));
    }
  }
}

}  // namespace kvblocks
