// BlockPool: a manager's, read-only, or one by itself, for managers written in Python.
//
// The core's pool trusts its managers. What comes from Python is checked here first: that blocks
// are of the pool, referenced as often as they are freed, and fit the content that they are
// registered for.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "python/src/content.h"
#include "python/src/events.h"

namespace kvblocks::python {
namespace {

struct PyPool {
  nb::object owner;              // the manager's object
  PyManager* manager = nullptr;  // null: a pool by itself
  std::unique_ptr<BlockPool> own = nullptr;
  size_t hash_bytes = 0;  // of its own cached blocks; 0: none were registered yet

  const BlockPool& pool() const {
    if (own != nullptr) return *own;
    CheckUse(*manager);
    return manager->core->pool();
  }
  BlockPool& ToChange(const char* call) const {
    if (own != nullptr) return *own;
    Raise("InvalidArgumentError",
          absl::StrCat("BlockPool.", call,
                       ": a KVCacheManager keeps this pool; only its calls change it"));
  }
  nb::bytes HashOf(BlockId id) const {
    const BlockHash& hash = pool().hash(id);
    return own == nullptr ? ToBytes(*manager->core, hash) : ToBytes(hash, hash_bytes);
  }
};

struct BlockInfo {
  BlockId block_id;
  int32_t ref_count;
  bool is_null;
  bool is_permanent;
  std::optional<GroupId> cached_group;
  Result<"bytes | None"> block_hash;
};

BlockInfo InfoOf(const PyPool& self, BlockId id) {
  const BlockPool& pool = self.pool();
  if (id < 0 || id >= pool.num_blocks()) {
    Raise("NotFoundError",
          absl::StrCat("block is ", id, ", expected 0 to ", pool.num_blocks() - 1));
  }
  const KvCacheBlock& block = pool.block(id);
  BlockInfo info{id,           block.ref_count,       block.is_null, block.is_permanent,
                 std::nullopt, nb::object(nb::none())};
  if (block.has_key()) {
    info.cached_group = block.key_group;
    info.block_hash = self.HashOf(id);
  }
  return info;
}

// --- A pool by itself ---

void CheckNumber(const char* call, int64_t k) {
  if (k < 0)
    Raise("InvalidArgumentError",
          absl::StrCat("BlockPool.", call, ": ", k, " blocks, expected 0 or more"));
}

// A block of the pool that is referenced; not the null block.
void CheckReferenced(const BlockPool& pool, const char* call, BlockId id) {
  if (id < 0 || id >= pool.num_blocks()) {
    Raise("InvalidArgumentError", absl::StrCat("BlockPool.", call, ": block ", id,
                                               ", expected 0 to ", pool.num_blocks() - 1));
  }
  if (pool.block(id).is_permanent) {
    Raise("InvalidArgumentError",
          absl::StrCat("BlockPool.", call, ": block ", id, " is permanent"));
  }
  if (pool.block(id).ref_count < 1) {
    Raise("InvalidArgumentError",
          absl::StrCat("BlockPool.", call, ": block ", id, " has no reference, expected one"));
  }
}

Result<"list[int] | None"> GetNewBlocks(PyPool& self, int64_t k) {
  BlockPool& pool = self.ToChange("get_new_blocks");
  CheckNumber("get_new_blocks", k);
  if (!pool.Fits(k, 0)) return nb::object(nb::none());
  std::vector<BlockId> ids;
  pool.GetNewBlocks(k, ids);
  return ToList(ids);
}

void Touch(PyPool& self, Int32Like ids) {
  BlockPool& pool = self.ToChange("touch");
  const Int32Argument list(ids, "block_ids");
  Check(pool.CheckTouchable(list.values()));
  pool.Touch(list.values());
}

void FreeBlocks(PyPool& self, Int32Like ids, bool from_back) {
  BlockPool& pool = self.ToChange("free_blocks");
  const Int32Argument list(ids, "block_ids");
  absl::flat_hash_map<BlockId, int32_t> times;
  for (const BlockId id : list.values()) {
    if (id == kNullBlockId) continue;
    CheckReferenced(pool, "free_blocks", id);
    if (++times[id] > pool.block(id).ref_count) {
      Raise("InvalidArgumentError",
            absl::StrCat("BlockPool.free_blocks: block ", id, " stands ", times[id],
                         " times in the list and has ", pool.block(id).ref_count, " references"));
    }
  }
  if (from_back) {
    pool.FreeBlocksReversed(list.values());
  } else {
    pool.FreeBlocks(list.values());
  }
}

void CacheFullBlocks(PyPool& self, Int32Like ids, const PyContent& content, int64_t first,
                     std::optional<int64_t> last, std::optional<int64_t> block_size_or_none,
                     GroupId group) {
  BlockPool& pool = self.ToChange("cache_full_blocks");
  const auto refuse = [](const auto&... what) {
    Raise("InvalidArgumentError", absl::StrCat("BlockPool.cache_full_blocks: ", what...));
  };
  const Int32Argument list(ids, "block_ids");
  const auto size = static_cast<int64_t>(list.values().size());
  const PrefixContent& core = content.core;
  const int64_t block_size = block_size_or_none.value_or(core.hash_block_size());
  const int64_t end = last.value_or(size);
  if (!pool.enable_caching()) refuse("the pool was made with enable_caching=False");
  if (group < 0) refuse("group is ", group, ", expected 0 or more");
  if (block_size < 1 || block_size % core.hash_block_size() != 0) {
    refuse("block_size is ", block_size, ", expected a multiple of the content's ",
           core.hash_block_size());
  }
  if (first < 0 || end < first || end > size) {
    refuse("positions ", first, " to ", end, ", expected inside the ", size, " block_ids");
  }
  if (end > core.num_hashed_tokens() / block_size) {
    refuse(end, " blocks of ", block_size, " tokens, but the content has ",
           core.num_hashed_tokens(), " hashed tokens");
  }
  if (self.hash_bytes != 0 && self.hash_bytes != content.hash_bytes()) {
    refuse("hashes have ", content.hash_bytes(), " bytes, and the first ones of this pool ",
           self.hash_bytes);
  }
  absl::flat_hash_set<BlockId> seen;
  for (int64_t i = first; i < end; ++i) {
    const BlockId id = list.values()[static_cast<size_t>(i)];
    if (id == kNullBlockId) continue;
    CheckReferenced(pool, "cache_full_blocks", id);
    if (pool.block(id).has_key()) refuse("block ", id, " is cached already");
    if (!seen.insert(id).second) refuse("block ", id, " stands twice in the list");
  }
  if (seen.empty()) return;
  self.hash_bytes = content.hash_bytes();
  pool.CacheFullBlocks(core, list.values(), first, end, block_size, group);
}

EventList TakeEvents(PyPool& self) {
  return ToPython(self.ToChange("take_events").TakeEvents(),
                  self.hash_bytes == 0 ? sizeof(BlockHash) : self.hash_bytes);
}

template <auto kGetter>
auto OfPool(const PyPool& self) {
  return std::invoke(kGetter, self.pool());
}

void BindOwnPool(nb::class_<PyPool>& c) {
  using Options = BlockPool::Options;
  Define(
      c, "__init__",
      +[](Options options, PyPool* self, int64_t num_blocks) {
        options.num_blocks = num_blocks;
        new (self) PyPool{.own = Value(BlockPool::Create(options))};
      },
      "num_blocks: the null block, which is block 0, included. The rest as KVCacheManager has "
      "it.\n\n"
      "Raises InvalidArgumentError that names the option, ResourceExhaustedError for more than "
      "memory holds.",
      std::tuple(nb::arg("num_blocks")), Parameters(),
      Parameters(Field("enable_caching", &Options::enable_caching),
                 Field("enable_events", &Options::enable_events),
                 Word("free_order", "unhashed_first", &Options::free_order, &FreeOrderByName),
                 Word("eviction_policy", "lru", &Options::eviction_policy, &EvictionPolicyByName)));
  c.def("get_new_blocks", &GetNewBlocks, nb::arg("k"),
        "k blocks in the order of reuse, each with one reference and without a key; None, and "
        "nothing changed, if fewer are free.")
      .def("touch", &Touch, nb::arg("block_ids"),
           "One more reference to each: what a look-up found. Null blocks are skipped.")
      .def("free_blocks", &FreeBlocks, nb::arg("block_ids"), nb::kw_only(),
           nb::arg("from_back") = false,
           "One reference less to each, in the order of their reuse: from_back for a block table, "
           "whose end goes first. Cached content stays until reuse. Null blocks are skipped.\n\n"
           "Raises InvalidArgumentError, and nothing has changed, for a block without so many "
           "references.")
      .def(
          "take_permanent_blocks",
          [](PyPool& self, int64_t k) {
            return ToList(Value(self.ToChange("take_permanent_blocks").TakePermanentBlocks(k)));
          },
          nb::arg("k"),
          "For the life of the pool (attention sinks). Raises ResourceExhaustedError if they are "
          "not free.")
      .def("cache_full_blocks", &CacheFullBlocks, nb::arg("block_ids"), nb::arg("content"),
           nb::kw_only(), nb::arg("first") = 0, nb::arg("last") = nb::none(),
           nb::arg("block_size") = nb::none(), nb::arg("group") = 0,
           "Registers positions first to last (default: all) of a block table that holds this "
           "content; null blocks are left out. block_size: tokens per block, by default the "
           "content's.\n\n"
           "Raises InvalidArgumentError for blocks without a reference, cached already or beyond "
           "the content.")
      .def(
          "evict_blocks",
          [](PyPool& self, Int32Like ids) {
            const Int32Argument list(ids, "block_ids");
            Check(self.ToChange("evict_blocks").EvictBlocks(list.values()));
          },
          nb::arg("block_ids"), "Takes blocks out of the prefix cache; those in use stay in use.")
      .def(
          "reset_prefix_cache",
          [](PyPool& self) { return self.ToChange("reset_prefix_cache").ResetPrefixCache(); },
          "Forgets all cached content. False, and nothing changed, while a block is referenced.")
      .def("take_events", &TakeEvents,
           "What changed in the prefix cache since the last call, in order; needs enable_events.");
}

void BindQueries(nb::class_<PyPool>& c) {
  c.def_prop_ro("num_blocks", &OfPool<&BlockPool::num_blocks>, "The null block included.")
      .def_prop_ro("num_free", &OfPool<&BlockPool::num_free>, "Unreferenced, cached ones included.")
      .def_prop_ro("num_live", &OfPool<&BlockPool::num_live>, "Referenced.")
      .def_prop_ro("num_permanent", &OfPool<&BlockPool::num_permanent>)
      .def_prop_ro("num_cached", &OfPool<&BlockPool::num_keyed_blocks>)
      .def_prop_ro("num_cached_unreferenced", &OfPool<&BlockPool::num_cached_unreferenced>)
      .def_prop_ro("num_keys", &OfPool<&BlockPool::num_keys>, "Distinct contents that are cached.")
      .def_prop_ro("num_evictions", &OfPool<&BlockPool::num_evictions>,
                   "Cached blocks lost to reuse since the pool was made.")
      .def_prop_ro("usage", &OfPool<&BlockPool::usage>, "0 to 1.")
      .def("__len__", &OfPool<&BlockPool::num_blocks>)
      .def("__getitem__", &InfoOf, nb::arg("block_id"))
      .def(
          "find_cached",
          [](const PyPool& p, nb::bytes hash, GroupId group) -> std::optional<BlockId> {
            const BlockId id = p.pool().FindCached(HashFrom(hash), group);
            return id == kNullBlockId ? std::nullopt : std::optional<BlockId>(id);
          },
          nb::arg("block_hash"), nb::arg("group") = 0,
          "The earliest cached block of a group whose content has this hash, or None.")
      .def(
          "free_list", [](const PyPool& p) { return ToList(p.pool().WalkFree()); },
          "Free blocks in the order of their reuse under lru. O(blocks).")
      .def(
          "check_invariants", [](const PyPool& p) { Check(p.pool().CheckInvariants()); },
          "Raises InvariantError, in words. O(blocks).");
}

}  // namespace

void BindPool(nb::module_& module) {
  nb::class_<BlockInfo>(module, "BlockInfo", "What the pool knows about one block, at that moment.")
      .def_ro("block_id", &BlockInfo::block_id)
      .def_ro("ref_count", &BlockInfo::ref_count)
      .def_ro("is_null", &BlockInfo::is_null)
      .def_ro("is_permanent", &BlockInfo::is_permanent, "An attention sink's.")
      .def_ro("cached_group", &BlockInfo::cached_group, "Under which it is cached, or None.")
      .def_ro("block_hash", &BlockInfo::block_hash)
      .def("__repr__", [](const BlockInfo& b) {
        return absl::StrCat("BlockInfo(block_id=", b.block_id, ", ref_count=", b.ref_count, ")");
      });
  nb::class_<PyPool> pool(module, "BlockPool",
                          R"(Blocks: who references them, which are free, which are cached.

BlockPool(1000) is one by itself, for programs that keep block tables in Python. KVCacheManager.pool
is the manager's, read-only: what would change it raises. One thread at a time.)");
  BindOwnPool(pool);
  BindQueries(pool);
  nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"))
      .def_prop_ro("pool", [](nb::handle_t<PyManager> self) {
        return PyPool{.owner = nb::borrow(self), .manager = &nb::cast<PyManager&>(self)};
      });
}

}  // namespace kvblocks::python
