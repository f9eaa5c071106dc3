// OpsOfCall: the operations of one call of a layer.

#ifndef KVBLOCKS_ATTENTION_BACKENDS_OPS_OF_CALL_H_
#define KVBLOCKS_ATTENTION_BACKENDS_OPS_OF_CALL_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblocks/attention/ops/attention_ops.h"
#include "kvblocks/attention/ops/checked.h"

namespace kvblocks::attention {

// The operations of a call, all of which are checked before the first runs.
class OpsOfCall {
 public:
  OpsOfCall(const AttentionOps& ops, const ExecContext& context) : ops_(ops), context_(context) {}
  const absl::Status& status() const { return status_; }

  template <typename Args>
  std::optional<Checked<Args>> Check(const std::optional<Args>& args) {
    if (!status_.ok() || !args.has_value()) return std::nullopt;
    const absl::StatusOr<Checked<Args>> checked = ops_.Check(context_, *args);
    status_ = checked.status();
    return checked.ok() ? std::optional<Checked<Args>>(*checked) : std::nullopt;
  }
  template <typename Args>
  void Run(const std::optional<Checked<Args>>& checked) {
    if (status_.ok() && checked.has_value()) status_ = ops_.Run(*checked);
  }

 private:
  const AttentionOps& ops_;
  const ExecContext& context_;
  absl::Status status_;
};

}  // namespace kvblocks::attention

#endif  // KVBLOCKS_ATTENTION_BACKENDS_OPS_OF_CALL_H_
