#include "tests/conformance/replayer.h"

#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/conformance/field_reader.h"

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

}  // namespace

absl::StatusOr<std::unique_ptr<Replayer>> Replayer::Create(const TranscriptConfig& config,
                                                           const MakeReplayedCache& make_cache,
                                                           Recorder recorder) {
  auto cache = make_cache(config, recorder);
  if (!cache.ok()) return cache.status();
  const ReplayedCache::Facts& facts = (*cache)->facts();
  absl::Status status =
      Compare("scheduler_block_size", config.scheduler_block_size, facts.scheduler_block_size);
  status.Update(Compare("hash_block_size", config.hash_block_size, facts.hash_block_size));
  if (!status.ok()) return status;
  return std::unique_ptr<Replayer>(new Replayer(config, *std::move(cache), recorder));
}

Replayer::Replayer(const TranscriptConfig& config, std::unique_ptr<ReplayedCache> cache,
                   Recorder recorder)
    : cache_(std::move(cache)),
      recorder_(recorder),
      hash_lookahead_(config.hash_lookahead),
      records_boundaries_(config.records_boundaries),
      keys_(static_cast<size_t>(cache_->facts().num_blocks)) {}

// What an engine mixes into the hash of the block that begins at a token.
ExtraKeys Replayer::Entry::ExtraKeysOf(int64_t first_token) const {
  ExtraKeys keys;
  if (!lora.empty()) keys.push_back({.kind = ExtraKey::Kind::kLora, .value = lora});
  if (!salt.empty() && first_token == 0) {
    keys.push_back({.kind = ExtraKey::Kind::kSalt, .value = salt});
  }
  return keys;
}

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
    const absl::Status status = (*entry)->sequence->SetNumComputed(n);
    if (!status.ok()) return Refused(status);
  }
  for (const auto& [id, tokens] : operation.appended) {
    const auto entry = Find(id);
    if (!entry.ok()) return entry.status();
    const absl::Status status = (*entry)->sequence->Append(tokens);
    if (!status.ok()) return Refused(status);
    (*entry)->tokens.insert((*entry)->tokens.end(), tokens.begin(), tokens.end());
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
  auto sequence = cache_->New(operation);
  if (!sequence.ok()) return Refused(sequence.status());
  requests_.emplace(operation.id, Entry{.sequence = *std::move(sequence),
                                        .tokens = operation.prompt,
                                        .lora = operation.lora,
                                        .salt = operation.salt});
  return absl::OkStatus();
}

absl::Status Replayer::RunAllocate(const Operation& operation, Entry& entry) {
  if (operation.use_hits && entry.sequence->num_hit_tokens() != operation.num_hit_tokens) {
    return NotInTranscript(operation, "\"hc\" is not the length of the latest look-up");
  }
  if (operation.use_hits && records_boundaries_) {
    const absl::Status status = entry.sequence->SetBoundary(entry.sequence->hit_boundary());
    if (!status.ok()) return Refused(status);
  }
  const auto got = entry.sequence->Allocate(operation);
  if (!got.ok()) return Refused(got.status());
  absl::Status status = Compare("out", operation.blocks, *got);
  BlockLists recorded, made;
  for (const auto& [source, target] : operation.copies) recorded.push_back({source, target});
  for (const BlockCopy& copy : cache_->TakeCopies()) {
    made.push_back({copy.source, copy.target});
    copies_.push_back(copy);
  }
  status.Update(Compare("cp", recorded, made));
  return status;
}

