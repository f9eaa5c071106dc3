"""Fuzzers: one source with LLVMFuzzerTestOneInput gives an ordinary test and a libFuzzer binary."""

load("//:kvblocks.bzl", "kv_cc_binary", "kv_cc_test")

def kv_fuzz_test(name, srcs, corpus, deps = [], mutations = 2000, size = "small"):
    """A fuzzer as a test, and as a libFuzzer binary named like it without "_test".

    The test needs no libFuzzer, so it runs wherever the others do, also under sanitizers: it feeds
    the fuzzer every file of the corpus and a number of mutations of them that never changes.

    Args:
      name: of the test; ends in "_fuzz_test".
      srcs: the source that defines LLVMFuzzerTestOneInput, and what it includes from its folder.
      corpus: a folder of this package; inputs that once crashed stay there under a telling name.
      deps: of the source.
      mutations: how many the test runs; a few seconds' worth under sanitizers.
      size: of the test.
    """
    if not name.endswith("_fuzz_test"):
        fail("kv_fuzz_test: got the name %s, expected one that ends in _fuzz_test" % name)
    files = native.glob([corpus + "/**"])
    if not files:
        fail("kv_fuzz_test: the corpus %s is empty, expected at least one file" % corpus)
    all_deps = deps + ["//tests/fuzz:fuzz_input"]
    kv_cc_test(
        name = name,
        size = size,
        srcs = srcs,
        data = files,
        env = {
            "KVBLOCKS_FUZZ_CORPUS": native.package_name() + "/" + corpus,
            "KVBLOCKS_FUZZ_MUTATIONS": str(mutations),
        },
        deps = all_deps + ["//tests/fuzz:corpus_test"],
    )

    # Manual, because it links clang's libFuzzer: a build of //... must work where only g++ is
    # installed. tools/fuzz.sh finds these targets by the tag "libfuzzer" and builds them with
    # --config=fuzz.
    kv_cc_binary(
        name = name[:-len("_test")],
        testonly = True,
        srcs = srcs,
        data = files,
        linkopts = ["-fsanitize=fuzzer"],
        tags = [
            "libfuzzer",
            "manual",
        ],
        deps = all_deps,
    )
