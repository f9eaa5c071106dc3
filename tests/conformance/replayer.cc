#include "kvblocks/tests/conformance/replayer.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvblocks/tests/conformance/gzip_lines.h"
#include "kvblocks/tests/group_specs.h"

namespace kvblocks::conformance {
namespace {

std::string Show(bool value) { return value ? "true" : "false"; }
std::string Show(BlockId id) { return absl::StrCat(id); }
std::string Show(int64_t value) { return absl::StrCat(value); }
std::string Show(uint32_t value) { return absl::StrCat(value); }
std::string Show(double value) { return absl::StrCat(value); }
template <typename T>
std::string Show(const std::vector<T>& values) {
  std::vector<std::string> parts;
  for (const T& value : values) parts.push_back(Show(value));
  return absl::StrCat("[", absl::StrJoin(parts, ","), "]");
}
template <typename T>
std::string Show(const std::optional<T>& value) {
  return value ? Show(*value) : "null";
}

template <typename T>
absl::Status Compare(absl::string_view what, const T& recorded, const T& got) {
  if (recorded == got) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": recorded ", Show(recorded), ", got ", Show(got)));
}

absl::Status NotInTranscript(const Operation& operation, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(operation.op, " ", operation.id, ": ", what));
}

// What the recorded caller never did is refused by the manager: then the answers differ.
absl::Status Refused(const absl::Status& status) {
  return absl::FailedPreconditionError(absl::StrCat("the call was refused: ", status.ToString()));
}

absl::StatusOr<KvCacheSpec> SpecOf(const TranscriptGroup& group) {
  const int64_t size = group.block_size;
  if (group.kind == "full_attention") return testing::Full(size);
  if (group.kind == "mla_attention") return testing::Mla(size);
  if (group.kind == "sliding_window" && group.sliding_window) {
    return testing::Window(size, *group.sliding_window);
  }
  if (group.kind == "sliding_window_mla" && group.sliding_window) {
    return testing::WindowMla(size, *group.sliding_window);
  }
  if (group.kind == "chunked_local_attention" && group.attention_chunk_size) {
    return testing::Chunked(size, *group.attention_chunk_size);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("group of kind \"", group.kind, "\" is unknown or lacks its window or chunk"));
}

class Crc {
 public:
  void AddInt32(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) AddByte(static_cast<uint8_t>(value >> shift));
  }
  void AddByte(uint8_t byte) { bytes_.push_back(byte); }
  uint32_t value() const {
    return static_cast<uint32_t>(
        crc32(crc32(0, nullptr, 0), bytes_.data(), static_cast<uInt>(bytes_.size())));
  }

 private:
  std::vector<uint8_t> bytes_;
};

