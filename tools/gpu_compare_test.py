#!/usr/bin/env python3
"""What gpu_compare.py makes of recorded measurements, and where programs and libraries are missing. Needs no GPU."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
import gpu_compare  # noqa: E402

RECORDED = """\
NVIDIA H200, 132 multiprocessors, 150.1 GB
read 4.65 TB/s, copy 3.98 TB/s (read and written); an empty launch 0.55 us
mma.sync 647 TFLOP/s
case                                                              us    TB/s     % % copy  TFLOP/s     %
decode bf16 nhd 64x4k heads 32/8 block 16                     253.60   4.234  91.1            33.9   5.2
decode bf16 nhd 1x1k heads 32/8 block 16                        5.60   0.752  16.2             1.5   0.2
decode f8e4m3 nhd 64x4k heads 32/8 block 16                   137.90   3.893  83.7            62.3   9.6
prefill bf16 nhd 8x2k heads 32/8 block 16                       FAILED: a reason
prefill bf16 nhd 512 on 32k heads 32/8 block 16               439.00   0.325   7.0           622.0  96.1
mla 128x4096 heads 128 block 64                               295.00   2.170  46.7           495.1  76.5
slots 256 tokens                                                2.70   0.000   0.0             0.0   0.0
"""
DECODE, LONE, CHUNK, LATENT = (
    "decode bf16 nhd 64x4k heads 32/8 block 16", "decode bf16 nhd 1x1k heads 32/8 block 16",
    "prefill bf16 nhd 512 on 32k heads 32/8 block 16", "mla 128x4096 heads 128 block 64")
PEERS = {"FA3": {DECODE: 253.8, CHUNK: 475.0, LONE: 11.3}, "FlashInfer": {DECODE: 249.5}, "FlashMLA": {LATENT: 275.5}}
TABLE = """\
| case, us                                        | kvblocks |   FA3 | FlashInfer | FlashMLA | ratio |
|-------------------------------------------------|---------:|------:|-----------:|---------:|------:|
| decode bf16 nhd 64x4k heads 32/8 block 16       |    253.6 | 253.8 |      249.5 |          |  0.98 |
| decode bf16 nhd 1x1k heads 32/8 block 16        |      5.6 |  11.3 |            |          |  2.02 |
| prefill bf16 nhd 512 on 32k heads 32/8 block 16 |    439.0 | 475.0 |            |          |  1.08 |
| mla 128x4096 heads 128 block 64                 |    295.0 |       |            |    275.5 |  0.93 |"""


def run(*arguments):
    done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "gpu_compare.py"), *arguments], capture_output=True,
                          text=True)
    return done.returncode, done.stdout, done.stderr


class Tables(unittest.TestCase):
    def test_cases_are_read(self):
        cases = gpu_compare.cases_of(RECORDED)
        self.assertEqual([us for _, us in cases], [253.6, 5.6, 137.9, 439.0, 295.0, 2.7])
        self.assertEqual(cases[0][0], DECODE)
        self.assertEqual(gpu_compare.cases_of("no case"), [])

    def test_ratios_are_of_the_fastest_peer(self):
        self.assertEqual(gpu_compare.table(gpu_compare.cases_of(RECORDED), PEERS, {}), TABLE)

    def test_peers_without_times_have_no_column_and_a_reason(self):
        text = gpu_compare.table(gpu_compare.cases_of(RECORDED), {"FA3": {}, "FlashMLA": PEERS["FlashMLA"]},
                                 {"FA3": "No module named 'vllm'"})
        self.assertEqual(text.splitlines()[0], "| case, us                        | kvblocks | FlashMLA | ratio |")
        self.assertEqual(text.splitlines()[-1], "not compared: FA3: No module named 'vllm'")

    def test_shapes_are_what_names_say(self):
        self.assertEqual(gpu_compare.shape_of(DECODE), {
            "kind": "decode", "requests": 64, "length": 4096, "queries": 1, "heads": 32, "kv_heads": 8, "block": 16,
            "dim": 128, "fp8": False, "q_fp8": False})
        codes = gpu_compare.shape_of(DECODE.replace("bf16", "f8e4m3"))
        self.assertEqual((codes["fp8"], codes["q_fp8"]), (True, False))
        both = gpu_compare.shape_of(DECODE.replace("bf16", "q f8e4m3 f8e4m3"))
        self.assertEqual((both["fp8"], both["q_fp8"]), (True, True))
        self.assertEqual(gpu_compare.shape_of("prefill bf16 nhd 8x2k heads 32/8 block 16")["queries"], 2048)
        chunk = gpu_compare.shape_of(CHUNK)
        self.assertEqual((chunk["requests"], chunk["queries"], chunk["length"]), (1, 512, 32768))
        self.assertEqual(gpu_compare.shape_of(LATENT), {
            "kind": "mla", "requests": 128, "length": 4096, "queries": 1, "heads": 128, "block": 64})
        self.assertEqual(gpu_compare.shape_of("sparse mla fp8_584 128x1 heads 64 K 128+512"), {
            "kind": "sparse", "rows": "fp8_584", "requests": 128, "queries": 1, "heads": 64, "entries": 128, "extra": 512})
        self.assertEqual(gpu_compare.shape_of("sparse mla bf16 128x2 heads 128 K 2048")["extra"], 0)
        for other in ("decode i8 nhd 64x4k heads 32/8 block 16", "decode bf16 hnd 64x4k heads 32/8 block 16",
                      "decode bf16 nhd 63x512+1x32k heads 32/8 block 16", "mla 128x4096 heads 16 queries 4 block 64",
                      "decode bf16 nhd 64x4k heads 32/8 block 16 D=64", "slots 256 tokens"):
            self.assertIsNone(gpu_compare.shape_of(other), other)


class Program(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, text):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    def test_prints_again_what_was_kept(self):
        kept = self.write("kept.json", json.dumps({"gpu_check": RECORDED, "peers": PEERS, "missing": {}}))
        self.assertEqual(run("--from=" + kept), (0, TABLE + "\n", ""))

    def test_without_peers_it_says_so(self):
        self.write("recorded", RECORDED)
        program = self.write("gpu_check", '#!/bin/sh\ncat "${0%/*}/recorded"\n')
        kept = os.path.join(self.folder.name, "kept.json")
        # A torch of our own, which sees no GPU.
        self.write("torch.py", "class cuda:\n  is_available = staticmethod(lambda: False)\n")
        environment = dict(os.environ, PYTHONPATH=self.folder.name)
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "gpu_compare.py"), "--gpu-check=" + program,
                               "--save=" + kept], capture_output=True, text=True, env=environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for peer in ("FA3", "FlashInfer", "FlashMLA"):
            self.assertIn(f"not compared: {peer}: torch sees no GPU", done.stdout)
        with open(kept, encoding="utf-8") as file:
            self.assertEqual(json.load(file)["gpu_check"], RECORDED)

    def test_failures_are_told(self):
        code, out, err = run("--gpu-check=" + self.write("fails", "#!/bin/sh\necho no GPU >&2\nexit 1\n"))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("no GPU", err)
        self.assertIn("exit status 1, 0 cases", err)
        for arguments, why in ((["--gpu-check=/nowhere/gpu_check"], "tools/gpu_check.sh --to=DIR builds it"),
                               (["--from=/nowhere"], "expected a file that --save wrote"),
                               (["--from=" + self.write("other.json", "{}")], "expected a file that --save wrote"),
                               (["--rounds=0"], "expected 1 or more")):
            code, out, err = run(*arguments)
            self.assertEqual((code, out), (2, ""), arguments)
            self.assertIn(why, err)


if __name__ == "__main__":
    unittest.main()
