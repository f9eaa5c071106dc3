"""Copies of the core and of its tests with faults planted in them."""

def _planted_sources_impl(ctx):
    headers = ctx.actions.declare_directory(ctx.label.name)
    units = [ctx.actions.declare_file("%s_%d.cc" % (ctx.label.name, i)) for i in range(ctx.attr.units)]
    args = ctx.actions.args()
    args.add_all("--headers", [headers], expand_directories = False)
    args.add_all("--units", units)
    args.add_all("--sources", ctx.files.srcs)
    ctx.actions.run_shell(
        outputs = [headers] + units,
        inputs = ctx.files.srcs + ctx.files._scripts,
        command = "exec python3 -B %s \"$@\"" % [f.path for f in ctx.files._scripts if f.basename == "plant.py"][0],
        arguments = [args],
        mnemonic = "PlantFaults",
    )
    context = cc_common.create_compilation_context(
        headers = depset([headers]),
        includes = depset([headers.path]),
    )
    return [
        DefaultInfo(files = depset(units)),
        CcInfo(compilation_context = context),
    ]

# The sources are translation units, the headers come with CcInfo.
planted_sources = rule(
    implementation = _planted_sources_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = True),
        "units": attr.int(),
        "_scripts": attr.label_list(
            allow_files = True,
            default = [":plant.py", ":faults.py"],
        ),
    },
)
