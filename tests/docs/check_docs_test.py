#!/usr/bin/env python3
"""Planted lies must be found: tests of check_docs.py, and of tools/doc_samples.py and tools/draw_house.py.

Each test writes a small tree, checks that it is clean, plants one lie and checks that the line with it is named.
"""

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))


def load(path):
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find(*places):
    return next(path for path in (os.path.join(HERE, *place) for place in places) if os.path.exists(path))


sys.dont_write_bytecode = True
check_docs = load(os.path.join(HERE, "check_docs.py"))
doc_samples = load(find(("..", "..", "tools", "doc_samples.py")))
draw_house = load(find(("..", "..", "tools", "draw_house.py")))

TREE = {
    ".bazelrc": "build:asan --copt=-fsanitize=address\n",
    "BUILD.bazel": 'exports_files(["README.md"])\n',
    "README.md": "# Title\n\n[Pool](docs/pool.md#freeing-a-block) and [docs](docs/README.md).\n\n",
    "CONTRIBUTING.md": "# How\n",
    "docs/README.md": "# Pages\n\n[The pool](pool.md)\n",
    "docs/pool.md": "# Pool\n\n## Freeing a block\n\n- **BM-1** Blocks are freed.\n",
    "kvsim": "#!/bin/sh\ncase $1 in\n"
             "  replay | stats) echo 'Options:'; echo '  -h,--help     help'; echo '  --num-blocks N  pool'\n"
             "    echo '  --[no-]plan upstream|exact  policy [exact]'; echo '  --json  JSON' ;;\n"
             "  *) echo 'Options:'; echo '  --version  x'; echo 'Subcommands:'; echo '  replay      y'; echo '  stats       z' ;;\nesac\n",
    "test.sh": "#!/bin/sh\n",
    "tools/fuzz.sh": "#!/bin/sh\ncase $1 in\n  --to=*) ;;\nesac\n",
    "pool/BUILD.bazel": 'cc_library(\n    name = "pool",\n)\n[cc_test(\n    name = name + "_test",\n) for name in [\n'
                        '    "queue",\n]]\n',
    "rules.bzl": 'def kv_unit_tests(name = "unit_test", deps = []):\n    pass\n',
    "queue/BUILD.bazel": "kv_unit_tests(\n    deps = [],\n)\n\nkv_fuzz_tests(deps = [])\n",
    "queue/order_fuzz.cc": "int x;\n",
    "pool/pool.h": "// BM-1.\nclass BlockPool { void FreeBlocks(); int num_free; };\n",
    "include/kvblocks/pool.h": "class Pool;\n",
    "pool/embed.cc": "int main() {\n  int blocks = 1;\n  return blocks;\n}\n",
    "sim/commands/rows.cc": 'const char* kMessage = "raise --num-blocks";\n',
}


