// The operations of attention: one virtual function each.

#ifndef KVBLOCKS_ATTENTION_OPS_H_
#define KVBLOCKS_ATTENTION_OPS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention_args.h"
#include "kvblocks/check.h"

// Checked<Args>: arguments of one operation that a backend has looked at and accepted, with the
// context to run it in.
//
// Only AttentionOps::Check makes one, so what takes a Checked need not check again. It refers to
// both and copies neither: they must outlive it and stay as they are.

namespace kvblocks::attention {

template <typename Args>
class Checked {
 public:
  const ExecContext& context() const { return *context_; }
  const Args& args() const { return *args_; }

 private:
  friend class AttentionOps;
  Checked(const ExecContext& context, const Args& args) : context_(&context), args_(&args) {}

  const ExecContext* context_;
  const Args* args_;
};

}  // namespace kvblocks::attention

// The operations of AttentionOps by name, for whatever has one member per operation: the interface
// itself and the classes of backends.
//
// KVBLOCKS_ATTENTION_OPS(X) expands to X(Op) for each; Op##Args of args.h are its arguments. A new
// operation is one line here: every backend that declares the list then has to define it.

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

// Those that move, quantise, choose or rotate rows of keys and values.
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

// What an operation refuses before it does anything: one check per argument structure, shared by
// all backends (AttentionOps::Check adds what a backend refuses beyond it).
//
// InvalidArgument for ranks, extents, types, devices, strides and parameters that do not fit
// together; OutOfRange for block ids, slots and table sizes, as far as the host can read them. A
// message names the operation, the argument, the value and the limit. Indices in device memory are
// left to the kernels, which skip and flag them. Cost: O(1) per argument plus, for arrays on the
// host, O(elements read): lengths, slots, and the table entries within the lengths.

namespace kvblocks::attention {

#define KVBLOCKS_DECLARE_CHECK(Op) \
  absl::Status Check(const ExecContext& context, const Op##Args& args);
KVBLOCKS_ATTENTION_OPS(KVBLOCKS_DECLARE_CHECK)
#undef KVBLOCKS_DECLARE_CHECK

// AttentionOps: every operation of the attention floor, as a backend offers it.
//
// For each Op of op_list.h, with its OpArgs of args.h:
//   Op(context, args)      checks the arguments, then runs;
//   Check(context, args)   refuses bad ones with a Status that names operation, argument, value and
//                          limit, and writes nothing;
//   Run(checked)           does the work, without another check.
// A caller with several operations checks them all before the first runs. Unimplemented where the
// backend has no such operation. Thread-compatible; distinct contexts are independent.

class AttentionOps {
 public:
  virtual ~AttentionOps() = default;

  virtual const char* name() const = 0;

  // Args of an operation of the list. The result refers to both.
  template <typename Args>
  absl::StatusOr<Checked<Args>> Check(const ExecContext& context, const Args& args) const {
    if (absl::Status status = Refuse(context, args); !status.ok()) return status;
    return Checked<Args>(context, args);
  }

#define KVBLOCKS_DECLARE_OP(Op)                                                   \
  absl::Status Op(const ExecContext& context, const Op##Args& args) const {       \
    const absl::StatusOr<Checked<Op##Args>> checked = Check(context, args);       \
    return checked.ok() ? Run(*checked) : checked.status();                       \
  }                                                                               \
  virtual absl::Status Run(const Checked<Op##Args>&) const {                      \
    return Unimplemented(name(), " has no " #Op);                                 \
  }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_DECLARE_OP)
#undef KVBLOCKS_DECLARE_OP

  // PagedPrefill and VarlenSelfAttention that must be given an explicit mask.
  absl::Status MaskedAttention(const ExecContext& context, const PagedPrefillArgs& args) const {
    if (!args.params.mask.enabled()) return NoMask();
    return PagedPrefill(context, args);
  }
  absl::Status MaskedAttention(const ExecContext& context,
                               const VarlenSelfAttentionArgs& args) const {
    if (!args.params.mask.enabled()) return NoMask();
    return VarlenSelfAttention(context, args);
  }

 protected:
  // Why the backend does not take the arguments, OK if it does: checks.h, and what it has of its
  // own.
#define KVBLOCKS_DECLARE_REFUSE(Op)                                                     \
  virtual absl::Status Refuse(const ExecContext& context, const Op##Args& args) const { \
    return attention::Check(context, args);                                             \
  }
  KVBLOCKS_ATTENTION_OPS(KVBLOCKS_DECLARE_REFUSE)
#undef KVBLOCKS_DECLARE_REFUSE

 private:
  static absl::Status NoMask() {
    return InvalidArgument(
        "MaskedAttention: params.mask is empty; give a mask or call the implicit operation");
  }
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_OPS_H_
