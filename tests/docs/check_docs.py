#!/usr/bin/env python3
"""Checks that what the documents and messages name exists.

  tests/docs/check_docs.py [--root=DIR] [--kvsim=PATH]

Checked are, in README, CONTRIBUTING and docs/: relative links and their anchors, file paths, Bazel labels, flags of our
programs and the values of those that take one of a few, configurations of .bazelrc, environment variables, names of code in
`backquotes`, excerpts of source files (marked by <!-- code of: FILE -->), the pages that docs/README.md must list. In scripts,
string literals and comments of the sources: labels, flags of kvsim, documents, rule numbers. A rule number exists if some
page below docs/ defines it by a list entry that begins with the number in bold.

The flags of kvsim are those of its --help=all.
Exit status: 0 all exist, 1 some do not; each is one line FILE:LINE: what.
"""

import argparse
import fnmatch
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "tools"))
from tree_files import list_files

SOURCE_ENDINGS = (".cc", ".h", ".cu", ".cuh", ".c", ".py", ".sh", ".bzl", ".bazel", ".proto", ".textproto", ".md", ".cmake")
CODE_ENDINGS = SOURCE_ENDINGS[:-2] + (".txt", ".json", ".in", ".map")
RULE = re.compile(r"(?<![\w.-])((?:BM|KS|INV|AT|SM|V|E)-\d+)(?![\w-])")
PLAN_ERRORS = "include/kvblocks/plan.h"  # which defines E-1 and so on
RULE_DEFINITION = re.compile(r"^- \*\*([A-Z]+-\d+)\*\*")
FLAG = re.compile(r"(?<![\w-])--(?:\[no-\])?([a-z][a-z0-9]*(?:[-_][a-z0-9]+)*)(?![\w-])(?:=([^\s`'\",;:)]+))?")
LABEL = re.compile(r"(?<![\w:/}*])//((?:[a-z_][\w.-]*(?:/[\w-]+)*)?(?:/?\.\.\.|:[\w.+-]+)?)(?![\w/])")
LABEL_IN_CODE = re.compile(r"(?<![\w:/])//([a-z_]\w*(?:/\w+)*:[a-z_]\w+)(?![\w/:${])")
# What other programs take; ours are read from where they are defined.
BAZEL_FLAGS = {"config", "copt", "define", "test_env", "build_tests_only", "jobs", "disk_cache", "linkopt", "cxxopt", "action_env"}
FOREIGN_PREFIXES = ("gtest_", "benchmark_")
FOREIGN_FLAGS = {"static", "save-detailed", "prefix-caching-hash-algo"}  # of pkg-config; of vLLM's benchmark and server
FOREIGN_NAMES = {"add_subdirectory"}  # of CMake


