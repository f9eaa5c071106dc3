// The operations of AttentionOps by name, for whatever has one member per operation: the interface
// itself and the classes of backends.
//
// KVBLOCKS_ATTENTION_OPS(X) expands to X(Op) for each; Op##Args of args.h are its arguments. A new
// operation is one line here: every backend that declares the list then has to define it.

#ifndef KVBLOCKS_ATTENTION_OPS_OP_LIST_H_
#define KVBLOCKS_ATTENTION_OPS_OP_LIST_H_

// Those that attend or work on the results of attending.
#define KVBLOCKS_ATTENDING_OPS(X) \
  X(PagedDecode)                  \
  X(PagedDecodePartial)           \
  X(ReduceSplits)                 \
  X(PagedPrefill)                 \
  X(VarlenSelfAttention)          \
  X(Cascade)                      \
  X(MlaDecode)                    \
  X(SparseMlaDecode)              \
  X(SparseMlaPrefill)             \
  X(IndexTopk)                    \
  X(MergeStates)

// Those that move, quantise, choose or turn rows of keys and values.
#define KVBLOCKS_KV_ROW_OPS(X) \
  X(ReshapeAndCache)           \
  X(ConcatAndCacheMla)         \
  X(ComputeKvScales)           \
  X(ScaleAndCache)             \
  X(QuantizeQueries)           \
  X(GatherCache)               \
  X(SelectHkvd)                \
  X(FuseKv)                    \
  X(GatherRows)                \
  X(RotateKeys)                \
  X(CacheIndexKeys)            \
  X(CompressTokens)

#define KVBLOCKS_ATTENTION_OPS(X) \
  KVBLOCKS_ATTENDING_OPS(X)       \
  KVBLOCKS_KV_ROW_OPS(X)

// X for the class of a backend: declares that it runs the operation, and that it has reasons of its
// own to refuse arguments.
#define KVBLOCKS_OVERRIDE_RUN(Op) absl::Status Run(const Checked<Op##Args>& call) const override;
#define KVBLOCKS_OVERRIDE_REFUSE(Op) \
  absl::Status Refuse(const ExecContext& context, const Op##Args& args) const override;

#endif  // KVBLOCKS_ATTENTION_OPS_OP_LIST_H_
