"""Fuzzers: one source with LLVMFuzzerTestOneInput gives an ordinary test and a libFuzzer binary."""

load("//:kvblocks.bzl", "kv_cc_binary", "kv_cc_test")

def kv_fuzz_tests(deps, mutations = {}):
    """For each <name>_fuzz.cc of a folder a test <name>_fuzz_test, and a libFuzzer binary <name>_fuzz.

    The test needs no libFuzzer, so it runs wherever the others do, under sanitizers: it feeds the fuzzer every file of
    the corpus testdata/fuzz/<name> and a number of mutations of them that never changes. Inputs that once crashed stay
    in the corpus under a telling name.

    Args:
      deps: of the sources.
      mutations: how many a test runs, by <name>; a few seconds' worth under sanitizers.
    """
    for src in native.glob(["*_fuzz.cc"]):
        name = src[:-len("_fuzz.cc")]
        corpus = "testdata/fuzz/" + name
        files = native.glob([corpus + "/**"])
        if not files:
            fail("kv_fuzz_tests: the corpus %s is empty, expected at least one file" % corpus)
        all_deps = deps + ["//tests/fuzz:fuzz_input"]
        kv_cc_test(
            name = name + "_fuzz_test",
            srcs = [src],
            data = files,
            env = {
                "KVBLOCKS_FUZZ_CORPUS": native.package_name() + "/" + corpus,
                "KVBLOCKS_FUZZ_MUTATIONS": str(mutations.get(name, 2000)),
            },
            deps = all_deps + ["//tests/fuzz:corpus_test"],
        )

        # Manual, because it links clang's libFuzzer: a build of //... must work where only g++ is installed.
        # tools/fuzz.sh finds these targets by the tag "libfuzzer" and builds them with --config=fuzz.
        kv_cc_binary(
            name = name + "_fuzz",
            testonly = True,
            srcs = [src],
            data = files,
            linkopts = ["-fsanitize=fuzzer"],
            tags = [
                "libfuzzer",
                "manual",
            ],
            deps = all_deps,
        )