class Checker:
    def __init__(self, root, kvsim):
        self.root = root
        self.errors = []
        self.num_claims = 0
        self.files = list_files(root)
        self.file_set = set(self.files)
        self.folders = {"/".join(f.split("/")[:n]) for f in self.files for n in range(1, f.count("/") + 1)}
        self.top = {f.split("/")[0] for f in self.files}
        # A file of ours that a comment or message names; generated ones (.pb.h) are not in the tree.
        ours = "|".join(re.escape(folder) for folder in sorted({f.split("/")[0] for f in self.files if "/" in f}))
        self.our_file = re.compile(rf"(?<![\w/.$}}{{@-])((?:(?:{ours})/[\w/]+|kvblocks/(?:c/)?\w+)\.(?:h|cc|cu|py|sh|proto|textproto))\b(?!\.\w)")
        self.texts = {}
        self.documents = [f for f in self.files if f.endswith(".md") and not f.startswith(("third_party/", "."))]
        self.code = [f for f in self.files if f.endswith(CODE_ENDINGS) or self.is_script(f)]
        self.words = set()
        for f in self.code:
            if not f.startswith("tests/docs/"):
                self.words.update(re.findall(r"[A-Za-z_]\w*", self.text(f)))
        self.rules = self.defined_rules()
        self.kvsim = flags_of_binary(kvsim)
        self.all_kvsim = merge(self.kvsim.values())
        self.configs = set(re.findall(r"^\w+:(\w+) ", self.text(".bazelrc"), re.M)) if ".bazelrc" in self.file_set else set()
        self.scripts = {f: script_flags(self.text(f)) for f in self.files if self.is_script(f) or f.endswith(".py")}
        self.labels = {}

    # --- The tree ---

    def text(self, path):
        if path not in self.texts:
            with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as f:
                self.texts[path] = f.read()
        return self.texts[path]

    def is_script(self, path):
        return path.endswith(".sh") or path in ("kvsim", ".ci/run")

    def fail(self, path, line, what):
        self.errors.append((path, line, what))

    def expect(self, exists, path, line, what):
        self.num_claims += 1
        if not exists:
            self.fail(path, line, what)

    # --- What there is ---

    def defined_rules(self):
        rules = {}
        for f in self.documents:
            for number, line in enumerate(self.text(f).split("\n"), 1):
                match = RULE_DEFINITION.match(line)
                if match and match[1] in rules:
                    self.fail(f, number, f"{match[1]} is defined in {rules[match[1]]}, too")
                elif match:
                    rules[match[1]] = f
        if PLAN_ERRORS in self.file_set:
            rules.update(dict.fromkeys(re.findall(r"// (E-\d+)", self.text(PLAN_ERRORS)), PLAN_ERRORS))
        return rules

    def label_exists(self, label):
        package, _, target = label.partition(":")
        if package.endswith("..."):
            folder = package[:-3].rstrip("/")
            return not folder or any(f.startswith(folder + "/") and f.endswith("/BUILD.bazel") for f in self.files)
        build = package + "/BUILD.bazel" if package else "BUILD.bazel"
        if build not in self.file_set:
            return False
        target = target or package.split("/")[-1]
        if build not in self.labels:
            self.labels[build] = target_patterns(self.text(build)) + self.named_by_macros(package, self.text(build))
        if any(re.fullmatch(pattern, target) for pattern in self.labels[build]):
            return True
        return (package + "/" if package else "") + target in self.file_set

    def named_by_macros(self, package, build):
        """Names that macros of our .bzl files give by default, or after the fuzzers of a folder."""
        names = []
        for f in self.files:
            if f.endswith(".bzl"):
                for macro, name in re.findall(r'^def (\w+)\((?:.*, )?name = "(\w+)"', self.text(f), re.M):
                    names += [name] if re.search(rf"^{macro}\(", build, re.M) else []
        if re.search(r"^kv_fuzz_tests\(", build, re.M):
            fuzzers = [os.path.basename(f)[:-len(".cc")] for f in self.files
                       if os.path.dirname(f) == package and f.endswith("_fuzz.cc")]
            names += fuzzers + [fuzzer + "_test" for fuzzer in fuzzers]
        return names

    def path_exists(self, path):
        path = path.rstrip("/")
        for one in expand_braces(path):
            if one.startswith("kvblocks/"):
                if not self.exists("include/" + one) and not self.exists("python/" + one):
                    return False
            elif not self.exists(one):
                return False
        return True

    def exists(self, path):
        if "*" in path:
            return any(fnmatch.fnmatch(f, path) or fnmatch.fnmatch(f, "*/" + path) for f in self.files)
        if path in self.file_set or path in self.folders or self.is_generated(path):
            return True
        return path.endswith(SOURCE_ENDINGS) and any(f.endswith("/" + path) for f in self.files)

    def is_generated(self, path):
        build = os.path.dirname(path) + "/BUILD.bazel"
        return build in self.file_set and f'"{os.path.basename(path)}"' in self.text(build)

    # --- Documents ---

    def check_document(self, path):
        text = self.text(path)
        excerpt = None  # the lines of a source file that a block must quote
        for number, line, kind in parse_markdown(text):
            marker = re.match(r"\s*<!-- code of: (\S+) -->", line)
            if kind == "open":
                continue
            if kind == "close":
                excerpt = None
            elif marker:
                self.expect(marker[1] in self.file_set, path, number, f"no file {marker[1]}")
                if marker[1] in self.file_set:
                    excerpt = [source.strip() for source in self.text(marker[1]).split("\n")]
            elif kind == "text":
                self.check_prose(path, number, line)
            else:
                if excerpt is not None and line.strip():
                    quoted = line.strip()
                    found = quoted in excerpt
                    self.expect(found, path, number, f"the source has no such line from here on: {quoted}")
                    excerpt = excerpt[excerpt.index(quoted) + 1:] if found else excerpt
                self.check_code_line(path, number, line, kind)
            self.check_names(path, number, line)

    def check_prose(self, path, number, line):
        for target in re.findall(r"\]\(([^)\s]+)\)", line):
            self.check_link(path, number, target)
        for code in re.findall(r"`([^`]+)`", line):
            if self.check_command(path, number, code):
                continue
            self.check_flags(path, number, code, self.any_flags())
            self.check_paths(path, number, code)
            self.check_identifier(path, number, code)

    def check_code_line(self, path, number, line, kind):
        for include in re.findall(r'#include "([^"]+)"', line):
            self.expect(self.path_exists(include), path, number, f"no header {include}")
        if kind in ("sh", "indented"):
            self.check_command(path, number, line)
            self.check_paths(path, number, line, bare_names=False)  # files of the reader's may have any name

    def check_link(self, path, number, target):
        if re.match(r"[a-z]+:", target):
            return
        file, _, anchor = target.partition("#")
        file = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        self.expect(file in self.file_set or file in self.folders, path, number, f"link to {target}: no {file}")
        if anchor and file in self.file_set:
            anchors = anchors_of(self.text(file)) if file.endswith(".md") else set()
            self.expect(anchor in anchors, path, number, f"link to {target}: no heading with that anchor")

    def check_names(self, path, number, line):
        """Rule numbers, labels and variables, wherever they stand."""
        for rule in RULE.findall(line):
            self.expect(rule in self.rules, path, number, f"no document defines {rule}")
        for label in LABEL.findall(re.sub(r"\w+://\S+", "", line)):
            if label:
                self.expect(self.label_exists(label), path, number, f"no target //{label}")
        for variable in re.findall(r"\bKV(?:BLOCKS|SIM)_[A-Z_]*[A-Z]\b", line):
            self.expect(variable in self.words, path, number, f"nothing reads {variable}")

    def check_identifier(self, path, number, code):
        name = re.sub(r"\(.*\)$", "", code.strip())
        if not re.fullmatch(r"[A-Za-z_]\w*(::[A-Za-z_]\w*)*", name):
            return
        if not ("_" in name or "::" in name or re.search(r"[a-z][A-Z]", name)) or re.match("KV(BLOCKS|SIM)_", name):
            return
        for part in name.split("::"):
            # Libraries are kvblocks_<component>.
            known = self.words | FOREIGN_NAMES
            self.expect(part in known or part.removeprefix("kvblocks_") in known, path, number, f"the sources know no {part}")

    def check_paths(self, path, number, code, bare_names=True):
        for token in re.findall(r"[\w.*{},/+-]+", re.sub(r"\S*<\w+>\S*", "", code)):
            token = token.strip(".,") if not token.endswith("...") else ""
            token = re.sub(r"^\./", "", token)
            first = token.split("/")[0]
            if "//" in token or token.startswith(("-", "/", "*.")) or not token.strip("/"):
                continue
            is_ours = "/" in token and (first in self.top or first == "kvblocks")
            if is_ours or ("/" in token or bare_names) and token.endswith(SOURCE_ENDINGS):
                here = os.path.normpath(os.path.join(os.path.dirname(path), token))
                self.expect(self.path_exists(token) or here in self.file_set, path, number, f"no file {token}")

    def check_command(self, path, number, line):
        """Flags of the programs that a line of shell runs. Whether it runs one of ours."""
        known = False
        for part in re.split(r"\s*(?:\|\||&&|[|;])\s*|\s#\s.*$", line.strip()):
            words = (part or "").split()
            while words and re.match(r"\w+=", words[0]):  # VARIABLE=value before a command
                words = words[1:]
            if words:
                known = self.check_one_command(path, number, words) or known
        return known

    def check_one_command(self, path, number, words):
        program, rest = words[0].removeprefix("./"), " ".join(words[1:])
        if program in ("kvsim", "$"):
            if program == "$":
                return len(words) > 1 and self.check_one_command(path, number, words[1:])
            command = next((w for w in words[1:] if not w.startswith("-")), "")
            if not command or command in self.kvsim:
                self.check_flags(path, number, rest, self.kvsim[command])
            elif re.fullmatch("[a-z]+", command):
                self.expect(False, path, number, f"kvsim has no command {command}")
            return True
        if program == "bazel":
            own, _, passed_on = rest.partition(" -- ")
            self.check_flags(path, number, own, dict.fromkeys(BAZEL_FLAGS))
            if passed_on:
                folders = [l.partition(":")[0] for l in LABEL.findall(own)]
                flags = self.flags_in_folders(folders)
                if "examples/engine" in folders:  # it takes the options of a replay, too
                    flags = merge([flags, self.kvsim["replay"]])
                self.check_flags(path, number, passed_on, flags)
            return True
        if program in self.scripts:
            flags = dict(self.scripts[program])
            if program == "test.sh":
                flags.update(dict.fromkeys(BAZEL_FLAGS))
            if program == "tools/gpu_check.sh":
                flags.update(self.flags_in_folders(["attention/cuda/check"]))
            self.check_flags(path, number, rest, flags)
            return True
        if program == "gpu_check":
            self.check_flags(path, number, rest, self.flags_in_folders(["attention/cuda/check"]))
            return True
        return False

    def flags_in_folders(self, folders):
        flags = {"help": None}
        for f in self.files:
            if os.path.dirname(f) in folders and f.endswith((".cc", ".h", ".py")):
                for names in re.findall(r'"(--[a-z][\w,-]*)=?"', self.text(f)):
                    flags.update(dict.fromkeys(name.lstrip("-") for name in names.split(",")))
        return flags

    def any_flags(self):
        programs = self.flags_in_folders(["attention/cuda/check", "bench", "examples", "examples/engine"])
        return merge([self.all_kvsim, dict.fromkeys(BAZEL_FLAGS), programs] + list(self.scripts.values()))

    def check_flags(self, path, number, code, flags):
        for name, value in FLAG.findall(code):
            if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_FLAGS:
                continue
            self.expect(name in flags, path, number, f"no flag --{name}")
            values = flags.get(name)
            if name == "config" and value and name in BAZEL_FLAGS and not re.search(r"[./A-Z]", value):
                self.expect(value in self.configs, path, number, f".bazelrc has no configuration {value}")
            elif values and value and not re.search(r"[A-Z<.|$]", value):
                self.expect(value in values, path, number, f"--{name} takes {'|'.join(values)}, not {value}")

    # --- Sources ---

    def check_source(self, path):
        is_script = self.is_script(path)
        is_kvsim = path.startswith("sim/") and not path.endswith(("_test.cc", "_fuzz.cc"))
        for number, line in enumerate(self.text(path).split("\n"), 1):
            for rule in RULE.findall(line):
                self.expect(rule in self.rules, path, number, f"no document defines {rule}")
            for label in LABEL_IN_CODE.findall(line):
                if not path.endswith((".bazel", ".bzl")):
                    self.expect(self.label_exists(label), path, number, f"no target //{label}")
            for file in self.our_file.findall(line):
                self.expect(self.path_exists(file), path, number, f"no file {file}")
            for document in re.findall(r"\bdocs/[\w/]+\.md(?:#[\w-]+)?", line):
                self.check_link("README.md", number, document) if path == "README.md" else self.check_document_name(
                    path, number, document)
            if is_kvsim and "--" in line and not line.lstrip().startswith("//"):
                for literal in re.findall(r'"((?:[^"\\]|\\.)*)"', line):
                    self.check_flags(path, number, literal, merge([self.all_kvsim, dict.fromkeys(BAZEL_FLAGS)]))
            if is_script:
                for label in re.findall(r"(?<![\w/:{}])//([a-z_]\w*(?:/\w+)*)/\.\.\.", line):
                    self.expect(self.label_exists(label + "/..."), path, number, f"no package below //{label}")

    def check_document_name(self, path, number, document):
        file, _, anchor = document.partition("#")
        self.expect(file in self.file_set, path, number, f"no document {file}")
        if anchor and file in self.file_set:
            self.expect(anchor in anchors_of(self.text(file)), path, number, f"{file} has no anchor {anchor}")

    def check_index(self):
        """docs/README.md leads to every page."""
        index = "docs/README.md"
        if index not in self.file_set:
            return
        targets = {os.path.normpath(os.path.join("docs", t.partition("#")[0]))
                   for t in re.findall(r"\]\(([^)\s]+)\)", self.text(index))}
        for f in self.documents:
            if f.startswith("docs/") and f != index and f.count("/") == 1:
                self.expect(f in targets, index, 1, f"no link to {f}")

    def run(self):
        for f in self.documents:
            self.check_document(f)
        for f in self.code:
            if not f.startswith(("third_party/", "tests/docs/")) and not f.endswith(".json"):
                self.check_source(f)
        self.check_index()
        return self.errors


