#!/usr/bin/env python3
"""Compares kvblocks.attention with torch's own attention, and times the host's part of a call.

  tools/attention_torch_check.py [--device=cpu|cuda] [--rounds=20] [--no-times]

It needs torch and the Python package (docs/python.md); without --device it takes the GPU if there is one and the package was
built with CUDA, and the CPU in any case. On a GPU it also runs on a stream of its own, captures calls into graphs that it
replays with other lengths, and times FlashInfer and FlashAttention (as vLLM ships it), where they are installed.
Each comparison is one line: ok or WRONG, the largest error, and the limit. Exit status: 0 all within limits, 1 some are
not, 2 nothing could be run.
"""

import argparse
import sys
import time

import torch

from kvblocks import InvalidArgumentError, ResourceExhaustedError, attention

failures = []


def check(name, got, expected, limit):
    """The largest error relative to the largest expected magnitude."""
    got, expected = got.float(), expected.float()
    error = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-30)) if got.numel() else 0.0
    good = got.shape == expected.shape and error <= limit
    print(f"{'ok   ' if good else 'WRONG'}  {name:<58} error {error:.1e}, limit {limit:.0e}")
    if not good:
        failures.append(name)


def refuses(name, error_class, call):
    try:
        call()
    except error_class as error:
        print(f"ok     {name:<58} {error}")
        return
    print(f"WRONG  {name:<58} was not refused")
    failures.append(name)


