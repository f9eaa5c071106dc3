// What the binding's files share: the Python objects behind Manager and Request, and conversions of
// arguments.
//
// Threads: Python serialises calls, but calls that take long release the interpreter lock.
// ManagerUse then keeps others out: a second thread gets an exception, not a data race.

#ifndef KVBLOCKS_PYTHON_SRC_BINDING_H_
#define KVBLOCKS_PYTHON_SRC_BINDING_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "checks/field_error.h"
#include "kvblocks/kv_cache.h"
#include "python/src/errors.h"
#include "python/src/parameters.h"

namespace kvblocks::python {

// --- Arguments ---

// Integers from any one-dimensional contiguous buffer of int32 or int64, or from a sequence of int.
// Without a copy where the buffer is int32.
class Int32Argument {
 public:
  // `what` names the argument in messages.
  Int32Argument(nb::handle object, const char* what);
  ~Int32Argument();
  Int32Argument(const Int32Argument&) = delete;
  Int32Argument& operator=(const Int32Argument&) = delete;

  absl::Span<const int32_t> values() const { return values_; }

 private:
  void ReadBuffer(const char* what);

  Py_buffer buffer_ = {};
  bool has_buffer_ = false;
  std::vector<int32_t> copy_;
  absl::Span<const int32_t> values_;
};

// Block hashes: a sequence of bytes objects of 1 to 32 bytes each, or one bytes-like object of 32
// bytes per hash. From the entry number `first` on.
std::vector<BlockHash> HashesFrom(nb::handle object, size_t first = 0);
BlockHash HashFrom(nb::handle bytes);
nb::bytes ToBytes(const BlockHash& hash, size_t size);
size_t HashBytesOf(const KvCacheManager& manager);
nb::bytes ToBytes(const KvCacheManager& manager, const BlockHash& hash);

Result<"list[bytes]"> ToBytesList(absl::Span<const BlockHash> hashes, size_t size);

std::vector<TokenId> TokensFrom(nb::handle object);
Result<"list[int]"> ToList(absl::Span<const BlockId> ids);
using ListPerGroup = Result<"tuple[list[int], ...]">;
// A list of ids for each group; `ids_of` gives those of one.
template <typename IdsOf>
ListPerGroup ToLists(size_t num_groups, const IdsOf& ids_of) {
  nb::list lists;
  for (size_t g = 0; g < num_groups; ++g) lists.append(ToList(ids_of(g)));
  return nb::tuple(lists);
}

Semantics SemanticsByName(const std::string& name);
FreeOrder FreeOrderByName(const std::string& name);
EvictionPolicyFactory EvictionPolicyByName(const std::string& name);
HashAlgorithm HashAlgorithmByName(const std::string& name);

// --- Objects ---

// Memory of block tables that arrays show: see Manager.get_blocks.
struct TableMemory {
  std::vector<BlockId> kept;  // once the request has other memory
};

struct PyManager {
  std::unique_ptr<KvCacheManager> core;
  nb::object no_blocks;  // the answer of a step that took none
  bool is_busy = false;  // in a call without the interpreter lock
};

struct PyRequest {
  nb::object owner;  // of `manager`: lives as long as this
  PyManager* manager = nullptr;
  std::unique_ptr<Request> core;
  // Grows when the request's blocks are given back: handles made before are dead.
  uint64_t generation = 0;
  // Grows with every change of block tables, counters or status that is not a DecodeBatch's own.
  uint64_t num_changes = 0;
  // Per group, of the memory that the block table has now, if it was shown.
  std::vector<std::shared_ptr<TableMemory>> shown;

  PyRequest(nb::object the_owner, PyManager* the_manager, std::unique_ptr<Request> the_core)
      : owner(std::move(the_owner)), manager(the_manager), core(std::move(the_core)) {}
  PyRequest(PyRequest&&) = default;
  ~PyRequest() {
    if (!shown.empty()) MoveShownTables();
  }

  void OnChange() { ++num_changes; }
  // Before block tables change: arrays that show them keep their memory, the request gets other.
  void LetGoOfTables() {
    OnChange();
    if (!shown.empty()) [[unlikely]]
      MoveShownTables();
  }
  // Before all blocks are given back.
  void EndTables() {
    LetGoOfTables();
    ++generation;
  }

 private:
  void MoveShownTables();
};

// A read-only numpy array over numbers that `owner` keeps: of one dimension, or with `columns` of
// two.
Int32Array MakeArray(nb::handle owner, absl::Span<const int32_t> numbers, size_t columns = 0);

// Lists of block ids, one per group: a value.
struct PyBlocks {
  HitLists lists;
};

// Throws if another thread is inside the manager, or if the request is another manager's.
inline void CheckUse(const PyManager& manager) {
  if (manager.is_busy) [[unlikely]]
    Raise("ConcurrentUseError",
          "another thread is in a call of this KVCacheManager; one thread at a time");
}
void CheckOwner(const PyManager& manager, const PyRequest& request);
inline void CheckUse(const PyManager& manager, const PyRequest& request) {
  CheckUse(manager);
  CheckOwner(manager, request);
}
// `call` is for the message.
GroupId CheckGroup(const PyManager& manager, GroupId group, const char* call = "");

// As ReleaseIf, and keeps other threads out of the manager meanwhile.
class ManagerUse {
 public:
  explicit ManagerUse(const PyManager& manager, bool is_long)
      : manager_(const_cast<PyManager&>(manager)) {
    if (!is_long) return;
    manager_.is_busy = true;
    released_.emplace();
  }
  ~ManagerUse() {
    if (!released_) return;
    released_.reset();
    manager_.is_busy = false;
  }
  ManagerUse(const ManagerUse&) = delete;
  ManagerUse& operator=(const ManagerUse&) = delete;

 private:
  PyManager& manager_;
  std::optional<nb::gil_scoped_release> released_;
};
// From so many tokens on a call may take 10 us: hashing does 100 million tokens/s, look-ups are
// faster.
inline constexpr int64_t kManyTokens = 1024;

// --- Parts of the module ---

void BindSpecs(nb::module_& module);
void BindManager(nb::module_& module);
void BindRequest(nb::module_& module);
void BindTables(nb::module_& module);
void BindBatch(nb::module_& module);
void BindReports(nb::module_& module);
void BindContent(nb::module_& module);
void BindPool(nb::module_& module);
void BindEvents(nb::module_& module);
void BindPlanning(nb::module_& module);
void BindVllm(nb::module_& module);

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_BINDING_H_