def merge(tables):
    flags = {}
    for table in tables:
        for name, values in table.items():
            flags[name] = flags.get(name) or values
    return flags


def values_of(unit):
    return unit.split("|") if re.fullmatch(r"[a-z0-9_-]+(\|[a-z0-9_-]+)+", unit) else None


def flags_of_help(text):
    flags = {}
    for names, unit in re.findall(r"^  (-[^\s]*)(?: ([^\s]+))?", text, re.M):
        for name in names.split(","):
            negatable = name.startswith("--[no-]")
            name = name.replace("[no-]", "").lstrip("-")
            flags[name] = values_of(unit)
            if negatable:
                flags["no-" + name] = None
    return flags


def flags_of_binary(binary):
    def help_of(*command):
        return subprocess.run([binary, *command, "--help=all"], capture_output=True, check=True).stdout.decode()

    listing = help_of()
    commands = re.findall(r"^  ([\w-]+) {4,}", listing[listing.index("Subcommands:"):], re.M)
    tables = {command: flags_of_help(help_of(command)) for command in commands}
    tables[""] = flags_of_help(listing)  # without a command
    return tables


def script_flags(text):
    flags = {"help": None}
    for case in re.findall(r"^\s*((?:-[\w=?*\[\]-]+ ?\|? ?)+)\)", text, re.M):
        flags.update(dict.fromkeys(re.findall(r"--([a-z][a-z-]*)", case)))
    flags.update(dict.fromkeys(re.findall(r'add_argument\(\s*"--([a-z-]+)"', text)))
    flags.update(dict.fromkeys(re.findall(r"= (?:\"\$1\"|\$1|'--?)?\s*--([a-z-]+) \]", text)))
    return flags


