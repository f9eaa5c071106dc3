"""Precompiled headers: what nearly every source includes is parsed once, not once per source.

Used with --define=precompiled=yes (.bazelrc), so never by a workspace that depends on this one. A source that g++ finds to
be compiled with other target options reads the header itself instead.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "CPP_COMPILE_ACTION_NAME")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

    # g++ and clang look for <header>.gch where they are told to -include <header>.
    header = ctx.actions.declare_file(ctx.label.name + ".h")
    compiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        source_file = header.path,
        output_file = compiled.path,
        use_pic = True,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
    )
    compiler = cc_common.get_tool_for_action(feature_configuration = features, action_name = CPP_COMPILE_ACTION_NAME)
    ctx.actions.run_shell(
        # clang notes the path of a file, which is another one in every sandbox, but none of standard input.
        command = """
header=%s compiler=%s
cat %s >"$header"
! "$compiler" --version | grep -q clang || set -- "${@/%%$header/-}"
exec "$compiler" -x c++-header "$@" -w <"$header"
""" % (header.path, compiler, " ".join([file.path for file in ctx.files.srcs])),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = CPP_COMPILE_ACTION_NAME,
            variables = variables,
        ),
        inputs = depset(ctx.files.srcs, transitive = [toolchain.all_files]),
        outputs = [header, compiled],
        mnemonic = "PrecompileHeader",
        progress_message = "Precompiling " + header.short_path,
    )
    files = depset([header, compiled])
    return [
        DefaultInfo(files = files),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = files)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".h"]),
        "copts": attr.string_list(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    incompatible_use_toolchain_transition = True,
)
