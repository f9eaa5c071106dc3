// What attention kernels take: plain structures, passed by value, filled by the host from checked
// arguments (attention/cuda/kernel_params.h). No CUDA in here: host sources include it, too.
//
// Strides count elements, offsets are formed in 64 bits. Pointers are to device memory; a null
// pointer is an absent option. Everything an index array says is checked by the kernel: what is out
// of range is skipped and flagged.

#ifndef KVBLOCKS_ATTENTION_CUDA_KERNELS_PARAMS_H_
#define KVBLOCKS_ATTENTION_CUDA_KERNELS_PARAMS_H_

#include <cstddef>
#include <cstdint>

#include "kvblocks/device_types.h"

namespace kvblocks::attention::cuda {

// Where and with what a family of kernels is launched.
struct LaunchContext {
  void* stream = nullptr;           // a cudaStream_t
  uint32_t* error_flags = nullptr;  // device; DeviceErrorBit, OR-ed
  unsigned char* workspace = nullptr;
  size_t workspace_bytes = 0;
  int num_multiprocessors = 1;
  int compute_capability = 80;  // 80, 90, ...

  // Whether kernels may start while the one before still runs: the instruction that waits for it is
  // in the machine code for 9.0 only, other devices run what was compiled for 8.0.
  bool can_overlap() const { return compute_capability == 90; }
};

// Kernels know f32, f16, bf16, e4m3, e5m2 and i8.
using Element = DType;

constexpr int BytesOf(Element element) { return static_cast<int>(ElementBytes(element)); }
constexpr bool IsCode(Element element) { return BytesOf(element) == 1; }

// [rows, heads, dim], the innermost stride 1.
struct ConstRows {
  const void* data = nullptr;
  int64_t row_stride = 0, head_stride = 0;
  Element element = Element::kF32;
};
struct Rows {
  void* data = nullptr;
  int64_t row_stride = 0, head_stride = 0;
  Element element = Element::kF32;
};

// Float32 scales of a cache's codes; null: 1. A stride of 0 repeats.
struct Scales {
  const float* data = nullptr;
  int64_t request_stride = 0, head_stride = 0;
};

// Strided layouts are kNhd, kHnd and contiguous keys: element d of offset o of block b and head h
// is at b * block_stride + o * token_stride + h * head_stride + d.
using Layout = KvLayout;

struct CacheTensor {
  const void* data = nullptr;
  int64_t block_stride = 0, token_stride = 0, head_stride = 0;
};

// A paged cache. kPagedX is dense: K [NB, Hkv, D/x, BS, x], V [NB, Hkv, Dv, BS], and only the block
// strides may differ from that. MLA layouts: k holds the rows (kMlaSplit: compressed values in k,
// rotary ones in v), token_stride in elements, of bytes for the fp8 rows and for latent records
// (`format`). Rows of the strided layouts may have scales of their own in the cache (`format`),
// next to or instead of k_scale and v_scale; strides of packed codes count bytes, those of scales
// float32 or, of kNvfp4, bytes.
struct Cache {
  Layout layout = Layout::kNhd;
  KvRowFormat format = KvRowFormat::kElements;
  Element element = Element::kF32;  // not of packed codes and records
  CacheTensor k, v;
  CacheTensor k_row_scales, v_row_scales;  // both or none
  int32_t num_blocks = 0, block_size = 1;
  Scales k_scale, v_scale;

  // Beside the codes or inside of a record.
  constexpr bool has_row_scales() const { return format != KvRowFormat::kElements; }
};

// The keys of a batch through its block tables.
struct PagedKeys {
  Cache cache;
  const int32_t* block_table = nullptr;  // [R, columns]
  int64_t table_stride = 0;
  int32_t table_columns = 0;
  const int32_t* seq_lens = nullptr;  // [R]
};

struct BlockSparseRule {
  int32_t local_blocks = 0, vert_stride = 0;  // off if vert_stride <= 1
  int32_t block_size = 64;
  int32_t head_sliding_step = 0, tp_rank = 0;
};

// As ops/params.h has it: forms, encodings and modes by the same numbers.
struct MaskRule {
  const void* data = nullptr;
  Element element = Element::kF32;
  bool marker = false;  // not 0 hides, else added
  bool bytes = false;   // elements are bytes: bool, u8, i8
  uint8_t form = 0;     // MaskForm
  int32_t mode = 1;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0, column_stride = 0;
  int64_t rows = 0, columns = 0;  // extents of the last two dimensions; kTemplate: N, N
  int64_t pre_tokens = 0, next_tokens = 0;
  bool rows_are_absolute = false;
  // kRaggedBits: bits before each request's; else null.
  const int64_t* bits_before = nullptr;
};

// How scores are made and what is visible; ops/params.h says what each means.
struct Scoring {
  float scale = 1;
  float soft_cap = 0;
  bool causal = true;
  int32_t window_left = -1, window_right = -1;
  int32_t chunk = 0;
  const float* alibi_slopes = nullptr;
  const float* sinks = nullptr;
  BlockSparseRule block_sparse;
  MaskRule mask;  // on if form != 0 or mode == 0

  // Whether intervals do not say all that a query sees.
  bool tests_keys() const { return block_sparse.vert_stride > 1 || mask.form != 0; }
  bool plain() const {
    return soft_cap == 0 && chunk == 0 && alibi_slopes == nullptr &&
           block_sparse.vert_stride <= 1 && mask.form == 0 && mask.mode != 0;
  }
};

// Attention over K/V heads, whichever kernel does it.
struct DenseAttention {
  ConstRows q;          // [T, H, D]
  Scales q_scale;       // of codes, per KV head
  Rows out;             // [T, H, Dv]
  float out_scale = 0;  // > 0: out is divided by it, to fit codes
  float* lse = nullptr;
  int64_t lse_row_stride = 0, lse_head_stride = 0;
  // Keys of contiguous tensors have no block table: cache.k and cache.v then are rows with
  // token_stride and head_stride, num_key_rows of them, and kv_start_loc says whose they are.
  PagedKeys keys;
  const int32_t* kv_start_loc = nullptr;  // [R + 1]
  int64_t num_key_rows = 0;
  Scoring scoring;
  const int32_t* query_start_loc = nullptr;  // [R + 1]; null: one query per request
  const int32_t* query_positions = nullptr;  // [T]; null: kv_len - q_len + i
  int32_t num_requests = 0, num_tokens = 0;  // R, T
  int32_t num_heads = 1, num_kv_heads = 1;
  int32_t key_dim = 0, value_dim = 0;
  int32_t max_query_len = 0;  // a bound; 0: not known
  // At least every length; of contiguous keys about so many.
  int64_t max_seq_len = 0;

  // What kernels of tensor cores have instances of their own for.
  bool is_special() const { return keys.cache.layout == Layout::kPagedX || scoring.tests_keys(); }
};

}  // namespace kvblocks::attention::cuda

#endif  // KVBLOCKS_ATTENTION_CUDA_KERNELS_PARAMS_H_
