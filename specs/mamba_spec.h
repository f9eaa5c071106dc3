// MambaSpec: the layer caches of state-space layers (Mamba and its like), which keep a state of
// fixed size where attention keeps a row per token.
//
// An immutable value like those of full_attention_spec.h. One page holds one state, made of one or
// more tensors, whatever the block size; the block size says after how many tokens a state may be
// kept for reuse. How many states a request holds depends on the cache mode.

#ifndef KVBLOCKS_SPECS_MAMBA_SPEC_H_
#define KVBLOCKS_SPECS_MAMBA_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvblocks/specs/data_type.h"
#include "kvblocks/specs/spec_hash.h"

namespace kvblocks {

enum class MambaCacheMode {
  kNone,   // one state per request, nothing to reuse
  kAlign,  // states at block boundaries where a step ends are kept
  kAll,    // a state at every block boundary
};

// "none", "align", "all".
std::string_view MambaCacheModeName(MambaCacheMode mode);
absl::StatusOr<MambaCacheMode> ParseMambaCacheMode(std::string_view name);

// One tensor of the state.
struct MambaState {
  std::vector<int64_t> shape = {};  // no dimensions: a single value
  DataType dtype = DataType::kBFloat16;

  friend bool operator==(const MambaState&, const MambaState&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const MambaState& state) {
    return H::combine(std::move(h), state.shape, state.dtype);
  }
};

class MambaSpec {
 public:
  struct Options {
    int64_t block_size = 0;  // tokens
    std::vector<MambaState> states = {};
    std::optional<int64_t> page_size_padded = std::nullopt;  // bytes
    MambaCacheMode cache_mode = MambaCacheMode::kNone;
    int64_t num_speculative_blocks = 0;  // further states a request holds for drafted tokens

    friend bool operator==(const Options&, const Options&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Options& o) {
      h = H::combine(std::move(h), o.block_size, o.states, o.cache_mode, o.num_speculative_blocks);
      return CombineOptionals(std::move(h), o.page_size_padded);
    }
  };

  // Refuses sizes below 1, no states at all, and states beyond 63 bits.
  static absl::StatusOr<MambaSpec> Create(const Options& options);

  const Options& options() const { return options_; }
  int64_t page_bytes() const { return page_bytes_; }

  friend bool operator==(const MambaSpec&, const MambaSpec&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const MambaSpec& spec) {
    return H::combine(std::move(h), spec.options_);
  }

 private:
  MambaSpec(const Options& options, int64_t page_bytes)
      : options_(options), page_bytes_(page_bytes) {}

  Options options_;
  int64_t page_bytes_;
};

// "49152xbf16+16x64x128xfp32": the tensors with their dimensions.
std::string ToString(const std::vector<MambaState>& states);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_MAMBA_SPEC_H_
