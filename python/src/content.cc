#include "python/src/content.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblocks::python {
namespace {

struct NewContent {
  PrefixContent::Options content;
  int64_t block_size = 16;
  HashAlgorithm hash_algorithm = HashAlgorithm::kSha256;
  std::optional<std::string> hash_seed;
  int64_t num_lookahead_tokens = 0;
};

void CreateContent(NewContent options, PyContent* self, Int32Like token_ids) {
  Check(ValidateHashSizes(options.block_size, options.num_lookahead_tokens));
  auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(options.hash_algorithm, options.hash_seed),
                    .hash_block_size = options.block_size,
                    .num_lookahead_tokens = options.num_lookahead_tokens});
  options.content.token_ids = TokensFrom(token_ids);
  absl::StatusOr<PrefixContent> content = absl::InternalError("");
  {
    const ReleaseIf released(static_cast<int64_t>(options.content.token_ids.size()) > kManyTokens);
    content = PrefixContent::FromTokens(std::move(options.content), std::move(hashing));
  }
  new (self) PyContent{Value(std::move(content))};
}

}  // namespace

void BindContent(nb::module_& module) {
  nb::class_<PyContent> content(
      module, "PrefixContent",
      R"(A prompt as prefix caches name it: a hash per block, of it and all before it.

For routers, which ask an index for a prompt's blocks, and for a BlockPool without a manager. Hashes
are equal to a manager's, or vLLM's, where algorithm, seed, block size and content are.)");
  const auto options = KVBLOCKS_AT(content);
  Define(
      content, "__init__", &CreateContent,
      "block_size: tokens per hash. The rest as KVCacheManager and new_request have it. Without a "
      "seed, hashes are those of this process (sha256_cbor: vLLM's).\n\n"
      "Some 10 ns per token. Raises InvalidArgumentError that names what is wrong.",
      std::tuple(nb::arg("token_ids")), Parameters(),
      std::tuple_cat(Parameters(Field("block_size", &NewContent::block_size),
                                Word("hash_algorithm", "sha256", &NewContent::hash_algorithm,
                                     &HashAlgorithmByName),
                                Field("hash_seed", &NewContent::hash_seed),
                                Field("num_lookahead_tokens", &NewContent::num_lookahead_tokens)),
                     LoraParameters(options), SaltAndFeatures(options)));
  content.def_prop_ro("num_tokens", [](const PyContent& c) { return c.core.num_tokens(); })
      .def_prop_ro(
          "block_size", [](const PyContent& c) { return c.core.hash_block_size(); }, "Tokens.")
      .def_prop_ro(
          "num_hashes", [](const PyContent& c) { return c.core.hashes().size(); }, "Full blocks.")
      .def_prop_ro("block_hashes",
                   [](const PyContent& c) { return ToBytesList(c.core.hashes(), c.hash_bytes()); })
      .def(
          "append_tokens",
          [](PyContent& c, Int32Like tokens) {
            const Int32Argument list(tokens, "tokens");
            Check(c.core.AppendTokens(list.values()));
          },
          nb::arg("tokens"), "More of the same sequence.");
}

}  // namespace kvblocks::python