def target_patterns(build):
    """Patterns of the names that a BUILD file gives its targets; names made from lists take any literal of the file."""
    build = re.sub(r"^\s*#.*$", "", build, flags=re.M)
    literals = "|".join(sorted({re.escape(s) for s in re.findall(r'"([\w.+-]+)"', build)})) or "(?!)"
    patterns = []
    for value in re.findall(r"\bname = ([^\n]+?),?$", build, re.M):
        pattern = ""
        for part in re.split(r"\s\+\s", re.sub(r"\s*%\s*[^\"]*$", "", value)):
            literal = re.fullmatch(r'"([^"]*)"', part.strip())
            if literal:
                pattern += "|".join(["(?:%s)" % literals]) .join(re.escape(piece) for piece in re.split(r"%s|{\w*}", literal[1]))
            else:
                pattern += f"(?:{literals})"
        patterns.append(pattern)
    # Macros that name a target by their first argument: kv_test("x").
    patterns += [re.escape(name) for name in re.findall(r'^\w+\(\s*"([\w.+-]+)"', build, re.M)]
    # A fuzz test also gives a libFuzzer binary of that name without "_test".
    patterns += [pattern[:-len("_test")] for pattern in patterns if pattern.endswith("_fuzz_test")]
    return patterns


def expand_braces(path):
    match = re.search(r"\{([^{}]*)\}", path)
    if not match:
        return [path]
    return [one for choice in match[1].split(",") for one in expand_braces(path[:match.start()] + choice + path[match.end():])]


