// Small, valid arguments of every operation, as tests of refusals start from. Testonly.
//
// Two requests of lengths 6 and 3 with 2 and 1 new tokens, H = 4, Hkv = 2, D = 8, Dv = 8, BS = 4,
// NB = 6; values are zero except where an operation reads integers. Every output byte is
// kUntouched.

#ifndef KVBLOCKS_ATTENTION_TESTING_VALID_ARGS_H_
#define KVBLOCKS_ATTENTION_TESTING_VALID_ARGS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kvblocks/attention_args.h"

namespace kvblocks::attention {

inline constexpr std::byte kUntouched{0x5A};

// Owns what the arguments look at.
class TensorStore {
 public:
  // `slack` bytes behind every tensor, for views that are made to reach further.
  explicit TensorStore(int64_t slack = 8) : slack_(slack) {}

  TensorView Input(DType dtype, absl::Span<const int64_t> extents) {
    return Make(dtype, extents, std::byte{0}, inputs_);
  }
  TensorView Output(DType dtype, absl::Span<const int64_t> extents) {
    return Make(dtype, extents, kUntouched, outputs_);
  }
  template <typename T>
  TensorView Values(std::initializer_list<T> values, std::initializer_list<int64_t> extents) {
    TensorView view = Input(DTypeOf<T>(), extents);
    if (values.size() > 0) std::memcpy(view.data, values.begin(), values.size() * sizeof(T));
    return view;
  }
  TensorView Ints(std::initializer_list<int32_t> values) {
    return Values<int32_t>(values, {static_cast<int64_t>(values.size())});
  }
  TensorView Slots(std::initializer_list<int64_t> values) {
    return Values<int64_t>(values, {static_cast<int64_t>(values.size())});
  }
  TensorView Floats(std::initializer_list<float> values) {
    return Values<float>(values, {static_cast<int64_t>(values.size())});
  }
  bool OutputsUntouched() const {
    for (const auto& bytes : outputs_) {
      for (std::byte b : *bytes) {
        if (b != kUntouched) return false;
      }
    }
    return true;
  }

 private:
  using Bytes = std::unique_ptr<std::vector<std::byte>>;
  TensorView Make(DType dtype, absl::Span<const int64_t> extents, std::byte fill,
                  std::vector<Bytes>& owner) {
    int64_t bytes = ElementBytes(dtype);
    for (int64_t extent : extents) bytes *= extent;
    owner.push_back(std::make_unique<std::vector<std::byte>>(bytes + slack_, fill));
    return TensorView::Contiguous(owner.back()->data(), dtype, extents);
  }

