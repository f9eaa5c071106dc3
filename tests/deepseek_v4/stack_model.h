// StackModel: a small decoder with DeepSeek's kinds of attention and random weights, and the same
// model without caches: DenseForward, in float64, which knows no blocks, steps or slots.
//
// Both share what a token's own hidden state decides (projections, norms, rotations). How tokens
// meet
// - windows, compressed rows, the indexer's choice, sinks - is written here once more from the
//   rules.

#ifndef KVBLOCKS_TESTS_DEEPSEEK_V4_STACK_MODEL_H_
#define KVBLOCKS_TESTS_DEEPSEEK_V4_STACK_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kvblocks/device_types.h"

namespace kvblocks::attention {

enum class LayerKind {
  kWindow,  // V4 without compression
  kC4,      // V4: 4 tokens a row, overlapping, chosen by an indexer
  kC128,    // V4: 128 tokens a row, all read
  kV32,     // V3.2: tokens chosen by an indexer
};

// How rows are stored. Rows of codes have a rotary part of 64, and index rows are codes and a
// scale, too.
enum class StoredAs {
  kFloat32,
  kFp8,  // 584 bytes of V4 (latent 448), 656 of V3.2 (512)
  // V4.1: windows of 528 bytes, compressed rows of 288 (latent 448); V3.2: nvfp4 of 352 (512).
  kRecords,
};

struct StackConfig {
  std::vector<LayerKind> layers = {LayerKind::kWindow, LayerKind::kC4, LayerKind::kC128,
                                   LayerKind::kC4};
  int64_t hidden = 24, heads = 2, latent = 12, rotary = 4;
  int64_t index_heads = 2, index_dim = 8, topk = 6;
  int64_t window = 128;
  StoredAs stored_as = StoredAs::kFloat32;
  int64_t vocabulary = 64;
  double theta = 10000;
  uint64_t seed = 1;

  int64_t row() const { return latent + rotary; }
  bool has_codes() const { return stored_as != StoredAs::kFloat32; }
  // Of kRecords.
  static KvRowFormat RecordOf(LayerKind kind, bool compressed) {
    if (kind == LayerKind::kV32) return KvRowFormat::kMlaNvfp4;
    return compressed ? KvRowFormat::kMlaV41Fp4 : KvRowFormat::kMlaV41;
  }
  static int64_t Ratio(LayerKind kind) {
    return kind == LayerKind::kC4 ? 4 : kind == LayerKind::kC128 ? 128 : 1;
  }
  static int64_t Parts(LayerKind kind) { return kind == LayerKind::kC4 ? 2 : 1; }
  static bool HasIndexer(LayerKind kind) {
    return kind == LayerKind::kC4 || kind == LayerKind::kV32;
  }
  // Columns of a value row.
  int64_t Value(LayerKind kind) const { return kind == LayerKind::kV32 ? latent : row(); }
};

// What a token brings to a layer.
struct TokenInputs {
  std::vector<double> q;                            // [heads, row], rotated
  std::vector<double> kv;                           // [row], rotated
  std::vector<double> compress_kv, compress_score;  // [parts * row]
  std::vector<double> index_kv, index_score;        // [parts * index_dim]
  std::vector<double> index_q, index_weights;  // [index_heads, index_dim], rotated; [index_heads]
  std::vector<double> index_k;                 // [index_dim], rotated: V3.2
};

// Mistakes that DenseForward can make on request, to see that they are found.
struct DenseFaults {
  int64_t window_edge = 0;    // added to the window
  bool swap_overlap = false;  // older tokens give the second half
  bool ties_to_higher = false;
  bool ignore_sinks = false;
  bool early_rows = false;  // rows are seen a token too late
};

class StackModel {
 public:
  explicit StackModel(const StackConfig& config);
  const StackConfig& config() const { return config_; }

  // Weights that float32 tensors of a layer hold exactly.
  struct Compressor {
    std::vector<double> bias, norm;  // [ratio, parts * dim], [dim]
  };
  const Compressor& compressor(size_t layer) const { return layers_[layer].compressor; }
  const Compressor& index_compressor(size_t layer) const { return layers_[layer].index_compressor; }
  const std::vector<double>& sinks(size_t layer) const { return layers_[layer].sinks; }

  std::vector<double> Embed(int32_t token) const;
  TokenInputs Project(size_t layer, const std::vector<double>& hidden, int64_t position) const;
  // Adds what the layer makes of attention [heads, value] to the hidden state.
  void Finish(size_t layer, std::vector<double> attended, int64_t position,
              std::vector<double>& hidden) const;
  // Turns the last `rotary` values of a row by a position, pairs of neighbours.
  void Rotate(absl::Span<double> row, double position) const;

 private:
  struct Layer {
    std::vector<double> q, kv, compress_kv, compress_score, index_kv, index_score, index_q;
    std::vector<double> index_weights, index_k, out, mix;
    std::vector<double> sinks;
    Compressor compressor, index_compressor;
  };
  StackConfig config_;
  std::vector<double> embedding_;
  std::vector<Layer> layers_;
};

// Final hidden states of all tokens.
std::vector<std::vector<double>> DenseForward(const StackModel& model,
                                              absl::Span<const int32_t> tokens,
                                              const DenseFaults& faults = {});

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_TESTS_DEEPSEEK_V4_STACK_MODEL_H_