absl::Status Replayer::RunOnRequest(const Operation& operation, Entry& entry) {
  ReplayedCache::Sequence& sequence = *entry.sequence;
  if (operation.op == "alloc") return RunAllocate(operation, entry);
  absl::Status status;
  if (operation.op == "get") {
    const auto num_hit_tokens = sequence.LookUp();
    if (!num_hit_tokens.ok()) return Refused(num_hit_tokens.status());
    status = Compare("h", operation.hit_tokens, *num_hit_tokens);
    status.Update(Compare("hits", *operation.hits, sequence.Hits()));
    if (records_boundaries_) {
      status.Update(Compare("b", operation.boundary, sequence.hit_boundary()));
    }
    return status;
  }
  if (operation.op == "ids") return Compare("t", *operation.tables, sequence.Tables());
  if (operation.op == "common") {
    const auto common = sequence.NumCommonPrefixBlocks();
    if (!common.ok()) return Refused(common.status());
    // The engine has answered 0 since cascade attention went; ours goes on counting (V-30).
    if (recorder_ == Recorder::kVllm033) {
      return Compare("n", operation.common, std::vector<int64_t>(common->size(), 0));
    }
    return Compare("n", operation.common, *common);
  }
  if (operation.op == "free") {
    status = sequence.Free();
  } else if (operation.op == "preempt") {
    status = sequence.Preempt();
  } else if (operation.op == "cache") {
    status = sequence.CacheBlocks(operation.n);
  } else if (operation.op == "trim") {
    status = sequence.RemoveSkippedBlocks(operation.n);
  }
  return status.ok() ? status : Refused(status);
}

absl::Status Replayer::RunOnPool(const Operation& operation) {
  if (operation.op == "evict") {
    const absl::Status status = cache_->EvictBlocks(operation.ids);
    return status.ok() ? status : Refused(status);
  }
  if (operation.op == "reset") return Compare("ok", operation.ok, cache_->ResetPrefixCache());
  if (operation.op == "digest") return CheckDigest(*operation.digest);
  absl::Status status;
  if (operation.op == "step") status = cache_->StartStep();
  if (operation.op == "release") status = cache_->ReleaseCopies(std::exchange(copies_, {}));
  return status.ok() ? status : Refused(status);
}

absl::Status Replayer::CheckState(const RecordedState& recorded, const Entry* entry) {
  Crc queue, keys, refs;
  for (BlockId id : cache_->FreeList()) queue.AddInt32(static_cast<uint32_t>(id));
  for (BlockId id = 0; id < cache_->facts().num_blocks; ++id) {
    const ReplayedCache::Block block = cache_->BlockAt(id);
    keys.AddByte(static_cast<uint8_t>(block.cached_group));  // 255: not cached
    if (id != kNullBlockId) refs.AddInt32(static_cast<uint32_t>(block.ref_count));
  }
  absl::Status status = Compare("f", recorded.num_free, cache_->GetCounts().num_free);
  status.Update(Compare("q", recorded.queue_crc, queue.value()));
  status.Update(Compare("k", recorded.key_crc, keys.value()));
  status.Update(Compare("r", recorded.ref_crc, refs.value()));
  status.Update(CheckChanges(recorded, entry));
  status.Update(cache_->CheckInvariants());
  return status;
}

BlockStored Replayer::StoredBy(const Entry& entry, GroupId group) const {
  const ReplayedCache::Group& facts = cache_->facts().groups[static_cast<size_t>(group)];
  BlockStored event;
  event.block_size = facts.block_size;
  event.lora_name = entry.lora;
  event.group_idx = group;
  event.kv_cache_spec_kind = facts.kind;
  event.kv_cache_spec_sliding_window = facts.sliding_window;
  return event;
}

// Of the block of tokens [begin, end).
void Replayer::AddHash(const BlockHash& hash, const Entry& entry, int64_t begin, int64_t end,
                       BlockStored& event) const {
  event.block_hashes.push_back(hash);
  const ExtraKeys keys = entry.ExtraKeysOf(begin);
  event.extra_keys.push_back(keys.empty() ? std::nullopt : std::optional<ExtraKeys>(keys));
  if (hash_lookahead_ == 0 || !cache_->facts().names_lookahead_tokens) return;
  if (!event.lookahead_token_ids) event.lookahead_token_ids.emplace();
  const auto behind = entry.tokens.begin() + end;
  event.lookahead_token_ids->emplace_back(behind, behind + hash_lookahead_);
}

