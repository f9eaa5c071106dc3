// The calls of kvblocks.h that concern a manager.

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "c/error.h"
#include "c/growing_struct.h"
#include "c/handles.h"
#include "kvblocks/kv_cache_manager_config.h"
#include "kvblocks/version.h"

namespace kvblocks::c {

const char* StaticText(std::string_view text) {
  static std::mutex mutex;
  static auto* texts = new std::set<std::string, std::less<>>;  // lives as long as the program
  const std::lock_guard<std::mutex> lock(mutex);
  auto it = texts->find(text);
  if (it == texts->end()) it = texts->emplace(text).first;
  return it->c_str();
}

char* NewString(std::string_view text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

namespace {

absl::Span<const BlockId> Ids(const int32_t* blocks, size_t num_blocks) {
  return {blocks, num_blocks};
}

}  // namespace
}  // namespace kvblocks::c

using namespace kvblocks;     // NOLINT: the file is the C interface
using namespace kvblocks::c;  // NOLINT

extern "C" {

const char* kvb_version(void) { return KVBLOCKS_VERSION; }

void kvb_string_free(char* text) { std::free(text); }

kvb_status kvb_manager_create(const char* config, size_t config_size, int32_t format,
                              kvb_manager** manager) {
  KVB_REQUIRE(config, manager);
  *manager = nullptr;
  return Guard([&] {
    if (format != KVB_FORMAT_TEXT && format != KVB_FORMAT_JSON) {
      return Fail(KVB_INVALID_ARGUMENT, absl::StrCat("kvb_manager_create: format is ", format,
                                                     ", expected 0 (text) or 1 (JSON)"));
    }
    const auto read = ReadKvCacheManagerConfig(
        {config, config_size}, "config",
        format == KVB_FORMAT_JSON ? ConfigSyntax::kJson : ConfigSyntax::kText);
    if (!read.ok()) return Fail(read.status());
    auto made = KvCacheManager::Create(read->cache, read->options);
    if (!made.ok()) return Fail(made.status());
    *manager = new kvb_manager{.manager = *std::move(made)};
    return KVB_OK;
  });
}

void kvb_manager_destroy(kvb_manager* manager) {
  if (manager != nullptr) manager->Release();
}

kvb_status kvb_manager_get_info(const kvb_manager* manager, kvb_manager_info* info) {
  KVB_REQUIRE(manager, info);
  return Guard([&] {
    const KvCacheManager& m = *manager->manager;
    const kvb_manager_info value = {.struct_size = sizeof(value),
                                    .num_blocks = m.pool().num_blocks(),
                                    .num_groups = m.num_groups(),
                                    .scheduler_block_size = m.scheduler_block_size(),
                                    .hash_block_size = m.hash_block_size(),
                                    .hit_alignment = m.hit_alignment(),
                                    .max_model_len = m.options().max_model_len,
                                    .enable_caching = m.options().enable_caching,
                                    .needs_zeroed_blocks = NeedsZeroedBlocks(m.config())};
    return WriteStruct(value, "kvb_manager_get_info", "info", info);
  });
}

kvb_status kvb_manager_get_group(const kvb_manager* manager, int32_t group, kvb_group_info* info) {
  KVB_REQUIRE(manager, info);
  return Guard([&] {
    const KvCacheConfig& config = manager->manager->config();
    if (group < 0 || static_cast<size_t>(group) >= config.groups.size()) {
      return Fail(KVB_NOT_FOUND, absl::StrCat("kvb_manager_get_group: group is ", group,
                                              ", expected 0 to ", config.groups.size() - 1));
    }
    const KvCacheGroup& g = config.groups[static_cast<size_t>(group)];
    const kvb_group_info value = {.struct_size = sizeof(value),
                                  .kind = StaticText(g.spec.kind_name()),
                                  .block_size = manager->manager->group(group).block_size(),
                                  .page_bytes = g.spec.page_bytes(),
                                  .num_layers = static_cast<int64_t>(g.layer_names.size()),
                                  .sliding_window = g.spec.sliding_window().value_or(0),
                                  .attention_chunk_size = g.spec.attention_chunk_size().value_or(0),
                                  .is_draft = g.is_draft,
                                  .reserved = 0};
    return WriteStruct(value, "kvb_manager_get_group", "info", info);
  });
}

kvb_status kvb_manager_get_pool_stats(const kvb_manager* manager, kvb_pool_stats* stats) {
  KVB_REQUIRE(manager, stats);
  return Guard([&] {
    const BlockPool& pool = manager->manager->pool();
    const kvb_pool_stats value = {
        .struct_size = sizeof(value),
        .num_free = pool.num_free(),
        .num_live = pool.num_live(),
        .num_cached = pool.num_keyed_blocks(),
        .num_cached_unreferenced = pool.num_cached_unreferenced(),
        .num_keys = pool.num_keys(),
        .num_evictions = pool.num_evictions(),
        .num_requests_holding_blocks = manager->manager->num_requests_holding_blocks(),
        .usage = pool.usage()};
    return WriteStruct(value, "kvb_manager_get_pool_stats", "stats", stats);
  });
}

kvb_status kvb_manager_take_prefix_stats(kvb_manager* manager, kvb_prefix_stats* stats) {
  KVB_REQUIRE(manager, stats);
  return Guard([&] {
    // Checked first, because taking zeroes the counters.
    if (kvb_status status =
            CheckStructSize(stats->struct_size, "kvb_manager_take_prefix_stats", "stats");
        status != KVB_OK) {
      return status;
    }
    const PrefixCacheStats taken = manager->manager->MakePrefixCacheStats();
    kvb_prefix_stats value = {};
    value.requests = taken.requests;
    value.queries = taken.queries;
    value.hits = taken.hits;
    value.preempted_requests = taken.preempted_requests;
    value.preempted_queries = taken.preempted_queries;
    value.preempted_hits = taken.preempted_hits;
    value.was_reset = taken.reset;
    static_assert(kNumMissReasons <= KVB_MAX_MISS_REASONS);
    for (size_t i = 0; i < kNumMissReasons; ++i) {
      value.missed[i] = taken.missed[i];
      value.preempted_missed[i] = taken.preempted_missed[i];
    }
    return WriteStruct(value, "kvb_manager_take_prefix_stats", "stats", stats);
  });
}

const char* kvb_miss_reason_name(int32_t reason) {
  if (reason < 0 || static_cast<size_t>(reason) >= kNumMissReasons) return nullptr;
  const char* name = nullptr;
  Guard([&] {
    name = StaticText(MissReasonName(static_cast<MissReason>(reason)));
    return KVB_OK;
  });
  return name;
}

kvb_status kvb_manager_start_step(kvb_manager* manager) {
  KVB_REQUIRE(manager);
  return Guard([&] {
    manager->manager->NewStepStarts();
    return KVB_OK;
  });
}

kvb_status kvb_manager_reset_prefix_cache(kvb_manager* manager) {
  KVB_REQUIRE(manager);
  return Guard([&] { return manager->manager->ResetPrefixCache() ? KVB_OK : KVB_IN_USE; });
}

kvb_status kvb_manager_evict_blocks(kvb_manager* manager, const int32_t* blocks,
                                    size_t num_blocks) {
  KVB_REQUIRE(manager);
  if (num_blocks > 0) KVB_REQUIRE(blocks);
  return Guard([&] { return Fail(manager->manager->EvictBlocks(Ids(blocks, num_blocks))); });
}

kvb_status kvb_manager_pin_blocks(kvb_manager* manager, const int32_t* blocks, size_t num_blocks) {
  KVB_REQUIRE(manager);
  if (num_blocks > 0) KVB_REQUIRE(blocks);
  return Guard([&] { return Fail(manager->manager->PinBlocks(Ids(blocks, num_blocks))); });
}

kvb_status kvb_manager_free_blocks(kvb_manager* manager, const int32_t* blocks, size_t num_blocks) {
  KVB_REQUIRE(manager);
  if (num_blocks > 0) KVB_REQUIRE(blocks);
  return Guard([&] { return Fail(manager->manager->FreeBlocks(Ids(blocks, num_blocks))); });
}

kvb_status kvb_manager_take_copies(kvb_manager* manager, const kvb_block_copy** copies,
                                   size_t* num_copies) {
  KVB_REQUIRE(manager, copies, num_copies);
  return Guard([&] {
    manager->copies.clear();
    for (const BlockCopy& copy : manager->manager->TakeBlockCopies()) {
      manager->copies.push_back(
          {.group = copy.group, .source = copy.source, .target = copy.target});
    }
    *copies = manager->copies.data();
    *num_copies = manager->copies.size();
    return KVB_OK;
  });
}

kvb_status kvb_manager_release_copies(kvb_manager* manager, const kvb_block_copy* copies,
                                      size_t num_copies) {
  KVB_REQUIRE(manager);
  if (num_copies > 0) KVB_REQUIRE(copies);
  return Guard([&] {
    std::vector<BlockCopy> made;
    for (size_t i = 0; i < num_copies; ++i) {
      made.push_back(
          {.group = copies[i].group, .source = copies[i].source, .target = copies[i].target});
    }
    return Fail(manager->manager->ReleaseBlockCopies(made));
  });
}

kvb_status kvb_manager_take_new_blocks(kvb_manager* manager, const int32_t** blocks,
                                       size_t* num_blocks) {
  KVB_REQUIRE(manager, blocks, num_blocks);
  return Guard([&] {
    manager->new_blocks = manager->manager->TakeNewBlockIds();
    *blocks = manager->new_blocks.data();
    *num_blocks = manager->new_blocks.size();
    return KVB_OK;
  });
}

kvb_status kvb_manager_check_invariants(const kvb_manager* manager) {
  KVB_REQUIRE(manager);
  return Guard([&] {
    const absl::Status status = manager->manager->CheckInvariants();
    if (status.ok()) return KVB_OK;
    return Fail(KVB_INTERNAL, std::string(status.message()));
  });
}

kvb_status kvb_manager_get_block(const kvb_manager* manager, int32_t block, kvb_block_info* info) {
  KVB_REQUIRE(manager, info);
  return Guard([&] {
    const BlockPool& pool = manager->manager->pool();
    if (block < 0 || block >= pool.num_blocks()) {
      return Fail(KVB_NOT_FOUND, absl::StrCat("kvb_manager_get_block: block is ", block,
                                              ", expected 0 to ", pool.num_blocks() - 1));
    }
    const KvCacheBlock& record = pool.block(block);
    kvb_block_info value = {};
    value.ref_count = record.ref_count;
    value.cached_group = record.has_key() ? record.key_group : -1;
    if (record.has_key()) value.hash = ToC(pool.hash(block));
    return WriteStruct(value, "kvb_manager_get_block", "info", info);
  });
}

kvb_status kvb_manager_get_free_list(kvb_manager* manager, const int32_t** blocks,
                                     size_t* num_blocks) {
  KVB_REQUIRE(manager, blocks, num_blocks);
  return Guard([&] {
    manager->free_list = manager->manager->pool().WalkFree();
    *blocks = manager->free_list.data();
    *num_blocks = manager->free_list.size();
    return KVB_OK;
  });
}

}  // extern "C"
