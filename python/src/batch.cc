// DecodeBatch: all running requests of a scheduler, one call per step.
//
// Row r of a batch is a request. Per group the batch has one array of max_requests x blocks, which
// is what attention kernels read: a step copies into it only what has changed, as a rule nothing.
//
// Always: row r of a group's array is the block table of request r, then zeros, as of the latest
// call of the batch. A row whose request has given its blocks back is refused until it is removed.
//
// Most rows of a step stay inside their block, and nothing is to be done for them
// (Request::noop_slots). How many more slots that holds for stands in the row; of the request only
// the count of its changes is read.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "python/src/binding.h"

namespace kvblocks::python {
namespace {

struct Row {
  nb::object owner;
  PyRequest* request = nullptr;
  Request* core = nullptr;  // its own, at hand
  uint64_t generation = 0;
  uint64_t num_changes = 0;   // of the request, when the row was last brought up to date
  int64_t noop_left = -1;     // slots behind the computed tokens for which nothing is to be done
  int64_t num_scheduled = 0;  // tokens that the latest step made slots for
};

// What one group shows.
struct GroupTables {
  size_t width = 0;  // blocks
  // Which entries change after they are written: none, the leading ones to null, or any.
  enum class Change { kNone, kLeading, kAny } change = Change::kNone;
  std::vector<BlockId> tables;      // max_requests rows of `width`
  std::vector<size_t> sizes;        // per row: entries that are written
  std::vector<size_t> first_block;  // per row: leading nulls
};

class DecodeBatch {
 public:
  DecodeBatch(nb::object owner, PyManager& manager, int64_t max_requests)
      : owner_(std::move(owner)),
        manager_(manager),
        max_requests_(static_cast<size_t>(max_requests)) {
    const KvCacheManager& core = *manager.core;
    const int64_t longest =
        std::max(core.options().max_model_len, core.options().max_encoder_tokens.value_or(0));
    for (GroupId g = 0; g < core.num_groups(); ++g) {
      const KvCacheSpec& spec = core.config().groups[static_cast<size_t>(g)].spec;
      GroupTables group;
      const int64_t block_size = core.group(g).block_size();
      // With room for the states and copies that a Mamba group has besides those of tokens.
      group.width = static_cast<size_t>((longest + block_size - 1) / block_size +
                                        spec.options().num_speculative_blocks +
                                        spec.options().num_checkpoint_blocks);
      if (spec.kind() == KvCacheSpecKind::kMamba || spec.output_window()) {
        group.change = GroupTables::Change::kAny;
      } else if (!core.group(g).keeps_all_blocks()) {
        group.change = GroupTables::Change::kLeading;
      }
      group.tables.resize(group.width * max_requests_);
      group.sizes.resize(max_requests_);
      group.first_block.resize(max_requests_);
      groups_.push_back(std::move(group));
    }
  }

  size_t size() const { return rows_.size(); }
  PyManager& manager() { return manager_; }
  const std::vector<Row>& rows() const { return rows_; }
  absl::Span<const int32_t> new_blocks() const { return new_blocks_; }

  size_t Add(nb::handle_t<PyRequest> owner) {
    auto& request = nb::cast<PyRequest&>(owner);
    CheckOwner(manager_, request);
    if (!manager_.core->HoldsBlocks(*request.core)) {
      Raise("InvalidArgumentError",
            absl::StrCat("DecodeBatch.add: request ", request.core->id(),
                         " holds no blocks, expected one after allocate_slots"));
    }
    for (const Row& row : rows_) {
      if (row.request != &request) continue;
      Raise("InvalidArgumentError", absl::StrCat("DecodeBatch.add: request ", request.core->id(),
                                                 " is in the batch already"));
    }
    if (rows_.size() == max_requests_) {
      Raise("ResourceExhaustedError", absl::StrCat("DecodeBatch.add: the batch has ", rows_.size(),
                                                   " requests, and max_requests is no more"));
    }
    const size_t r = rows_.size();
    rows_.push_back({nb::borrow(owner), &request, request.core.get(), request.generation});
    for (GroupTables& group : groups_) group.sizes[r] = group.first_block[r] = 0;
    Update(r);
    return r;
  }