// One BlockStored per run of registered positions; the recorder itself made one of all of them.
absl::Status Replayer::AddStored(const TableChange& change, const Entry& entry,
                                 std::vector<KvEvent>& expected) {
  const bool in_one = recorder_ == Recorder::kVllm033;
  const GroupId group = change.group;
  const std::vector<BlockId> table = entry.sequence->Tables()[static_cast<size_t>(group)];
  const int64_t size = cache_->facts().groups[static_cast<size_t>(group)].block_size;
  BlockStored* run = nullptr;
  for (int64_t i = change.from; i < change.to; ++i) {
    const BlockId block = change.blocks[static_cast<size_t>(i - change.from)];
    if (block == kNullBlockId && !in_one) {
      run = nullptr;
      continue;
    }
    if (run == nullptr) {
      run = &expected.emplace_back().emplace<BlockStored>(StoredBy(entry, group));
      if (i > 0) run->parent_block_hash = entry.sequence->HashOfBlock(group, i - 1);
    }
    if (static_cast<int64_t>(entry.tokens.size()) < (i + 1) * size + hash_lookahead_) {
      return absl::FailedPreconditionError(
          absl::StrCat("ev: position ", i, " of group ", group, " is not known yet"));
    }
    const auto tokens = entry.tokens.begin();
    run->token_ids.insert(run->token_ids.end(), tokens + i * size, tokens + (i + 1) * size);
    if (block == kNullBlockId) continue;
    const std::optional<BlockHash> hash = entry.sequence->HashOfBlock(group, i);
    if (i >= static_cast<int64_t>(table.size()) || table[static_cast<size_t>(i)] != block ||
        block >= cache_->facts().num_blocks || !hash) {
      return absl::FailedPreconditionError(absl::StrCat(
          "ev: block ", block, " was recorded at position ", i, " of group ", group));
    }
    keys_[static_cast<size_t>(block)].first = *hash;
    AddHash(*hash, entry, i * size, (i + 1) * size, *run);
  }
  return absl::OkStatus();
}

absl::Status Replayer::AddStoredTail(const TableChange& change, const Entry& entry,
                                     std::vector<KvEvent>& expected) {
  const int64_t unit = cache_->facts().hash_block_size;
  const int64_t end = change.num_tokens;
  const std::optional<BlockHash> hash = entry.sequence->HashOfPrefix(end);
  if (!hash || static_cast<int64_t>(entry.tokens.size()) < end + hash_lookahead_) {
    return absl::FailedPreconditionError(
        absl::StrCat("ev: a tail of ", end, " tokens was recorded, which has no hash"));
  }
  BlockStored event = StoredBy(entry, change.group);
  event.block_size = unit;
  if (end > unit) event.parent_block_hash = entry.sequence->HashOfPrefix(end - unit);
  event.token_ids.assign(entry.tokens.begin() + (end - unit), entry.tokens.begin() + end);
  AddHash(*hash, entry, end - unit, end, event);
  Keys& keys = keys_[static_cast<size_t>(change.blocks[0])];
  if (change.is_further_key) {
    keys.further.push_back(*hash);
  } else {
    keys.first = *hash;
  }
  expected.emplace_back().emplace<BlockStored>(std::move(event));
  return absl::OkStatus();
}

absl::Status Replayer::AddRemoved(const TableChange& change, std::vector<KvEvent>& expected) {
  Keys& keys = keys_[static_cast<size_t>(change.blocks[0])];
  auto& removed = expected.emplace_back().emplace<BlockRemoved>();
  removed.group_idx = change.group;
  removed.block_hash = keys.first;
  if (!change.is_further_key) return absl::OkStatus();
  if (keys.further.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("ev: block ", change.blocks[0], " has no further key"));
  }
  removed.block_hash = keys.further.front();
  keys.further.erase(keys.further.begin());
  return absl::OkStatus();
}

