#include "tests/oracle/pool.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

namespace kvblocks::oracle {

ExtraKeys ExtraKeysOf(const Content& content, int64_t begin, int64_t end) {
  ExtraKeys keys;
  if (!content.lora_name.empty())
    keys.push_back({ExtraKey::Kind::kLora, content.lora_name, 0, content.lora_path});
  for (const MultimodalFeature& feature : content.features) {
    if (end > feature.offset && begin < feature.offset + feature.length) {
      keys.push_back({ExtraKey::Kind::kMultimodal, feature.identifier, feature.offset - begin});
    }
  }
  if (begin == 0 && !content.cache_salt.empty()) {
    keys.push_back({ExtraKey::Kind::kSalt, content.cache_salt, 0});
  }
  return keys;
}

std::vector<std::string> PrefixNames(const Content& content, int64_t hash_block_size,
                                     int64_t num_lookahead) {
  std::vector<std::string> names;
  std::string name;
  for (int64_t begin = 0; begin + hash_block_size + num_lookahead <= content.num_tokens();
       begin += hash_block_size) {
    const int64_t end = begin + hash_block_size + num_lookahead;
    for (int64_t i = begin; i < end; ++i) {
      name += std::to_string(content.tokens[static_cast<size_t>(i)]) + ",";
    }
    for (const ExtraKey& key : ExtraKeysOf(content, begin, end)) {
      name += "{" + std::to_string(static_cast<int>(key.kind)) + ":" + key.value + "@" +
              std::to_string(key.offset) + "@" + key.path + "}";
    }
    names.push_back(name);
  }
  return names;
}

namespace {

// Internal errors of the rules ("must stop the process").
void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

Pool::Pool(int64_t num_blocks, bool enable_caching, bool enable_events, bool unhashed_first,
           std::optional<NativeLayout> native, bool one_event_per_registration)
    : enable_caching_(enable_caching),
      enable_events_(enable_events),
      unhashed_first_(unhashed_first),
      one_event_per_registration_(one_event_per_registration),
      blocks_(static_cast<size_t>(num_blocks)),
      queues_(native ? native->pages_per_chunk.size() : 1),
      native_(std::move(native)) {
  if (native_) {
    class_of_chunk_.assign(static_cast<size_t>(native_->num_chunks), -1);
    return;
  }
  for (BlockId id = 1; id < num_blocks; ++id) queues_[0].push_back(id);  // BM-14
}

std::vector<BlockId> Pool::queue() const {
  std::vector<BlockId> all;
  for (const std::vector<BlockId>& queue : queues_) {
    all.insert(all.end(), queue.begin(), queue.end());
  }
  return all;
}

int64_t Pool::num_permanent() const {
  return std::count_if(blocks_.begin(), blocks_.end(),
                       [](const Block& block) { return block.is_permanent; });
}

double Pool::usage() const {  // BM-47
  if (native_) {
    double used = 0;
    double usable = static_cast<double>(native_->num_chunks);
    for (BlockId id = 1; IsValid(id); ++id) {
      const Block& block = blocks_[static_cast<size_t>(id)];
      if (block.ref_count == 0) continue;
      const double share = 1.0 / static_cast<double>(PagesPerChunk(ClassOf(id)));
      (block.is_permanent ? usable : used) += block.is_permanent ? -share : share;
    }
    return usable < 1e-9 ? 0.0 : used / usable;
  }
  const int64_t usable = static_cast<int64_t>(blocks_.size()) - 1 - num_permanent();
  return usable == 0 ? 0.0 : 1.0 - static_cast<double>(num_free()) / static_cast<double>(usable);
}

BlockId Pool::Find(const Key& key) const {  // BM-31
  const auto it = table_.find(key);
  return it == table_.end() ? kNullBlockId : it->second.front();
}

bool Pool::HasKey(BlockId id, const Key& key) const {
  if (!IsValid(id)) return false;
  const Block& block = blocks_[static_cast<size_t>(id)];
  return block.key == key ||
         std::find(block.further.begin(), block.further.end(), key) != block.further.end();
}

std::optional<std::vector<BlockId>> Pool::Take(int64_t k, GroupId group) {  // BM-37
  if (native_) {
    std::vector<PageNeed> needs(native_->class_of_group.size());
    needs.at(static_cast<size_t>(group)).pages = k;
    if (!Promise(needs, 0, 0)) return std::nullopt;
    return TakePromised(k, group);
  }
  if (k > num_free()) return std::nullopt;
  std::vector<BlockId>& queue = queues_[0];
  const std::vector<BlockId> taken(queue.begin(), queue.begin() + k);
  queue.erase(queue.begin(), queue.begin() + k);
  for (BlockId id : taken) {
    DropKey(id, Event::Kind::kReused);
    blocks_[static_cast<size_t>(id)].ref_count = 1;
  }
  return taken;
}

std::vector<BlockId> Pool::TakePermanent(int64_t k, GroupId group) {  // BM-12, BM-70
  const std::vector<BlockId> taken = Take(k, group).value();
  for (BlockId id : taken) blocks_[static_cast<size_t>(id)].is_permanent = true;
  return taken;
}

void Pool::Touch(const std::vector<BlockId>& ids) {  // BM-40
  for (BlockId id : ids) {
    if (id == kNullBlockId) continue;
    Block& block = blocks_[static_cast<size_t>(id)];
    if (block.ref_count == 0) {
      std::vector<BlockId>& queue = queues_.at(static_cast<size_t>(ClassOf(id)));
      const auto it = std::find(queue.begin(), queue.end(), id);
      Require(it != queue.end());
      queue.erase(it);
    }
    ++block.ref_count;
  }
}

bool Pool::Free(const std::vector<BlockId>& ids) {  // BM-41
  std::map<BlockId, int> occurrences;
  for (BlockId id : ids) {
    if (!IsValid(id)) return false;
    if (id != kNullBlockId) ++occurrences[id];
  }
  for (const auto& [id, count] : occurrences) {
    const Block& block = blocks_[static_cast<size_t>(id)];
    if (block.is_permanent || count > block.ref_count) return false;
  }
  std::vector<std::vector<BlockId>> front(queues_.size());  // BM-42
  for (BlockId id : ids) {
    if (id == kNullBlockId) continue;
    Block& block = blocks_[static_cast<size_t>(id)];
    if (--block.ref_count > 0) continue;
    const auto k = static_cast<size_t>(ClassOf(id));
    block.freed_at = ++clock_;
    (unhashed_first_ && !block.key ? front[k] : queues_[k]).push_back(id);
  }
  for (size_t k = 0; k < queues_.size(); ++k) {
    queues_[k].insert(queues_[k].begin(), front[k].begin(), front[k].end());
  }
  return true;
}

namespace {

std::string NameAt(const Registration& what, int64_t tokens) {
  return tokens == 0
             ? ""
             : what.prefix_names->at(static_cast<size_t>(tokens / what.hash_block_size - 1));
}

}  // namespace

Event Pool::Stored(const Registration& what, int64_t unit, int64_t from, int64_t to,
                   const std::vector<bool>& kept) const {
  const std::vector<TokenId>& tokens = what.content->tokens;
  Event event{.kind = Event::Kind::kStored,
              .group = what.group,
              .parent = NameAt(what, from * unit),
              .token_ids = {tokens.begin() + from * unit, tokens.begin() + to * unit},
              .block_size = unit,
              .lora_name = what.content->lora_name};
  for (int64_t i = from; i < to; ++i) {
    if (!kept.at(static_cast<size_t>(i - from))) continue;
    const int64_t end = (i + 1) * unit;
    event.prefixes.push_back(NameAt(what, end));
    ExtraKeys keys = ExtraKeysOf(*what.content, i * unit, end + what.num_lookahead);
    for (ExtraKey& key : keys) key.path.clear();  // V-52
    event.extra_keys.push_back(std::move(keys));
    if (what.num_lookahead == 0) continue;
    event.lookahead.emplace_back(tokens.begin() + end, tokens.begin() + end + what.num_lookahead);
  }
  return event;
}

void Pool::Register(const Registration& what, const std::vector<BlockId>& table, int64_t from,
                    int64_t to, const std::vector<bool>& mask) {  // BM-44, BM-49
  if (!enable_caching_) return;
  std::vector<bool> kept;
  for (int64_t i = from; i < to; ++i) {
    const BlockId id = table.at(static_cast<size_t>(i));
    kept.push_back(id != kNullBlockId && mask.at(static_cast<size_t>(i - from)));
    if (!kept.back()) continue;
    Block& block = blocks_[static_cast<size_t>(id)];
    if (block.partial_tokens > 0) DropKey(id, Event::Kind::kEvicted);  // promotion
    Require(!block.key && !block.is_permanent);
    block.key = Key{NameAt(what, (i + 1) * what.block_size), what.group};
    table_[*block.key].push_back(id);
  }
  if (one_event_per_registration_) {  // V-61
    if (to > from) Emit(Stored(what, what.block_size, from, to, kept));
    return;
  }
  for (int64_t begin = from; begin < to;) {
    int64_t end = begin;
    while (end < to && kept[static_cast<size_t>(end - from)]) ++end;
    if (end > begin) {
      Emit(Stored(what, what.block_size, begin, end,
                  std::vector<bool>(static_cast<size_t>(end - begin), true)));
    }
    begin = end + 1;
  }
}

void Pool::DropKey(BlockId id, Event::Kind reason) {  // BM-39, V-20: the first key first
  Block& block = blocks_[static_cast<size_t>(id)];
  if (!block.key) return;
  num_evictions_ += reason == Event::Kind::kReused;
  std::vector<Key> keys = {*block.key};
  keys.insert(keys.end(), block.further.begin(), block.further.end());
  for (const Key& key : keys) {
    std::vector<BlockId>& holders = table_.at(key);
    holders.erase(std::find(holders.begin(), holders.end(), id));
    if (holders.empty()) table_.erase(key);
    Emit({.kind = reason, .group = key.group, .prefixes = {key.prefix}});
  }
  block.key.reset();
  block.further.clear();
  block.partial_tokens = 0;
}

bool Pool::RegisterPartial(const Registration& what, BlockId id, int64_t tokens,
                           bool may_be_further) {
  Block& block = blocks_[static_cast<size_t>(id)];
  const Key key{NameAt(what, tokens), what.group};
  if (HasKey(id, key)) return false;
  if (block.key && (block.partial_tokens == 0 || block.partial_tokens >= tokens)) {
    if (!may_be_further) return false;
    block.further.push_back(key);
  } else {
    DropKey(id, Event::Kind::kEvicted);
    block.key = key;
    block.partial_tokens = tokens % what.block_size == 0 ? 0 : tokens;  // V-115
  }
  table_[key].push_back(id);
  const int64_t fine = what.hash_block_size;
  Emit(Stored(what, fine, tokens / fine - 1, tokens / fine, {true}));
  return true;
}

void Pool::MoveKey(BlockId from, BlockId to) {
  Block& source = blocks_[static_cast<size_t>(from)];
  Block& target = blocks_[static_cast<size_t>(to)];
  Require(source.key && source.further.empty() && !target.key);
  std::erase(table_.at(*source.key), from);
  table_.at(*source.key).push_back(to);
  target.key = std::exchange(source.key, std::nullopt);
  target.partial_tokens = std::exchange(source.partial_tokens, 0);
}

bool Pool::Evict(const std::vector<BlockId>& ids) {  // BM-45
  for (BlockId id : ids) {
    if (!IsValid(id)) return false;
  }
  for (BlockId id : std::set<BlockId>(ids.begin(), ids.end())) {
    DropKey(id, Event::Kind::kEvicted);
  }
  return true;
}

bool Pool::Reset() {  // BM-46
  for (const Block& block : blocks_) {
    if (block.ref_count > 0 && !block.is_permanent) return false;
  }
  table_.clear();
  for (Block& block : blocks_) {
    block.key.reset();
    block.further.clear();
    block.partial_tokens = 0;
  }
  for (size_t chunk = 0; chunk < class_of_chunk_.size(); ++chunk) {
    const int c = static_cast<int>(chunk);
    if (class_of_chunk_[chunk] < 0 || IsInUse(c)) continue;
    for (BlockId id : PagesOf(c)) {
      std::erase(queues_[static_cast<size_t>(class_of_chunk_[chunk])], id);
    }
    class_of_chunk_[chunk] = -1;
  }
  Emit({.kind = Event::Kind::kCleared});
  return true;
}

void Pool::Emit(Event event) {
  if (enable_events_) events_.push_back(std::move(event));
}

std::vector<Event> Pool::TakeEvents() { return std::exchange(events_, {}); }

}  // namespace kvblocks::oracle
