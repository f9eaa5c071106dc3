#!/usr/bin/env python3
"""Times this library's attention and that of others side by side on one GPU, and prints a table.

  tools/gpu_compare.py [--gpu-check=PATH] [--part=decode] [--rounds=20] [--save=FILE]
  tools/gpu_compare.py --from=FILE                prints again what --save kept; needs no GPU

`gpu_check --bench` (tools/gpu_check.sh --to=DIR builds it) runs first. Each of its cases that another library can do is
then timed there in the same way: a graph of calls that each have data of their own, 50 ms of warm-up, the median of the
replays. Others are taken where Python finds them, with torch: FlashAttention 3 as vLLM ships it, FlashInfer, and FlashMLA
as vLLM ships it. What is missing is named below the table. Plans are made before times count, for others and not for
this library, which plans in the call.

A ratio is the time of the fastest other library over this one's: 1.00 and more is ahead.
Exit status: 0 done, 1 gpu_check failed or printed no case, 2 bad arguments.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys



def tokens(text):
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def shape_of(case):
    """What a case of gpu_check is, for those that others may do; else None."""
    dense = re.fullmatch(r"(decode|prefill) (bf16) nhd (?:(\d+)x(\d+k?)|(\d+) on (\d+k?)) heads (\d+)/(\d+) block (\d+)", case)
    if dense:
        kind, _, requests, length, queries, context, heads, kv_heads, block = dense.groups()
        requests = int(requests or 1)
        length = tokens(length or context)
        queries = 1 if kind == "decode" else tokens(queries) if queries else length
        return {"kind": kind, "requests": requests, "length": length, "queries": queries, "heads": int(heads),
                "kv_heads": int(kv_heads), "block": int(block), "dim": 128}
    latent = re.fullmatch(r"mla (\d+)x(\d+) heads (\d+) block (\d+)", case)
    if latent:
        requests, length, heads, block = map(int, latent.groups())
        return {"kind": "mla", "requests": requests, "length": length, "queries": 1, "heads": heads, "block": block}
    return None


def cases_of(output):
    """[(case, microseconds)] of what gpu_check --bench prints."""
    lines = output.splitlines()
    begin = next((i for i, line in enumerate(lines) if re.match(r"case +us ", line)), len(lines))
    found = []
    for line in lines[begin + 1:]:
        case = re.match(r"(\S.*?) +(\d+\.\d\d) +\d+\.\d{3} ", line)
        if case:
            found.append((case.group(1), float(case.group(2))))
    return found


def table(cases, peers, missing):
    """The table of a comparison. peers: {name: {case: microseconds}}; missing: {name: why}."""
    names = [name for name in peers if peers[name]]
    rows = [["case, us", "kvblocks", *names, "ratio"]]
    for case, own in cases:
        others = {name: peers[name][case] for name in names if case in peers[name]}
        if not others:
            continue
        cells = [f"{others[name]:.1f}" if name in others else "" for name in names]
        rows.append([case, f"{own:.1f}", *cells, f"{min(others.values()) / own:.2f}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for n, row in enumerate(rows):
        lines.append("| " + " | ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]) + " |")
        if n == 0:
            lines.append("|" + "|".join(["-" * (widths[0] + 2)] + ["-" * (w + 1) + ":" for w in widths[1:]]) + "|")
    lines += [f"not compared: {name}: {why}" for name, why in missing.items()]
    return "\n".join(lines)


class Data:
    """A batch over blocks in random order, as gpu_check has it."""

    def __init__(self, torch, shape, seed):
        generator = torch.Generator(device="cuda").manual_seed(seed)
        normal = lambda *extents: torch.randn(*extents, generator=generator, device="cuda", dtype=torch.bfloat16)
        ints = lambda values: torch.tensor(values, device="cuda", dtype=torch.int32)
        requests, length, block = shape["requests"], shape["length"], shape["block"]
        self.columns = -(-length // block)
        blocks = requests * self.columns
        self.table = torch.randperm(blocks, generator=generator, device="cuda").to(torch.int32).view(requests, self.columns)
        self.lengths = ints([length] * requests)
        self.starts = ints([shape["queries"] * b for b in range(requests + 1)])
        if shape["kind"] == "mla":
            self.rows = normal(blocks, block, 1, 576)
            self.q = normal(requests, 1, shape["heads"], 576)
        else:
            self.cache = normal(blocks, 2, block, shape["kv_heads"], shape["dim"])
            self.q = normal(requests * shape["queries"], shape["heads"], shape["dim"])
            self.out = torch.empty_like(self.q)


class FlashAttention3:
    name = "FA3"

    def __init__(self, torch):
        import vllm.vllm_flash_attn as flash
        reason = flash.fa_version_unsupported_reason(3)
        if reason:
            raise ImportError(reason)
        self.torch, self.flash = torch, flash

    def takes(self, shape):
        return shape["kind"] in ("decode", "prefill")

    def call(self, shape, data):
        plan = self.flash.get_scheduler_metadata(
            batch_size=shape["requests"], max_seqlen_q=shape["queries"], max_seqlen_k=shape["length"],
            num_heads_q=shape["heads"], num_heads_kv=shape["kv_heads"], headdim=shape["dim"], cache_seqlens=data.lengths,
            qkv_dtype=data.q.dtype, cu_seqlens_q=data.starts, page_size=shape["block"], causal=True)
        return lambda: self.flash.flash_attn_varlen_func(
            q=data.q, k=data.cache[:, 0], v=data.cache[:, 1], max_seqlen_q=shape["queries"], cu_seqlens_q=data.starts,
            max_seqlen_k=shape["length"], seqused_k=data.lengths, causal=True, block_table=data.table, out=data.out,
            scheduler_metadata=plan, fa_version=3)


class FlashInfer:
    name = "FlashInfer"

    def __init__(self, torch):
        import flashinfer
        self.torch, self.flashinfer = torch, flashinfer
        self.workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")

    def takes(self, shape):
        return shape["kind"] in ("decode", "prefill")

    def call(self, shape, data):
        torch, requests = self.torch, shape["requests"]
        indptr = torch.arange(0, requests + 1, dtype=torch.int32) * data.columns
        last = torch.full((requests,), (shape["length"] - 1) % shape["block"] + 1, dtype=torch.int32)
        pages = data.table.view(-1)
        types = {"q_data_type": data.q.dtype, "kv_data_type": data.q.dtype}
        sizes = (shape["heads"], shape["kv_heads"], shape["dim"], shape["block"])
        if shape["kind"] == "decode":
            wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD", use_tensor_cores=True)
            wrapper.plan(indptr, pages, last, *sizes, **types)
        else:
            wrapper = self.flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD")
            wrapper.plan(data.starts.cpu(), indptr, pages, last, *sizes, causal=True, **types)
        return lambda: wrapper.run(data.q, data.cache, out=data.out)


class FlashMla:
    name = "FlashMLA"

    def __init__(self, torch):
        from vllm.v1.attention.ops import flashmla
        supported, reason = flashmla.is_flashmla_dense_supported()
        if not supported:
            raise ImportError(reason)
        self.torch, self.flashmla = torch, flashmla

    def takes(self, shape):
        return shape["kind"] == "mla" and shape["block"] == 64

    def call(self, shape, data):
        plan, _ = self.flashmla.get_mla_metadata(data.lengths, shape["heads"], 1, is_fp8_kvcache=False)
        return lambda: self.flashmla.flash_mla_with_kvcache(
            q=data.q, k_cache=data.rows, block_table=data.table, cache_seqlens=data.lengths, head_dim_v=512,
            tile_scheduler_metadata=plan, softmax_scale=0.07, causal=True, is_fp8_kvcache=False)


def microseconds(torch, peer, shape, rounds):
    """Of one call, in a graph of calls whose data exceed the second-level cache together."""
    heads = 1 if shape["kind"] == "mla" else shape["kv_heads"]
    width = 576 if shape["kind"] == "mla" else 2 * shape["dim"]
    size = 2 * shape["requests"] * shape["length"] * heads * width
    most = 1 if shape["kind"] == "prefill" else 40
    data = [Data(torch, shape, n) for n in range(min(max(int(1.5e9 / size) + 1, 2), most))]
    calls = [peer.call(shape, each) for each in data]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times, warm = [], 0
    while len(times) < rounds:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if warm >= 50:
            times.append(begin.elapsed_time(end))
        else:
            warm += begin.elapsed_time(end)
    return statistics.median(times) * 1000 / len(calls)


def time_peers(cases, rounds):
    """({name: {case: microseconds}}, {name: why it is missing})."""
    kinds = (FlashAttention3, FlashInfer, FlashMla)
    try:
        import torch
        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
    except ImportError as error:
        return {}, {kind.name: str(error) for kind in kinds}
    peers, missing = {}, {}
    for kind in kinds:
        try:
            peer = kind(torch)
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            missing[kind.name] = str(error).splitlines()[0]
            continue
        peers[kind.name] = {}
        for case, _ in cases:
            shape = shape_of(case)
            if shape is None or not peer.takes(shape):
                continue
            try:
                peers[kind.name][case] = microseconds(torch, peer, shape, rounds)
            except (RuntimeError, TypeError, ValueError) as error:
                missing[f"{kind.name}, {case}"] = (str(error) or type(error).__name__).splitlines()[0]
            torch.cuda.empty_cache()
    return peers, missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu-check", default="gpu_check", help="the program (default: gpu_check on PATH)")
    parser.add_argument("--part", default="", help="only cases with this in their name")
    parser.add_argument("--rounds", type=int, default=20, help="replays of which the median counts (default: 20)")
    parser.add_argument("--save", metavar="FILE", help="keep what was measured, as JSON")
    parser.add_argument("--from", dest="saved", metavar="FILE", help="print what --save kept")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds={arguments.rounds}: expected 1 or more")
    if arguments.saved:
        try:
            with open(arguments.saved, encoding="utf-8") as file:
                kept = json.load(file)
            print(table(cases_of(kept["gpu_check"]), kept["peers"], kept["missing"]))
        except (OSError, ValueError, KeyError) as error:
            parser.error(f"--from={arguments.saved}: {error}; expected a file that --save wrote")
        return 0
    bench = "--bench" + (f"={arguments.part}" if arguments.part else "")
    try:
        run = subprocess.run([arguments.gpu_check, bench, f"--rounds={arguments.rounds}"], capture_output=True, text=True)
    except OSError as error:
        parser.error(f"--gpu-check={arguments.gpu_check}: {error}; tools/gpu_check.sh --to=DIR builds it")
    cases = cases_of(run.stdout)
    if run.returncode != 0 or not cases:
        print(f"{run.stdout}{run.stderr}{arguments.gpu_check} {bench}: exit status {run.returncode}, {len(cases)} cases",
              file=sys.stderr)
        return 1
    peers, missing = time_peers(cases, arguments.rounds)
    if arguments.save:
        with open(arguments.save, "w", encoding="utf-8") as file:
            json.dump({"gpu_check": run.stdout, "peers": peers, "missing": missing}, file, indent=1)
    print("\n".join(run.stdout.splitlines()[:2]))
    print(table(cases, peers, missing))
    return 0


if __name__ == "__main__":
    sys.exit(main())