// The events must be those that follow from the recorded changes, one BlockRemoved per removal and
// AllBlocksCleared.
absl::Status Replayer::CheckChanges(const RecordedState& recorded, const Entry* entry) {
  const ReplayedCache::Facts& facts = cache_->facts();
  std::vector<KvEvent> expected;
  for (const TableChange& change : recorded.changes) {
    using Kind = TableChange::Kind;
    if (change.group < 0 || static_cast<size_t>(change.group) >= facts.groups.size()) {
      return absl::InvalidArgumentError(absl::StrCat("ev names group ", change.group));
    }
    for (BlockId block : change.kind == Kind::kStored ? std::vector<BlockId>() : change.blocks) {
      if (block <= 0 || block >= facts.num_blocks) {
        return absl::InvalidArgumentError(absl::StrCat("ev names block ", block));
      }
    }
    const bool needs_entry = change.kind == Kind::kStored || change.kind == Kind::kStoredTail;
    if (needs_entry && entry == nullptr) {
      return absl::InvalidArgumentError("ev registers blocks of no request");
    }
    absl::Status status;
    switch (change.kind) {
      case Kind::kCleared:
        expected.emplace_back().emplace<AllBlocksCleared>();
        std::fill(keys_.begin(), keys_.end(), Keys());
        break;
      case Kind::kMoved:
        keys_[static_cast<size_t>(change.blocks[1])] =
            std::exchange(keys_[static_cast<size_t>(change.blocks[0])], {});
        break;
      case Kind::kRemoved:
        status = AddRemoved(change, expected);
        break;
      case Kind::kStored:
        status = AddStored(change, *entry, expected);
        break;
      case Kind::kStoredTail:
        status = AddStoredTail(change, *entry, expected);
        break;
    }
    if (!status.ok()) return status;
  }
  std::vector<KvEvent> got = cache_->TakeEvents();
  for (KvEvent& event : got) {  // the transcript does not record why a block lost its key
    if (auto* removed = std::get_if<BlockRemoved>(&event)) removed->reason = RemovalReason::kReused;
  }
  const auto [want, have] = std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
  if (want == expected.end() && have == got.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("ev: recorded ", expected.size(), " events, got ", got.size(),
                   ", of which the first ", want - expected.begin(), " agree"));
}

absl::Status Replayer::CheckDigest(const RecordedDigest& recorded) {
  BlockLists cached(cache_->facts().groups.size());
  for (BlockId id = 1; id < cache_->facts().num_blocks; ++id) {
    const GroupId group = cache_->BlockAt(id).cached_group;
    if (group >= 0) cached[static_cast<size_t>(group)].push_back(id);
  }
  const ReplayedCache::Counts counts = cache_->GetCounts();
  absl::Status status = Compare("queue", recorded.queue, cache_->FreeList());
  status.Update(Compare("cached", recorded.cached, cached));
  status.Update(Compare("keys", recorded.num_keys, counts.num_keys));
  status.Update(Compare("usage", recorded.usage, counts.usage));
  return status;
}

namespace {

absl::StatusOr<ReplayResult> ReplayLinesAs(const std::string& path,
                                           const std::vector<std::string>& lines,
                                           const MakeReplayedCache& make_cache, Recorder recorder) {
  const auto at_line = [&](size_t line, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(path, ":", line, ": ", status.message()));
  };
  if (lines.empty()) return at_line(1, absl::InvalidArgumentError("the file is empty"));
  const auto config = ParseConfig(lines.front());
  if (!config.ok()) return at_line(1, config.status());
  const auto replayer = Replayer::Create(*config, make_cache, recorder);
  if (!replayer.ok()) return at_line(1, replayer.status());
  ReplayResult result{
      .num_lines = static_cast<int64_t>(lines.size()), .difference = {}, .recorder = recorder};
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto operation = ParseOperation(lines[i]);
    if (!operation.ok()) return at_line(i + 1, operation.status());
    const absl::Status status = (*replayer)->Run(*operation);
    if (absl::IsInvalidArgument(status)) return at_line(i + 1, status);
    if (!status.ok()) {
      result.differing_line = static_cast<int64_t>(i + 1);
      result.difference =
          absl::StrCat(operation->op, " ", operation->id, ": ", status.message());
      break;
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<ReplayResult> ReplayFile(const std::string& path,
                                        const MakeReplayedCache& make_cache,
                                        std::optional<Recorder> recorder) {
  const auto lines = ReadLines(path);
  if (!lines.ok()) return lines.status();
  auto result = ReplayLinesAs(path, *lines, make_cache, recorder.value_or(Recorder::kVllm033));
  if (recorder || !result.ok() || result->differing_line == 0) return result;
  auto older = ReplayLinesAs(path, *lines, make_cache, Recorder::kVllm025);
  if (!older.ok()) return result;
  const bool is_further =
      older->differing_line == 0 || older->differing_line > result->differing_line;
  return is_further ? older : result;
}

}  // namespace kvblocks::conformance
