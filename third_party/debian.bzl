"""Debian's packages as repositories, under the labels that upstream's own Bazel builds use.

BUILD files say `@zstd//:zstd` or `@com_google_absl//absl/strings` whatever the source is. Headers come from /usr/include,
so a target is what a program links. Nothing is downloaded.
"""

# Of each repository the targets, and what a program links that uses one.
PACKAGES = {
    "boost": {
        # Fibers, for the emulated GPU of the tests.
        "context": ["-l:libboost_context.a"],
        # HTTP, for kvsim serve: headers only.
        "beast": [],
    },
    "cli11": {"cli11": []},
    "com_github_google_benchmark": {"benchmark": ["-lbenchmark", "-pthread"]},
    "com_google_googletest": {
        "gtest": ["-l:libgmock.a", "-l:libgtest.a", "-pthread"],
        "gtest_main": ["-l:libgtest_main.a", "-l:libgmock.a", "-l:libgtest.a", "-pthread"],
    },
    # A program that uses none of it does not load it.
    "highway": {"hwy": ["-Wl,--push-state,--as-needed,-lhwy,--pop-state"]},
    "openssl": {"crypto": ["-lcrypto"]},
    "rapidcheck": {
        "rapidcheck": ["-l:librapidcheck.a"],
        "rapidcheck_gtest": ["-l:librapidcheck.a"],
    },
    "simdjson": {"simdjson": ["-lsimdjson"]},
    "xxhash": {"xxhash": ["-l:libxxhash.a"]},
    # libzmq with its C++ header cppzmq. A shared library: the static one needs Kerberos, NORM and PGM to link.
    "zeromq": {"cppzmq": ["-lzmq"]},
    "zlib": {"zlib": ["-l:libz.a"]},
    "zstd": {"zstd": ["-l:libzstd.a"]},
}

# Of Abseil the packages and their targets.
_ABSEIL = {
    "algorithm": ["algorithm", "container"],
    "base": ["base", "config", "core_headers"],
    "cleanup": ["cleanup"],
    "container": ["btree", "fixed_array", "flat_hash_map", "flat_hash_set", "inlined_vector", "node_hash_map"],
    "functional": ["function_ref"],
    "hash": ["hash"],
    "memory": ["memory"],
    "numeric": ["bits", "int128"],
    "random": ["random"],
    "status": ["status", "statusor"],
    "strings": ["cord", "str_format", "strings"],
    "synchronization": ["synchronization"],
    "time": ["time"],
    "types": ["optional", "span", "variant"],
    "utility": ["utility"],
}

_PACKAGE = """package(default_visibility = ["//visibility:public"])

licenses(["notice"])

"""

def _library(name, **attributes):
    values = "".join(["    %s = %r,\n" % (key, value) for key, value in attributes.items()])
    return "cc_library(\n    name = %r,\n%s)\n" % (name, values)

def _package_impl(repository_ctx):
    repository_ctx.file("BUILD.bazel", _PACKAGE + "".join([
        _library(name, linkopts = linked)
        for name, linked in PACKAGES[repository_ctx.name].items()
    ]))

# One of PACKAGES.
debian_package = repository_rule(implementation = _package_impl)

def _abseil_impl(repository_ctx):
    list_names = "ls \"$(dirname \"$(${CC:-gcc} -print-file-name=libabsl_base.a)\")\" | grep '^libabsl_.*[.]a$'"
    archives = repository_ctx.execute(["sh", "-c", list_names]).stdout.splitlines()
    if not archives:
        fail("Abseil's archives (libabsl_base.a and others) are not beside the compiler's libraries: apt-get install libabsl-dev")

    # A linker takes from an archive only the objects that are needed, so one list serves all targets.
    linked = ["-Wl,--start-group"] + ["-l:" + archive for archive in archives] + ["-Wl,--end-group", "-pthread"]
    repository_ctx.file("BUILD.bazel", _PACKAGE + _library("archives", linkopts = linked))
    for package, names in _ABSEIL.items():
        repository_ctx.file("absl/%s/BUILD.bazel" % package, _PACKAGE + "".join([
            _library(name, deps = ["//:archives"])
            for name in names
        ]))

debian_abseil = repository_rule(implementation = _abseil_impl, environ = ["CC"], local = True)
