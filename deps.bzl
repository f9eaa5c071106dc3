"""What a Bazel workspace that depends on kvblocks needs: one call that declares the third-party repositories.

    local_repository(name = "kvblocks", path = "...")

    load("@kvblocks//:deps.bzl", "kvblocks_dependencies")

    kvblocks_dependencies()

tests/consumer_bazel is such a workspace; its .bazelrc has the flags that go with it. This is for Bazel 4.2.3, as Debian 12
has it; MODULE.bazel is for releases with modules.
"""

load("//third_party:debian.bzl", "PACKAGES", "debian_abseil", "debian_package")
load("//third_party/cuda:cuda.bzl", "local_cuda")

def _overlay_impl(repository_ctx):
    third_party = repository_ctx.path(Label("//third_party:BUILD.bazel")).dirname
    for entry in third_party.get_child(repository_ctx.name).readdir():
        repository_ctx.symlink(entry, entry.basename)

# A folder of third_party as a repository. Unlike with local_repository, it is found from other workspaces, too.
_overlay = repository_rule(implementation = _overlay_impl, local = True)

_OVERLAYS = ["openblas", "remote_coverage_tools", "rules_cc"]

# What Bazel itself asks for, where Debian's packages put it.
_OF_BAZEL = {
    "bazel_skylib": "/usr/share/bazel/tools/skylib",
    "platforms": "/usr/share/bazel/tools/platforms",
    "rules_java": "/usr/share/bazel/rules/java",
    "rules_proto": "/usr/share/bazel/rules/proto",
}

def kvblocks_dependencies():
    """Declares each repository that kvblocks needs, unless the workspace has one of that name already."""
    for name in _OVERLAYS:
        if not native.existing_rule(name):
            _overlay(name = name)
    for name in PACKAGES:
        if not native.existing_rule(name):
            debian_package(name = name)
    if not native.existing_rule("com_google_absl"):
        debian_abseil(name = "com_google_absl")
    for name, path in _OF_BAZEL.items():
        if not native.existing_rule(name):
            native.local_repository(name = name, path = path)
    if not native.existing_rule("com_google_protobuf"):
        # protoc and libprotobuf live in the system's own prefix.
        native.new_local_repository(
            name = "com_google_protobuf",
            build_file = str(Label("//third_party/com_google_protobuf:protobuf.BUILD")),
            path = "/usr",
        )
    if not native.existing_rule("local_cuda"):
        local_cuda(name = "local_cuda")
