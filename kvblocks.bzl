"""Rules with the project's compiler warnings, which are errors in our own code."""

COPTS = [
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wnon-virtual-dtor",
    "-Wno-sign-compare",
    # g++ 12 at -O2 takes std::string's own moves for overlapping copies (GCC bug 105651).
    "-Wno-restrict",
    "-Werror",
]

def kv_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = COPTS + copts, **kwargs)

def kv_cc_binary(name, copts = [], **kwargs):
    native.cc_binary(name = name, copts = COPTS + copts, **kwargs)

def kv_cc_test(name, copts = [], size = "small", deps = [], **kwargs):
    native.cc_test(
        name = name,
        copts = COPTS + copts,
        size = size,
        deps = deps + ["@com_google_googletest//:gtest_main"],
        **kwargs
    )
