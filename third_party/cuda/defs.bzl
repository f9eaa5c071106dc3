"""CUDA C++ in this build: cuda_library, cuda_test, if_cuda, if_cublas.

Without a CUDA compiler the same BUILD files load: a cuda_library then keeps its headers and is incompatible with the
platform, so //... leaves it out with everything that needs it; a cuda_test or cuda_binary does not exist; if_cuda gives
the other value. A target that is to exist either way takes its CUDA part through if_cuda.
"""

load("//:kvblocks.bzl", "COPTS", "kv_cc_binary", "kv_cc_library", "kv_cc_test")
load("@local_cuda//:cuda.bzl", "CUBLAS_AVAILABLE", "CUDA_ARCHS", "CUDA_AVAILABLE", "CUDA_NVCC", "CUDA_VERSION")

# Machine code for A100 and its family, for Hopper with wgmma and the bulk copy engine, and PTX from which a driver
# compiles for newer GPUs.
DEFAULT_ARCHS = CUDA_ARCHS or [
    "sm_80",
    "sm_90a",
    "compute_80",
]

# For kernels with what only Hopper has.
HOPPER_ARCHS = [arch for arch in CUDA_ARCHS if arch.endswith("_90a")] or ["sm_90a"]

_HEADER_SUFFIXES = (".h", ".hpp", ".cuh", ".inc")

def if_cuda(then, otherwise = []):
    """The first value where there is a CUDA compiler, else the second."""
    return then if CUDA_AVAILABLE else otherwise

def if_cublas(then, otherwise = []):
    """The first value where there are a CUDA compiler and cuBLASLt, else the second."""
    return then if CUBLAS_AVAILABLE else otherwise

def _gencode(arch):
    kind, _, number = arch.partition("_")
    if kind not in ("sm", "compute") or not number:
        fail("archs: got %s, expected sm_<number> for machine code or compute_<number> for PTX" % arch)
    return "-gencode=arch=compute_%s,code=%s" % (number, arch)

def _host_flags(ctx):
    """The --copt flags that the host half of a .cu file takes: sanitizers with what belongs to them, definitions, levels."""
    flags = []
    given = ctx.fragments.cpp.copts
    for flag in given:
        if "fuzzer" in flag:
            # clang's own; the host compiler of nvcc is g++.
            return []
    for flag in given:
        if flag.startswith(("-fsanitize", "-fno-sanitize", "-fno-omit", "-g", "-O")):
            flags.append("-Xcompiler=" + flag.replace(",", "\\,"))
        elif flag.startswith(("-D", "-U")):
            flags.append(flag)
    return flags

def _only_checks(archs):
    """PTX alone is asked for where nobody runs it, to see that it compiles: that takes a tenth of the time unoptimised."""
    return int((CUDA_VERSION or "0").split(".")[0]) >= 13 and all([arch.startswith("compute_") for arch in archs])

def _mode_flags(ctx):
    mode = ctx.var["COMPILATION_MODE"]
    if mode == "opt":
        return ["-O3", "-DNDEBUG"] + (["--Ofast-compile=max"] if _only_checks(ctx.attr.archs) else [])
    if mode == "dbg":
        return ["-O0", "-g"] + (["-G"] if ctx.attr.debug_device_code else [])
    return []

def _cuda_objects_impl(ctx):
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    flags = ["-std=c++20", "--expt-relaxed-constexpr", "-lineinfo", "-Werror=all-warnings"]
    flags += _mode_flags(ctx)
    if "-G" in flags:
        flags.remove("-lineinfo")  # nvcc says that -G overrides it
    flags += [_gencode(arch) for arch in ctx.attr.archs]
    flags += ["-Xcompiler=" + flag for flag in ["-fPIC"] + COPTS]

    # Sandboxes share /tmp, and in each nvcc has the same process id, of which it makes the names of its files there.
    flags.append("--objdir-as-tempdir")
    flags += _host_flags(ctx) + ctx.attr.copts

    args = ctx.actions.args()
    args.add_all(flags)
    for context in contexts:
        args.add_all(context.defines, before_each = "-D")
        args.add_all(context.includes, before_each = "-I")
        args.add_all(context.quote_includes, before_each = "-I")
        args.add_all(context.system_includes, before_each = "-isystem")
    args.add_all([".", ctx.genfiles_dir.path], before_each = "-I")

    inputs = depset(
        ctx.files.hdrs + [ctx.file._release],
        transitive = [context.headers for context in contexts],
    )
    objects = []
    for source in ctx.files.srcs:
        object = ctx.actions.declare_file("%s/%s.o" % (ctx.label.name, source.basename[:-len(".cu")]))
        ctx.actions.run(
            executable = CUDA_NVCC,
            arguments = [args, "-c", source.path, "-o", object.path],
            inputs = depset([source], transitive = [inputs]),
            outputs = [object],
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s" % source.short_path,
            use_default_shell_env = True,
        )
        objects.append(object)
    return [DefaultInfo(files = depset(objects))]