  int64_t slack_;
  std::vector<Bytes> inputs_, outputs_;
};

inline KvCacheView NhdCache(TensorStore& store, DType dtype = DType::kF32, bool output = false) {
  const auto make = [&] {
    return output ? store.Output(dtype, {6, 4, 2, 8}) : store.Input(dtype, {6, 4, 2, 8});
  };
  return {KvLayout::kNhd, make(), make()};
}
// R_kv = 6, R_pe = 2.
inline KvCacheView LatentCache(TensorStore& store, DType dtype = DType::kF32, bool output = false) {
  const TensorView k = output ? store.Output(dtype, {6, 4, 8}) : store.Input(dtype, {6, 4, 8});
  return {KvLayout::kMlaLatent, k, *k.Slice(2, 0, 6)};
}

// Both requests over the blocks of a cache.
template <typename Args>
void FillTables(TensorStore& s, Args& args) {
  args.block_table = s.Values<int32_t>({1, 2, 3, 0}, {2, 2});
  args.seq_lens = s.Ints({6, 3});
  if constexpr (requires { args.max_seq_len; }) args.max_seq_len = 6;
}
// out [rows..., dim] and its lse [rows...].
template <typename Args>
void FillOutputs(TensorStore& s, Args& args, std::vector<int64_t> rows, int64_t dim) {
  args.lse = s.Output(DType::kF32, rows);
  rows.push_back(dim);
  args.out = s.Output(DType::kF32, rows);
}
// What PagedDecode and PagedDecodePartial read.
template <typename Args>
void FillDecode(TensorStore& s, Args& args) {
  args.q = s.Input(DType::kF32, {2, 4, 8});
  args.cache = NhdCache(s);
  FillTables(s, args);
}

template <typename Args>
Args Valid(TensorStore& store);

template <>
inline ReshapeAndCacheArgs Valid(TensorStore& s) {
  return {.k = s.Input(DType::kF32, {3, 2, 8}),
          .v = s.Input(DType::kF32, {3, 2, 8}),
          .slot_mapping = s.Slots({9, -1, 3}),
          .cache = NhdCache(s, DType::kF32, /*output=*/true),
          .scales = {}};
}
template <>
inline ConcatAndCacheMlaArgs Valid(TensorStore& s) {
  return {.kv_c = s.Input(DType::kF32, {3, 6}),
          .k_pe = s.Input(DType::kF32, {3, 2}),
          .slot_mapping = s.Slots({9, -1, 3}),
          .cache = LatentCache(s, DType::kF32, /*output=*/true),
          .scale = {}};
}
template <>
inline ComputeKvScalesArgs Valid(TensorStore& s) {
  ComputeKvScalesArgs args;
  args.q = s.Input(DType::kF32, {3, 4, 8});
  args.k = s.Input(DType::kF32, {3, 2, 8});
  args.v = s.Input(DType::kF32, {3, 2, 8});
  args.q_scale = s.Output(DType::kF32, {1});
  args.k_scale = s.Output(DType::kF32, {2});
  args.v_scale = s.Output(DType::kF32, {1});
  return args;
}
template <>
inline ScaleAndCacheArgs Valid(TensorStore& s) {
  ScaleAndCacheArgs args;
  args.scales = Valid<ComputeKvScalesArgs>(s);
  args.slot_mapping = s.Slots({9, -1, 3});
  args.cache = NhdCache(s, DType::kI8, /*output=*/true);
  return args;
}
template <>
inline QuantizeQueriesArgs Valid(TensorStore& s) {
  return {.q = s.Input(DType::kF32, {3, 4, 8}),
          .scale = s.Floats({1}),
          .codes = s.Output(DType::kF8E4M3, {3, 4, 8})};
}
template <>
inline PagedDecodeArgs Valid(TensorStore& s) {
  PagedDecodeArgs args;
  FillDecode(s, args);
  FillOutputs(s, args, {2, 4}, 8);
  return args;
}
template <>
inline PagedDecodePartialArgs Valid(TensorStore& s) {
  PagedDecodePartialArgs args;
  FillDecode(s, args);
  args.partition_tokens = 4;
  args.max_logits = s.Output(DType::kF32, {2, 4, 2});
  args.exp_sums = s.Output(DType::kF32, {2, 4, 2});
  args.tmp_out = s.Output(DType::kF32, {2, 4, 2, 8});
  return args;
}
template <>
inline ReduceSplitsArgs Valid(TensorStore& s) {
  return {.max_logits = s.Input(DType::kF32, {2, 4, 2}),
          .exp_sums = s.Input(DType::kF32, {2, 4, 2}),
          .tmp_out = s.Input(DType::kF32, {2, 4, 2, 8}),
          .sinks = s.Floats({0, 0, 0, 0}),
          .out = s.Output(DType::kF32, {2, 4, 8}),
          .lse = s.Output(DType::kF32, {2, 4})};
}
template <>
inline PagedPrefillArgs Valid(TensorStore& s) {
  PagedPrefillArgs args;
  args.q = s.Input(DType::kF32, {3, 4, 8});
  args.cache = NhdCache(s);
  FillTables(s, args);
  args.query_start_loc = s.Ints({0, 2, 3});
  args.max_query_len = 2;
  FillOutputs(s, args, {3, 4}, 8);
  return args;
}
template <>
inline VarlenSelfAttentionArgs Valid(TensorStore& s) {
  VarlenSelfAttentionArgs args;
  args.q = s.Input(DType::kF32, {3, 4, 8});
  args.k = s.Input(DType::kF32, {9, 2, 8});
  args.v = s.Input(DType::kF32, {9, 2, 8});
  args.query_start_loc = s.Ints({0, 2, 3});
  args.kv_start_loc = s.Ints({0, 6, 9});
  FillOutputs(s, args, {3, 4}, 8);
  return args;
}
template <>
inline CascadeArgs Valid(TensorStore& s) {
  CascadeArgs args;
  args.prefill = Valid<PagedPrefillArgs>(s);
  args.prefill.seq_lens = s.Ints({6, 5});
  args.prefill.block_table = s.Values<int32_t>({1, 2, 1, 3}, {2, 2});
  args.common_prefix_len = 4;
  return args;
}
template <>
inline MlaDecodeArgs Valid(TensorStore& s) {
  MlaDecodeArgs args;
  args.q_lat = s.Input(DType::kF32, {3, 4, 6});
  args.q_pe = s.Input(DType::kF32, {3, 4, 2});
  args.cache = LatentCache(s);
  FillTables(s, args);
  args.query_start_loc = s.Ints({0, 2, 3});
  FillOutputs(s, args, {3, 4}, 6);
  return args;
}
template <>
inline SparseMlaDecodeArgs Valid(TensorStore& s) {
  SparseMlaDecodeArgs args;
  args.q = s.Input(DType::kF32, {2, 1, 4, 8});
  args.main = {LatentCache(s), s.Values<int32_t>({1, 2, -1, 3, 4, 99}, {2, 1, 3}), s.Ints({3, 2})};
  args.extra = {LatentCache(s), s.Values<int32_t>({1, 2}, {2, 1, 1}), s.Ints({1, 0})};
  args.sinks = s.Floats({0, 0, 0, 0});
  FillOutputs(s, args, {2, 1, 4}, 6);
  return args;
}
template <>
inline SparseMlaPrefillArgs Valid(TensorStore& s) {
  SparseMlaPrefillArgs args;
  args.q = s.Input(DType::kF32, {2, 4, 8});
  args.kv = s.Input(DType::kF32, {5, 1, 8});
  args.indices = s.Values<int32_t>({1, 2, -1, 3, 4, 99}, {2, 1, 3});
  args.topk_len = s.Ints({3, 2});
  FillOutputs(s, args, {2, 4}, 6);
  args.max_logits = s.Output(DType::kF32, {2, 4});
  return args;
}
template <>
inline MergeStatesArgs Valid(TensorStore& s) {
  MergeStatesArgs args;
  args.outs = s.Input(DType::kF32, {2, 3, 4, 8});
  args.lses = s.Input(DType::kF32, {2, 3, 4});
  FillOutputs(s, args, {3, 4}, 8);
  return args;
}
template <>
inline GatherCacheArgs Valid(TensorStore& s) {
  GatherCacheArgs args;
  args.cache = NhdCache(s);
  FillTables(s, args);
  args.lengths = s.Ints({5, 3});
  args.row_offset = 1;
  args.out = s.Output(DType::kF32, {2, 6, 2, 8});
  args.out_v = s.Output(DType::kF32, {2, 6, 2, 8});
  return args;
}
template <>
inline SelectHkvdArgs Valid(TensorStore& s) {
  return {.v_new = s.Input(DType::kF32, {5, 2, 8}),
          .v_old = s.Input(DType::kF32, {5, 2, 8}),
          .ratio = 0.5,
          .suffix_len = 1,
          .imp = s.Output(DType::kI32, {3}),
          .diffs = s.Output(DType::kF32, {4})};
}
template <>
inline FuseKvArgs Valid(TensorStore& s) {
  return {.imp = s.Ints({1, 4}),
          .k_new = s.Input(DType::kF32, {2, 2, 8}),
          .v_new = s.Input(DType::kF32, {2, 2, 8}),
          .k_old = s.Output(DType::kF32, {5, 2, 8}),
          .v_old = s.Output(DType::kF32, {5, 2, 8})};
}
template <>
inline GatherRowsArgs Valid(TensorStore& s) {
  return {.in = s.Input(DType::kF32, {5, 2, 8}),
          .index = s.Ints({1, 4}),
          .out = s.Output(DType::kF32, {2, 2, 8})};
}
template <>
inline RotateKeysArgs Valid(TensorStore& s) {
  RotateKeysArgs args;
  args.in = s.Input(DType::kF32, {2, 2, 8});
  args.positions = s.Ints({3, 7});
  args.from_positions = s.Ints({0, 1});
  args.out = s.Output(DType::kF32, {2, 2, 8});
  return args;
}
// Di = 8, planar blocks of 4 rows.
template <>
inline CacheIndexKeysArgs Valid(TensorStore& s) {
  CacheIndexKeysArgs args;
  args.k = s.Input(DType::kF32, {3, 8});
  args.slot_mapping = s.Slots({9, -1, 3});
  args.cache = {s.Output(DType::kU8, {6, 48}), 4};
  return args;
}
// Two tokens a row.
template <>
inline IndexTopkArgs Valid(TensorStore& s) {
  IndexTopkArgs args;
  args.q = s.Input(DType::kF32, {3, 2, 8});
  args.weights = s.Input(DType::kF32, {3, 2});
  args.cache = IndexCacheView(s.Input(DType::kU8, {6, 48}), 4);
  FillTables(s, args);
  args.query_start_loc = s.Ints({0, 2, 3});
  args.ratio = 2;
  args.indices = s.Output(DType::kI32, {3, 2});
  args.lens = s.Output(DType::kI32, {3});
  return args;
}
// D = 4, two tokens a row with overlap.
template <>
inline CompressTokensArgs Valid(TensorStore& s) {
  CompressTokensArgs args;
  args.kv = s.Input(DType::kF32, {3, 8});
  args.score = s.Input(DType::kF32, {3, 8});
  args.bias = s.Input(DType::kF32, {2, 8});
  args.states = s.Output(DType::kF32, {6, 4, 16});
  args.slot_mapping = s.Slots({8, 9, -1});
  args.block_table = s.Values<int32_t>({1, 2, 3, 0}, {2, 2});
  args.seq_lens = s.Ints({6, 3});
  args.query_start_loc = s.Ints({0, 2, 3});
  args.ratio = 2;
  args.norm_weight = s.Input(DType::kF32, {4});
  args.cos_sin = s.Input(DType::kF32, {5, 2});
  args.out = s.Output(DType::kF32, {3, 4});
  return args;
}

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_TESTING_VALID_ARGS_H_
