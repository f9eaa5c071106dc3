"""The files of the tree, for the scripts that check or draw it."""

import os
import re
import subprocess

INCLUDE = re.compile(r'^\s*#\s*include "([^"]+)"', re.MULTILINE)
PUBLIC = "include/"  # what is included as "kvblocks/..." lies there


def included_files(text, files):
    """The files of the tree that a source includes, in order."""
    found = (header if header in files else PUBLIC + header for header in INCLUDE.findall(text))
    return [path for path in found if path in files]


def implemented_headers(sources, files):
    """.cc file -> the headers that it implements, and public header -> its folder; of `sources` ({path: text} of .cc files).

    That is the included header that its name begins with; else its first include, if that is a paragraph of its own; else
    what it includes of its folder. A public header is of the folder that has the .cc files which implement it."""
    found, of_public = {}, {}
    for path, text in sources.items():
        stem = os.path.basename(path)[:-len(".cc")]
        included = included_files(text, files)
        named = [h for h in included if stem.startswith(os.path.basename(h)[:-len(".h")])
                 and os.path.dirname(h) in (os.path.dirname(path), PUBLIC + "kvblocks", PUBLIC + "kvblocks/c")]
        first = re.search(r"^#include .*\n\n", text, re.MULTILINE)
        alone = included_files(first.group(0), files) if first and first.start() == text.index("#include") else []
        found[path] = max(named, key=len, default=None) or next(iter(alone), None)
        if found[path] and found[path].startswith(PUBLIC):
            of_public.setdefault(found[path], []).append(os.path.dirname(path))
    folder_of = {header: max(sorted(set(folders)), key=folders.count) for header, folders in of_public.items()}
    for path, header in found.items():
        nearby = [h for h in included_files(sources[path], files)
                  if folder_of.get(h, os.path.dirname(h)) == os.path.dirname(path)]
        found[path] = [header] if header else nearby
    return found, folder_of


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