_cuda_objects = rule(
    implementation = _cuda_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "archs": attr.string_list(mandatory = True),
        "copts": attr.string_list(),
        "debug_device_code": attr.bool(default = True),
        "_release": attr.label(default = "@local_cuda//:release", allow_single_file = True),
    },
    fragments = ["cpp"],
)

def cuda_library(
        name,
        srcs = [],
        hdrs = [],
        deps = [],
        archs = DEFAULT_ARCHS,
        nvcc_copts = [],
        debug_device_code = True,
        testonly = False,
        **kwargs):
    """A cc_library whose .cu sources nvcc compiles; it links the CUDA runtime statically.

    Args:
      name: of the library.
      srcs: .cu, .cc, and headers that only these sources include (.h, .cuh).
      hdrs: the headers that dependants may include; without CUDA they stay.
      deps: as of a cc_library; these, too, must be compatible with nvcc when a .cu file includes them.
      archs: sm_<number> for machine code, compute_<number> for PTX. A GPU that none of them serves refuses the kernel
        at its launch (cudaErrorNoKernelImageForDevice), so a file for Hopper alone is launched on Hopper alone.
      nvcc_copts: further flags of nvcc.
      debug_device_code: whether -c dbg compiles kernels without optimisation, for cuda-gdb. Kernels with wgmma do not
        fit into the registers that way.
      testonly: as ever.
      **kwargs: of the cc_library.
    """
    if not CUDA_AVAILABLE:
        kv_cc_library(
            name = name,
            hdrs = hdrs,
            testonly = testonly,
            target_compatible_with = ["@platforms//:incompatible"],
            deps = deps,
            **kwargs
        )
        return
    cuda_srcs = [src for src in srcs if src.endswith(".cu")]
    headers = [src for src in srcs if src.endswith(_HEADER_SUFFIXES)]
    all_deps = deps + ["@local_cuda//:cudart"]
    if hdrs:
        # By their prefix, for the .cu sources of this library, too.
        kv_cc_library(
            name = name + "_headers",
            srcs = [],
            hdrs = hdrs,
            testonly = testonly,
        )
        all_deps = all_deps + [":%s_headers" % name]
    objects = []
    if cuda_srcs:
        _cuda_objects(
            name = name + "_objects",
            srcs = cuda_srcs,
            hdrs = headers,
            archs = archs,
            copts = nvcc_copts,
            debug_device_code = debug_device_code,
            testonly = testonly,
            deps = all_deps,
            visibility = ["//visibility:private"],
        )
        objects = [":%s_objects" % name]
    kv_cc_library(
        name = name,
        # A .cuh is no source that cc_library knows.
        srcs = [src for src in srcs if not src.endswith((".cu", ".cuh"))] + objects,
        hdrs = [],
        testonly = testonly,
        deps = all_deps,
        **kwargs
    )

def cuda_test(name, **kwargs):
    """A GoogleTest of CUDA code, which does not exist without a CUDA compiler. Skips its cases where there is no GPU."""
    if CUDA_AVAILABLE:
        kv_cc_test(name = name, **kwargs)

def cuda_binary(name, **kwargs):
    """A program with CUDA code, which does not exist without a CUDA compiler."""
    if CUDA_AVAILABLE:
        kv_cc_binary(name = name, **kwargs)
