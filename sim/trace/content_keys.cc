#include "sim/trace/content_keys.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include "absl/container/inlined_vector.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace kvblocks::sim {
namespace {

// One seed per kind of thing that is hashed, so that no path is ever mistaken for a block or a
// scope.
enum Seed : uint64_t { kScopeSeed = 1, kPathSeed, kOwnSeed, kTokensSeed, kBlockSeed };

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
                         std::string_view trace)
    : block_tokens_(block_tokens), trace_block_tokens_(info.block_tokens) {
  const int64_t num_ids = static_cast<int64_t>(request.content_ids.size());
  content_end_ = 0;
  if (trace_block_tokens_ > 0 && num_ids > 0) {
    // Compared before multiplying: both factors come from a file.
    content_end_ = num_ids > request.input_length / trace_block_tokens_
                       ? request.input_length
                       : num_ids * trace_block_tokens_;
  }
  parent_ = ScopeKey(info, request, trace);
  path_ = parent_;
  own_ = KeyWithNumber(parent_, static_cast<uint64_t>(request.row), kOwnSeed);
}

ContentKeys::Run ContentKeys::RunAt(const TraceRequest& request, int64_t position, int64_t end) {
  const int64_t num_output_ids = static_cast<int64_t>(request.output_ids.size());
  const int64_t ids_end = request.input_length + num_output_ids;
  const bool token_prompt = trace_block_tokens_ == 1 && position < content_end_;
  if (position < content_end_ && !token_prompt) {
    while (position >= path_length_ * trace_block_tokens_) {
      path_ = PathKey(path_, request.content_ids[static_cast<size_t>(path_length_++)]);
    }
    const int64_t path_end = path_length_ * trace_block_tokens_;
    return {path_, position - (path_end - trace_block_tokens_),
            std::min({end, path_end, content_end_}) - position};
  }
  if (token_prompt || (position >= request.input_length && position < ids_end)) {
    // Token ids of the prompt and of the output are one kind of symbol: a later prompt may repeat
    // an output.
    absl::InlinedVector<int64_t, 64> ids;
    const int64_t prompt_end = token_prompt ? std::min(end, content_end_) : position;
    int64_t run_end = prompt_end;
    if (prompt_end == request.input_length || !token_prompt) {
      run_end = std::max(prompt_end, std::min(end, ids_end));
    }
    const int64_t* prompt = request.content_ids.data();
    if (run_end == prompt_end) {
      return {Hash(prompt + position, static_cast<size_t>(run_end - position) * sizeof(int64_t),
                   kTokensSeed),
              0, run_end - position};
    }
    if (token_prompt) ids.insert(ids.end(), prompt + position, prompt + prompt_end);
    const uint32_t* output = request.output_ids.data();
    ids.insert(ids.end(), output + (prompt_end - request.input_length),
               output + (run_end - request.input_length));
    return {Hash(ids.data(), ids.size() * sizeof(int64_t), kTokensSeed), 0, run_end - position};
  }
  // Symbols of this request alone. They end where the prompt does only if output ids follow.
  const bool ids_follow = position < request.input_length && num_output_ids > 0;
  return {own_, position, (ids_follow ? std::min(end, request.input_length) : end) - position};
}

void ContentKeys::AppendBlocks(const TraceRequest& request, int64_t num_tokens,
                               std::vector<absl::uint128>* keys) {
  if (block_tokens_ < 1) return;
  while (num_tokens - next_ >= block_tokens_) {
    const int64_t end = next_ + block_tokens_;
    Run run = RunAt(request, next_, end);
    std::array<uint64_t, 6> words = {
        absl::Uint128Low64(parent_),      absl::Uint128High64(parent_),
        absl::Uint128Low64(run.path),     absl::Uint128High64(run.path),
        static_cast<uint64_t>(run.first), static_cast<uint64_t>(run.count)};
    if (run.count == block_tokens_) {
      parent_ = Hash(words.data(), sizeof(words), kBlockSeed);
    } else {
      absl::InlinedVector<uint64_t, 64> list(words.begin(), words.end());
      for (int64_t position = next_ + run.count; position < end; position += run.count) {
        run = RunAt(request, position, end);
        list.push_back(absl::Uint128Low64(run.path));
        list.push_back(absl::Uint128High64(run.path));
        list.push_back(static_cast<uint64_t>(run.first));
        list.push_back(static_cast<uint64_t>(run.count));
      }
      parent_ = Hash(list.data(), list.size() * sizeof(uint64_t), kBlockSeed);
    }
    keys->push_back(parent_);
    next_ = end;
    ++num_blocks_;
  }
}

}  // namespace kvblocks::sim
