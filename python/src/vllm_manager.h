// What kvblocks.vllm is made of: a KvCacheManager that answers to vLLM's own request objects.
//
// A vLLM scheduler hands its Python requests over. Each has a counterpart here, found by its id,
// that is brought up to date at the beginning of a call: tokens known, block hashes (vLLM computes
// them), tokens computed and in flight. Nothing is written to the Python object. Counterparts are
// made at a request's first call and end when its blocks are given back, so there is one for each
// request that waits with a look-up behind it or runs.
//
// The interpreter lock is held: a call takes a microsecond, and vLLM's scheduler is one thread.

#ifndef KVBLOCKS_PYTHON_SRC_VLLM_MANAGER_H_
#define KVBLOCKS_PYTHON_SRC_VLLM_MANAGER_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kvblocks/kv_cache_manager.h"
#include "python/src/binding.h"

namespace kvblocks::python {

// An attribute name, interned once.
class AttributeName {
 public:
  explicit AttributeName(const char* name) : name_(PyUnicode_InternFromString(name)) {}
  // Throws what Python raised.
  nb::object Of(nb::handle object) const;
  int64_t IntOf(nb::handle object) const;
  // Any negative number for what is no integer, too; nothing is thrown and no error left behind.
  int64_t IntOrNegativeOf(PyObject* object) const;
  bool IsTrueOf(nb::handle object) const;

 private:
  PyObject* name_;  // for as long as the process lives
};

// Raises ValueError.
[[noreturn]] void RaiseVllm(const absl::Status& status);
inline void CheckVllm(const absl::Status& status) {
  if (!status.ok()) [[unlikely]]
    RaiseVllm(status);
}

class VllmManager;

// vLLM's KVCacheBlocks: lists of blocks, one per group.
struct VllmBlocks {
  nb::object owner;  // the manager's Python object; null for the list without blocks
  ComputedBlocks lists;
  size_t num_groups = 0;
};

// One block, as connectors and deferred frees see it.
struct VllmBlock {
  nb::object owner;
  const VllmManager* manager = nullptr;
  BlockId id = kNullBlockId;
};

// What events are made of in Python.
struct VllmEventTypes {
  nb::object stored, removed, cleared;
  bool uses_int_hashes = false;
  // Per group: the kind and the window that events name.
  std::vector<std::pair<nb::object, nb::object>> groups;
  nb::object embedding_digest;  // (request, begin, end) -> bytes
};

class VllmManager {
 public:
  struct Settings {
    bool keeps_tokens = false;  // for events
    int64_t waiting_status = 0, preempted_status = 0;
    bool has_watermark = false;
    VllmEventTypes events;
  };

  VllmManager(std::unique_ptr<KvCacheManager> core, Settings settings);

  KvCacheManager& core() { return *core_; }
  const KvCacheManager& core() const { return *core_; }

  const nb::object& no_blocks() const { return no_blocks_; }

  // Whether slots for a step of a running request are there already, and making them would change
  // nothing: most decode steps. Reads one attribute of the request, and raises nothing: where
  // anything is odd, the answer is no.
  bool IsNoopStep(PyObject* request, int64_t num_new_tokens, int64_t num_lookahead_tokens);

  // vLLM's methods; `self` is the Python object of this.
  nb::tuple GetComputedBlocks(nb::handle self, nb::handle request, nb::handle max_tokens);
  nb::object AllocateSlots(nb::handle self, nb::handle request, AllocateSlotsParams params,
                           int64_t num_new_computed_tokens, nb::handle new_computed_blocks);
  void CacheBlocks(nb::handle request, int64_t num_tokens);
  void Free(nb::handle request);
  nb::list PopBlocksForFree(nb::handle self, nb::handle request);
  void FreeBlocks(nb::handle blocks);
  void RemoveSkippedBlocks(absl::string_view request_id, int64_t num_processed_tokens);
  nb::object GetBlocks(nb::handle self, absl::string_view request_id);
  int64_t EstimateCachedTokens(nb::handle request) const;
  int64_t NumBlocksNeeded(absl::string_view request_id, int64_t num_tokens, int64_t num_computed,
                          bool apply_cap);
  nb::object Truncate(nb::handle self, const VllmBlocks& blocks, int64_t num_tokens) const;
  nb::list TakeEvents();

  nb::bytes HashBytes(const BlockHash& hash) const {
    return nb::bytes(reinterpret_cast<const char*>(hash.words.data()), hash_size_);
  }

 private:
  struct Counterpart {
    std::unique_ptr<Request> core;
    bool may_change = false;  // a session: what is known of it can be taken back
    nb::object object;        // vLLM's request; kept, so that no other one gets its address
  };
  using Counterparts = absl::flat_hash_map<std::string, Counterpart>;

  Counterpart* Find(absl::string_view id);
  // `request` is the object that the counterpart belongs to from now on.
  void Bind(Counterpart& known, nb::handle request);
  void Forget(Counterparts::iterator known);
  // The counterpart, up to date with what is known of the request. `from_scratch`: whatever was
  // known of a session before.
  Request& Sync(nb::handle request, bool from_scratch = false);
  int64_t NumTokens(nb::handle request) const;
  int64_t NumHashes(int64_t num_tokens) const;
  // Hashes [first, last) of the request.
  std::vector<BlockHash>& ReadHashes(nb::handle request, int64_t first, int64_t last);
  std::vector<TokenId>& ReadTokens(nb::handle request, int64_t first, int64_t last);
  std::unique_ptr<Request> NewRequest(nb::handle request, absl::string_view id, int64_t num_tokens);
  PrefixContent::Options ContentOf(nb::handle request, int64_t num_tokens);
  nb::object Wrap(nb::handle self, ComputedBlocks lists) const;
  nb::object ToPython(const BlockStored& event) const;
  nb::object ToPython(const BlockHash& hash) const;

  std::unique_ptr<KvCacheManager> core_;
  Settings settings_;
  nb::object no_blocks_;
  Counterparts counterparts_;
  // The same requests by the address of vLLM's object, without those that may change: what a no-op
  // step needs, in one look-up without a string.
  absl::flat_hash_map<const PyObject*, Request*> by_object_;
  size_t hash_size_ = sizeof(BlockHash);  // of vLLM's hashes, in bytes; known with the first one
  bool knows_hash_size_ = false;
  int64_t hash_block_size_ = 0;  // 0: nothing is hashed
  int64_t num_lookahead_tokens_ = 0;
  std::vector<BlockHash> hashes_;  // scratch
  std::vector<TokenId> tokens_;    // scratch
};

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_VLLM_MANAGER_H_
