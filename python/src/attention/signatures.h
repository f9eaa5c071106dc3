// Arguments that many functions of kvblocks.attention share, as nanobind and as stubs need them.

#ifndef KVBLOCKS_PYTHON_SRC_ATTENTION_SIGNATURES_H_
#define KVBLOCKS_PYTHON_SRC_ATTENTION_SIGNATURES_H_

#include <nanobind/nanobind.h>

// Where a call runs: the last arguments of every function.
#define KVBLOCKS_CALL_ARGS \
  nb::arg("stream") = nb::none(), nb::arg("workspace") = nb::none(), nb::arg("threads") = nb::none()
#define KVBLOCKS_CALL_SIG \
  "stream: Stream = None, workspace: Workspace | None = None, threads: ThreadPool | None = None"

// Outputs of attention.
#define KVBLOCKS_OUT_ARGS \
  nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(), nb::arg("return_lse") = false
#define KVBLOCKS_OUT_SIG \
  "out: Array | None = None, lse: Array | None = None, return_lse: bool = False, "

// Scores and visibility of what attends to keys with heads.
#define KVBLOCKS_SCORE_ARGS                                                              \
  nb::arg("scale") = nb::none(), nb::arg("soft_cap") = 0.0, nb::arg("window_left") = -1, \
  nb::arg("chunk") = 0, nb::arg("alibi_slopes") = nb::none(), nb::arg("sinks") = nb::none()
#define KVBLOCKS_SCORE_SIG                                                                     \
  "scale: float | None = None, soft_cap: float = 0.0, window_left: int = -1, chunk: int = 0, " \
  "alibi_slopes: Array | None = None, sinks: Array | None = None, "

// Which keys are seen by a rule of their own.
#define KVBLOCKS_MASK_ARGS nb::arg("mask") = nb::none(), nb::arg("block_sparse") = nb::none()
#define KVBLOCKS_MASK_SIG \
  "mask: Array | Mask | None = None, block_sparse: BlockSparse | None = None, "

// Of a prefill, also.
#define KVBLOCKS_PREFILL_ARGS                                                 \
  nb::arg("causal") = true, nb::arg("window_right") = -1, KVBLOCKS_MASK_ARGS, \
  nb::arg("mask_rows_are_absolute") = false, nb::arg("query_positions") = nb::none()
#define KVBLOCKS_PREFILL_SIG                                        \
  "causal: bool = True, window_right: int = -1, " KVBLOCKS_MASK_SIG \
  "mask_rows_are_absolute: bool = False, query_positions: Array | None = None, "

// Of caches in codes.
#define KVBLOCKS_CACHE_SCALE_ARGS nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none()
#define KVBLOCKS_CACHE_SCALE_SIG \
  "k_scale: Array | float | None = None, v_scale: Array | float | None = None, "

// Of what attends to keys with heads, also queries in codes.
#define KVBLOCKS_SCALE_ARGS KVBLOCKS_CACHE_SCALE_ARGS, nb::arg("q_scale") = nb::none()
#define KVBLOCKS_SCALE_SIG KVBLOCKS_CACHE_SCALE_SIG "q_scale: Array | float | None = None, "

// How keys are cut into pieces.
#define KVBLOCKS_SPLIT_ARGS nb::arg("split_tokens") = nb::none(), nb::arg("num_splits") = nb::none()
#define KVBLOCKS_SPLIT_SIG "split_tokens: int | None = None, num_splits: int | None = None, "

#endif  // KVBLOCKS_PYTHON_SRC_ATTENTION_SIGNATURES_H_
