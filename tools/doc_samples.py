#!/usr/bin/env python3
"""Runs the commands whose output the documents show, and compares or rewrites what they show.

  tools/doc_samples.py --check [--kvsim=PATH] [--slow] [FILE...]    exit status 1 if a sample differs
  tools/doc_samples.py --write [--kvsim=PATH] [--slow] [FILE...]    rewrites the samples

A sample is a fenced block of a Markdown file behind one of these comments:

  <!-- output of: ./kvsim replay --num-blocks=2000 -->
  <!-- slow output of: bazel run -c opt //examples:blend -->    only with --slow

The command runs with bash in the root of the tree, and its standard output is the block. A line that is only ... stands for any
number of lines; --write keeps such lines. --kvsim=PATH takes the place of ./kvsim.
Exit status 2: a command failed and printed nothing, or took more than ten minutes.
"""

import argparse
import difflib
import os
import re
import subprocess
import sys

MARKER = re.compile(r"^<!-- (slow )?output of: (.+?) -->$")


def fits(shown, actual):
    """Whether the lines are equal, where a line ... of `shown` stands for any lines."""
    if "..." not in shown:
        return shown == actual
    at = shown.index("...")
    if shown[:at] != actual[:at]:
        return False
    return any(fits(shown[at + 1:], actual[start:]) for start in range(at, len(actual) + 1))


def refreshed(shown, actual):
    """The lines as the program prints them now, with lines left out where they were; None if that is not clear."""
    if "..." not in shown:
        return actual
    lines, start = [], 0
    for line in shown:
        if line != "...":
            close = difflib.get_close_matches(line, actual[start:], n=1, cutoff=0.6)
            if line.strip() and not close:
                return None
            line = close[0] if close else line
            start = actual.index(line, start) + 1
        lines.append(line)
    return lines if fits(lines, actual) else None


def output_of(command, root, kvsim):
    if kvsim:
        command = re.sub(r"^\./kvsim\b", lambda _: f"'{os.path.abspath(kvsim)}'", command)
    try:
        done = subprocess.run(["bash", "-c", command], cwd=root, capture_output=True, timeout=600)
    except subprocess.TimeoutExpired:
        return None, "took more than ten minutes"
    if done.returncode != 0 and not done.stdout:
        return None, f"exit status {done.returncode}: {done.stderr.decode().strip()[-400:]}"
    return done.stdout.decode().rstrip("\n").split("\n"), None


def samples_of(lines):
    """Yields (marker line, slow, command, first line of the block, line of its closing fence)."""
    for number, line in enumerate(lines):
        match = MARKER.match(line)
        if not match:
            continue
        first = number + 1
        while first < len(lines) and not lines[first].strip():
            first += 1
        if first == len(lines) or not lines[first].startswith("```"):
            raise ValueError(f"line {number + 1}: no fenced block behind the comment")
        end = lines.index("```", first + 1)
        yield number, bool(match[1]), match[2], first + 1, end


def visit(path, options, root):
    """Number of samples that were run, that differ and that could not be run."""
    with open(path, encoding="utf-8") as f:
        lines = f.read().split("\n")
    ran = differing = failed = 0
    for number, slow, command, first, end in reversed(list(samples_of(lines))):
        if slow and not options.slow:
            continue
        ran += 1
        actual, problem = output_of(command, root, options.kvsim)
        where = f"{os.path.relpath(path, root)}:{number + 1}"
        if problem:
            failed += 1
            print(f"{where}: {command}: {problem}")
        elif not fits(lines[first:end], actual):
            differing += 1
            new = refreshed(lines[first:end], actual) if options.write else None
            if new:
                lines[first:end] = new
                print(f"{where}: rewritten")
            elif options.write:
                failed += 1
                print(f"{where}: {command}: write this sample by hand: it leaves out lines, and those shown have changed much")
            else:
                print(f"{where}: {command} prints something else")
                print("\n".join(difflib.unified_diff(lines[first:end], actual, "document", "program", lineterm="", n=1)))
    if options.write and differing:
        with open(path, "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
    return ran, differing, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="compare")
    mode.add_argument("--write", action="store_true", help="rewrite what differs")
    parser.add_argument("--kvsim", help="a kvsim binary to run in place of ./kvsim")
    parser.add_argument("--slow", action="store_true", help="also samples marked as slow")
    parser.add_argument("files", nargs="*", help="Markdown files; default: README.md and docs/")
    options = parser.parse_args()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = options.files or [os.path.join(root, "README.md")] + sorted(
        os.path.join(folder, name) for folder, _, names in os.walk(os.path.join(root, "docs")) for name in names
        if name.endswith(".md"))
    totals = [sum(counts) for counts in zip(*(visit(path, options, root) for path in files))]
    print(f"{totals[0]} samples run, {totals[1]} {'rewritten' if options.write else 'wrong'}, {totals[2]} failed")
    return 2 if totals[2] else 1 if totals[1] and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
