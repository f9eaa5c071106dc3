#!/usr/bin/env python3
"""Times this library's attention and that of others side by side on one GPU, and prints a table.

  tools/gpu_compare.py [--gpu-check=PATH] [--part=decode] [--rounds=20] [--save=FILE]
  tools/gpu_compare.py --from=FILE                prints again what --save kept; needs no GPU
  tools/gpu_compare.py --errors                   what others' outputs are off by with queries and keys in e4m3

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
    dense = re.fullmatch(r"(decode|prefill) (?:q (f8e4m3) )?(bf16|f8e4m3) nhd (?:(\d+)x(\d+k?)|(\d+) on (\d+k?)) "
                         r"heads (\d+)/(\d+) block (\d+)", case)
    if dense:
        kind, q_element, element, requests, length, queries, context, heads, kv_heads, block = dense.groups()
        requests = int(requests or 1)
        length = tokens(length or context)
        queries = 1 if kind == "decode" else tokens(queries) if queries else length
        return {"kind": kind, "requests": requests, "length": length, "queries": queries, "heads": int(heads),
                "kv_heads": int(kv_heads), "block": int(block), "dim": 128, "fp8": element == "f8e4m3",
                "q_fp8": q_element is not None}
    latent = re.fullmatch(r"mla (\d+)x(\d+) heads (\d+) block (\d+)", case)
    if latent:
        requests, length, heads, block = map(int, latent.groups())
        return {"kind": "mla", "requests": requests, "length": length, "queries": 1, "heads": heads, "block": block}
    sparse = re.fullmatch(r"sparse mla (fp8_656|fp8_584|bf16) (\d+)x(\d+) heads (\d+) K (\d+)(?:\+(\d+))?", case)
    if sparse:
        requests, queries, heads, entries, extra = (int(number or 0) for number in sparse.groups()[1:])
        return {"kind": "sparse", "rows": sparse.group(1), "requests": requests, "queries": queries, "heads": heads,
                "entries": entries, "extra": extra}
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
            if shape["fp8"]:
                self.cache = self.cache.to(torch.float8_e4m3fn)
            self.q = normal(requests * shape["queries"], shape["heads"], shape["dim"])
            self.out = torch.empty_like(self.q)
            if shape["q_fp8"]:
                self.q = self.q.to(torch.float8_e4m3fn)


class SparseData:
    """Queries and lists of slots, over caches of 8192 blocks of 64 tokens that all share, as gpu_check has them."""

    BLOCKS, BLOCK = 1 << 13, 64

    def __init__(self, torch, shape, caches, seed):
        self.generator = torch.Generator(device="cuda").manual_seed(seed)
        self.torch, self.caches = torch, caches
        tokens = (shape["requests"], shape["queries"])
        dim = 512 if shape["rows"] == "fp8_584" else 576
        self.q = torch.randn(*tokens, shape["heads"], dim, generator=self.generator, device="cuda", dtype=torch.bfloat16)
        self.slots = self.lists(*tokens, shape["entries"])
        self.extra_slots = self.lists(*tokens, shape["extra"]) if shape["extra"] else None

    def lists(self, requests, queries, entries):
        """None twice in a list, in no order."""
        torch, step = self.torch, self.BLOCKS * self.BLOCK // entries
        at = torch.rand(requests, queries, entries, generator=self.generator, device="cuda").argsort(-1)
        within = torch.randint(step, at.shape, generator=self.generator, device="cuda")
        return (at * step + within).to(torch.int32)

    @classmethod
    def cache(cls, torch, rows):
        normal = lambda dim: torch.randn(cls.BLOCKS, cls.BLOCK, dim, device="cuda", dtype=torch.bfloat16)
        if rows == "bf16":
            return normal(576)
        as_bytes = lambda values: values.contiguous().view(torch.uint8)
        rotary = as_bytes(normal(64))
        if rows == "fp8_656":
            scales = as_bytes(torch.ones(cls.BLOCKS, cls.BLOCK, 4, device="cuda"))
            cache = torch.cat([as_bytes(normal(512).to(torch.float8_e4m3fn)), scales, rotary], -1)
        else:  # all rows of a block, then all scales; blocks begin at multiples of 576 bytes, as in engines
            records = torch.cat([as_bytes(normal(448).to(torch.float8_e4m3fn)), rotary], -1).view(cls.BLOCKS, -1)
            scales = torch.full((cls.BLOCKS, 8 * cls.BLOCK), 127, device="cuda", dtype=torch.uint8)
            used = 584 * cls.BLOCK
            padding = torch.zeros(cls.BLOCKS, -used % 576, device="cuda", dtype=torch.uint8)
            whole = torch.cat([records, scales, padding], -1)
            cache = whole[:, :used].view(cls.BLOCKS, cls.BLOCK, 584)
        return cache.unsqueeze(2).view(torch.float8_e4m3fn)


class FlashAttention3:
    name = "FA3"

    def __init__(self, torch):
        import vllm.vllm_flash_attn as flash
        reason = flash.fa_version_unsupported_reason(3)
        if reason:
            raise ImportError(reason)
        self.torch, self.flash = torch, flash

    def takes(self, shape):
        # Codes on both sides or on none.
        return shape["kind"] in ("decode", "prefill") and shape["fp8"] == shape["q_fp8"]

    def call(self, shape, data):
        scales = {}
        if shape["fp8"]:
            ones = self.torch.ones(shape["requests"], shape["kv_heads"], device="cuda")
            scales = {"q_descale": ones, "k_descale": ones, "v_descale": ones}
        plan = self.flash.get_scheduler_metadata(
            batch_size=shape["requests"], max_seqlen_q=shape["queries"], max_seqlen_k=shape["length"],
            num_heads_q=shape["heads"], num_heads_kv=shape["kv_heads"], headdim=shape["dim"], cache_seqlens=data.lengths,
            qkv_dtype=data.q.dtype, cu_seqlens_q=data.starts, page_size=shape["block"], causal=True)
        return lambda: self.flash.flash_attn_varlen_func(
            q=data.q, k=data.cache[:, 0], v=data.cache[:, 1], max_seqlen_q=shape["queries"], cu_seqlens_q=data.starts,
            max_seqlen_k=shape["length"], seqused_k=data.lengths, causal=True, block_table=data.table, out=data.out,
            scheduler_metadata=plan, fa_version=3, **scales)


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
        types = {"q_data_type": data.q.dtype, "kv_data_type": data.cache.dtype, "o_data_type": data.out.dtype}
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
        return shape["kind"] == "sparse" or shape["kind"] == "mla" and shape["block"] == 64

    def call(self, shape, data):
        if shape["kind"] == "sparse":
            return self.sparse_call(shape, data)
        plan, _ = self.flashmla.get_mla_metadata(data.lengths, shape["heads"], 1, is_fp8_kvcache=False)
        return lambda: self.flashmla.flash_mla_with_kvcache(
            q=data.q, k_cache=data.rows, block_table=data.table, cache_seqlens=data.lengths, head_dim_v=512,
            tile_scheduler_metadata=plan, softmax_scale=0.07, causal=True, is_fp8_kvcache=False)

    def sparse_call(self, shape, data):
        if shape["rows"] == "bf16":
            q, keys, slots = data.q.flatten(0, 1), data.caches[0].view(-1, 1, 576), data.slots.view(-1, 1, shape["entries"])
            return lambda: self.flashmla.flash_mla_sparse_fwd(q, keys, slots, 0.07)
        plan, _ = self.flashmla.get_mla_metadata()
        return lambda: self.flashmla.flash_mla_with_kvcache(
            q=data.q, k_cache=data.caches[0], block_table=None, cache_seqlens=None, head_dim_v=512,
            tile_scheduler_metadata=plan, softmax_scale=0.07, is_fp8_kvcache=True, indices=data.slots,
            extra_k_cache=data.caches[1] if shape["extra"] else None, extra_indices_in_kvcache=data.extra_slots)


def microseconds(torch, peer, shape, rounds):
    """Of one call, in a graph of calls whose data exceed the second-level cache together."""
    if shape["kind"] == "sparse":
        caches = [SparseData.cache(torch, shape["rows"]) for _ in range(2 if shape["extra"] else 1)]
        data = [SparseData(torch, shape, caches, n) for n in range(10)]
    else:
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


def print_errors():
    """Relative errors of rows of a prefill of 2048 tokens, queries, K and V in e4m3, against float64."""
    import torch
    shape = shape_of("prefill q f8e4m3 f8e4m3 nhd 1x2k heads 32/8 block 16")
    data = Data(torch, shape, seed=3)
    group = shape["heads"] // shape["kv_heads"]
    k, v = (data.cache[:, i][data.table[0].long()].flatten(0, 1).double().repeat_interleave(group, 1) for i in (0, 1))
    scores = torch.einsum("qhd,khd->hqk", data.q.double(), k) / shape["dim"]**0.5
    scores.masked_fill_(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()

    def outputs(rounded):
        return torch.einsum("hqk,khd->qhd", rounded.double(), v) / weights.sum(-1).transpose(0, 1).unsqueeze(-1)

    def show(name, out):
        errors = ((out.double() - exact).norm(dim=-1) / exact.norm(dim=-1)).flatten()
        print(f"{name:48} median {errors.median():.2e}, most {errors.max():.2e}")

    exact = outputs(weights)
    show("float64, rounded to bf16", exact.bfloat16())
    show("the same with weights in f16", outputs(weights.half()).bfloat16())
    show("the same with weights in e4m3, 256 the largest", (outputs((weights * 256).to(torch.float8_e4m3fn)) / 256).bfloat16())
    for kind in (FlashAttention3, FlashInfer):
        try:
            kind(torch).call(shape, data)()
            show(kind.name, data.out)
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            print(f"not compared: {kind.name}: {str(error).splitlines()[0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu-check", default="gpu_check", help="the program (default: gpu_check on PATH)")
    parser.add_argument("--part", default="", help="only cases with this in their name")
    parser.add_argument("--rounds", type=int, default=20, help="replays of which the median counts (default: 20)")
    parser.add_argument("--save", metavar="FILE", help="keep what was measured, as JSON")
    parser.add_argument("--from", dest="saved", metavar="FILE", help="print what --save kept")
    parser.add_argument("--errors", action="store_true", help="errors of others with codes, no times")
    arguments = parser.parse_args()
    if arguments.errors:
        try:
            print_errors()
        except (ImportError, RuntimeError) as error:
            parser.error(f"--errors: {error}; it needs PyTorch and a GPU")
        return 0
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
