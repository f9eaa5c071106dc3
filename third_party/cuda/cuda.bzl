"""@local_cuda: the CUDA of this machine, or an empty repository that says why there is none.

Looked for in this order: CUDA_PATH, which alone counts when it is set (an empty folder there builds without CUDA);
nvcc on PATH; /usr/local/cuda; the folder that tools/cuda_toolkit.sh fills. Bazel looks again when one of the
environment variables changes and when its server starts.

The repository has
  cuda.bzl   CUDA_ARCHS, from KVBLOCKS_CUDA_ARCHS=sm_90a,... : what kernels are compiled for instead of the default (PTX alone,
             compute_90a, is not optimised: it is for seeing that kernels compile);
             CUDA_AVAILABLE; CUDA_NVCC, the compiler's path; CUDA_VERSION, such as "13.0"; CUDA_MISSING, why there is none
             CUBLAS_AVAILABLE: whether cuBLASLt lies beside it
  :headers   the runtime's headers, for host code that includes cuda_runtime.h
  :cudart    these, and the runtime, linked statically
  :cublas_lt where there is cuBLASLt: the headers, and the shared library, which programs load
  :release   a file that changes with the compiler

nvcc runs from where it is installed, as g++ does: its thousands of headers would have to be linked into every sandbox.
"""

_MINIMUM = (12, 4)

def _release(repository_ctx, nvcc):
    """The release of a compiler as a pair, and what it prints; None and the reason if it does not run."""
    result = repository_ctx.execute([str(nvcc), "--version"])
    if result.return_code != 0:
        return None, "%s --version fails: %s" % (nvcc, result.stderr.strip())
    major, _, minor = result.stdout.partition("release ")[2].partition(",")[0].partition(".")
    if not (major.isdigit() and minor.isdigit()):
        return None, "%s --version names no release" % nvcc
    return (int(major), int(minor)), result.stdout

def _first(repository_ctx, folder, subfolders, name):
    for subfolder in subfolders:
        path = repository_ctx.path("%s/%s/%s" % (folder, subfolder, name))
        if path.exists:
            return path
    return None

def _usable(repository_ctx, folder):
    """Describes the CUDA in a folder, or says why it is not usable."""
    nvcc = folder.get_child("bin").get_child("nvcc")
    if not nvcc.exists:
        return None, "%s has no bin/nvcc" % folder
    release, text = _release(repository_ctx, nvcc)
    if not release:
        return None, text
    if release < _MINIMUM:
        return None, "%s is CUDA %d.%d, older than %d.%d" % ((folder,) + release + _MINIMUM)
    library = _first(repository_ctx, folder, ["lib64", "lib", "targets/x86_64-linux/lib"], "libcudart_static.a")
    if not library:
        return None, "%s has no libcudart_static.a" % folder
    header = _first(repository_ctx, folder, ["include", "targets/x86_64-linux/include"], "cuda_runtime.h")
    if not header:
        return None, "%s has no cuda_runtime.h" % folder
    has_cublas = header.dirname.get_child("cublasLt.h").exists
    return struct(
        cublas = _first(repository_ctx, folder, ["lib64", "lib", "targets/x86_64-linux/lib"], "libcublasLt.so") if has_cublas else None,
        nvcc = nvcc,
        include = header.dirname,
        library = library,
        text = text,
        version = "%d.%d" % release,
    ), None

def _candidates(repository_ctx):
    environ = repository_ctx.os.environ
    if environ.get("CUDA_PATH"):
        return [repository_ctx.path(environ["CUDA_PATH"])]
    found = []
    on_path = repository_ctx.which("nvcc")
    if on_path:
        found.append(on_path.realpath.dirname.dirname)
    found.append(repository_ctx.path("/usr/local/cuda"))
    cache = environ.get("XDG_CACHE_HOME") or (environ.get("HOME", "") + "/.cache")
    if cache.startswith("/"):
        found.append(repository_ctx.path(cache + "/kvblocks/cuda-13.0"))
    return found

_CONSTANTS = """CUDA_AVAILABLE = {available}
CUDA_NVCC = {nvcc}
CUDA_VERSION = {version}
CUDA_MISSING = {missing}
CUDA_ARCHS = {archs}
CUBLAS_AVAILABLE = {cublas}
"""

_BUILD_WITH = """package(default_visibility = ["//visibility:public"])

exports_files(["release"])

cc_library(
    name = "headers",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/cooperative_groups/**",
        "include/crt/**",
        "include/nv/**",
        "include/cccl/nv/**",
    ]),
    includes = ["include", "include/cccl"],
)

cc_import(
    name = "archive",
    static_library = "libcudart_static.a",
)

cc_library(
    name = "cudart",
    linkopts = ["-lrt", "-ldl", "-pthread"],
    deps = [":archive", ":headers"],
)
"""

_BUILD_CUBLAS = """
# Too large to be copied about: it is linked, and loaded, from where it is.
cc_library(
    name = "cublas_lt",
    linkopts = [
        "-L{folder}",
        "-lcublasLt",
        "-Wl,-rpath,{folder}",
    ],
    deps = [":headers"],
)
"""

_BUILD_WITHOUT = """package(default_visibility = ["//visibility:public"])

exports_files(["release"])

[cc_library(
    name = name,
    target_compatible_with = ["@platforms//:incompatible"],
) for name in ["headers", "cudart"]]
"""

def _local_cuda_impl(repository_ctx):
    cuda = None
    reasons = []
    for folder in _candidates(repository_ctx):
        if not cuda:
            cuda, reason = _usable(repository_ctx, folder)
            if reason:
                reasons.append(reason)
    if cuda:
        repository_ctx.symlink(cuda.include, "include")
        repository_ctx.symlink(cuda.library, "libcudart_static.a")
        repository_ctx.file("release", "%s\n%s" % (cuda.nvcc, cuda.text), executable = False)
    else:
        # buildifier: disable=print
        print(("no CUDA compiler: %s. Everything but the CUDA backend is built and tested. " +
               "tools/cuda_toolkit.sh installs one (105 MB, no root)") % "; ".join(reasons))
        repository_ctx.file("release", "none\n", executable = False)
    build = _BUILD_WITH if cuda else _BUILD_WITHOUT
    if cuda and cuda.cublas:
        build += _BUILD_CUBLAS.format(folder = cuda.cublas.dirname)
    repository_ctx.file("BUILD.bazel", build, executable = False)
    repository_ctx.file("cuda.bzl", _CONSTANTS.format(
        available = bool(cuda),
        cublas = bool(cuda and cuda.cublas),
        nvcc = repr(str(cuda.nvcc) if cuda else ""),
        version = repr(cuda.version if cuda else ""),
        missing = repr("" if cuda else "; ".join(reasons)),
        archs = repr([arch for arch in (repository_ctx.os.environ.get("KVBLOCKS_CUDA_ARCHS") or "").split(",") if arch]),
    ), executable = False)

local_cuda = repository_rule(
    implementation = _local_cuda_impl,
    configure = True,
    environ = ["CUDA_PATH", "PATH", "XDG_CACHE_HOME", "HOME", "KVBLOCKS_CUDA_ARCHS"],
    local = True,
)