  // The last row takes its place.
  void Remove(const PyRequest& request) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].request != &request) continue;
      const size_t last = rows_.size() - 1;
      for (GroupTables& group : groups_) {
        BlockId* const to = group.tables.data() + r * group.width;
        BlockId* const from = group.tables.data() + last * group.width;
        const size_t used = std::max(group.sizes[r], group.sizes[last]);
        if (r != last) std::copy(from, from + used, to);
        std::fill(from, from + group.sizes[last], kNullBlockId);
        group.sizes[r] = group.sizes[last];
        group.first_block[r] = group.first_block[last];
        group.sizes[last] = group.first_block[last] = 0;
      }
      if (r != last) rows_[r] = std::move(rows_[last]);
      rows_.pop_back();
      return;
    }
    Raise("NotFoundError",
          absl::StrCat("DecodeBatch.remove: request ", request.core->id(), " is not in the batch"));
  }

  // Slots for rows from `first` on, until one does not fit: the row that did not, or size().
  // Without the interpreter lock.
  absl::StatusOr<size_t> Allocate(size_t first, const AllocateSlotsParams& params) {
    new_blocks_.clear();
    KvCacheManager& core = *manager_.core;
    // Other numbers of tokens are refused by AllocateSlots.
    const bool may_be_noop = params.num_new_tokens > 0 && IsCount(params.num_new_tokens) &&
                             IsCount(params.num_lookahead_tokens);
    const int64_t asked = may_be_noop ? params.num_new_tokens + params.num_lookahead_tokens
                                      : std::numeric_limits<int64_t>::max();
    FetchBusyRows(first, asked);
    for (size_t r = first; r < rows_.size(); ++r) {
      Row& row = rows_[r];
      PyRequest& request = *row.request;
      if (IsNoop(row, asked)) [[likely]] {
        row.num_scheduled = params.num_new_tokens;
        continue;
      }
      if (row.generation != request.generation) [[unlikely]]
        return GoneStatus(r);
      request.LetGoOfTables();
      const auto taken = core.AllocateSlots(*row.core, params);
      if (!taken.ok()) return taken.status();
      if (!taken->has_value()) return r;
      row.num_scheduled = params.num_new_tokens;
      if ((*taken)->num_blocks() > 0) {
        for (size_t g = 0; g < groups_.size(); ++g) {
          for (const BlockId id : (*taken)->blocks(static_cast<GroupId>(g))) {
            new_blocks_.insert(new_blocks_.end(),
                               {static_cast<int32_t>(r), static_cast<int32_t>(g), id});
          }
        }
      }
      Update(r);
    }
    return rows_.size();
  }

  // The step has run.
  absl::Status Advance(absl::Span<const TokenId> tokens) {
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (rows_[r].generation != rows_[r].request->generation) return GoneStatus(r);
      if (!rows_[r].request->core->content().has_token_ids()) {
        return absl::InvalidArgumentError(
            absl::StrCat("DecodeBatch.advance: request ", rows_[r].request->core->id(),
                         " was made from hashes; append with append_hashed_tokens"));
      }
    }
    for (size_t r = 0; r < rows_.size(); ++r) {
      Request& request = *rows_[r].request->core;
      request.set_num_computed_tokens(request.num_computed_tokens() + rows_[r].num_scheduled);
      rows_[r].noop_left -= rows_[r].num_scheduled;
      rows_[r].num_scheduled = 0;
      if (absl::Status status = request.AppendOutputTokens({&tokens[r], 1}); !status.ok())
        return status;
    }
    return absl::OkStatus();
  }

  absl::Span<const BlockId> Tables(GroupId group) const {
    return absl::MakeConstSpan(groups_[static_cast<size_t>(group)].tables)
        .first(rows_.size() * width(group));
  }
  size_t width(GroupId group) const { return groups_[static_cast<size_t>(group)].width; }

 private:
  static bool IsCount(int64_t n) { return n >= 0 && n <= kMaxTokens; }
  static bool IsNoop(const Row& row, int64_t asked) {
    return asked <= row.noop_left && row.num_changes == row.request->num_changes;
  }

  // Has the memory loaded that the rows need for which something is to be done: of all at once, as
  // each depends on what was loaded before, and an engine has had other things in its caches since
  // the last step.
  void FetchBusyRows(size_t first, int64_t asked) {
    constexpr size_t kAhead = 16;  // rows
    constexpr size_t kMost = 256;  // what a cache holds
    busy_.clear();
    for (size_t r = first; r < rows_.size() && busy_.size() < kMost; ++r) {
      if (r + kAhead < rows_.size()) __builtin_prefetch(&rows_[r + kAhead].request->num_changes);
      const Row& row = rows_[r];
      if (IsNoop(row, asked) || row.generation != row.request->generation) continue;
      const char* const request = reinterpret_cast<const char*>(row.core);
      for (size_t byte = 0; byte < sizeof(Request); byte += 64) __builtin_prefetch(request + byte);
      busy_.push_back(r);
    }
    const KvCacheManager& core = *manager_.core;
    for (const size_t r : busy_) {
      const Request& request = *rows_[r].core;
      const auto hashes = request.content().hashes();
      __builtin_prefetch(hashes.data() + hashes.size() - !hashes.empty());
      for (size_t g = 0; g < groups_.size(); ++g) {
        const auto table = core.GetBlocks(request, static_cast<GroupId>(g));
        __builtin_prefetch(table.data() + table.size() - !table.empty());
        __builtin_prefetch(groups_[g].tables.data() + r * groups_[g].width + groups_[g].sizes[r],
                           1);
      }
    }
    const BlockPool& pool = core.pool();
    for (const size_t r : busy_) {
      const Request& request = *rows_[r].core;
      const auto hashes = request.content().hashes();
      for (size_t g = 0; g < groups_.size(); ++g) {
        const auto group = static_cast<GroupId>(g);
        const auto table = core.GetBlocks(request, group);
        if (table.empty() || hashes.empty()) continue;
        __builtin_prefetch(&pool.block(table.back()), 1);
        __builtin_prefetch(&pool.hash(table.back()), 1);
        pool.table().Prefetch(pool.table().Place(hashes.back(), group));
      }
    }
  }

  absl::Status GoneStatus(size_t r) const {
    return absl::InvalidArgumentError(
        absl::StrCat("DecodeBatch: request ", rows_[r].request->core->id(), " of row ", r,
                     " has given its blocks back; remove it from the batch first"));
  }

  // Copies what has changed of a request's tables.
  void Update(size_t r) {
    Row& row = rows_[r];
    for (size_t g = 0; g < groups_.size(); ++g) {
      GroupTables& group = groups_[g];
      auto blocks = manager_.core->GetBlocks(*row.request->core, static_cast<GroupId>(g));
      blocks = blocks.first(std::min(blocks.size(), group.width));
      BlockId* const shown = group.tables.data() + r * group.width;
      const size_t size = group.sizes[r];
      const size_t same =
          group.change == GroupTables::Change::kAny ? 0 : std::min(size, blocks.size());
      std::copy(blocks.begin() + static_cast<std::ptrdiff_t>(same), blocks.end(), shown + same);
      if (size > blocks.size()) std::fill(shown + blocks.size(), shown + size, kNullBlockId);
      if (group.change == GroupTables::Change::kLeading) {
        size_t& first = group.first_block[r];
        for (; first < blocks.size() && blocks[first] == kNullBlockId; ++first)
          shown[first] = kNullBlockId;
      }
      group.sizes[r] = blocks.size();
    }
    row.num_changes = row.request->num_changes;
    const Request& core = *row.core;
    const bool is_good = core.status() != RequestStatus::kFinished &&
                         IsCount(core.num_computed_tokens()) && IsCount(core.num_inflight_tokens());
    row.noop_left = is_good ? core.noop_slots() - core.num_computed_tokens() : -1;
  }

  nb::object owner_;
  PyManager& manager_;
  size_t max_requests_;
  std::vector<Row> rows_;
  std::vector<GroupTables> groups_;
  std::vector<int32_t> new_blocks_;  // of the latest step: row, group, block
  std::vector<size_t> busy_;         // scratch: rows for which something is to be done
};

