// Request: made by a manager, counted by the scheduler.

#include "kvblocks/request.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "python/src/content.h"

namespace kvblocks::python {
namespace {

using RequestOptions = KvCacheManager::RequestOptions;

PyRequest NewRequest(RequestOptions options, nb::handle_t<PyManager> owner, std::string id,
                     Int32Like token_ids) {
  auto& manager = nb::cast<PyManager&>(owner);
  CheckUse(manager);
  options.id = std::move(id);
  options.content.token_ids = TokensFrom(token_ids);
  absl::StatusOr<std::unique_ptr<Request>> core;
  {
    const ManagerUse use(manager,
                         static_cast<int64_t>(options.content.token_ids.size()) > kManyTokens);
    core = manager.core->NewRequest(std::move(options));
  }
  return PyRequest(nb::borrow(owner), &manager, Value(std::move(core)));
}

PyRequest NewRequestFromHashes(nb::handle_t<PyManager> owner, std::string id, int64_t num_tokens,
                               Hashes hashes, std::optional<std::string> session_id,
                               bool skip_reading_prefix_cache) {
  auto& manager = nb::cast<PyManager&>(owner);
  CheckUse(manager);
  return PyRequest(
      nb::borrow(owner), &manager,
      Value(manager.core->NewRequestFromHashes(std::move(id), num_tokens, HashesFrom(hashes),
                                               std::move(session_id), skip_reading_prefix_cache)));
}

void AppendTokens(PyRequest& self, Argument<"int | Int32Like"> tokens) {
  CheckUse(*self.manager);
  if (PyLong_CheckExact(tokens.ptr())) {
    const auto token = nb::cast<TokenId>(tokens);
    Check(self.core->AppendOutputTokens({&token, 1}));
    return;
  }
  const Int32Argument list(tokens, "tokens");
  Check(self.core->AppendOutputTokens(list.values()));
}

void AppendHashedTokens(PyRequest& self, int64_t num_tokens, Hashes hashes) {
  CheckUse(*self.manager);
  Check(self.core->AppendHashedTokens(num_tokens, HashesFrom(hashes)));
}

// One call for all that an engine with requests of its own has to set.
void Sync(PyRequest& self, int64_t num_tokens, Hashes block_hashes, int64_t num_computed_tokens,
          int64_t num_inflight_tokens) {
  CheckUse(*self.manager);
  Request& core = *self.core;
  const int64_t added = num_tokens - core.num_tokens();
  if (added < 0) {
    Raise("InvalidArgumentError",
          absl::StrCat("sync(", core.id(), "): num_tokens is ", num_tokens, ", expected at least ",
                       core.num_tokens(), ", which it has; tokens cannot be taken back"));
  }
  if (added > 0) {
    const auto known = core.content().hashes().size();
    const int64_t last = num_tokens - core.content().num_lookahead_tokens();
    const int64_t hash_block_size = core.content().hash_block_size();
    if (hash_block_size > 0 && last / hash_block_size > static_cast<int64_t>(known)) {
      Check(core.AppendHashedTokens(added, HashesFrom(block_hashes, known)));
    } else {
      Check(core.AppendHashedTokens(added, {}));
    }
  }
  self.OnChange();
  core.set_num_computed_tokens(num_computed_tokens);
  core.set_num_inflight_tokens(num_inflight_tokens);
}

const char* const kStatusNames[] = {"waiting", "running", "preempted", "finished"};

RequestStatus ParseStatus(const std::string& name) {
  for (size_t i = 0; i < 4; ++i) {
    if (name == kStatusNames[i]) return static_cast<RequestStatus>(i);
  }
  Raise("InvalidArgumentError",
        absl::StrCat("status is \"", name, "\", expected waiting, running, preempted or finished"));
}

template <auto kGetter>
auto OfRequest(const PyRequest& self) {
  return std::invoke(kGetter, *self.core);
}
template <auto kSetter>
void SetInRequest(PyRequest& self, int64_t value) {
  self.OnChange();
  std::invoke(kSetter, *self.core, value);
}

nb::bytes BlockHashOf(const PyRequest& self, int64_t index, std::optional<int64_t> block_size) {
  CheckUse(*self.manager);
  const PrefixContent& content = self.core->content();
  return ToBytes(*self.manager->core, Value(content.HashOfBlockAt(
                                          index, block_size.value_or(content.hash_block_size()))));
}

}  // namespace

void BindRequest(nb::module_& module) {
  nb::class_<PyRequest>(
      module, "Request",
      "One sequence, made by KVCacheManager.new_request. The scheduler moves its counters; the "
      "manager keeps its block tables. Its blocks are freed when the last reference to it goes.")
      .def_prop_ro("id", &OfRequest<&Request::id>)
      .def_prop_ro("num_tokens", &OfRequest<&Request::num_tokens>,
                   "Prompt and accepted output; drafts never count.")
      .def_prop_ro("num_prompt_tokens", &OfRequest<&Request::num_prompt_tokens>)
      .def_prop_rw("num_computed_tokens", &OfRequest<&Request::num_computed_tokens>,
                   &SetInRequest<&Request::set_num_computed_tokens>,
                   "Tokens computed or scheduled; the scheduler advances it. Checked by the next "
                   "allocate_slots.")
      .def_prop_rw("num_inflight_tokens", &OfRequest<&Request::num_inflight_tokens>,
                   &SetInRequest<&Request::set_num_inflight_tokens>,
                   "The part of num_computed_tokens whose step has not been processed yet.")
      .def_prop_rw(
          "shared_prefix_boundary", &OfRequest<&Request::shared_prefix_boundary>,
          [](PyRequest& r, int64_t n) { r.core->set_shared_prefix_boundary(n); },
          "Tokens of a prefix that others share; blocks around it are kept where registration is "
          "sparse. 0: none.")
      .def_prop_rw(
          "status",
          [](const PyRequest& r) { return kStatusNames[static_cast<int>(r.core->status())]; },
          [](PyRequest& r, const std::string& name) {
            r.core->set_status(ParseStatus(name));
            r.OnChange();
          },
          "\"waiting\", \"running\", \"preempted\" or \"finished\".")
      .def_prop_ro("num_preemptions", &OfRequest<&Request::num_preemptions>)
      .def_prop_ro(
          "num_hashes", [](const PyRequest& r) { return r.core->content().hashes().size(); },
          "Blocks of hash_block_size tokens that have a hash.")
      .def(
          "mark_preempted",
          [](PyRequest& r) {
            CheckUse(*r.manager);
            r.OnChange();
            r.core->MarkPreempted();
          },
          "After KVCacheManager.free: computed tokens to 0, status preempted, one more preemption.")
      .def("append_tokens", &AppendTokens, nb::arg("tokens"),
           "Accepted output, one token or several.\n\nRaises InvalidArgumentError for a request "
           "made from hashes.")
      .def("append_hashed_tokens", &AppendHashedTokens, nb::arg("num_tokens"), nb::arg("hashes"),
           "The same of a request made from hashes: exactly those of the blocks that the tokens "
           "complete.")
      .def(
          "sync", &Sync, nb::kw_only(), nb::arg("num_tokens"), nb::arg("block_hashes"),
          nb::arg("num_computed_tokens"), nb::arg("num_inflight_tokens") = 0,
          "For engines with requests of their own, made from hashes: takes over the tokens and "
          "hashes that came since, and the counters. block_hashes: all of the request's so far.\n\n"
          "Raises InvalidArgumentError if num_tokens shrinks or a hash is missing or too many.")
      .def("block_hash", &BlockHashOf, nb::arg("index"), nb::arg("block_size") = nb::none(),
           "Hash of block `index` of block_size tokens (default: hash_block_size).")
      .def_prop_ro("block_hashes",
                   [](const PyRequest& r) {
                     return ToBytesList(r.core->content().hashes(), HashBytesOf(*r.manager->core));
                   })
      .def("__repr__", [](const PyRequest& r) {
        return absl::StrCat("Request(id='", r.core->id(), "', num_tokens=", r.core->num_tokens(),
                            ", num_computed_tokens=", r.core->num_computed_tokens(), ", status='",
                            kStatusNames[static_cast<int>(r.core->status())], "')");
      });

  nb::class_<PyManager> manager = nb::borrow<nb::class_<PyManager>>(module.attr("KVCacheManager"));
  const auto content = KVBLOCKS_AT(content);
  Define(
      manager, "new_request", &NewRequest,
      R"(A request whose prompt is these tokens: a list, or any contiguous buffer of int32 or
int64.

Requests share blocks only if lora_name, lora_path, cache_salt and features are equal, too.
features: (identifier, offset, length) of images and the like, in tokens, sorted. lora_id and
session_id only appear in events. skip_reading_prefix_cache: look-ups give nothing.
report_reused_blocks: look-ups with hits emit BlockStored; needs enable_events.

Hashes the prompt, some 10 ns per token. Raises InvalidArgumentError that names what is wrong.)",
      std::tuple(nb::arg("id"), nb::arg("token_ids")), Parameters(),
      std::tuple_cat(
          LoraParameters(content),
          Parameters(Optional<std::optional<int64_t>>("lora_id", KVBLOCKS_AT(content.lora_id))),
          SaltAndFeatures(content),
          Parameters(
              Optional<std::optional<std::string>>("session_id", KVBLOCKS_AT(content.session_id)),
              Field("skip_reading_prefix_cache", &RequestOptions::skip_reading_prefix_cache),
              Field("report_reused_blocks", &RequestOptions::report_reused_blocks))));
  manager.def(
      "new_request_from_hashes", &NewRequestFromHashes, nb::arg("id"), nb::arg("num_tokens"),
      nb::arg("hashes"), nb::kw_only(), nb::arg("session_id") = nb::none(),
      nb::arg("skip_reading_prefix_cache") = false,
      "From block hashes of hash_block_size tokens that the caller computed: one for each full "
      "block, as bytes objects of at most 32 bytes, or 32 bytes each in one buffer.\n\n"
      "Raises InvalidArgumentError for a wrong number of hashes.");
}

}  // namespace kvblocks::python
