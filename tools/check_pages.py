#!/usr/bin/env python3
"""Opens the HTML pages that kvsim writes in a headless browser and checks what was drawn.

  tools/check_pages.py KVSIM [--screenshots=DIR] [--trace=FILE]

Replays a workload (that which comes with kvsim, or --trace), writes a page of one run and one of two runs compared, and
opens them and pages of several replicas, a plan and curves at the width of a laptop and of a phone, in light and in dark,
and prints them. Of each it demands: nothing on the browser's console; every chart drawn; in every chart a shape for each
line; no scrolling to the side; paper with pages. --screenshots keeps pictures of the two widths. The browser is Debian's
`chromium` (or $CHROMIUM). It is not part of ./test.sh, because of the browser's size.

Exit status: 0 all as demanded, 1 something was not, 2 there is no browser or no kvsim.
"""

import argparse
import html.parser
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

WIDTHS = {"laptop": (1366, 900), "phone": (412, 900)}
PICTURE_HEIGHTS = {"laptop": 2300, "phone": 1500}
SHAPES = ("line", "band", "dot", "bar")  # classes of what is drawn of values


class Page(html.parser.HTMLParser):
    """What page.js left in the document: attributes of the root and of each figure, and how many shapes each has."""

    def __init__(self, text):
        super().__init__()
        self.root, self.figures = {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "html":
            self.root = attrs
        elif tag == "figure":
            self.figures.append(attrs)
            self.figures[-1]["shapes"] = 0
        elif attrs.get("class", "").split(" ")[0] in SHAPES and self.figures:
            self.figures[-1]["shapes"] += 1


class Browser:
    def __init__(self, program, profile):
        self.command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                        "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND",
                        f"--user-data-dir={profile}", "--enable-logging=stderr", "--virtual-time-budget=10000"]

    def run(self, url, *options):
        result = subprocess.run([*self.command, *options, url], capture_output=True, text=True, timeout=120, check=False)
        console = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
        if result.returncode != 0:
            console.append(f"the browser's exit status is {result.returncode}")
        return result.stdout, console


def check(name, text, console, least_charts):
    """Prints what is wrong; returns how many things were looked at and how many of them are."""
    problems = [f"console: {line}" for line in console]
    page = Page(text)
    looked_at = 2
    if page.root.get("data-drawn") != str(len(page.figures)) or len(page.figures) < least_charts:
        problems.append(f"{page.root.get('data-drawn')} of {len(page.figures)} charts drawn, {least_charts} expected at least")
    if page.root.get("data-overflow") != "0":
        problems.append(f"{page.root.get('data-overflow')} pixels beyond the side")
    for number, figure in enumerate(page.figures):
        looked_at += 1
        points = figure.get("data-points", "").split(",")
        if "0" in points or figure["shapes"] < len(points):
            problems.append(f"chart {number}: {figure['shapes']} shapes of lines with {points} points")
    for problem in problems:
        print(f"{name}: {problem}")
    return looked_at, len(problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvsim")
    parser.add_argument("--screenshots")
    parser.add_argument("--trace")
    arguments = parser.parse_args()
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        print("no browser: install Debian's chromium, or name one in $CHROMIUM", file=sys.stderr)
        return 2
    kvsim = pathlib.Path(arguments.kvsim).resolve()
    if not kvsim.is_file():
        print(f"no such program: {kvsim}", file=sys.stderr)
        return 2

    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvsim_pages."))
    trace = [str(pathlib.Path(arguments.trace).resolve())] if arguments.trace else []
    slo = "--slo=ttft:500ms:p90,tpot:20ms"

    def run(*words):
        result = subprocess.run([str(kvsim), *words], cwd=folder, capture_output=True, text=True, check=False)
        if result.returncode > 1:  # 1: a limit is missed, runs differ
            sys.exit(f"kvsim {' '.join(words)}: {result.stderr}")

    run("replay", *trace, "--num-blocks=1500", slo, "--html=replay.html", "--json-file=a.json", "--quiet")
    run("replay", *trace, "--num-blocks=700", slo, "--json-file=b.json", "--quiet")
    run("compare", "a.json", "b.json", "--html=compare.html", "--quiet")
    run("replay", *trace, "--model=gpt-oss-20b", "--num-blocks=3000", "--html=groups.html", "--quiet")

    run("replay", *trace, "--replicas=4", "--router=prefix", "--event-delay=1s", "--num-blocks=2000", "--html=fleet.html",
        "--quiet")
    run("replay", *trace, "--prefill-replicas=2", "--decode-replicas=2", "--html=split.html", "--quiet")
    run("plan", "--model=gemma-3-27b", "--device=h200", "--html=plan.html")
    run("sweep", *trace, "--grid", "num-blocks=500:4000:*2", "--grid", "block-size=16,64", "--speedup=60",
        "--pareto=hit-rate,pool-gib", "--metrics=hit-rate,ttft-p99,output-tokens-per-s", "--html=sweep.html", "--quiet")
    run("curve", *trace, "--block-sizes", "16", "64", "256", "--what-if=shuffled", "--html=curve.html", "--quiet")
    run("curve", *trace, "--model=gemma-3-27b", "--device=h200", "--html=replays.html", "--quiet")

    pages = {"replay": 10, "compare": 10, "groups": 10, "fleet": 17, "split": 16, "plan": 3, "curve": 5, "replays": 2, "sweep": 4}
    looked_at = wrong = 0
    browser = Browser(program, folder / "profile")
    for name, least_charts in pages.items():
        url = (folder / f"{name}.html").as_uri()
        for width, (x, y) in WIDTHS.items():
            for colours in ("light", "dark"):
                options = [f"--window-size={x},{y}"]
                if colours == "dark":
                    options.append("--blink-settings=preferredColorScheme=0")
                text, console = browser.run(url, "--dump-dom", *options)
                counts = check(f"{name}, {width}, {colours}", text, console, least_charts)
                looked_at, wrong = looked_at + counts[0], wrong + counts[1]
        paper = folder / f"{name}.pdf"
        _, console = browser.run(url, f"--print-to-pdf={paper}")
        looked_at += 1
        if console or not paper.is_file() or b"/Type /Page" not in paper.read_bytes():
            wrong += 1
            print(f"{name}: cannot be printed: {console}")
        if arguments.screenshots:
            pathlib.Path(arguments.screenshots).mkdir(parents=True, exist_ok=True)
            for width, (x, _) in WIDTHS.items():
                picture = pathlib.Path(arguments.screenshots).resolve() / f"page_{name}_{width}.png"
                browser.run(url, f"--screenshot={picture}", f"--window-size={x},{PICTURE_HEIGHTS[width]}")
    shutil.rmtree(folder)
    print(f"{looked_at - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
