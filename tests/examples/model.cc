#include "tests/examples/model.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_split.h"

namespace kvblocks::examples {
namespace {

int32_t Number(absl::string_view text) {
  return static_cast<int32_t>(std::strtol(std::string(text).c_str(), nullptr, 10));
}

Lists ListsOf(const ComputedBlocks& computed) {
  Lists lists;
  for (size_t g = 0; g < computed.num_groups(); ++g) {
    const auto blocks = computed.blocks(static_cast<GroupId>(g));
    lists.emplace_back(blocks.begin(), blocks.end());
  }
  return lists;
}

std::vector<KvCacheGroup> PlainGroups(const std::vector<KvCacheSpec>& specs) {
  std::vector<KvCacheGroup> groups;
  for (const KvCacheSpec& spec : specs) groups.push_back({.spec = spec});
  return groups;
}

}  // namespace

Ids Blocks(const std::string& text) {
  Ids ids;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> range = absl::StrSplit(part, "..");
    const std::vector<std::string> repeat = absl::StrSplit(part, 'x');
    if (range.size() == 2) {
      for (BlockId id = Number(range[0]); id <= Number(range[1]); ++id) ids.push_back(id);
    } else if (repeat.size() == 2) {
      ids.insert(ids.end(), static_cast<size_t>(Number(repeat[1])), Number(repeat[0]));
    } else {
      ids.push_back(Number(part));
    }
  }
  return ids;
}

Lists Groups(const std::string& text) {
  Lists lists;
  for (absl::string_view part : absl::StrSplit(text, '|')) {
    lists.push_back(Blocks(std::string(part)));
  }
  return lists;
}

Tokens Range(TokenId first, TokenId last) {
  Tokens tokens;
  for (TokenId token = first; token <= last; ++token) tokens.push_back(token);
  return tokens;
}

Tokens Join(const Tokens& a, const Tokens& b) {
  Tokens tokens = a;
  tokens.insert(tokens.end(), b.begin(), b.end());
  return tokens;
}

Tokens Fresh(int64_t count) {
  static TokenId next = 1000000;
  const TokenId first = next;
  next += static_cast<TokenId>(count);
  return Range(first, next - 1);
}

KvCacheGroup DraftGroup(KvCacheSpec spec) { return {.spec = std::move(spec), .is_draft = true}; }

KvCacheManagerOptions Model::Options033() {
  KvCacheManagerOptions options = Options();
  options.semantics = Semantics::Vllm033();
  options.semantics.retention_interval = std::nullopt;
  return options;
}

KvCacheManagerOptions Model::Options() {
  KvCacheManagerOptions options;
  options.max_model_len = 8192;
  options.semantics = Semantics::Vllm025();
  return options;
}

Model::Model(int64_t num_blocks, const std::vector<KvCacheSpec>& specs,
             KvCacheManagerOptions options)
    : Model(num_blocks, PlainGroups(specs), std::move(options)) {}

Model::Model(int64_t num_blocks, const std::vector<KvCacheGroup>& groups,
             KvCacheManagerOptions options)
    : manager(
          KvCacheManager::Create({.num_blocks = num_blocks, .groups = groups}, options).value()) {}

Model Model::WithHashBlocks(int64_t num_blocks, const std::vector<KvCacheSpec>& specs,
                            int64_t hash_block_size, KvCacheManagerOptions options) {
  return Model(KvCacheManager::Create({.num_blocks = num_blocks,
                                       .groups = PlainGroups(specs),
                                       .hash_block_size = hash_block_size},
                                      options)
                   .value());
}

Request& Model::New(const Tokens& tokens, bool skip_reading) {
  auto request = manager->NewRequest({.id = "r" + std::to_string(requests_.size()),
                                      .content = {.token_ids = tokens},
                                      .skip_reading_prefix_cache = skip_reading});
  requests_.push_back(std::move(request).value());
  return *requests_.back();
}

ComputedBlocks Model::LookUp(const Request& request) {
  return manager->GetComputedBlocks(request).value();
}

Lists Model::Hits(const Request& request) { return ListsOf(LookUp(request)); }

std::optional<Lists> Model::Alloc(Request& request, int64_t num_new, AllocateSlotsParams params) {
  ComputedBlocks hits;
  params.num_new_tokens = num_new;
  if (!manager->HoldsBlocks(request)) {
    hits = LookUp(request);
    params.computed_blocks = &hits;
  }
  const auto slots = manager->AllocateSlots(request, params);
  EXPECT_TRUE(slots.ok()) << slots.status();
  EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
  if (!slots.ok() || !slots->has_value()) return std::nullopt;
  request.set_num_computed_tokens(request.num_computed_tokens() + hits.num_tokens() +
                                  params.num_external_computed_tokens + num_new);
  Lists lists;
  for (GroupId g = 0; g < manager->num_groups(); ++g) {
    const auto blocks = (*slots)->blocks(g);
    lists.emplace_back(blocks.begin(), blocks.end());
  }
  return lists;
}

absl::Status Model::AllocWith(Request& request, int64_t num_new, const ComputedBlocks& hits) {
  return manager->AllocateSlots(request, {.num_new_tokens = num_new, .computed_blocks = &hits})
      .status();
}

void Model::Append(Request& request, const Tokens& tokens) {
  EXPECT_TRUE(request.AppendOutputTokens(tokens).ok());
}

void Model::Free(Request& request) {
  EXPECT_TRUE(manager->Free(request).ok());
  EXPECT_TRUE(manager->CheckInvariants().ok()) << manager->CheckInvariants();
}

void Model::Evict(const Ids& ids) { EXPECT_TRUE(manager->EvictBlocks(ids).ok()); }

std::vector<int> Model::Registered(const Request& request, GroupId group) const {
  std::vector<int> positions;
  const auto table = manager->GetBlocks(request, group);
  for (size_t i = 0; i < table.size(); ++i) {
    if (HasKey(table[i])) positions.push_back(static_cast<int>(i));
  }
  return positions;
}

}  // namespace kvblocks::examples
