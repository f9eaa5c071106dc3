"""Rules of this project: warnings, sources by what a folder holds, tests of a folder in few binaries.

A folder is one library: its *.cc, *.h and *.proto, but not what tests, fuzzes or measures it (*_test.cc, *_fuzz.cc, *_benchmark.cc)
nor programs (*_main.cc). CMakeLists.txt follows the same rule, so no list of files is kept anywhere.
"""

load("@rules_cc//cc:defs.bzl", "cc_proto_library")
load("@rules_proto//proto:defs.bzl", "proto_library")

COPTS = [
    "-std=c++20",
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wnon-virtual-dtor",
    "-Wno-sign-compare",
    # Of options for g++ alone (.bazelrc).
    "-Wno-unused-command-line-argument",
    # g++ 12 at -O2 takes std::string's own moves for overlapping copies (GCC bug 105651).
    "-Wno-restrict",
]

NOT_LIBRARY = [
    "*_test.cc",
    "*_fuzz.cc",
    "*_benchmark.cc",
    "*_main.cc",
]

def _copts(copts):
    # Errors only for ourselves: another compiler may warn of more, and who depends on this could not mend it.
    return COPTS + (["-Werror"] if native.repository_name() == "@" else []) + copts

def _precompiled(kind):
    """What a target takes so that its sources start from a precompiled header: copts and deps.

    Args:
      kind: library or test.
    """
    enabled = str(Label("//third_party/precompiled:enabled"))
    repository = native.repository_name()[1:]
    folder = "$(BINDIR)/" + ("external/%s/" % repository if repository else "") + "third_party/precompiled/"
    return struct(
        copts = select({
            # g++ takes the standard library's own code for ours there, and finds what is not.
            enabled: [
                "-include",
                folder + kind + ".h",
                "-Wno-array-bounds",
                "-Wno-stringop-overflow",
                "-Wno-stringop-overread",
            ],
            "//conditions:default": [],
        }),
        deps = select({
            enabled: [Label("//third_party/precompiled:" + kind)],
            "//conditions:default": [],
        }),
    )

def _joined_sources_impl(ctx):
    groups = [ctx.files.srcs[i:i + ctx.attr.size] for i in range(0, len(ctx.files.srcs), ctx.attr.size)]
    outputs = []
    for index, group in enumerate(groups):
        output = ctx.actions.declare_file("%s/%d.cc" % (ctx.label.name, index))
        commands = [
            "echo '#line 1 \"%s\"'; cat '%s'; echo" % (source.short_path, source.path)
            for source in group
        ]
        ctx.actions.run_shell(
            outputs = [output],
            inputs = group,
            command = "{ %s; } > '%s'" % ("; ".join(commands), output.path),
            mnemonic = "JoinSources",
        )
        outputs.append(output)
    return [DefaultInfo(files = depset(outputs))]

# Several sources in one translation unit: half of the time that a small one takes to compile are the headers. 20 in one
# take 16 to 22 % less than in two.
joined_sources = rule(
    implementation = _joined_sources_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cc", ".cu"]),
        "size": attr.int(),
    },
)

def _joined(name, srcs, size, testonly = False, tags = []):
    if size < 2 or len(srcs) < 2:
        return srcs
    joined_sources(
        name = name + "_joined",
        srcs = srcs,
        size = size,
        testonly = testonly,
        tags = tags,
        visibility = ["//visibility:private"],
    )
    return [":%s_joined" % name]

def _files_of_folder():
    # The sources are for tests/faults, which plants faults in copies; the tests for kv_unit_tests(more) of a folder above.
    for name, patterns, exclude in [
        ("sources", ["*.cc", "*.h"], []),
        ("unit_test_sources", ["*_test.cc"], ["*_property_test.cc"]),
        ("property_test_sources", ["*_property_test.cc"], []),
    ]:
        native.filegroup(
            name = name,
            testonly = True,
            srcs = native.glob(patterns, exclude = exclude, allow_empty = True),
            visibility = ["//:__subpackages__"],
        )

def _proto_library(name, deps):
    """The *.proto of the folder of a library; they are included and imported by their path from the root."""
    proto_library(
        name = name + "_messages",
        srcs = native.glob(["*.proto"]),
        deps = deps,
    )
    cc_proto_library(
        name = name + "_proto",
        deps = [":%s_messages" % name],
    )
    return name + "_proto"