class CheckDocsTest(unittest.TestCase):
    def errors(self, changes):
        with tempfile.TemporaryDirectory() as root:
            for path, text in {**TREE, **changes}.items():
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)
            kvsim = os.path.join(root, "kvsim")
            os.chmod(kvsim, 0o755)
            return check_docs.Checker(root, kvsim).run()

    def lie(self, path, text, says):
        """The text is found out, in its last line."""
        whole = TREE[path] + text + "\n"
        errors = self.errors({path: whole})
        self.assertEqual([(p, line) for p, line, _ in errors], [(path, whole.count("\n"))], errors)
        self.assertIn(says, errors[0][2])

    def truth(self, path, text):
        self.assertEqual(self.errors({path: TREE[path] + text + "\n"}), [])

    def test_a_true_tree_is_clean(self):
        self.assertEqual(self.errors({}), [])

    def test_links(self):
        self.lie("README.md", "[x](docs/absent.md)", "no docs/absent.md")
        self.lie("README.md", "[x](docs/pool.md#taking-a-block)", "no heading")
        self.lie("docs/pool.md", "[x](../READ.md)", "no READ.md")
        self.truth("docs/pool.md", "[x](../README.md#title), [y](#pool), [z](https://example.org/a/b)")

    def test_paths(self):
        self.lie("README.md", "See `pool/pool.cc`.", "no file pool/pool.cc")
        self.lie("README.md", "See `pool/{pool,queue}.h`.", "no file")
        self.lie("README.md", "See `block_pool.h`.", "no file block_pool.h")
        self.lie("README.md", "See `pool/*_test.cc`.", "no file")
        self.lie("README.md", '```cpp\n#include "kvblocks/queue.h"', "no header kvblocks/queue.h")
        self.truth("README.md", "    cc engine.cc\n\nThe build makes `pool/queue`.")
        self.truth("README.md", 'See `pool/{pool,embed}.*`, `pool.h`, `pool/`, `trace.jsonl.gz`.\n\n```cpp\n'
                                '#include "kvblocks/pool.h"\n```')

    def test_labels(self):
        self.lie("README.md", "    bazel run //pool:absent", "no target //pool:absent")
        self.lie("README.md", "Run `//stack/...`.", "no target //stack/...")
        self.lie("README.md", "Run `//pool:unit_test` and `//queue:unit_test`.", "no target //pool:unit_test")
        self.lie("README.md", "Run `//queue:pool_fuzz`.", "no target")
        self.lie("README.md", "Run `bazel test //pool:stack_test`.", "no target")
        self.lie("tools/fuzz.sh", "# tools/fuzz.sh //pool:fuzz", "no target //pool:fuzz")
        self.lie("pool/pool.h", "//   bazel run //bench:pool", "no target //bench:pool")
        self.truth("README.md", "`bazel test //pool:queue_test //pool //pool/... //... //:README.md`\n"
                                "`//queue:unit_test //queue:order_fuzz_test //queue:order_fuzz`")

    def test_flags(self):
        self.lie("README.md", "Give `--blocks`.", "no flag --blocks")
        self.lie("README.md", "    ./kvsim replay --format=json", "no flag --format")
        self.lie("README.md", "    ./kvsim replay --version", "no flag --version")
        self.lie("README.md", "    ./kvsim --json", "no flag --json")
        self.lie("README.md", "    ./kvsim play", "no command play")
        self.lie("README.md", "    X=1 ./kvsim replay | kvsim stats --steps", "no flag --steps")
        self.lie("README.md", "    ./kvsim replay --plan=native", "--plan takes upstream|exact")
        self.lie("README.md", "    tools/fuzz.sh --from=DIR", "no flag --from")
        self.lie("README.md", "    ./test.sh --config=msan", "no configuration msan")
        self.assertEqual(len(self.errors({"docs/pool.md": "    ./kvsim replay \\\n      --blocks\n- **BM-1** A rule.\n"
                                                          "## Freeing a block\n"})), 1)
        self.lie("sim/commands/rows.cc", 'const char* kOther = "try --pool-size";', "no flag --pool-size")
        self.truth("README.md", "    ./kvsim replay --num-blocks=5 --no-plan --plan=exact --json | jq --raw-output\n    ./kvsim --version\n"
                                "    tools/fuzz.sh --to=DIR\n    ./test.sh --config=asan\n    make --always-make")

    def test_flags_of_a_binary(self):
        help_text = "Options:\n  -h,--help     help\n  --[no-]hybrid  x\n  --plan upstream|exact  y [exact]\n"
        self.assertEqual(check_docs.flags_of_help(help_text),
                         {"h": None, "help": None, "hybrid": None, "no-hybrid": None, "plan": ["upstream", "exact"]})

    def test_rules(self):
        self.lie("README.md", "By BM-2.", "no document defines BM-2")
        self.lie("pool/pool.h", "// INV-7", "no document defines INV-7")
        self.lie("docs/pool.md", "- **BM-1** Again.", "is defined in docs/pool.md, too")
        self.truth("pool/pool.h", "// BM-1 to BM-1")

    def test_names_of_code(self):
        self.lie("README.md", "Call `BlockPool::Take`.", "know no Take")
        self.lie("README.md", "Call `TakeBlocks()`.", "know no TakeBlocks")
        self.lie("README.md", "Set `KVBLOCKS_POOL`.", "KVBLOCKS_POOL")
        self.truth("README.md", "Call `BlockPool::FreeBlocks(ids)`; `num_free` and `true` are fine.")

    def test_excerpts(self):
        quote = "<!-- code of: pool/embed.cc -->\n```cpp\n"
        self.lie("README.md", quote + "int blocks = 2;", "no such line")
        self.lie("README.md", quote + "return blocks;\nint blocks = 1;", "no such line")
        self.lie("README.md", "<!-- code of: pool/absent.cc -->", "no file")
        self.truth("README.md", quote + "int blocks = 1;\n\nreturn blocks;\n```")

    def test_documents_that_code_names(self):
        self.lie("pool/pool.h", "// See docs/queue.md.", "no document docs/queue.md")
        self.lie("pool/pool.h", "// See docs/pool.md#queue.", "no anchor queue")
        self.truth("pool/pool.h", "// See docs/pool.md#freeing-a-block.")

    def test_files_that_code_names(self):
        self.lie("pool/pool.h", "// As in pool/queue.h.", "no file pool/queue.h")
        self.lie("pool/pool.h", '#include "pool/queue.h"', "no file pool/queue.h")
        self.lie("pool/pool.h", '#include "kvblocks/queue.h"', "no file kvblocks/queue.h")
        self.lie("tools/fuzz.sh", ". tools/prepare.sh", "no file tools/prepare.sh")
        self.truth("pool/pool.h", '#include "kvblocks/pool.h"\n#include "pool/pool.h"\n#include "pool/pool.pb.h"\n#include "absl/pool/x.h"')

    def test_the_index_lists_every_page(self):
        errors = self.errors({"docs/lost.md": "# Lost\n"})
        self.assertEqual([what for _, _, what in errors], ["no link to docs/lost.md"])


