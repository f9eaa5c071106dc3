// Layer patterns: one letter per layer of a model, and the short way to write many of them.

#ifndef KVBLOCKS_SPECS_CATALOGUE_LAYER_PATTERN_H_
#define KVBLOCKS_SPECS_CATALOGUE_LAYER_PATTERN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvblocks {

// The letters of a layer pattern.
enum class LayerKind : char {
  kFull = 'F',
  kSliding = 'S',
  kChunked = 'C',
  kLatent = 'M',            // multi-head latent attention: one row per token for all heads
  kSparseLatent = 'N',      // the same, reading only the rows that an indexer selects
  kCompressedWindow = 'W',  // DeepSeek-V4: sliding window only
  kCompressed4 = '4',       // DeepSeek-V4: one row per 4 tokens, selected by an indexer; + window
  kCompressed128 = 'H',     // DeepSeek-V4: one row per 128 tokens; + window
  // DeepSeek-V4.1: rows that the layers behind read, too; + window. Their reach ends at the next.
  kSharedRows2 = '2',  // one row per 2 tokens, and the indexer that selects them
  kSharedRows1 = '1',  // one row per token, and the indexer
  kReader = 'R',       // window, and rows of the layer in front that has them, as selected before
  kSelector = 'I',     // the same, but it selects anew
  kLinear = 'L',       // linear attention or state space: a state of fixed size
};
inline constexpr std::string_view kLayerLetters = "FSCMNW4H21RIL";
// Compressed attention: all of them have a window, too.
inline constexpr std::string_view kCompressedLetters = "W4H21RI";
// Of them those that V4.1 added and that store or read shared rows.
inline constexpr std::string_view kSharedRowLetters = "21RI";

// A pattern with its repetitions written out: "(SSSSSF)*10 SS" and "F*32" are what they look like.
// Spaces separate ("(4H)*20 4"). InvalidArgument names the place.
absl::StatusOr<std::string> ExpandLayerPattern(std::string_view text);

// More layers than any model has; keeps a pattern's repetitions from filling the memory.
inline constexpr int64_t kMaxLayers = 10'000;

// Letters of `pattern` that are in `letters`.
int64_t CountLetters(std::string_view pattern, std::string_view letters);

}  // namespace kvblocks

#endif  // KVBLOCKS_SPECS_CATALOGUE_LAYER_PATTERN_H_