def kv_cc_library(
        name,
        srcs = None,
        hdrs = None,
        deps = [],
        copts = [],
        generated = [],
        messages = None,
        separate = [],
        sources_per_unit = 20,
        testonly = False,
        **kwargs):
    """A library of a folder. Its headers are private: they are included by their path from the root.

    Public ones lie in include/kvblocks, and every library may include them.

    Args:
      name: of the library.
      srcs: its sources; without this, those of the folder.
      hdrs: its headers; without this, those of the folder.
      deps: beside Abseil.
      copts: beside the project's.
      generated: sources that another rule makes.
      messages: what its *.proto import: messages of other folders, as <folder>:<its library>_messages.
      separate: sources that are compiled alone.
      sources_per_unit: how many of the others are compiled as one.
      testonly: as ever.
      **kwargs: of the cc_library.
    """
    if messages != None:
        deps = deps + [":" + _proto_library(name, messages), "@com_google_protobuf//:protobuf"]
    if srcs == None:
        srcs = native.glob(["*.cc"], exclude = NOT_LIBRARY)
        if native.package_name().split("/")[-1] == name:
            _files_of_folder()
    if hdrs == None:
        hdrs = native.glob(["*.h"])
    joined = [src for src in srcs if src not in separate]
    native.cc_library(
        name = name,
        srcs = _joined(name, joined, sources_per_unit, testonly) + separate + generated,
        hdrs = hdrs,
        copts = _copts(copts) + _precompiled("library").copts,
        testonly = testonly,
        deps = deps + [Label("//:headers"), Label("//third_party:absl")] + _precompiled("library").deps,
        **kwargs
    )

def kv_cc_binary(name, copts = [], deps = [], **kwargs):
    native.cc_binary(
        name = name,
        copts = _copts(copts) + _precompiled("library").copts,
        deps = deps + [Label("//third_party:absl")] + _precompiled("library").deps,
        **kwargs
    )

def kv_cc_test(
        name,
        srcs = [],
        deps = [],
        copts = [],
        size = "medium",
        tags = [],
        optimised = False,
        both = False,
        sources_per_unit = 20,
        **kwargs):
    """Tests of one idea in one binary.

    Args:
      name: of the test.
      srcs: its sources.
      deps: beside GoogleTest and Abseil.
      copts: beside the project's.
      size: a limit that a machine of a fifth of the speed meets.
      tags: as ever.
      optimised: ./test.sh runs it optimised, because it does much; others run under sanitizers and with debug checks.
      both: ./test.sh runs it both ways.
      sources_per_unit: how many sources are compiled as one.
      **kwargs: of the cc_test.
    """
    native.cc_test(
        name = name,
        srcs = _joined(name, srcs, sources_per_unit, testonly = True),
        copts = _copts(copts) + _precompiled("test").copts,
        size = size,
        tags = tags + mode_tags(optimised, both),
        deps = deps + ["@com_google_googletest//:gtest_main", Label("//third_party:absl")] + _precompiled("test").deps,
        **kwargs
    )

def mode_tags(optimised, both = False):
    """How ./test.sh builds a test: --config=sanitize takes what has no tag "optimised", the optimised run what has one."""
    if both:
        return ["optimised", "sanitized"]
    return ["optimised"] if optimised else ["sanitized"]

def kv_unit_tests(name = "unit_test", exclude = [], more = [], **kwargs):
    """The *_test.cc of a folder, but its property tests, and more of other folders, in one binary."""
    kv_cc_test(
        name = name,
        srcs = native.glob(["*_test.cc"], exclude = ["*_property_test.cc"] + exclude) + more,
        **kwargs
    )

def kv_property_tests(name = "property_test", deps = [], exclude = [], more = [], **kwargs):
    """The *_property_test.cc of a folder, and more that do as much, in one binary, optimised."""
    kv_cc_test(
        name = name,
        srcs = native.glob(["*_property_test.cc"], exclude = exclude) + more,
        deps = deps + ["@rapidcheck//:rapidcheck_gtest"],
        optimised = True,
        sources_per_unit = 10,
        **kwargs
    )