class DocSamplesTest(unittest.TestCase):
    def test_lines_left_out(self):
        self.assertTrue(doc_samples.fits(["a", "...", "c"], ["a", "b", "b", "c"]))
        self.assertTrue(doc_samples.fits(["...", "c", "..."], ["a", "c", "d"]))
        self.assertFalse(doc_samples.fits(["a", "...", "c"], ["a", "b"]))
        self.assertFalse(doc_samples.fits(["a", "b"], ["a"]))

    def test_lines_left_out_stay_out(self):
        actual = ["pool 3,000 blocks", "time 5 s", "hit rate 70 %", "end"]
        self.assertEqual(doc_samples.refreshed(["pool 2,000 blocks", "...", "hit rate 64 %", "..."], actual),
                         ["pool 3,000 blocks", "...", "hit rate 70 %", "..."])
        self.assertIsNone(doc_samples.refreshed(["...", "evictions none", "..."], actual))

    def visit(self, text, write=False):
        with tempfile.TemporaryDirectory() as root:
            path = os.path.join(root, "page.md")
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
            options = type("Options", (), {"slow": False, "kvsim": None, "write": write})
            with open(os.devnull, "w", encoding="utf-8") as null:
                stdout, sys.stdout = sys.stdout, null
                try:
                    counts = doc_samples.visit(path, options, root)
                finally:
                    sys.stdout = stdout
            with open(path, encoding="utf-8") as f:
                return counts, f.read()

    def test_a_stale_sample_is_found_and_rewritten(self):
        page = "<!-- output of: echo new; echo lines -->\n```text\n%s\n```\nText.\n"
        fresh = page % "new\nlines"
        self.assertEqual(self.visit(fresh), ((1, 0, 0), fresh))
        self.assertEqual(self.visit(page % "old"), ((1, 1, 0), page % "old"))
        self.assertEqual(self.visit(page % "old", write=True), ((1, 1, 0), fresh))

    def test_a_command_that_fails_is_no_sample(self):
        self.assertEqual(self.visit("<!-- output of: false -->\n```\n```\n")[0], (1, 0, 1))

    def test_slow_samples_wait(self):
        self.assertEqual(self.visit("<!-- slow output of: false -->\n```\n```\n")[0], (0, 0, 0))


class DrawHouseTest(unittest.TestCase):
    def test_floors_and_arrows(self):
        graph = {"specs": set(), "managers": {"specs"}, "sim": {"managers", "specs"}}
        self.assertEqual(draw_house.floors_of(graph), {"specs": 0, "managers": 1, "sim": 2})
        self.assertEqual(draw_house.reduced(graph)["sim"], {"managers"})
        picture = draw_house.draw(graph)
        self.assertEqual(len(re.findall("<path d=.M.*marker-end", picture)), 2)

    def test_columns_have_at_most_six_rooms(self):
        for title, _, rooms in draw_house.COLUMNS:
            self.assertLessEqual(len(rooms), 6, title)

    def test_a_folder_belongs_to_the_nearest_room(self):
        self.assertEqual(draw_house.home_of("specs/planning"), draw_house.home_of("specs"))
        self.assertNotEqual(draw_house.home_of("attention/cuda/kernels"), draw_house.home_of("attention/layers"))
        self.assertEqual(draw_house.rooms_of({"specs/planning": {"specs", "checks"}, "specs": set(), "checks": set()}),
                         {draw_house.home_of("specs"): {draw_house.home_of("checks")}, draw_house.home_of("checks"): set()})

    def test_a_room_stands_alone_above_what_it_includes(self):
        rooms = draw_house.rooms_of({"checks": set(), "specs": {"checks"}, "block_pool": {"checks"}, "sim": {"specs"}})
        rows = draw_house.rows_of(rooms)
        library = [row for room, row in rows.items() if room[0] == draw_house.home_of("specs")[0]]
        self.assertEqual(sorted(library), [0, 1, 2])
        self.assertGreater(rows[draw_house.home_of("sim")], rows[draw_house.home_of("specs")])

    def test_a_folder_without_a_room_is_refused(self):
        with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stderr(nothing):
            with self.assertRaises(SystemExit):
                draw_house.draw({"attic": set()})

    def test_a_circle_has_no_floor(self):
        stderr, sys.stderr = sys.stderr, open(os.devnull, "w", encoding="utf-8")
        try:
            with self.assertRaises(SystemExit):
                draw_house.floors_of({"a": {"b"}, "b": {"a"}})
        finally:
            sys.stderr.close()
            sys.stderr = stderr


if __name__ == "__main__":
    unittest.main()
