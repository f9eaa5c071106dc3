"""Kernel sources, each built for GPUs and, as an emulation, for the host."""

load("//:kvblocks.bzl", "kv_cc_library")
load("//third_party/cuda:defs.bzl", "DEFAULT_ARCHS", "cuda_library")

def kv_kernels(name, srcs, hdrs, deps = [], textual_hdrs = [], archs = DEFAULT_ARCHS, **kwargs):
    """Two libraries from the same .cu sources: <name> by nvcc, <name>_emulated by the host compiler.

    A program links one of the two. Without a CUDA compiler there is only the second.

    Args:
      name: of the library.
      srcs: .cu files.
      hdrs: what host code includes to launch the kernels; it knows no CUDA.
      textual_hdrs: device code that several .cu files include.
      archs: as of cuda_library.
      deps: other kv_kernels by their name, and plain libraries by their full label.
      **kwargs: visibility and the like.
    """
    plain = [dep for dep in deps if not dep.startswith("kernels:")]
    kernels = [dep[len("kernels:"):] for dep in deps if dep.startswith("kernels:")]
    cuda_library(
        name = name,
        srcs = srcs + textual_hdrs,
        hdrs = hdrs,
        archs = archs,
        deps = plain + kernels + ["//attention/cuda/device:gpu"],
        **kwargs
    )
    copies = []
    for src in srcs:
        copy = src[:-len(".cu")] + "_emulated.cc"
        native.genrule(
            name = name + "_copy_" + src[:-len(".cu")],
            srcs = [src],
            outs = [copy],
            # Messages and addresses name the source, not the copy.
            cmd = "(echo '#line 1 \"%s/%s\"' && cat $<) > $@" % (native.package_name(), src),
        )
        copies.append(copy)
    kv_cc_library(
        name = name + "_emulated",
        srcs = copies + textual_hdrs,
        hdrs = hdrs,
        # Kernels are templates over features: what one instance leaves unused, another needs.
        copts = ["-Wno-unused-parameter", "-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Wno-unknown-pragmas"],
        deps = plain + [kernel + "_emulated" for kernel in kernels] + ["//attention/cuda/device:gpu_emulated"],
        **kwargs
    )
