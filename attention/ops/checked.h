// Checked<Args>: arguments of one operation that a backend has looked at and accepted, with the
// context to run it in.
//
// Only AttentionOps::Check makes one, so what takes a Checked need not look again. It refers to both
// and copies neither: they must outlive it and stay as they are.

#ifndef KVBLOCKS_ATTENTION_OPS_CHECKED_H_
#define KVBLOCKS_ATTENTION_OPS_CHECKED_H_

#include "kvblocks/attention/ops/exec_context.h"

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

#endif  // KVBLOCKS_ATTENTION_OPS_CHECKED_H_
