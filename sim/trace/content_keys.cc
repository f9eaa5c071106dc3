#include "sim/trace/content_keys.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace kvblocks::sim {
namespace {

// One seed per kind of thing that is hashed, so that no path is ever mistaken for a block or a
// scope.
enum Seed : uint64_t {
  kScopeSeed = 1,
  kPathSeed,
  kOwnSeed,
  kTokensSeed,
  kBlockSeed,
  kMoreRunsSeed,
  kLookaheadSeed
};

absl::uint128 Hash(const void* data, size_t bytes, Seed seed) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(data, bytes, seed);
  return absl::MakeUint128(hash.high64, hash.low64);
}

void AppendSized(const std::string_view part, std::string* out) {
  const uint64_t size = part.size();
  out->append(reinterpret_cast<const char*>(&size), sizeof(size));
  out->append(part);
}

absl::uint128 KeyWithNumber(absl::uint128 parent, uint64_t number, Seed seed) {
  const std::array<uint64_t, 3> words = {absl::Uint128Low64(parent), absl::Uint128High64(parent),
                                         number};
  return Hash(words.data(), sizeof(words), seed);
}

}  // namespace

absl::uint128 ScopeKey(const TraceInfo& info, const TraceRequest& request, std::string_view trace) {
  std::string text;
  AppendSized(trace, &text);
  AppendSized(request.salt, &text);
  AppendSized(request.adapter, &text);
  switch (info.scope) {
    case ContentScope::kGlobal:
      break;
    case ContentScope::kSession:
      // Without a session the ids are nobody else's.
      AppendSized(request.session != 0 ? "session" : "request", &text);
      AppendSized(std::to_string(request.session != 0 ? request.session
                                                      : static_cast<uint64_t>(request.row)),
                  &text);
      break;
    case ContentScope::kTenant:
      AppendSized("tenant", &text);
      AppendSized(request.tenant, &text);
      break;
  }
  return Hash(text.data(), text.size(), kScopeSeed);
}

absl::uint128 PathKey(absl::uint128 parent, int64_t id) {
  return KeyWithNumber(parent, static_cast<uint64_t>(id), kPathSeed);
}

ContentKeys::ContentKeys(const TraceInfo& info, const TraceRequest& request, int64_t block_tokens,
                         std::string_view trace, int64_t lookahead_tokens)
    : block_tokens_(block_tokens),
      lookahead_tokens_(lookahead_tokens),
      trace_block_tokens_(info.block_tokens) {
  const int64_t num_ids = static_cast<int64_t>(request.content_ids.size());
  content_end_ = 0;
  if (trace_block_tokens_ > 0 && num_ids > 0) {
    const int64_t described =
        request.input_length + (request.ids_cover_output ? request.output_length : 0);
    // Compared before multiplying: both factors come from a file.
    content_end_ =
        num_ids > described / trace_block_tokens_ ? described : num_ids * trace_block_tokens_;
  }
  parent_ = ScopeKey(info, request, trace);
  path_ = parent_;
  own_ = KeyWithNumber(parent_, static_cast<uint64_t>(request.row), kOwnSeed);
}

ContentKeys::Run ContentKeys::RunAt(const TraceRequest& request, int64_t position, int64_t end) {
  const int64_t input = request.input_length;
  if (position < content_end_) {
    if (trace_block_tokens_ == 1) return TokenRun(request, position, end);
    while (position >= path_length_ * trace_block_tokens_) {
      path_ = PathKey(path_, request.content_ids[static_cast<size_t>(path_length_++)]);
    }
    const int64_t path_end = path_length_ * trace_block_tokens_;
    return {path_, position - (path_end - trace_block_tokens_),
            std::min({end, path_end, content_end_}) - position};
  }
  const int64_t num_output_ids = static_cast<int64_t>(request.output_ids.size());
  if (position >= input && position - input < num_output_ids) {
    return TokenRun(request, position, end);
  }
  // Symbols of this request alone. They end where the prompt does only if output ids follow.
  const bool ids_follow = position < input && num_output_ids > 0;
  return {own_, position, (ids_follow ? std::min(end, input) : end) - position};
}

