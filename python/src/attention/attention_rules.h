// What arguments of attention are made of in Python: masks with a form of their own, the
// block-sparse rule, plans of the host.

#ifndef KVBLOCKS_PYTHON_SRC_ATTENTION_ATTENTION_RULES_H_
#define KVBLOCKS_PYTHON_SRC_ATTENTION_ATTENTION_RULES_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "kvblocks/attention_args.h"
#include "kvblocks/split_planner.h"
#include "python/src/attention/op_call.h"

namespace kvblocks::python {

// Python's Mask: how an array is read. The array itself is looked at by each call.
struct PyMask {
  attention::ExplicitMask rules;  // without tensor; the encoding may follow from its type
  AnyObject array;
  bool has_encoding = false, has_form = false;
};

// Python's SplitPlanner.
struct PySplitPlanner {
  attention::SplitPlanner core;
  bool has_plan = false;
  PySplitPlanner(int64_t max_num_reqs, int64_t max_num_parts) : core(max_num_reqs, max_num_parts) {}
};

// `mask` is an array, whose dimensions and type say how it is read, or a Mask, or None.
void FillMask(OpCall& call, nb::handle mask, bool rows_are_absolute, attention::AttnParams* params);
// At most one of the two.
attention::SplitPolicy SplitFrom(const OpCall& call, std::optional<int64_t> split_tokens,
                                 std::optional<int64_t> num_splits);

}  // namespace kvblocks::python

#endif  // KVBLOCKS_PYTHON_SRC_ATTENTION_ATTENTION_RULES_H_