def parse_markdown(text):
    """Yields (line number, line, kind): text, open, close, indented, or the language of a fenced block."""
    language = None
    after_blank = True
    pending, first = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            yield number, line, "open" if language is None else "close"
            language = (fence[1] or "plain") if language is None else None
            after_blank = False
            continue
        kind = language or ("indented" if line.startswith("    ") and after_blank else "text")
        after_blank = not line.strip() or kind == "indented"
        if kind in ("sh", "indented") and line.endswith("\\"):  # a command goes on
            pending, first = pending + line[:-1], first or number
            continue
        yield first or number, pending + line, kind
        pending, first = "", 0


def anchors_of(text):
    anchors, counts = set(), {}
    for _, line, kind in parse_markdown(text):
        heading = re.match(r"#+ (.*)", line) if kind == "text" else None
        if heading:
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-")
            counts[slug] = counts.get(slug, -1) + 1
            anchors.add(slug if counts[slug] == 0 else f"{slug}-{counts[slug]}")
    return anchors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--root", default=here, help="the tree to check")
    parser.add_argument("--kvsim", default=os.path.join(here, "kvsim"), help="the program, whose --help says which flags there are")
    options = parser.parse_args()
    checker = Checker(options.root, options.kvsim)
    for path, line, what in checker.run():
        print(f"{path}:{line}: {what}")
    print(f"{checker.num_claims} claims checked, {len(checker.errors)} wrong")
    return 1 if checker.errors else 0


if __name__ == "__main__":
    sys.exit(main())
