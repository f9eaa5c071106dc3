#include "python/src/vllm_manager.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvblocks/check.h"

namespace kvblocks::python {
namespace {

// What is read of a vLLM request.
struct RequestNames {
  AttributeName request_id{"request_id"};
  AttributeName all_tokens{"_all_token_ids"};
  AttributeName num_prompt_tokens{"num_prompt_tokens"};
  AttributeName num_computed_tokens{"num_computed_tokens"};
  AttributeName num_in_flight_tokens{"num_in_flight_tokens"};
  AttributeName block_hashes{"block_hashes"};
  AttributeName shared_prefix_boundary{"shared_prefix_boundary"};
  AttributeName skip_reading_prefix_cache{"skip_reading_prefix_cache"};
  AttributeName status{"status"};
  AttributeName resumable{"resumable"};
  AttributeName mm_features{"mm_features"};
  AttributeName lora_request{"lora_request"};
  AttributeName cache_salt{"cache_salt"};
  AttributeName prompt_embeds{"prompt_embeds"};
  AttributeName session_id{"session_id"};
  AttributeName kv_cache_report_mode{"kv_cache_report_mode"};
};

const RequestNames& Names() {
  static const RequestNames names;
  return names;
}

absl::string_view ToView(nb::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) nb::raise_python_error();
  return {data, static_cast<size_t>(size)};
}

}  // namespace

nb::object AttributeName::Of(nb::handle object) const {
  PyObject* value = PyObject_GetAttr(object.ptr(), name_);
  if (value == nullptr) nb::raise_python_error();
  return nb::steal(value);
}

int64_t AttributeName::IntOf(nb::handle object) const {
  const nb::object value = Of(object);
  const long long number = PyLong_AsLongLong(value.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return number;
}

int64_t AttributeName::IntOrNegativeOf(PyObject* object) const {
  PyObject* value = PyObject_GetAttr(object, name_);
  const long long number = value == nullptr ? -1 : PyLong_AsLongLong(value);
  Py_XDECREF(value);
  if (number < 0) PyErr_Clear();
  return number;
}

bool AttributeName::IsTrueOf(nb::handle object) const {
  const int truth = PyObject_IsTrue(Of(object).ptr());
  if (truth < 0) nb::raise_python_error();
  return truth != 0;
}

void RaiseVllm(const absl::Status& status) {
  throw nb::value_error(std::string(status.message()).c_str());
}

VllmManager::VllmManager(std::unique_ptr<KvCacheManager> core, Settings settings)
    : core_(std::move(core)), settings_(std::move(settings)) {
  no_blocks_ = nb::cast(VllmBlocks{{}, ComputedBlocks(), static_cast<size_t>(core_->num_groups())});
  if (core_->hashing() != nullptr) {
    hash_block_size_ = core_->hash_block_size();
    num_lookahead_tokens_ = core_->hashing()->num_lookahead_tokens;
  }
}

// --- Requests ---

VllmManager::Counterpart* VllmManager::Find(absl::string_view id) {
  const auto it = counterparts_.find(id);
  return it == counterparts_.end() ? nullptr : &it->second;
}

void VllmManager::Bind(Counterpart& known, nb::handle request) {
  by_object_.erase(known.object.ptr());
  known.object = nb::borrow(request);
  if (!known.may_change) by_object_[request.ptr()] = known.core.get();
}

void VllmManager::Forget(Counterparts::iterator known) {
  by_object_.erase(known->second.object.ptr());
  counterparts_.erase(known);
}

int64_t VllmManager::NumTokens(nb::handle request) const {
  const nb::object tokens = Names().all_tokens.Of(request);
  return static_cast<int64_t>(PyList_Check(tokens.ptr()) ? PyList_Size(tokens.ptr())
                                                         : PyObject_Length(tokens.ptr()));
}

int64_t VllmManager::NumHashes(int64_t num_tokens) const {
  return hash_block_size_ == 0
             ? 0
             : std::max<int64_t>(0, num_tokens - num_lookahead_tokens_) / hash_block_size_;
}

std::vector<BlockHash>& VllmManager::ReadHashes(nb::handle request, int64_t first, int64_t last) {
  hashes_.clear();
  if (first == last) return hashes_;
  const nb::object list = Names().block_hashes.Of(request);
  if (!PyList_Check(list.ptr()) || PyList_Size(list.ptr()) < last) {
    RaiseVllm(InvalidArgument("request ", ToView(Names().request_id.Of(request)), " has ",
                              PyObject_Length(list.ptr()), " block hashes, expected ", last,
                              ": prefix caching needs requests that hash their blocks"));
  }
  hashes_.resize(static_cast<size_t>(last - first));
  for (int64_t i = first; i < last; ++i) {
    PyObject* hash = PyList_GetItem(list.ptr(), i);
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(hash, &data, &size) != 0) nb::raise_python_error();
    const auto bytes = static_cast<size_t>(size);
    if (!knows_hash_size_ && bytes >= 1 && bytes <= sizeof(BlockHash)) {
      hash_size_ = bytes;
      knows_hash_size_ = true;
    }
    if (bytes != hash_size_) {
      RaiseVllm(InvalidArgument("a block hash has ", bytes, " bytes, expected ",
                                knows_hash_size_ ? "" : "at most ", hash_size_));
    }
    std::memcpy(hashes_[static_cast<size_t>(i - first)].words.data(), data, bytes);
  }
  return hashes_;
}