BlockLists ListsOf(const ComputedBlocks& computed) {
  BlockLists lists;
  for (size_t g = 0; g < computed.num_groups(); ++g) {
    const auto blocks = computed.blocks(static_cast<GroupId>(g));
    lists.emplace_back(blocks.begin(), blocks.end());
  }
  return lists;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Replayer>> Replayer::Create(const TranscriptConfig& config) {
  KvCacheConfig cache{.num_blocks = config.num_blocks};
  for (const TranscriptGroup& group : config.groups) {
    auto spec = SpecOf(group);
    if (!spec.ok()) return spec.status();
    cache.groups.push_back({.spec = *spec, .is_draft = group.is_draft});
  }
  KvCacheManagerOptions options;
  options.max_model_len = config.max_model_len;
  options.max_in_flight_tokens = config.max_in_flight_tokens;
  options.enable_caching = config.enable_caching;
  options.use_eagle = config.use_eagle;
  options.enable_events = config.enable_events;
  options.free_order = config.append_all ? FreeOrder::kAppendAll : FreeOrder::kUnhashedFirst;
  options.block_count_formula = BlockCountFormula::kUpstream;
  auto manager = KvCacheManager::Create(cache, options);
  if (!manager.ok()) return manager.status();
  absl::Status status = Compare("scheduler_block_size", config.scheduler_block_size,
                                (*manager)->scheduler_block_size());
  status.Update(Compare("hash_block_size", config.hash_block_size, (*manager)->hash_block_size()));
  if (!status.ok()) return status;
  return std::unique_ptr<Replayer>(new Replayer(*std::move(manager)));
}

Replayer::Replayer(std::unique_ptr<KvCacheManager> manager)
    : manager_(std::move(manager)),
      last_hash_(static_cast<size_t>(manager_->pool().num_blocks())) {}

absl::StatusOr<Replayer::Entry*> Replayer::Find(const std::string& id) {
  const auto it = requests_.find(id);
  if (it != requests_.end()) return &it->second;
  return absl::InvalidArgumentError(absl::StrCat("request \"", id, "\" was never created"));
}

absl::Status Replayer::Run(const Operation& operation) {
  if (operation.op == "new") return RunNew(operation);
  for (const auto& [id, n] : operation.computed) {
    const auto entry = Find(id);
    if (!entry.ok()) return entry.status();
    (*entry)->request->set_num_computed_tokens(n);
  }
  for (const auto& [id, tokens] : operation.appended) {
    const auto entry = Find(id);
    if (!entry.ok()) return entry.status();
    absl::Status status = (*entry)->request->AppendOutputTokens(tokens);
    if (!status.ok()) return Refused(status);
  }
  Entry* entry = nullptr;
  if (!operation.id.empty()) {
    const auto found = Find(operation.id);
    if (!found.ok()) return found.status();
    entry = *found;
  }
  absl::Status status = entry != nullptr ? RunOnRequest(operation, *entry) : RunOnPool(operation);
  if (status.ok() && operation.state) status = CheckState(*operation.state, entry);
  if (status.ok() && operation.op == "free") requests_.erase(operation.id);
  return status;
}

absl::Status Replayer::RunNew(const Operation& operation) {
  if (requests_.count(operation.id) > 0) {
    return NotInTranscript(operation, "the id is in use already");
  }
  auto request = manager_->NewRequest({.id = operation.id,
                                       .content = {.token_ids = operation.prompt,
                                                   .lora_name = operation.lora,
                                                   .cache_salt = operation.salt},
                                       .skip_reading_prefix_cache = operation.skip_reading});
  if (!request.ok()) return Refused(request.status());
  requests_[operation.id].request = *std::move(request);
  return absl::OkStatus();
}

absl::Status Replayer::RunAllocate(const Operation& operation, Entry& entry) {
  AllocateSlotsParams params;
  params.num_new_tokens = operation.num_new;
  params.computed_blocks = operation.use_hits ? &entry.hits : nullptr;
  params.num_lookahead_tokens = operation.num_lookahead;
  params.num_external_computed_tokens = operation.num_external;
  params.delay_cache_blocks = operation.delay;
  params.full_sequence_must_fit = operation.gate;
  if (operation.use_hits && entry.hits.num_tokens() != operation.num_hit_tokens) {
    return NotInTranscript(operation, "\"hc\" is not the length of the latest look-up");
  }
  const auto slots = manager_->AllocateSlots(*entry.request, params);
  if (!slots.ok()) return Refused(slots.status());
  std::optional<BlockLists> got;
  if (slots->has_value()) {
    got.emplace();
    for (size_t g = 0; g < (*slots)->num_groups(); ++g) {
      const auto blocks = (*slots)->blocks(static_cast<GroupId>(g));
      got->emplace_back(blocks.begin(), blocks.end());
    }
    entry.request->set_status(RequestStatus::kRunning);
  }
  return Compare("out", operation.blocks, got);
}

absl::Status Replayer::RunOnRequest(const Operation& operation, Entry& entry) {
  Request& request = *entry.request;
  if (operation.op == "alloc") return RunAllocate(operation, entry);
  absl::Status status;
  if (operation.op == "get") {
    status = manager_->GetComputedBlocks(request, entry.hits);
    if (!status.ok()) return Refused(status);
    status = Compare("h", operation.hit_tokens, entry.hits.num_tokens());
    status.Update(Compare("hits", *operation.hits, ListsOf(entry.hits)));
    return status;
  }
  if (operation.op == "ids") {
    return Compare("t", *operation.tables, manager_->GetBlockIds(request));
  }
  if (operation.op == "common") {
    return Compare("n", operation.common, manager_->GetNumCommonPrefixBlocks(request));
  }
  if (operation.op == "free" || operation.op == "preempt") {
    status = manager_->Free(request);
    if (operation.op == "preempt") request.MarkPreempted();
  } else if (operation.op == "cache") {
    status = manager_->CacheBlocks(request, operation.n);
  } else if (operation.op == "trim") {
    status = manager_->RemoveSkippedBlocks(request, operation.n);
  }
  return status.ok() ? status : Refused(status);
}

absl::Status Replayer::RunOnPool(const Operation& operation) {
  if (operation.op == "evict") {
    const absl::Status status = manager_->EvictBlocks(operation.ids);
    return status.ok() ? status : Refused(status);
  }
  if (operation.op == "reset") return Compare("ok", operation.ok, manager_->ResetPrefixCache());
  if (operation.op == "digest") return CheckDigest(*operation.digest);
  return absl::OkStatus();
}

absl::Status Replayer::CheckState(const RecordedState& recorded, const Entry* entry) {
  const BlockPool& pool = manager_->pool();
  Crc queue, keys, refs;
  for (BlockId id : pool.free_queue().Walk()) queue.AddInt32(static_cast<uint32_t>(id));
  for (BlockId id = 0; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& block = pool.block(id);
    keys.AddByte(block.has_key() ? static_cast<uint8_t>(block.key_group) : 255);
    if (id != kNullBlockId) refs.AddInt32(static_cast<uint32_t>(block.ref_count));
  }
  absl::Status status = Compare("f", recorded.num_free, manager_->num_free_blocks());
  status.Update(Compare("q", recorded.queue_crc, queue.value()));
  status.Update(Compare("k", recorded.key_crc, keys.value()));
  status.Update(Compare("r", recorded.ref_crc, refs.value()));
  status.Update(CheckChanges(recorded, entry));
  status.Update(manager_->CheckInvariants());
  return status;
}

// The events must be those that follow from the recorded changes: one BlockStored per run of
// registered positions, one BlockRemoved per removal, AllBlocksCleared.
absl::Status Replayer::CheckChanges(const RecordedState& recorded, const Entry* entry) {
  std::vector<KvEvent> expected;
  for (const TableChange& change : recorded.changes) {
    if (change.kind == TableChange::Kind::kCleared) {
      expected.emplace_back().emplace<AllBlocksCleared>();
      continue;
    }
    if (change.group < 0 || change.group >= manager_->num_groups()) {
      return absl::InvalidArgumentError(absl::StrCat("ev names group ", change.group));
    }
    if (change.kind == TableChange::Kind::kRemoved) {
      if (change.blocks[0] <= 0 || change.blocks[0] >= manager_->pool().num_blocks()) {
        return absl::InvalidArgumentError(absl::StrCat("ev names block ", change.blocks[0]));
      }
      auto& removed = expected.emplace_back().emplace<BlockRemoved>();
      removed.block_hash = last_hash_[static_cast<size_t>(change.blocks[0])];
      removed.group_idx = change.group;
      continue;
    }
    if (entry == nullptr) return absl::InvalidArgumentError("ev registers blocks of no request");
    const PrefixContent& content = entry->request->content();
    const SingleTypeManager& group = manager_->group(change.group);
    const auto table = manager_->GetBlocks(*entry->request, change.group);
    const int64_t size = group.block_size();
    const int64_t per_block = size / manager_->hash_block_size();
    BlockStored* run = nullptr;
    for (int64_t i = change.from; i < change.to; ++i) {
      const BlockId block = change.blocks[static_cast<size_t>(i - change.from)];
      if (block == kNullBlockId) {
        run = nullptr;
        continue;
      }
      if (i >= static_cast<int64_t>(table.size()) || table[static_cast<size_t>(i)] != block ||
          (i + 1) * size > content.num_hashed_tokens()) {
        return absl::FailedPreconditionError(absl::StrCat(
            "ev: block ", block, " was recorded at position ", i, " of group ", change.group));
      }
      const BlockHash& hash = content.HashOfBlock(i, per_block);
      last_hash_[static_cast<size_t>(block)] = hash;
      if (run == nullptr) {
        run = &expected.emplace_back().emplace<BlockStored>();
        if (i > 0) run->parent_block_hash = content.HashOfBlock(i - 1, per_block);
        run->block_size = size;
        run->lora_name = content.lora_name();
        run->group_idx = change.group;
        run->kv_cache_spec_kind = group.spec().kind_name();
        run->kv_cache_spec_sliding_window = group.spec().sliding_window();
      }
      run->block_hashes.push_back(hash);
      const ExtraKeys keys = content.ExtraKeysOf(i * size, (i + 1) * size);
      run->extra_keys.push_back(keys.empty() ? std::nullopt : std::optional<ExtraKeys>(keys));
      const auto tokens = content.token_ids().begin();
      run->token_ids.insert(run->token_ids.end(), tokens + i * size, tokens + (i + 1) * size);
    }
  }
  std::vector<KvEvent> got = manager_->TakeEvents();
  for (KvEvent& event : got) {  // the transcript does not record why a block lost its key
    if (auto* removed = std::get_if<BlockRemoved>(&event)) removed->reason = RemovalReason::kReused;
  }
  const auto [want, have] = std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
  if (want == expected.end() && have == got.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("ev: recorded ", expected.size(), " events, got ", got.size(),
                   ", of which the first ", want - expected.begin(), " agree"));
}

absl::Status Replayer::CheckDigest(const RecordedDigest& recorded) const {
  const BlockPool& pool = manager_->pool();
  BlockLists cached(static_cast<size_t>(manager_->num_groups()));
  for (BlockId id = 1; id < pool.num_blocks(); ++id) {
    const KvCacheBlock& block = pool.block(id);
    if (block.has_key()) cached[static_cast<size_t>(block.key_group)].push_back(id);
  }
  absl::Status status = Compare("queue", recorded.queue, pool.free_queue().Walk());
  status.Update(Compare("cached", recorded.cached, cached));
  status.Update(Compare("keys", recorded.num_keys, int64_t{pool.num_keys()}));
  status.Update(Compare("usage", recorded.usage, manager_->usage()));
  return status;
}

absl::StatusOr<ReplayResult> ReplayFile(const std::string& path) {
  const auto lines = ReadLines(path);
  if (!lines.ok()) return lines.status();
  const auto at_line = [&](size_t line, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(path, ":", line, ": ", status.message()));
  };
  if (lines->empty()) return at_line(1, absl::InvalidArgumentError("the file is empty"));
  const auto config = ParseConfig(lines->front());
  if (!config.ok()) return at_line(1, config.status());
  const auto replayer = Replayer::Create(*config);
  if (!replayer.ok()) return at_line(1, replayer.status());
  for (size_t i = 1; i < lines->size(); ++i) {
    const auto operation = ParseOperation((*lines)[i]);
    if (!operation.ok()) return at_line(i + 1, operation.status());
    const absl::Status status = (*replayer)->Run(*operation);
    if (absl::IsInvalidArgument(status)) return at_line(i + 1, status);
    if (!status.ok()) {
      return ReplayResult{
          .num_lines = static_cast<int64_t>(lines->size()),
          .differing_line = static_cast<int64_t>(i + 1),
          .difference = absl::StrCat(operation->op, " ", operation->id, ": ", status.message())};
    }
  }
  return ReplayResult{.num_lines = static_cast<int64_t>(lines->size()), .difference = {}};
}

}  // namespace kvblocks::conformance