// From how many rows on a step may take 10 us.
constexpr size_t kManyRows = 512;

size_t AllocateDecode(PyManager& self, DecodeBatch& batch, int64_t num_new_tokens,
                      int64_t num_lookahead_tokens, size_t first) {
  CheckUse(self);
  if (&batch.manager() != &self) {
    Raise("InvalidArgumentError", "allocate_decode: the batch belongs to another KVCacheManager");
  }
  if (first > batch.size()) {
    Raise("InvalidArgumentError",
          absl::StrCat("allocate_decode: first is ", first, ", expected 0 to ", batch.size()));
  }
  absl::StatusOr<size_t> done = size_t{0};
  {
    const ManagerUse use(self, batch.size() > kManyRows);
    done = batch.Allocate(
        first, {.num_new_tokens = num_new_tokens, .num_lookahead_tokens = num_lookahead_tokens});
  }
  return Value(done);
}

void Advance(DecodeBatch& batch, Int32Like token_ids) {
  CheckUse(batch.manager());
  const Int32Argument tokens(token_ids, "token_ids");
  if (tokens.values().size() != batch.size()) {
    Raise("InvalidArgumentError",
          absl::StrCat("DecodeBatch.advance: ", tokens.values().size(),
                       " token_ids, expected one per request: ", batch.size()));
  }
  Check(batch.Advance(tokens.values()));
}

}  // namespace

