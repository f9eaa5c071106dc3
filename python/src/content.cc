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

PyContent NewContent(nb::handle token_ids, int64_t block_size, const std::string& hash_algorithm,
                     const std::optional<std::string>& hash_seed, int64_t num_lookahead_tokens,
                     std::string lora_name, std::string lora_path, std::string cache_salt,
                     const std::vector<FeatureTuple>& features) {
  Check(ValidateHashSizes(block_size, num_lookahead_tokens));
  std::optional<std::string_view> seed;
  if (hash_seed) seed = *hash_seed;
  auto hashing = std::make_shared<const PrefixHashing>(
      PrefixHashing{.hasher = BlockHasher(Value(ParseHashAlgorithm(hash_algorithm)), seed),
                    .hash_block_size = block_size,
                    .num_lookahead_tokens = num_lookahead_tokens});
  PrefixContent::Options options = ContentOptions(
      token_ids, std::move(lora_name), std::move(lora_path), std::move(cache_salt), features);
  absl::StatusOr<PrefixContent> content = absl::InternalError("");
  {
    const ReleaseIf released(static_cast<int64_t>(options.token_ids.size()) > kManyTokens);
    content = PrefixContent::FromTokens(std::move(options), std::move(hashing));
  }
  return {Value(std::move(content))};
}

}  // namespace

PrefixContent::Options ContentOptions(nb::handle token_ids, std::string lora_name,
                                      std::string lora_path, std::string cache_salt,
                                      const std::vector<FeatureTuple>& features) {
  PrefixContent::Options options;
  const Int32Argument tokens(token_ids, "token_ids");
  options.token_ids.assign(tokens.values().begin(), tokens.values().end());
  options.lora_name = std::move(lora_name);
  options.lora_path = std::move(lora_path);
  options.cache_salt = std::move(cache_salt);
  for (const auto& [identifier, offset, length] : features) {
    options.features.push_back({identifier, offset, length});
  }
  return options;
}

void BindContent(nb::module_& module) {
  nb::class_<PyContent>(
      module, "PrefixContent",
      R"(A prompt as prefix caches name it: a hash per block, of it and all before it.

For routers, which ask an index for a prompt's blocks, and for a BlockPool without a manager. Hashes
are equal to a manager's, or vLLM's, where algorithm, seed, block size and content are.)")
      .def(
          "__init__",
          [](PyContent* self, nb::handle token_ids, int64_t block_size,
             const std::string& hash_algorithm, const std::optional<std::string>& hash_seed,
             int64_t num_lookahead_tokens, std::string lora_name, std::string lora_path,
             std::string cache_salt, const std::vector<FeatureTuple>& features) {
            new (self) PyContent(NewContent(token_ids, block_size, hash_algorithm, hash_seed,
                                            num_lookahead_tokens, std::move(lora_name),
                                            std::move(lora_path), std::move(cache_salt), features));
          },
          nb::arg("token_ids"), nb::kw_only(), nb::arg("block_size") = 16,
          nb::arg("hash_algorithm") = "sha256", nb::arg("hash_seed") = nb::none(),
          nb::arg("num_lookahead_tokens") = 0, nb::arg("lora_name") = "", nb::arg("lora_path") = "",
          nb::arg("cache_salt") = "", nb::arg("features") = nb::tuple(),
          nb::sig("def __init__(self, token_ids: Int32Like, *, block_size: int = 16, "
                  "hash_algorithm: str = 'sha256', hash_seed: str | None = None, "
                  "num_lookahead_tokens: int = 0, lora_name: str = '', lora_path: str = '', "
                  "cache_salt: str = '', features: Sequence[tuple[str, int, int]] = ()) -> None"),
          "block_size: tokens per hash. The rest as KVCacheManager and new_request have it. "
          "Without a "
          "seed, hashes are those of this process (sha256_cbor: vLLM's).\n\n"
          "Some 10 ns per token. Raises InvalidArgumentError that names what is wrong.")
      .def_prop_ro("num_tokens", [](const PyContent& c) { return c.core.num_tokens(); })
      .def_prop_ro(
          "block_size", [](const PyContent& c) { return c.core.hash_block_size(); }, "Tokens.")
      .def_prop_ro(
          "num_hashes", [](const PyContent& c) { return c.core.hashes().size(); }, "Full blocks.")
      .def_prop_ro(
          "block_hashes",
          [](const PyContent& c) {
            nb::list hashes;
            for (const BlockHash& hash : c.core.hashes())
              hashes.append(ToBytes(hash, c.hash_bytes()));
            return hashes;
          },
          nb::sig("def block_hashes(self) -> list[bytes]"))
      .def(
          "append_tokens",
          [](PyContent& c, nb::handle tokens) {
            const Int32Argument list(tokens, "tokens");
            Check(c.core.AppendTokens(list.values()));
          },
          nb::arg("tokens"), nb::sig("def append_tokens(self, tokens: Int32Like) -> None"),
          "More of the same sequence.");
}

}  // namespace kvblocks::python