std::vector<TokenId>& VllmManager::ReadTokens(nb::handle request, int64_t first, int64_t last) {
  const nb::object list = Names().all_tokens.Of(request);
  tokens_.clear();
  for (int64_t i = first; i < last; ++i) {
    const long token = PyLong_AsLong(PyList_GetItem(list.ptr(), i));
    if (token == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
    tokens_.push_back(static_cast<TokenId>(token));
  }
  return tokens_;
}

PrefixContent::Options VllmManager::ContentOf(nb::handle request, int64_t num_tokens) {
  PrefixContent::Options content;
  content.token_ids = ReadTokens(request, 0, num_tokens);
  content.hashes = ReadHashes(request, 0, NumHashes(num_tokens));
  if (const nb::object lora = Names().lora_request.Of(request); !lora.is_none()) {
    content.lora_name = std::string(ToView(nb::object(lora.attr("name"))));
    content.lora_id = nb::cast<int64_t>(lora.attr("adapter_id"));
  }
  if (const nb::object salt = Names().cache_salt.Of(request); !salt.is_none()) {
    content.cache_salt = std::string(ToView(salt));
  }
  if (const nb::object session = Names().session_id.Of(request); !session.is_none()) {
    content.session_id = std::string(ToView(session));
  }
  for (nb::handle feature : Names().mm_features.Of(request)) {
    const nb::object position = feature.attr("mm_position");
    content.features.push_back({std::string(ToView(nb::object(feature.attr("identifier")))),
                                nb::cast<int64_t>(position.attr("offset")),
                                nb::cast<int64_t>(position.attr("length"))});
  }
  if (!Names().prompt_embeds.Of(request).is_none()) {
    content.embedding_digest = [digest = settings_.events.embedding_digest,
                                request = nb::borrow(request)](int64_t begin, int64_t end) {
      const auto bytes = nb::cast<nb::bytes>(digest(request, begin, end));
      return std::string(bytes.c_str(), bytes.size());
    };
  }
  return content;
}

std::unique_ptr<Request> VllmManager::NewRequest(nb::handle request, absl::string_view id,
                                                 int64_t num_tokens) {
  absl::StatusOr<std::unique_ptr<Request>> made;
  if (settings_.keeps_tokens) {
    const nb::object mode = nb::getattr(request, "kv_cache_report_mode", nb::str("incremental"));
    made = core_->NewRequest({.id = std::string(id),
                              .content = ContentOf(request, num_tokens),
                              .report_reused_blocks = ToView(mode) == "full"});
  } else {
    made = core_->NewRequestFromHashes(std::string(id), num_tokens,
                                       ReadHashes(request, 0, NumHashes(num_tokens)));
  }
  CheckVllm(made.status());
  return *std::move(made);
}

Request& VllmManager::Sync(nb::handle request, bool from_scratch) {
  const nb::object id_object = Names().request_id.Of(request);
  const absl::string_view id = ToView(id_object);
  const int64_t num_tokens = NumTokens(request);
  Counterpart* known = Find(id);
  if (known == nullptr) [[unlikely]] {
    Counterpart made{NewRequest(request, id, num_tokens), Names().resumable.IsTrueOf(request)};
    made.core->SetContent(made.core->TakeContent(), Names().num_prompt_tokens.IntOf(request));
    known = &counterparts_.emplace(id, std::move(made)).first->second;
    Bind(*known, request);
    return *known->core;
  }
  if (known->object.ptr() != request.ptr()) [[unlikely]]
    Bind(*known, request);
  Request& core = *known->core;
  if (known->may_change || num_tokens < core.num_tokens()) [[unlikely]] {
    const int64_t num_prompt_tokens = Names().num_prompt_tokens.IntOf(request);
    if (from_scratch || num_tokens < core.num_tokens() ||
        num_prompt_tokens != core.num_prompt_tokens()) {
      core.SetContent(NewRequest(request, id, num_tokens)->TakeContent(), num_prompt_tokens);
      return core;
    }
  }
  if (num_tokens > core.num_tokens()) {
    const auto& hashes = ReadHashes(request, static_cast<int64_t>(core.content().hashes().size()),
                                    NumHashes(num_tokens));
    CheckVllm(
        settings_.keeps_tokens
            ? core.AppendOutputTokens(ReadTokens(request, core.num_tokens(), num_tokens), hashes)
            : core.AppendHashedTokens(num_tokens - core.num_tokens(), hashes));
  }
  return core;
}

nb::object VllmManager::Wrap(nb::handle self, ComputedBlocks lists) const {
  if (lists.empty()) return no_blocks_;
  return nb::cast(VllmBlocks{nb::borrow(self), std::move(lists),
                             no_blocks_.is_valid() ? static_cast<size_t>(core_->num_groups()) : 0});
}

// --- Look-up and slots ---

nb::tuple VllmManager::GetComputedBlocks(nb::handle self, nb::handle request,
                                         nb::handle max_tokens) {
  if (hash_block_size_ == 0 || Names().skip_reading_prefix_cache.IsTrueOf(request)) {
    return nb::make_tuple(no_blocks_, 0, 0);
  }
  const Request& core = Sync(request, /*from_scratch=*/true);
  ComputedBlocks hits;
  CheckVllm(core_->GetComputedBlocks(
      core, hits, max_tokens.is_none() ? kMaxTokens : nb::cast<int64_t>(max_tokens)));
  const int64_t num_tokens = hits.num_tokens();
  const int64_t boundary = hits.shared_prefix_boundary();
  return nb::make_tuple(Wrap(self, std::move(hits)), num_tokens, boundary);
}

bool VllmManager::IsNoopStep(PyObject* request, int64_t num_new_tokens,
                             int64_t num_lookahead_tokens) {
  // A request that waits again may have to leave the watermark's blocks alone.
  if (settings_.has_watermark || num_new_tokens <= 0 || num_lookahead_tokens < 0) return false;
  const auto it = by_object_.find(request);
  if (it == by_object_.end()) return false;
  Request& core = *it->second;
  const int64_t most = core.noop_slots();
  if (num_new_tokens > most || num_lookahead_tokens > most) return false;
  const int64_t num_computed = Names().num_computed_tokens.IntOrNegativeOf(request);
  if (num_computed < 0 || num_computed > most - num_new_tokens - num_lookahead_tokens) return false;
  // Tokens and hashes that came since are read when a step does something with them.
  core.set_num_computed_tokens(num_computed);
  return true;
}

nb::object VllmManager::AllocateSlots(nb::handle self, nb::handle request,
                                      AllocateSlotsParams params, int64_t num_new_computed_tokens,
                                      nb::handle new_computed_blocks) {
  if (params.num_new_tokens == 0 && params.num_external_computed_tokens == 0 &&
      num_new_computed_tokens == 0) {
    throw nb::value_error(
        "num_new_tokens must be greater than 0 when there are no computed tokens to adopt");
  }
  const RequestNames& names = Names();
  Request& core = Sync(request);
  core.set_num_computed_tokens(names.num_computed_tokens.IntOf(request));
  core.set_num_inflight_tokens(names.num_in_flight_tokens.IntOf(request));
  ComputedBlocks other_length;
  if (!new_computed_blocks.is_none()) {
    // An admission, then: the scheduler has set what it learned from the look-up.
    core.set_shared_prefix_boundary(names.shared_prefix_boundary.IntOf(request));
    const ComputedBlocks& hits = nb::cast<const VllmBlocks&>(new_computed_blocks).lists;
    params.computed_blocks = &hits;
    if (hits.num_tokens() != num_new_computed_tokens) {
      HitLists lists;
      for (size_t g = 0; g < hits.num_groups(); ++g) {
        lists.emplace_back(hits.blocks(static_cast<GroupId>(g)).begin(),
                           hits.blocks(static_cast<GroupId>(g)).end());
      }
      other_length = ComputedBlocks(std::move(lists), num_new_computed_tokens);
      params.computed_blocks = &other_length;
    }
    if (num_new_computed_tokens == 0 && hits.empty()) params.computed_blocks = nullptr;
  }
  if (settings_.has_watermark && params.has_scheduled_requests) {
    const int64_t status = names.status.IntOf(request);
    core.set_status(status == settings_.waiting_status     ? RequestStatus::kWaiting
                    : status == settings_.preempted_status ? RequestStatus::kPreempted
                                                           : RequestStatus::kRunning);
  } else {
    params.has_scheduled_requests = false;
  }
  const auto slots = core_->AllocateSlots(core, params);
  CheckVllm(slots.status());
  if (!slots->has_value()) return nb::none();
  if ((*slots)->num_blocks() == 0) return no_blocks_;
  HitLists lists;
  for (size_t g = 0; g < (*slots)->num_groups(); ++g) {
    const auto blocks = (*slots)->blocks(static_cast<GroupId>(g));
    lists.emplace_back(blocks.begin(), blocks.end());
  }
  return nb::cast(
      VllmBlocks{nb::borrow(self), ComputedBlocks(std::move(lists), 0), (*slots)->num_groups()});
}

void VllmManager::CacheBlocks(nb::handle request, int64_t num_tokens) {
  if (hash_block_size_ == 0) return;
  Request& core = Sync(request);
  if (!core_->HoldsBlocks(core)) return;
  core.set_shared_prefix_boundary(Names().shared_prefix_boundary.IntOf(request));
  int64_t most = core.num_tokens();
  for (GroupId g = 0; g < core_->num_groups(); ++g) {
    const SingleTypeManager& group = core_->group(g);
    if (!group.is_cacheable()) continue;
    most =
        std::min(most, static_cast<int64_t>(core_->GetBlocks(core, g).size()) * group.block_size());
  }
  CheckVllm(core_->CacheBlocks(core, std::clamp<int64_t>(num_tokens, 0, most)));
}

// --- Giving back ---

void VllmManager::Free(nb::handle request) {
  const nb::object id = Names().request_id.Of(request);
  const auto it = counterparts_.find(ToView(id));
  if (it == counterparts_.end()) return;
  CheckVllm(core_->Free(*it->second.core));
  Forget(it);
}

nb::list VllmManager::PopBlocksForFree(nb::handle self, nb::handle request) {
  nb::list blocks;
  const nb::object id = Names().request_id.Of(request);
  const auto it = counterparts_.find(ToView(id));
  if (it == counterparts_.end()) return blocks;
  const auto popped = core_->PopBlocksForFree(*it->second.core);
  CheckVllm(popped.status());
  Forget(it);
  for (BlockId block : *popped) blocks.append(nb::cast(VllmBlock{nb::borrow(self), this, block}));
  return blocks;
}

void VllmManager::FreeBlocks(nb::handle blocks) {
  std::vector<BlockId> ids;
  for (nb::handle block : nb::iter(blocks)) ids.push_back(nb::cast<const VllmBlock&>(block).id);
  CheckVllm(core_->FreeBlocks(ids));
}

void VllmManager::RemoveSkippedBlocks(absl::string_view request_id, int64_t num_processed_tokens) {
  if (Counterpart* known = Find(request_id); known != nullptr) {
    CheckVllm(core_->RemoveSkippedBlocks(*known->core, num_processed_tokens));
  }
}

// --- Queries ---

nb::object VllmManager::GetBlocks(nb::handle self, absl::string_view request_id) {
  const Counterpart* known = Find(request_id);
  if (known == nullptr || !core_->HoldsBlocks(*known->core)) return no_blocks_;
  HitLists lists;
  for (GroupId g = 0; g < core_->num_groups(); ++g) {
    const auto table = core_->GetBlocks(*known->core, g);
    lists.emplace_back(table.begin(), table.end());
  }
  return Wrap(self, ComputedBlocks(std::move(lists), 0));
}

// The last block with a key says how far a group's blocks are cached.
int64_t VllmManager::EstimateCachedTokens(nb::handle request) const {
  const auto it = counterparts_.find(ToView(Names().request_id.Of(request)));
  if (it == counterparts_.end()) return 0;
  std::optional<int64_t> cached;
  const BlockPool& pool = core_->pool();
  for (GroupId g = 0; g < core_->num_groups(); ++g) {
    const SingleTypeManager& group = core_->group(g);
    if (!group.spec().is_prefix_cacheable()) continue;
    const auto table = core_->GetBlocks(*it->second.core, g);
    size_t end = table.size();
    while (end > 0 && !pool.block(table[end - 1]).has_key()) --end;
    int64_t in_group = 0;
    if (end > 0) {
      const int64_t partial = pool.partial_tokens(table[end - 1]);
      in_group = partial > 0 ? partial : static_cast<int64_t>(end) * group.block_size();
    }
    cached = std::min(cached.value_or(in_group), in_group);
  }
  return cached.value_or(0);
}

int64_t VllmManager::NumBlocksNeeded(absl::string_view request_id, int64_t num_tokens,
                                     int64_t num_computed, bool apply_cap) {
  Counterpart* known = Find(request_id);
  if (known == nullptr) {
    RaiseVllm(InvalidArgument("get_num_blocks_to_allocate: request ", request_id, " is not known"));
  }
  known->core->set_num_computed_tokens(num_computed);
  return core_->NumBlocksNeeded(*known->core, num_tokens, apply_cap);
}

nb::object VllmManager::Truncate(nb::handle self, const VllmBlocks& blocks,
                                 int64_t num_tokens) const {
  if (blocks.lists.empty()) return no_blocks_;
  auto cut = core_->TruncateComputedBlocks(blocks.lists, num_tokens);
  CheckVllm(cut.status());
  return Wrap(self, *std::move(cut));
}

}  // namespace kvblocks::python