void BindBatch(nb::module_& module) {
  nb::class_<DecodeBatch>(module, "DecodeBatch",
                          R"(All running requests, for one call of allocate_decode per step.

Row r is a request. block_tables(group) is one array of all their tables, which is live: the next
call of the batch changes it in place. Removing a request moves the last row into its place.)")
      .def(
          "__init__",
          [](DecodeBatch* self, nb::handle_t<PyManager> manager, int64_t max_requests) {
            if (max_requests < 1 || max_requests > (int64_t{1} << 20)) {
              Raise("InvalidArgumentError",
                    absl::StrCat("DecodeBatch: max_requests is ", max_requests, ", expected 1 to ",
                                 int64_t{1} << 20));
            }
            new (self)
                DecodeBatch(nb::borrow(manager), nb::cast<PyManager&>(manager), max_requests);
          },
          nb::arg("manager"), nb::arg("max_requests"),
          "Takes 4 bytes per block of max_model_len, request and group, at once.")
      .def(
          "add",
          [](DecodeBatch& self, nb::handle_t<PyRequest> request) {
            CheckUse(self.manager());
            return self.Add(request);
          },
          nb::arg("request"),
          "Appends a request that holds blocks; its row.\n\nRaises InvalidArgumentError for one "
          "without blocks or in the batch, ResourceExhaustedError at max_requests.")
      .def(
          "remove",
          [](DecodeBatch& self, const PyRequest& request) {
            CheckUse(self.manager());
            self.Remove(request);
          },
          nb::arg("request"),
          "Takes a request out, before or after KVCacheManager.free; the last row takes its place.")
      .def("advance", &Advance, nb::arg("token_ids"),
           "The step has run: per row the tokens that allocate_decode made slots for are computed, "
           "and one sampled token is appended.")
      .def(
          "block_tables",
          [](nb::handle_t<DecodeBatch> self, GroupId group) {
            auto& batch = nb::cast<DecodeBatch&>(self);
            CheckUse(batch.manager());
            CheckGroup(batch.manager(), group);
            return MakeArray(self, batch.Tables(group), batch.width(group));
          },
          nb::arg("group") = 0,
          "Requests x blocks, read-only, without a copy; zeros behind the end of each table.")
      .def_prop_ro(
          "new_blocks",
          [](nb::handle_t<DecodeBatch> self) -> Int32Array {
            // A copy: the next step writes over the list.
            const auto numbers = nb::cast<DecodeBatch&>(self).new_blocks();
            return nb::object(MakeArray(self, numbers, 3).attr("copy")());
          },
          "What the latest allocate_decode took: rows of (row, group, block id).")
      .def_prop_ro(
          "requests", [](const DecodeBatch& self) -> Result<"list[Request]"> {
            nb::list requests;
            for (const Row& row : self.rows()) requests.append(row.owner);
            return requests;
          },
          "By row.")
      .def("__len__", &DecodeBatch::size);

  nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"))
      .def("allocate_decode", &AllocateDecode, nb::arg("batch"), nb::arg("num_new_tokens") = 1,
           nb::kw_only(), nb::arg("num_lookahead_tokens") = 0, nb::arg("first") = 0,
           R"(Slots for the next tokens of all requests of a batch, from row `first` on.

The first row whose tokens do not fit, or len(batch): rows before it have their slots. Preempt one
(free it and remove it from the batch) and go on with first=that row. Takes some 30 ns per row that
stays inside its block. Raises InvalidArgumentError if a row's request has given its blocks
back.)");
}

}  // namespace kvblocks::python