class Batch:
    """A cache of random rows and requests in shuffled blocks of it."""

    def __init__(self, device, dtype, lengths, heads=8, kv_heads=2, dim=64, block_size=16, layout="nhd", seed=0,
                 max_len=None):
        generator = torch.Generator().manual_seed(seed)
        self.lengths, self.heads, self.kv_heads, self.dim = lengths, heads, kv_heads, dim
        columns = -(-(max_len or max(lengths)) // block_size)
        blocks = len(lengths) * columns + 1
        self.max_len = columns * block_size
        order = torch.randperm(blocks - 1, generator=generator)[: len(lengths) * columns] + 1
        self.block_table = order.view(len(lengths), columns).int().to(device)
        self.seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
        rows = torch.randn(2, blocks, block_size, kv_heads, dim, generator=generator)
        self.k, self.v = rows.to(dtype).to(device)
        if layout == "hnd":
            self.cache = attention.KVCache(self.k.transpose(1, 2).contiguous(), self.v.transpose(1, 2).contiguous(),
                                           layout="hnd")
        else:
            self.cache = attention.KVCache(self.k, self.v)
        self.generator, self.device, self.dtype = generator, device, dtype

    def queries(self, count):
        return torch.randn(count, self.heads, self.dim, generator=self.generator).to(self.dtype).to(self.device)

    def expected(self, q, counts, causal=True, window=0, k_scale=1.0, v_scale=1.0, lengths=None):
        """torch's attention, request by request, in float32."""
        out, begin = [], 0
        for b, (count, length) in enumerate(zip(counts, lengths or self.lengths)):
            blocks = self.block_table[b].long()
            k, v = (x[blocks].float().flatten(0, 1)[:length].transpose(0, 1) for x in (self.k, self.v))
            group = self.heads // self.kv_heads
            k, v = (x.repeat_interleave(group, 0) for x in (k * k_scale, v * v_scale))
            p = torch.arange(length - count, length, device=self.device)[:, None]
            j = torch.arange(length, device=self.device)[None]
            seen = (j <= p) if causal else torch.ones(count, length, dtype=torch.bool, device=self.device)
            if window:
                seen &= j > p - window
            rows = q[begin:begin + count].float().transpose(0, 1)
            out.append(torch.nn.functional.scaled_dot_product_attention(rows, k, v, attn_mask=seen).transpose(0, 1))
            begin += count
        return torch.cat(out)


def starts_of(counts, device):
    return torch.cumsum(torch.tensor([0, *counts]), 0).int().to(device)


def workspace_of(op, device, **bounds):
    if device == "cpu":
        return None
    return attention.Workspace(torch.empty(max(1, attention.workspace_bytes(op, **bounds)), dtype=torch.uint8,
                                           device=device))


def compare(device):
    """Every operation against torch."""
    limits = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
    for dtype, limit in limits.items():
        name = f"{device} {str(dtype)[6:]}"
        for layout in ("nhd", "hnd"):
            batch = Batch(device, dtype, [1, 17, 300, 129], layout=layout)
            bounds = {"max_reqs": 4, "max_tokens": 512, "num_heads": 8, "num_kv_heads": 2, "value_head_size": 64}
            space = workspace_of("paged_decode", device, **bounds)
            q = batch.queries(4)
            common = {"max_seq_len": batch.max_len, "workspace": space}
            check(f"{name} paged_decode {layout}",
                  attention.paged_decode(q, batch.cache, batch.block_table, batch.seq_lens, **common),
                  batch.expected(q, [1] * 4), limit)
            counts = [1, 5, 64, 129]
            q = batch.queries(sum(counts))
            arguments = (q, batch.cache, starts_of(counts, device), batch.seq_lens, batch.block_table)
            common = {"max_seq_len": batch.max_len, "max_query_len": 129,
                      "workspace": workspace_of("paged_prefill", device, **bounds)}
            check(f"{name} paged_prefill {layout}", attention.paged_prefill(*arguments, **common),
                  batch.expected(q, counts), limit)
            check(f"{name} paged_prefill {layout}, window of 40",
                  attention.paged_prefill(*arguments, window_left=39, **common),
                  batch.expected(q, counts, window=40), limit)
            check(f"{name} paged_prefill {layout}, not causal",
                  attention.paged_prefill(*arguments, causal=False, **common),
                  batch.expected(q, counts, causal=False), limit)

        # New tokens stored, then read back by attention; a slice of a fused projection.
        batch = Batch(device, dtype, [40, 23])
        fused = torch.randn(63, 3, 2, 64, generator=batch.generator).to(dtype).to(device)
        q, k, v = fused[:, 0], fused[:, 1], fused[:, 2]
        slots = torch.cat([batch.block_table[b].long()[torch.arange(n, device=device) // 16] * 16
                           + torch.arange(n, device=device) % 16 for b, n in enumerate([40, 23])])
        attention.reshape_and_cache(k, v, slots, batch.cache)
        batch.heads = 2
        starts = starts_of([40, 23], device)
        space = workspace_of("paged_prefill", device, **bounds)
        from_cache = attention.paged_prefill(q, batch.cache, starts, batch.seq_lens, batch.block_table,
                                             max_query_len=40, max_seq_len=48, workspace=space)
        check(f"{name} reshape_and_cache, then paged_prefill", from_cache, batch.expected(q, [40, 23]), limit)
        check(f"{name} varlen_self_attention", attention.varlen_self_attention(q, k, v, starts, workspace=space),
              batch.expected(q, [40, 23]), limit)

        # Two halves and their merge.
        batch = Batch(device, dtype, [64])
        q = batch.queries(1)
        outs, lses = q.new_empty(2, 1, 8, 64), torch.empty(2, 1, 8, device=device)
        half = torch.tensor([32], dtype=torch.int32, device=device)
        for i in range(2):
            blocks = batch.block_table[:, 2 * i:2 * i + 2].contiguous()
            attention.paged_decode(q, batch.cache, blocks, half, out=outs[i], lse=lses[i], max_seq_len=32,
                                   workspace=workspace_of("paged_decode", device, **bounds))
        check(f"{name} merge_states", attention.merge_states(outs, lses), batch.expected(q, [1]), 2 * limit)

        # MLA, dense and by lists.
        rows = torch.randn(9, 16, 576, generator=batch.generator).to(dtype).to(device)
        latent = attention.KVCache(rows, layout="mla_latent", latent_rank=512)
        table = torch.tensor([[4, 1, 7, 2], [3, 8, 5, 6]], dtype=torch.int32, device=device)
        lengths = torch.tensor([50, 64], dtype=torch.int32, device=device)
        q = torch.randn(2, 16, 576, generator=batch.generator).to(dtype).to(device)
        keys = rows[table.long()].flatten(1, 2).float()
        hidden = torch.arange(64, device=device)[None] >= lengths[:, None]
        scores = torch.einsum("bhd,bkd->bhk", q.float(), keys) * 0.05
        weights = scores.masked_fill(hidden[:, None], -torch.inf).softmax(-1)
        expected = torch.einsum("bhk,bkd->bhd", weights, keys[:, :, :512])
        space = workspace_of("mla_decode", device, max_reqs=2, num_heads=16, num_kv_heads=1, value_head_size=512)
        check(f"{name} mla_decode", attention.mla_decode(q, latent, table, lengths, scale=0.05, max_seq_len=64,
                                                         workspace=space), expected, 2 * limit)
        indices = (table.long()[:, :, None] * 16 + torch.arange(16, device=device)).flatten(1)
        indices = torch.where(hidden, -1, indices).int()[:, None]
        check(f"{name} sparse_mla_decode",
              attention.sparse_mla_decode(q[:, None], latent, indices, scale=0.05, workspace=space)[:, 0], expected,
              2 * limit)

    # Codes of torch's own type, and the same bytes as uint8.
    batch = Batch(device, torch.float32, [100, 30])
    batch.k, batch.v = ((x * 4).to(torch.float8_e4m3fn) for x in (batch.k, batch.v))
    q = batch.queries(2).to(torch.bfloat16)
    quarter = torch.tensor([0.25], device=device)
    expected = batch.expected(q, [1, 1], k_scale=0.25, v_scale=0.25)
    caches = {"uint8 as float8_e4m3fn": attention.KVCache(
        *(attention.Tensor(x.view(torch.uint8), torch.float8_e4m3fn) for x in (batch.k, batch.v)))}
    try:
        caches["float8_e4m3fn"] = attention.KVCache(batch.k, batch.v)
    except Exception as error:  # an older torch, whose DLPack has no such type
        print(f"       {device}: torch does not hand out float8: {error}")
    space = workspace_of("paged_decode", device, **bounds)
    for name, cache in caches.items():
        check(f"{device} paged_decode of {name}",
              attention.paged_decode(q, cache, batch.block_table, batch.seq_lens, k_scale=quarter, v_scale=quarter,
                                     max_seq_len=batch.max_len, workspace=space), expected, 1e-2)
    codes = torch.empty(2, 8, 64, dtype=torch.float8_e4m3fn, device=device)
    scale = torch.tensor([1 / 64], device=device)
    of_codes = caches["uint8 as float8_e4m3fn"]
    try:
        attention.quantize_queries(q, codes, scale=scale)
        check(f"{device} quantize_queries", codes, (q.float() * 64).to(codes.dtype), 0)
        check(f"{device} paged_decode with queries in codes",
              attention.paged_decode(codes, of_codes, batch.block_table, batch.seq_lens, q_scale=scale, k_scale=quarter,
                                     v_scale=quarter, max_seq_len=batch.max_len, out=torch.empty_like(q), workspace=space),
              batch.expected(codes.float() / 64, [1, 1], k_scale=0.25, v_scale=0.25), 1e-2)
    except InvalidArgumentError as error:
        print(f"       {device}: torch does not hand out float8: {error}")

    # A mask that hides what causality would.
    batch = Batch(device, torch.bfloat16, [90])
    q = batch.queries(90)
    hides = torch.triu(torch.ones(90, 90, dtype=torch.uint8, device=device), 1)
    check(f"{device} paged_prefill with a mask",
          attention.paged_prefill(q, batch.cache, starts_of([90], device), batch.seq_lens, batch.block_table, causal=False,
                                  mask=hides, max_query_len=90, max_seq_len=batch.max_len,
                                  workspace=workspace_of("paged_prefill", device, **bounds)),
          batch.expected(q, [90]), 1e-2)


def check_cuda():
    """What only a GPU has: streams, graphs, flags, workspaces."""
    bounds = {"max_reqs": 4, "num_heads": 8, "num_kv_heads": 2, "value_head_size": 64}
    batch = Batch("cuda", torch.bfloat16, [700, 20, 333, 512], max_len=1024)
    q = batch.queries(4)
    out = torch.zeros_like(q)
    flags = torch.zeros(1, dtype=torch.int32, device="cuda")
    memory = torch.empty(attention.workspace_bytes("paged_decode", **bounds), dtype=torch.uint8, device="cuda")
    space = attention.Workspace(memory, error_flags=flags)

    def decode(**changes):
        arguments = {"max_seq_len": 1024, "out": out, "workspace": space, **changes}
        return attention.paged_decode(q, batch.cache, batch.block_table, batch.seq_lens, **arguments)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)  # what is enqueued on another stream would overtake this
        q.mul_(2)
        decode()
        torch.cuda.current_stream().synchronize()
    check("cuda: torch's current stream is taken", out, batch.expected(q, [1] * 4), 1e-2)
    for name, stream in (("a stream of torch", side), ("its number", side.cuda_stream)):
        out.zero_()
        torch.cuda.synchronize()
        decode(stream=stream)
        side.synchronize()
        check(f"cuda: stream= takes {name}", out, batch.expected(q, [1] * 4), 1e-2)

    torch.cuda.reset_peak_memory_stats()
    allocated = torch.cuda.memory_allocated()
    decode()
    most = torch.tensor([torch.cuda.max_memory_allocated()])
    check("cuda: a call allocates nothing", most, torch.tensor([allocated]), 0)

    plan = attention.DecodePlan(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    shapes = (q, batch.cache, batch.block_table, batch.seq_lens)
    attention.plan_decode(plan, *shapes, max_seq_len=1024, out=out)
    for layer in range(2):
        out.zero_()
        check(f"cuda: a plan, layer {layer}", decode(plan=plan), batch.expected(q, [1] * 4), 1e-2)

    starts = torch.arange(5, dtype=torch.int32)
    positions = batch.seq_lens.cpu() - 1
    mapped = torch.zeros(4, dtype=torch.int64)
    attention.compute_slot_mapping(starts, positions, batch.block_table.cpu(), mapped, 16)
    mapped_there = torch.zeros(4, dtype=torch.int64, device="cuda")
    attention.compute_slot_mapping(starts.cuda(), positions.cuda(), batch.block_table, mapped_there, 16)
    check("cuda: compute_slot_mapping as on the host", mapped_there.cpu(), mapped, 0)

    builder = attention.AttentionMetadataBuilder([attention.KVGroup(300)], max_num_reqs=4, max_num_tokens=8,
                                                 max_seq_len=1024)
    there = attention.DeviceMetadata(builder)
    for lengths in ([700, 20, 333, 512], [64, 65, 1, 1000]):
        builder.build([n - 1 for n in lengths], [1] * 4, [batch.block_table.cpu().numpy()])
        there.upload(torch.cuda.current_stream())
        meta = there.metadata()
        check(f"cuda: uploaded metadata of lengths {lengths}", torch.from_dlpack(meta.seq_lens).cpu(),
              torch.tensor(lengths), 0)
        got = attention.paged_decode(q, batch.cache, meta.block_table, meta.seq_lens, max_seq_len=1024, out=out,
                                     workspace=space)
        check(f"cuda: decode of uploaded metadata, {lengths}", got, batch.expected(q, [1] * 4, lengths=lengths), 1e-2)

    graph = torch.cuda.CUDAGraph()
    new = torch.randn(4, 2, 64, device="cuda").bfloat16()
    slots = torch.zeros(4, dtype=torch.int64, device="cuda")
    with torch.cuda.graph(graph):
        attention.reshape_and_cache(new, new, slots, batch.cache)
        decode()
    for lengths in ([700, 20, 333, 512], [1, 1024, 64, 5]):
        batch.seq_lens.copy_(torch.tensor(lengths))
        last = torch.tensor(lengths) - 1
        slots.copy_(batch.block_table.cpu().long()[torch.arange(4), last // 16] * 16 + last % 16)
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        check(f"cuda: a captured graph with lengths {lengths}", out, batch.expected(q, [1] * 4, lengths=lengths), 1e-2)
    check("cuda: no error flag is set", flags, torch.tensor([0], device="cuda"), 0)
    bad = batch.block_table.clone()
    bad[0, 0] = 10_000
    attention.paged_decode(q, batch.cache, bad, batch.seq_lens, max_seq_len=1024, out=out, workspace=space)
    check("cuda: a bad block id sets a flag", flags, torch.tensor([2], device="cuda"), 0)
    refuses("cuda: max_seq_len left out", InvalidArgumentError, lambda: decode(max_seq_len=None))
    refuses("cuda: lengths on the host", InvalidArgumentError, lambda: attention.paged_decode(
        q, batch.cache, batch.block_table, batch.seq_lens.cpu(), max_seq_len=1024, out=out))
    refuses("cuda: a workspace on the host", InvalidArgumentError,
            lambda: decode(workspace=attention.Workspace(memory.cpu())))
    refuses("cuda: a workspace that is too small", ResourceExhaustedError,
            lambda: decode(num_splits=8, workspace=attention.Workspace(memory[:256])))
    try:
        import cupy
    except ImportError:
        print("       CuPy is not installed")
    else:
        for_cupy = cupy.zeros(tuple(q.shape), cupy.float16)
        half = Batch("cuda", torch.float16, [700, 20, 333, 512], max_len=1024)
        q16 = cupy.from_dlpack(half.queries(4))
        attention.paged_decode(q16, half.cache, cupy.from_dlpack(half.block_table), cupy.from_dlpack(half.seq_lens),
                               max_seq_len=1024, out=for_cupy, workspace=space)
        torch.cuda.synchronize()
        check("cuda: arrays of CuPy", torch.from_dlpack(for_cupy), half.expected(torch.from_dlpack(q16), [1] * 4), 2e-3)


def host_time(call, device, rounds, calls=200):
    """Microseconds per call of the host's part, the least of the rounds."""
    best = float("inf")
    for _ in range(rounds):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - begin) / calls)
    if device == "cuda":
        torch.cuda.synchronize()
    return best * 1e6


def peers(batch, q, out):
    """Decode by other libraries: {name: call or why not}."""
    found = {}
    try:
        import flashinfer

        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(128 << 20, dtype=torch.uint8, device="cuda"), "NHD")
        pages = (batch.seq_lens + 15) // 16
        indptr = torch.cat([pages.new_zeros(1), pages.cumsum(0)]).int()
        indices = torch.cat([batch.block_table[b, :n] for b, n in enumerate(pages.tolist())])
        wrapper.plan(indptr, indices, (batch.seq_lens - 1) % 16 + 1, batch.heads, batch.kv_heads, batch.dim, 16,
                     q_data_type=q.dtype, kv_data_type=q.dtype)
        pair = (batch.k, batch.v)
        check("cuda: FlashInfer agrees", wrapper.run(q, pair), batch.expected(q, [1] * len(batch.lengths)), 1e-2)
        found["FlashInfer, run of a plan"] = lambda: wrapper.run(q, pair, out=out)
    except Exception as error:  # not installed, or it cannot compile its kernels
        found["FlashInfer"] = str(error).splitlines()[0]
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func

        starts = torch.arange(len(batch.lengths) + 1, dtype=torch.int32, device="cuda")

        def fa3():
            return flash_attn_varlen_func(q, batch.k, batch.v, 1, starts, batch.max_len, seqused_k=batch.seq_lens,
                                          causal=True, block_table=batch.block_table, out=out, fa_version=3)

        check("cuda: FlashAttention 3 agrees", fa3(), batch.expected(q, [1] * len(batch.lengths)), 1e-2)
        found["FlashAttention 3 of vLLM"] = fa3
    except Exception as error:
        found["FlashAttention 3 of vLLM"] = str(error).splitlines()[0]
    return found


def times(device, rounds):
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    batch = Batch(device, dtype, [16] * 2, max_len=64)
    q = batch.queries(2)
    out = torch.empty_like(q)
    space = workspace_of("paged_decode", device, max_reqs=2, num_heads=8, num_kv_heads=2, value_head_size=64)
    common = {"max_seq_len": 64, "scale": 0.125, "out": out, "workspace": space}
    fixed = [attention.Tensor(x) for x in (q, batch.block_table, batch.seq_lens, out)]
    none = [x[:0] for x in (q, batch.block_table, batch.seq_lens, out)]
    k = torch.randn(2, 2, 64, device=device).to(dtype)
    slots = torch.tensor([20, 40], device=device)
    rows = {
        "kvblocks paged_decode":
            lambda: attention.paged_decode(q, batch.cache, batch.block_table, batch.seq_lens, **common),
        "kvblocks paged_decode, arrays as Tensor":
            lambda: attention.paged_decode(fixed[0], batch.cache, fixed[1], fixed[2], max_seq_len=64, scale=0.125,
                                           out=fixed[3], workspace=space),
        "kvblocks paged_decode of no request":
            lambda: attention.paged_decode(none[0], batch.cache, none[1], none[2], max_seq_len=64, scale=0.125,
                                           out=none[3], workspace=space),
        "kvblocks reshape_and_cache": lambda: attention.reshape_and_cache(k, k, slots, batch.cache),
        "torch scaled_dot_product_attention, no cache":
            lambda: torch.nn.functional.scaled_dot_product_attention(q[:, :, None], q[:, :, None], q[:, :, None]),
    }
    if device == "cuda":
        rows.update(peers(batch, q, out))
    print(f"\nhost time per call on {device}, 2 requests of 16 tokens, 8/2 heads of 64, {str(dtype)[6:]}")
    for name, call in rows.items():
        if isinstance(call, str):
            print(f"  {name:<48} not there: {call}")
        else:
            print(f"  {name:<48} {host_time(call, device, rounds):7.2f} us")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--no-times", action="store_true")
    options = parser.parse_args()
    usable = {"cpu"} | ({"cuda"} if attention.has_cuda and torch.cuda.is_available() else set())
    if options.device not in usable | {None}:
        print(f"no CUDA: the package {'has' if attention.has_cuda else 'was built without'} CUDA, and torch "
              f"{'sees' if torch.cuda.is_available() else 'sees no'} GPU", file=sys.stderr)
        return 2
    devices = [options.device] if options.device else sorted(usable)
    gpu = f", {torch.cuda.get_device_name()}" if "cuda" in devices else ""
    print(f"torch {torch.__version__}, kvblocks {'with' if attention.has_cuda else 'without'} CUDA{gpu}")
    for device in devices:
        compare(device)
        if device == "cuda":
            check_cuda()
    if not options.no_times:
        for device in devices:
            times(device, options.rounds)
    print(f"\n{len(failures)} wrong" + "".join(f"\n  {name}" for name in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