// Token ids of the prompt and of the output are one kind of symbol: a later prompt may repeat an
// output.
ContentKeys::Run ContentKeys::TokenRun(const TraceRequest& request, int64_t position,
                                       int64_t end) const {
  const int64_t input = request.input_length;
  const int64_t ids_end = input + static_cast<int64_t>(request.output_ids.size());
  const int64_t prompt_end = std::max(position, std::min(end, content_end_));
  const int64_t run_end =
      prompt_end >= input ? std::max(prompt_end, std::min(end, ids_end)) : prompt_end;
  const int64_t count = run_end - position;
  const int64_t* prompt = request.content_ids.data();
  if (run_end == prompt_end) {
    return {Hash(prompt + position, static_cast<size_t>(count) * sizeof(int64_t), kTokensSeed), 0,
            count};
  }
  std::vector<int64_t> ids;
  ids.reserve(static_cast<size_t>(count));
  if (prompt_end > position) ids.assign(prompt + position, prompt + prompt_end);
  const uint32_t* output = request.output_ids.data();
  ids.insert(ids.end(), output + (prompt_end - input), output + (run_end - input));
  return {Hash(ids.data(), ids.size() * sizeof(int64_t), kTokensSeed), 0, count};
}

void ContentKeys::AddRun(const Run& run, uint64_t seed) {
  const std::array<uint64_t, 6> words = {
      absl::Uint128Low64(parent_),      absl::Uint128High64(parent_),
      absl::Uint128Low64(run.path),     absl::Uint128High64(run.path),
      static_cast<uint64_t>(run.first), static_cast<uint64_t>(run.count)};
  parent_ = Hash(words.data(), sizeof(words), static_cast<Seed>(seed));
}

// The symbols behind the block that ends at next_. They belong to later blocks as well, so the
// place in the content stays.
void ContentKeys::AddLookahead(const TraceRequest& request) {
  const absl::uint128 path = path_;
  const int64_t path_length = path_length_;
  const int64_t end = next_ + lookahead_tokens_;
  for (int64_t position = next_; position < end;) {
    const Run run = RunAt(request, position, end);
    AddRun(run, kLookaheadSeed);
    position += run.count;
  }
  path_ = path;
  path_length_ = path_length;
}

template <typename Emit>
void ContentKeys::ForEachNewBlock(const TraceRequest& request, int64_t num_tokens, Emit&& emit) {
  if (block_tokens_ < 1) return;
  while (num_tokens - next_ >= block_tokens_ + lookahead_tokens_) {
    const int64_t end = next_ + block_tokens_;
    Seed seed = kBlockSeed;
    while (next_ < end) {
      // Mostly the block is inside the same content id as the last one.
      const int64_t path_end = path_length_ * trace_block_tokens_;
      const Run run = trace_block_tokens_ > 1 && end <= path_end && end <= content_end_
                          ? Run{path_, next_ - (path_end - trace_block_tokens_), end - next_}
                          : RunAt(request, next_, end);
      AddRun(run, seed);
      next_ += run.count;
      // Further runs have a seed of their own: a block of two runs is not two blocks.
      seed = kMoreRunsSeed;
    }
    if (lookahead_tokens_ > 0) AddLookahead(request);
    emit(parent_);
    ++num_blocks_;
  }
}

void ContentKeys::AppendBlocks(const TraceRequest& request, int64_t num_tokens,
                               std::vector<absl::uint128>* keys) {
  ForEachNewBlock(request, num_tokens, [&](absl::uint128 key) { keys->push_back(key); });
}

void ContentKeys::AppendBlocks(const TraceRequest& request, int64_t num_tokens,
                               std::vector<BlockHash>* hashes) {
  ForEachNewBlock(request, num_tokens,
                  [&](absl::uint128 key) { hashes->push_back(BlockHash::FromUint128(key)); });
}

}  // namespace kvblocks::sim
