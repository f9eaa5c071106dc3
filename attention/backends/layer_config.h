// LayerConfig: what one attention layer of a model is, whatever the batch.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_LAYER_CONFIG_H_
#define KVBLOCKS_ATTENTION_BACKENDS_LAYER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "kvblocks/attention/backends/backend_config.h"
#include "kvblocks/attention/backends/kv_scale_state.h"
#include "kvblocks/attention/ops/params.h"
#include "kvblocks/attention/tensor/tensor_view.h"

namespace kvblocks::attention {

enum class CascadeChoice : uint8_t {
  kNever,
  kIfItPays,  // by UseCascade
  kAlways,
};

// A sparse layer has more caches than its own, which other groups may manage. Empty: it has none of these,
// or nobody asks for it by name.
struct SparseCacheNames {
  std::string compressed = {}, index = {};    // V4's compressed rows, the indexer's keys
  std::string states = {}, index_states = {};  // of the compressors of both
};

// MLA whose queries read lists of rows: those that an indexer chose among all (DeepSeek V3.2), or a
// window and rows that stand for several tokens each (V4).
struct SparseConfig {
  // V4: tokens per compressed row; 1: the window only. 0: V3.2, nothing is compressed.
  int64_t compress_ratio = 0;
  bool overlap = false;  // a row is made of 2 * compress_ratio tokens (V4's ratio 4)
  // Rows that an indexer chooses per query; 0: all compressed rows are read (V4's ratio 128).
  int64_t topk = 0;
  int64_t index_heads = 0, index_dim = 0;
  bool power_of_two_scales = true;  // of planar index rows
  // Of the compressors of rows and of the indexer's keys; see CompressTokensArgs.
  struct Compressor {
    ConstTensorView bias = {}, norm_weight = {};
  };
  Compressor compressor = {}, index_compressor = {};
  float norm_eps = 1e-6f;
  ConstTensorView cos_sin = {};

  bool enabled() const { return compress_ratio > 0 || topk > 0; }
  bool compresses() const { return compress_ratio > 1; }
  int64_t parts() const { return overlap ? 2 : 1; }

  // As LayerConfig::row_format, of the compressed rows: V4.1's are of 4 bits where its window has 8.
  std::optional<KvRowFormat> compressed_row_format = {};
  // The layer's other caches as metadata and KV connectors know them, see SparseCacheNames.
  SparseCacheNames names = {};
};

struct LayerConfig {
  std::string name = {};
  AttentionType type = AttentionType::kDecoder;
  int64_t num_heads = 0, num_kv_heads = 0;
  int64_t head_size = 0;
  int64_t value_head_size = 0;  // 0: as head_size; MLA: as latent_rank
  float scale = 0;              // 0: head_size^-1/2
  float soft_cap = 0;
  int64_t window = 0;  // in tokens, the query included; 0: none
  int64_t chunk = 0;   // chunked local attention; 0: none
  ConstTensorView alibi_slopes = {}, sinks = {};
  BlockSparse block_sparse = {};
  SplitPolicy split = {};
  // Decodes in one pass or in partitions of 512 tokens, as vLLM's rule (SelectDecodeVersion) says,
  // instead of by `split`: the same sums in the same order as there.
  bool split_as_vllm = false;

  // MLA: q is absorbed, [T, H, latent_rank + rotary_dim]; k is kv_c [T, latent_rank] and v k_pe
  // [T, rotary_dim]; out [T, H, value_head_size], the value columns of the cache (latent_rank but
  // for kMlaFp8_584, whose values are the whole row). head_size is that of the uncompressed heads
  // and gives the default scale. 0: no MLA.
  int64_t latent_rank = 0, rotary_dim = 0;

  // If enabled, an MLA layer of backends/sparse_mla_layer.h. V4's latent_rank and rotary_dim (448 and
  // 64 of kMlaFp8_584; the whole row and 0 of plain rows) make up its rows, whose value_head_size is
  // all of them; `window` is required there.
  SparseConfig sparse = {};

  // What the vectors of its cache are. Set: made only if the backend has it and the head sizes fit, and
  // caches of another format are refused. Absent: whatever a call's cache says.
  std::optional<KvRowFormat> row_format = {};

  // The layer whose cache this one reads; it then stores nothing itself. Empty: its own.
  std::string shares_cache_of = {};

  // Of a quantised cache: fixed, or computed from the first batch if scale_state is not null.
  KvScales scales = {};
  KvScaleState* scale_state = nullptr;
  ComputeKvScalesArgs scale_divisors = {};  // only its divisors are read
  // Over an e4m3 cache, and where the backend takes them, queries become e4m3 codes of scales.q, or of
  // the state's, one element, in LayerTensors::q_codes. Queries that come in codes have that scale, too.
  bool quantize_queries = false;

  // Batches whose metadata has a common prefix are computed as a cascade, if the layer's features
  // allow.
  CascadeChoice cascade = CascadeChoice::kNever;

  bool is_mla() const { return latent_rank > 0; }
  int64_t output_head_size() const {
    if (value_head_size != 0) return value_head_size;
    return is_mla() ? latent_rank : head_size;
  }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_LAYER_CONFIG_H_
