"""Kernel sources, each built for GPUs and, as an emulation, for the host."""

load("//:kvblocks.bzl", "joined_sources", "kv_cc_library")
load("//third_party/cuda:defs.bzl", "DEFAULT_ARCHS", "cuda_library")

def kv_kernels(name, srcs, deps = [], archs = DEFAULT_ARCHS, testonly = False):
    """Two libraries from the same .cu sources: <name> by nvcc, <name>_emulated by the host compiler.

    A program links one of the two. Without a CUDA compiler there is only the second.

    Args:
      name: of the library.
      srcs: .cu files.
      deps: libraries with the headers.
      archs: as of cuda_library.
      testonly: as ever.
    """
    cuda_library(
        name = name,
        srcs = srcs,
        hdrs = [],
        archs = archs,
        testonly = testonly,
        deps = deps + ["//attention/cuda/device:gpu"],
    )

    # Copies with the name of a C++ source; messages and addresses name the original.
    joined_sources(
        name = name + "_copies",
        srcs = srcs,
        size = 1,
        testonly = testonly,
        visibility = ["//visibility:private"],
    )
    kv_cc_library(
        name = name + "_emulated",
        srcs = [],
        hdrs = [],
        generated = [":%s_copies" % name],
        testonly = testonly,
        # Kernels are templates over features: what one instance leaves unused, another needs.
        copts = ["-Wno-unused-parameter", "-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Wno-unknown-pragmas"],
        deps = deps + ["//attention/cuda/device:gpu_emulated"],
    )
