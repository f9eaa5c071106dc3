"""The files of the tree, for the scripts that check or draw it."""

import os
import subprocess


def list_files(root):
    """Paths relative to root, sorted: what git knows and does not ignore; without git, what is there."""
    try:
        out = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, check=True).stdout.decode()
        files = {f for f in out.split("\0") if f and os.path.exists(os.path.join(root, f))}
        if files:
            return sorted(files)
    except (OSError, subprocess.CalledProcessError):
        pass
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [d for d in folders if not d.startswith(("bazel-", ".")) or d == ".ci"]
        files += [os.path.relpath(os.path.join(folder, name), root) for name in names]
    return sorted(files)
