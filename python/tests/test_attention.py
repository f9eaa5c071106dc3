"""kvblocks.attention on numpy arrays, against attention that is written out."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from conftest import refusal

import kvblocks
from kvblocks import attention

Array = Any


def dense(q: Array, k: Array, v: Array, *, scale: float, first: int = 0, window_left: int = -1,
          causal: bool = True, sink: float | None = None) -> tuple[Array, float]:
    """One query at position `first` against the keys of one head, in float64."""
    scores = scale * (k.astype(np.float64) @ q.astype(np.float64))
    j = np.arange(len(k))
    hidden = (j > first) if causal else np.zeros(len(k), bool)
    if window_left >= 0:
        hidden |= j < first - window_left
    scores[hidden] = -np.inf
    if hidden.all():
        return np.zeros(v.shape[1]), -np.inf
    most = scores.max()
    weights = np.exp(scores - most)
    total = weights.sum()
    full = total if sink is None else total + np.exp(sink - most)
    return weights @ v.astype(np.float64) / full, most + float(np.log(total))


class Paged:
    """A cache of random keys and values, and requests that lie in shuffled blocks of it."""

    def __init__(self, rng: np.random.Generator, lengths: list[int], layout: str = "nhd", kv_heads: int = 2,
                 dim: int = 8, value_dim: int = 8, block_size: int = 4, dtype: Any = np.float32) -> None:
        self.lengths, self.kv_heads, self.block_size = lengths, kv_heads, block_size
        columns = max(1, max(-(-n // block_size) for n in lengths))
        num_blocks = len(lengths) * columns + 1
        self.block_table = rng.permutation(num_blocks - 1)[: len(lengths) * columns].reshape(len(lengths), columns)
        self.block_table = self.block_table.astype(np.int32)
        self.seq_lens = np.array(lengths, np.int32)
        self.k = rng.standard_normal((num_blocks, block_size, kv_heads, dim)).astype(dtype)
        self.v = rng.standard_normal((num_blocks, block_size, kv_heads, value_dim)).astype(dtype)
        if layout == "hnd":
            self.cache = attention.KVCache(self.k.swapaxes(1, 2).copy(), self.v.swapaxes(1, 2).copy(), layout="hnd")
        else:
            self.cache = attention.KVCache(self.k, self.v)

    def rows(self, request: int, head: int) -> tuple[Array, Array]:
        blocks = self.block_table[request]
        n = self.lengths[request]
        return (self.k[blocks, :, head].reshape(-1, self.k.shape[-1])[:n],
                self.v[blocks, :, head].reshape(-1, self.v.shape[-1])[:n])


def check_rows(case: Paged, q: Array, out: Array, lse: Array | None, starts: list[int], **rules: Any) -> None:
    heads = q.shape[1]
    sinks = rules.pop("sinks", None)
    for request, length in enumerate(case.lengths):
        count = starts[request + 1] - starts[request]
        for i in range(count):
            row = starts[request] + i
            for head in range(heads):
                k, v = case.rows(request, head * case.kv_heads // heads)
                expected, log = dense(q[row, head], k, v, first=length - count + i,
                                      sink=None if sinks is None else sinks[head], **rules)
                np.testing.assert_allclose(out[row, head], expected, atol=2e-6)
                if lse is not None:
                    np.testing.assert_allclose(lse[row, head], log, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("seed", range(6))
def test_decode_is_dense_attention(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = [int(n) for n in rng.integers(0, 23, rng.integers(1, 5))]
    case = Paged(rng, lengths, layout="hnd" if seed % 2 else "nhd", kv_heads=int(rng.integers(1, 3)),
                 dim=int(rng.integers(1, 20)), value_dim=int(rng.integers(1, 20)))
    heads = case.kv_heads * int(rng.integers(1, 4))
    q = rng.standard_normal((len(lengths), heads, case.k.shape[-1]), np.float32)
    window = int(rng.integers(-1, 9))
    sinks = rng.standard_normal(heads).astype(np.float32)
    out, lse = attention.paged_decode(q, case.cache, case.block_table, case.seq_lens, scale=0.3, window_left=window,
                                      sinks=sinks, return_lse=True, split_tokens=8 if seed % 3 == 0 else None)
    assert out.dtype == np.float32 and lse.shape == q.shape[:2]
    check_rows(case, q, out, lse, list(range(len(lengths) + 1)), scale=0.3, window_left=window, sinks=sinks)


@pytest.mark.parametrize("seed", range(6))
def test_prefill_is_dense_attention(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    lengths = [int(n) for n in rng.integers(1, 23, rng.integers(1, 5))]
    case = Paged(rng, lengths, layout="hnd" if seed % 2 else "nhd")
    counts = [int(rng.integers(0, n + 1)) for n in lengths]
    starts = [0, *np.cumsum(counts).tolist()]
    # A slice of a fused projection: rows are not adjacent.
    q = rng.standard_normal((starts[-1], 3, 4, 8), np.float32)[:, 1]
    causal = seed % 3 != 0
    with attention_pool(seed) as threads:
        out, lse = attention.paged_prefill(q, case.cache, np.array(starts, np.int32), case.seq_lens,
                                           case.block_table, causal=causal, return_lse=True, threads=threads)
    check_rows(case, q, out, lse, starts, scale=8**-0.5, causal=causal)
    if causal:
        masked = attention.paged_prefill(q, case.cache, np.array(starts, np.int32), case.seq_lens, case.block_table,
                                         causal=False, mask=~np.tri(24, dtype=bool), mask_rows_are_absolute=True)
        np.testing.assert_array_equal(masked, out)


class attention_pool:
    """A pool of two threads for every other seed."""

    def __init__(self, seed: int) -> None:
        self.pool = attention.ThreadPool(2) if seed % 2 else None

    def __enter__(self) -> attention.ThreadPool | None:
        return self.pool

    def __exit__(self, *error: object) -> None:
        self.pool = None


def test_a_written_cache_is_read(seed: int = 7) -> None:
    rng = np.random.default_rng(seed)
    k, v = rng.standard_normal((2, 10, 2, 8), np.float32)
    slots = np.concatenate([rng.permutation(24)[:9], [-1]]).astype(np.int64)
    storage = np.full((6, 2, 4, 2, 8), 5, np.float32)  # K and V of a block beside each other
    cache = attention.KVCache(storage[:, 0], storage[:, 1])
    attention.reshape_and_cache(k, v, slots, cache)
    written = storage.transpose(1, 0, 2, 3, 4).reshape(2, 24, 2, 8)
    np.testing.assert_array_equal(written[:, slots[:9]], np.stack([k, v])[:, :9])
    assert np.count_nonzero(written != 5) == 9 * 2 * 2 * 8

    gathered, gathered_v = np.zeros((2, 1, 7, 2, 8), np.float32)
    attention.gather_cache(cache, np.array([[3, 1]], np.int32), np.array([7], np.int32), np.array([5], np.int32),
                           gathered, gathered_v, row_offset=2)
    np.testing.assert_array_equal(gathered[0, 2:], storage[[3, 1], 0].reshape(8, 2, 8)[2:7])
    assert not gathered_v[0, :2].any()


def test_caches_in_codes_take_scales() -> None:
    rng = np.random.default_rng(3)
    k, v = rng.standard_normal((2, 8, 1, 16), np.float32)
    k_scale, v_scale = np.zeros((2, 1), np.float32)
    attention.compute_kv_scales(k, v, k_scale, v_scale, k_divisor=127, v_divisor=127)
    np.testing.assert_allclose(k_scale, abs(k).max() / 127, rtol=1e-6)
    for dtype, memory in (("int8", np.int8), ("float8_e4m3fn", np.uint8)):
        codes = np.zeros((2, 2, 4, 1, 16), memory)
        cache = attention.KVCache(attention.Tensor(codes[0], dtype), attention.Tensor(codes[1], dtype))
        assert cache.dtype == dtype
        slots = np.arange(8)
        attention.reshape_and_cache(k, v, slots, cache, k_scale=k_scale, v_scale=float(v_scale[0]))
        back, back_v = np.zeros((2, 1, 8, 1, 16), np.float32)
        table, lengths = np.array([[0, 1]], np.int32), np.array([8], np.int32)
        attention.gather_cache(cache, table, lengths, lengths, back, back_v, k_scale=k_scale, v_scale=v_scale)
        if dtype == "int8":
            np.testing.assert_array_equal(codes[0].reshape(8, 1, 16), np.rint(k / k_scale).astype(np.int8))
        np.testing.assert_allclose(back[0], k, atol=k_scale[0] * (0.5 if dtype == "int8" else 8))
        q = rng.standard_normal((1, 2, 16), np.float32)
        out = attention.paged_decode(q, cache, table, lengths, k_scale=k_scale, v_scale=v_scale)
        for head in range(2):
            expected, _ = dense(q[0, head], back[0, :, 0], back_v[0, :, 0], scale=0.25, first=7)
            np.testing.assert_allclose(out[0, head], expected, atol=2e-6)


def test_caches_with_scales_of_their_own() -> None:
    rng = np.random.default_rng(15)
    k, v = rng.standard_normal((2, 8, 1, 16), np.float32)
    codes, scales = np.zeros((2, 2, 4, 1, 16), np.int8), np.zeros((2, 2, 4, 1), np.float32)
    cache = attention.KVCache(codes[0], codes[1], row_format="per_token_head", k_scales=scales[0], v_scales=scales[1])
    attention.reshape_and_cache(k, v, np.arange(8), cache)
    back = codes * scales[..., None]
    np.testing.assert_allclose(back.reshape(2, 8, 1, 16), np.stack([k, v]), atol=abs(k).max() / 120)
    q = rng.standard_normal((1, 2, 16), np.float32)
    out = attention.paged_decode(q, cache, np.array([[0, 1]], np.int32), np.array([8], np.int32))
    for head in range(2):
        expected, _ = dense(q[0, head], back[0].reshape(8, 16), back[1].reshape(8, 16), scale=0.25, first=7)
        np.testing.assert_allclose(out[0, head], expected, atol=2e-6)
    refusal("k_scales or v_scales is None; this row_format has scales", lambda: attention.KVCache(
        codes[0], codes[1], row_format="nvfp4", k_scales=scales[0]))
    refusal("this row_format is for mla_latent", lambda: attention.KVCache(
        codes[0], codes[1], row_format="mla_nvfp4_352"))
    refusal("row_format is int3; one of elements", lambda: attention.KVCache(codes[0], codes[1], row_format="int3"))


def from_e4m3(codes: Array) -> Array:
    """What codes of float8_e4m3fn stand for, in float64."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int64), (codes & 7).astype(np.float64)
    magnitude = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(codes >> 7, -magnitude, magnitude)


def to_e4m3(values: Array) -> Array:
    """The nearest codes, ties to the even one, at most 448."""
    of = from_e4m3(np.arange(127, dtype=np.uint8))
    distance = abs(np.minimum(abs(values), of[-1])[..., None] - of)
    nearest = distance.min(-1, keepdims=True)
    # Of two codes that are as near, neighbours both, the even one.
    candidates = np.where(distance == nearest, np.arange(127) % 2, 2)
    return (candidates.argmin(-1) | np.where(np.signbit(values), 128, 0)).astype(np.uint8)


def e4m3(codes: Array) -> attention.Tensor:
    return attention.Tensor(codes, "float8_e4m3fn")


def test_queries_become_codes() -> None:
    rng = np.random.default_rng(31)
    q = (50 * rng.standard_normal((5, 3, 16))).astype(np.float32)
    q[0, 0, :6] = [0.0, -0.0, 17, 19, 1e6, -1e6]  # 17 and 19 lie between codes
    codes = np.zeros((5, 3, 16), np.uint8)
    attention.quantize_queries(q, e4m3(codes))
    np.testing.assert_array_equal(codes, to_e4m3(q))
    assert from_e4m3(codes[0, 0, :6]).tolist() == [0, 0, 16, 20, 448, -448]
    for scale in (0.3, np.array([0.3], np.float32), np.array(0.3, np.float32)):
        codes[:] = 0
        attention.quantize_queries(q, e4m3(codes), scale=scale)
        np.testing.assert_array_equal(codes, to_e4m3(q / np.float64(np.float32(0.3))))
    kept = codes.copy()
    refusal("^quantize_queries: codes is u8", lambda: attention.quantize_queries(q, codes))
    refusal(r"^quantize_queries: scale\[0\] is -1", lambda: attention.quantize_queries(q, e4m3(codes), scale=-1.0))
    refusal(r"^quantize_queries: scale is f32\[3\]; one element", lambda: attention.quantize_queries(
        q, e4m3(codes), scale=np.ones(3, np.float32)))
    np.testing.assert_array_equal(codes, kept)


@pytest.mark.parametrize("backend", ["cpu", "cpu_reference"])
@pytest.mark.parametrize("cache_in_codes", [False, True])
def test_attention_of_queries_in_codes(cache_in_codes: bool, backend: str) -> None:
    with attention.use_backend(backend):
        check_queries_in_codes(cache_in_codes)


def check_queries_in_codes(cache_in_codes: bool) -> None:
    rng = np.random.default_rng(32)
    case = Paged(rng, [14, 17])
    case.block_table[1, :2] = case.block_table[0, :2]
    cache = case.cache
    scales: dict[str, Any] = {}
    if cache_in_codes:
        codes = np.stack([to_e4m3(case.k / 0.01), to_e4m3(case.v / 0.02)])
        case.k, case.v = from_e4m3(codes[0]) * 0.01, from_e4m3(codes[1]) * 0.02
        cache = attention.KVCache(e4m3(codes[0]), e4m3(codes[1]))
        scales = {"k_scale": 0.01, "v_scale": 0.02}
    starts = [0, 3, 7]
    q_codes = to_e4m3(100 * rng.standard_normal((7, 4, 8)))
    per_head = np.array([0.01, 0.03], np.float32)  # of KV heads, of two heads each
    start_loc, last = np.array(starts, np.int32), [2, 6]
    for q_scale, factor in ((per_head, per_head.repeat(2)[:, None]), (0.02, 0.02), (None, 1)):
        q, scale = from_e4m3(q_codes) * factor, 0.3 if q_scale is not None else 0.003
        codes_of_all = {**scales, "q_scale": q_scale, "scale": scale}
        out, lse = np.zeros((7, 4, 8), np.float32), np.zeros((7, 4), np.float32)
        arguments = (e4m3(q_codes), cache, start_loc, case.seq_lens, case.block_table)
        assert attention.paged_prefill(*arguments, out=out, lse=lse, **codes_of_all) is out
        check_rows(case, q, out, lse, starts, scale=scale)
        shared = np.zeros_like(out)
        attention.cascade(*arguments, 8, out=shared, **codes_of_all)
        check_rows(case, q, shared, None, starts, scale=scale)
        decoded = np.zeros((2, 4, 8), np.float32)
        decode = (e4m3(q_codes[last]), cache, case.block_table, case.seq_lens)
        attention.paged_decode(*decode, out=decoded, **codes_of_all)
        check_rows(case, q[last], decoded, None, [0, 1, 2], scale=scale)
        max_logits, exp_sums = np.zeros((2, 2, 4, 3), np.float32)
        tmp_out, reduced = np.zeros((2, 4, 3, 8), np.float32), np.zeros_like(decoded)
        attention.paged_decode_partial(*decode, max_logits, exp_sums, tmp_out, partition_tokens=8, **codes_of_all)
        attention.reduce_splits(max_logits, exp_sums, tmp_out, reduced)
        check_rows(case, q[last], reduced, None, [0, 1, 2], scale=scale)

    out[:] = 3
    floats = from_e4m3(q_codes).astype(np.float32)
    paged = (cache, start_loc, case.seq_lens, case.block_table)
    refusal(r"^paged_prefill: q_scale\[1\] is 0; it must be finite and above 0", lambda: attention.paged_prefill(
        *arguments, out=out, q_scale=np.array([1, 0], np.float32), **scales))
    refusal(r"^cascade: q_scale is f32\[3\]; one element, \[Hkv = 2\]", lambda: attention.cascade(
        *arguments, 8, out=out, q_scale=np.ones(3, np.float32), **scales))
    refusal("^cascade: out is None; with q in codes give an array of floats", lambda: attention.cascade(
        *arguments, 8, q_scale=1.0, **scales))
    refusal("^paged_decode: out is None; with q in codes give an array of floats", lambda: attention.paged_decode(
        *decode, q_scale=1.0, **scales))
    refusal("^paged_prefill: q_scale is given, but q is f32", lambda: attention.paged_prefill(
        floats, *paged, out=out, q_scale=1.0, **scales))
    refusal("^paged_decode: q_scale is given, but q is f32", lambda: attention.paged_decode(
        floats[last], cache, case.block_table, case.seq_lens, q_scale=1.0, **scales))
    refusal("^paged_decode_partial: q_scale is given, but q is f32", lambda: attention.paged_decode_partial(
        floats[last], cache, case.block_table, case.seq_lens, max_logits, exp_sums, tmp_out, partition_tokens=8,
        q_scale=1.0, **scales))
    assert (out == 3).all()


def test_self_attention_of_codes() -> None:
    rng = np.random.default_rng(33)
    q_codes, k_codes, v_codes = (to_e4m3(100 * rng.standard_normal((9, heads, 8))) for heads in (4, 2, 2))
    k_scale, v_scale = np.array([0.01, 0.02], np.float32), np.array([0.005], np.float32)
    k, v = from_e4m3(k_codes) * k_scale[:, None], from_e4m3(v_codes) * v_scale
    starts = np.array([0, 4, 9], np.int32)
    floats = rng.standard_normal((9, 4, 8)).astype(np.float32)
    cases: list[tuple[Array, Array, dict[str, Any]]] = [
        (from_e4m3(q_codes) * 0.01, e4m3(q_codes), {"q_scale": 0.01}), (floats, floats, {})]
    for q, given, options in cases:
        out = np.zeros((9, 4, 8), np.float32)
        attention.varlen_self_attention(given, e4m3(k_codes), e4m3(v_codes), starts, k_scale=k_scale, v_scale=v_scale,
                                        out=out, **options)
        for begin, end in ((0, 4), (4, 9)):
            for row, head in itertools.product(range(begin, end), range(4)):
                expected, _ = dense(q[row, head], k[begin:end, head // 2], v[begin:end, head // 2], scale=8**-0.5,
                                    first=row - begin)
                np.testing.assert_allclose(out[row, head], expected, atol=2e-6)
    kept = out.copy()
    refusal("^varlen_self_attention: k_scale or v_scale is given; k and v are f32", lambda: attention.varlen_self_attention(
        floats, floats[:, :2].copy(), floats[:, :2].copy(), starts, k_scale=1.0, out=out))
    refusal("^varlen_self_attention: q_scale is given, but q is f32", lambda: attention.varlen_self_attention(
        floats, e4m3(k_codes), e4m3(v_codes), starts, q_scale=1.0, out=out))
    refusal("^varlen_self_attention: out is None; with q in codes", lambda: attention.varlen_self_attention(
        e4m3(q_codes), e4m3(k_codes), e4m3(v_codes), starts))
    np.testing.assert_array_equal(out, kept)


def test_scales_and_codes_in_one_call() -> None:
    rng = np.random.default_rng(34)
    k, v = rng.standard_normal((2, 8, 2, 16), np.float32)
    q = rng.standard_normal((8, 4, 16), np.float32)
    slots = np.array([3, 7, 0, 1, -1, 2, 11], np.int64)
    codes, again = np.full((2, 2, 3, 4, 2, 16), 9, np.uint8)
    for shape in (1, 2):
        k_scale, v_scale, k_again, v_again = np.zeros((4, shape), np.float32)
        q_scale, q_again = np.zeros((2, 1), np.float32)
        options: dict[str, Any] = {"k_divisor": 150.0, "v_divisor": 90.0, "q_divisor": 120.0}
        attention.scale_and_cache(k, v, slots, attention.KVCache(e4m3(codes[0]), e4m3(codes[1])), k_scale, v_scale,
                                  q=q, q_scale=q_scale, **options)
        axis = None if shape == 1 else (0, 2)
        cases: list[tuple[Array, float, Array]] = [(k, 150, k_scale), (v, 90, v_scale)]
        for given, divisor, scale in cases:
            np.testing.assert_allclose(scale, abs(given).max(axis) / divisor, rtol=1e-6)
        np.testing.assert_allclose(q_scale, abs(q).max() / 120, rtol=1e-6)
        attention.compute_kv_scales(k, v, k_again, v_again, q=q, q_scale=q_again, **options)
        attention.reshape_and_cache(k, v, slots, attention.KVCache(e4m3(again[0]), e4m3(again[1])), k_scale=k_again,
                                    v_scale=v_again)
        for one, two in ((k_scale, k_again), (v_scale, v_again), (q_scale, q_again), (codes, again)):
            np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(codes[0].reshape(12, 2, 16)[[3, 7, 0, 1, 2, 11]],
                                      to_e4m3(k[[0, 1, 2, 3, 5, 6]] / k_scale.astype(np.float64)[:, None]))
        assert (codes.reshape(2, 12, 32)[:, [4, 5, 6, 8, 9, 10]] == 9).all()
    kept = codes.copy(), k_scale.copy()
    refusal("^scale_and_cache: slot_mapping has 3 twice", lambda: attention.scale_and_cache(
        2 * k, v, np.array([3, 3]), attention.KVCache(e4m3(codes[0]), e4m3(codes[1])), k_scale, v_scale))
    refusal("^scale_and_cache: q and q_scale go together", lambda: attention.scale_and_cache(
        2 * k, v, slots, attention.KVCache(e4m3(codes[0]), e4m3(codes[1])), k_scale, v_scale, q=q))
    floats = np.zeros((2, 3, 4, 2, 16), np.float32)
    refusal("^scale_and_cache: the cache is f32 .*; call reshape_and_cache", lambda: attention.scale_and_cache(
        2 * k, v, slots, attention.KVCache(*floats), k_scale, v_scale))
    np.testing.assert_array_equal(codes, kept[0])
    np.testing.assert_array_equal(k_scale, kept[1])
    assert not floats.any()
    bounds = {"max_tokens": 640, "num_heads": 32, "num_kv_heads": 8}
    assert (attention.workspace_bytes("scale_and_cache", **bounds) ==
            attention.workspace_bytes("compute_kv_scales", **bounds) > 0)


def test_rows_are_gathered() -> None:
    rng = np.random.default_rng(35)
    index = np.array([4, 0, 4, 2], np.int32)
    for rows in (rng.standard_normal((5, 3, 4), np.float32), rng.integers(0, 99, (5, 6)), np.arange(5, dtype=np.int32),
                 rng.standard_normal((5, 2, 4, 8), np.float32)[:, 1]):
        out = attention.gather_rows(rows, index)
        assert out.dtype == rows.dtype
        np.testing.assert_array_equal(out, rows[index])
    codes, out = rng.integers(0, 256, (5, 7), np.uint8), np.full((4, 7), 3, np.uint8)
    given = e4m3(out)
    assert attention.gather_rows(e4m3(codes), index, given) is given
    np.testing.assert_array_equal(out, codes[index])
    assert attention.gather_rows(codes, index[:0]).shape == (0, 7)
    kept = out.copy()
    with pytest.raises(kvblocks.KVBlocksError, match=r"^gather_rows: index\[1\] is 5"):
        attention.gather_rows(codes, np.array([0, 5, 1, 1], np.int32), out)
    refusal("^gather_rows: out has 4 rows; index has M = 3", lambda: attention.gather_rows(codes, index[:3], out))
    refusal("^gather_rows: out is u8.*; its rows must be those of rows, u8", lambda: attention.gather_rows(
        codes[:, :6].copy(), index, out))
    refusal("^gather_rows: rows is .*; both of rank 1, 2 or 3", lambda: attention.gather_rows(
        codes.reshape(5, 1, 1, 7), index))
    np.testing.assert_array_equal(out, kept)


def test_latent_records() -> None:
    rng = np.random.default_rng(18)
    records = np.zeros((2, 4, 528), np.uint8)
    cache = attention.KVCache(records, layout="mla_latent", row_format="mla_v41_528")
    assert (cache.key_dim, cache.value_dim) == (512, 512)
    kv = rng.standard_normal((5, 512), np.float32)
    attention.concat_and_cache_mla(kv[:, :448], kv[:, 448:], np.arange(5), cache)
    table, lengths = np.array([[0, 1]], np.int32), np.array([5], np.int32)
    back = np.zeros((1, 5, 512), np.float32)
    attention.gather_cache(cache, table, lengths, lengths, back)
    np.testing.assert_allclose(back[0], kv, rtol=0.07, atol=0.02)
    q = rng.standard_normal((1, 2, 512), np.float32)
    out = attention.mla_decode(q, cache, table, lengths, scale=0.05)
    expected, _ = dense(q[0, 1], back[0], back[0], scale=0.05, first=4)
    np.testing.assert_allclose(out[0, 1], expected, atol=2e-6)


def test_an_indexer_chooses_rows() -> None:
    rng = np.random.default_rng(16)
    keys, q = rng.standard_normal((9, 8), np.float32), rng.standard_normal((2, 3, 8), np.float32)
    weights = rng.standard_normal((2, 3)).astype(np.float32)
    rows, table = np.zeros((4, 4, 8), np.float32), np.array([[2, 0, 3]], np.int32)
    slots = table[0].repeat(4)[:9].astype(np.int64) * 4 + np.arange(9) % 4
    attention.cache_index_keys(keys, slots, rows)
    np.testing.assert_array_equal(rows.reshape(16, 8)[slots], keys)
    indices, lens = np.zeros((2, 4), np.int32), np.zeros(2, np.int32)
    attention.index_topk(q, weights, rows, np.array([0, 2], np.int32), np.array([9], np.int32), table, indices, lens)
    for t in range(2):
        scores = weights[t] @ np.maximum(0, q[t] @ keys[:8 + t].T)
        assert indices[t].tolist() == slots[np.sort(np.argsort(-scores)[:4])].tolist() and lens[t] == 4
    refusal("^index_topk: ratio is 0", lambda: attention.index_topk(
        q, weights, rows, np.array([0, 2], np.int32), np.array([9], np.int32), table, indices, lens, ratio=0))


def test_tokens_are_compressed() -> None:
    rng = np.random.default_rng(17)
    kv, score = rng.standard_normal((2, 4, 6), np.float32)
    states, out = np.zeros((2, 4, 12), np.float32), np.full((4, 6), 7, np.float32)
    attention.compress_tokens(kv, score, states, np.arange(4, 8), np.array([0, 4], np.int32), np.array([4], np.int32),
                              np.array([[1]], np.int32), out, ratio=2, overlap=False)
    np.testing.assert_array_equal(states[1], np.concatenate([kv, score], axis=1))
    for last in (1, 3):
        weights = np.exp(score[last - 1:last + 1])
        expected = (weights * kv[last - 1:last + 1]).sum(0) / weights.sum(0)
        np.testing.assert_allclose(out[last], expected, rtol=1e-5, atol=1e-6)
    assert (out[[0, 2]] == 7).all()


def test_bfloat16_as_bits() -> None:
    rng = np.random.default_rng(4)
    values = rng.standard_normal((1, 4, 1, 8), np.float32).view(np.uint32) >> 16
    bits = values.astype(np.uint16)
    as_float = (values << 16).view(np.float32)
    cache = attention.KVCache(attention.Tensor(bits, "bfloat16"), attention.Tensor(bits, "bfloat16"))
    q = rng.standard_normal((1, 1, 8), np.float32)
    out = attention.paged_decode(q, cache, np.zeros((1, 1), np.int32), np.array([4], np.int32), scale=1.0)
    np.testing.assert_allclose(out[0, 0], dense(q[0, 0], as_float[0, :, 0], as_float[0, :, 0], scale=1.0, first=3)[0],
                               atol=1e-6)


def test_types_of_ml_dtypes() -> None:
    types = pytest.importorskip("ml_dtypes")
    ones = np.ones((1, 4, 1, 8), types.bfloat16)
    cache = attention.KVCache(ones, ones)
    out = attention.paged_decode(ones[:, 0, :], cache, np.zeros((1, 1), np.int32), np.array([4], np.int32))
    assert out.dtype == types.bfloat16 and (out == 1).all()


def test_mla_and_its_sparse_forms_agree() -> None:
    rng = np.random.default_rng(5)
    rows = np.zeros((3, 4, 24), np.float32)  # 16 latent values and 8 rotary ones
    cache = attention.KVCache(rows, layout="mla_latent", latent_rank=16)
    kv = rng.standard_normal((10, 24), np.float32)
    slots = np.array([8, 9, 10, 11, 0, 1, 2, 3, 4, 5])
    attention.concat_and_cache_mla(kv[:, :16], kv[:, 16:], slots, cache)
    np.testing.assert_array_equal(rows.reshape(12, 24)[slots], kv)
    q = rng.standard_normal((1, 3, 24), np.float32)
    table, lengths = np.array([[2, 0, 1]], np.int32), np.array([10], np.int32)
    out, lse = attention.mla_decode(q[:, :, :16], cache, table, lengths, q_pe=q[:, :, 16:], scale=0.2, return_lse=True)
    for head in range(3):
        expected, log = dense(q[0, head], kv, kv[:, :16], scale=0.2, first=9)
        np.testing.assert_allclose(out[0, head], expected, atol=2e-6)
        np.testing.assert_allclose(lse[0, head], log, rtol=1e-5)
    indices = np.array([[[*slots, -1]]], np.int32)
    sparse = attention.sparse_mla_decode(q[None], cache, indices, scale=0.2)
    np.testing.assert_allclose(sparse[0], out, atol=2e-6)
    two = attention.sparse_mla_decode(q[None], cache, indices[:, :, :6], scale=0.2, extra_cache=cache,
                                      extra_indices=np.ascontiguousarray(indices[:, :, 6:]))
    np.testing.assert_allclose(two[0], out, atol=2e-6)
    prefill, log = attention.sparse_mla_prefill(q, kv[:, None], np.arange(10, dtype=np.int32)[None, None], scale=0.2,
                                                value_dim=16, return_lse=True)
    np.testing.assert_allclose(prefill, out, atol=2e-6)
    np.testing.assert_allclose(log, lse, rtol=1e-6)


def test_cascades_and_merges_are_prefills() -> None:
    rng = np.random.default_rng(6)
    case = Paged(rng, [14, 17])
    case.block_table[1, :2] = case.block_table[0, :2]
    starts = np.array([0, 3, 7], np.int32)
    q = rng.standard_normal((7, 4, 8), np.float32)
    whole, whole_lse = attention.paged_prefill(q, case.cache, starts, case.seq_lens, case.block_table, return_lse=True)
    out = attention.cascade(q, case.cache, starts, case.seq_lens, case.block_table, 8)
    np.testing.assert_allclose(out, whole, atol=2e-6)

    outs, lses = np.empty((2, 7, 4, 8), np.float32), np.empty((2, 7, 4), np.float32)
    prefix = np.full(2, 8, np.int32)
    attention.paged_prefill(q, case.cache, starts, prefix, case.block_table, causal=False, out=outs[0], lse=lses[0])
    attention.paged_prefill(q, case.cache, starts, case.seq_lens - 8, np.ascontiguousarray(case.block_table[:, 2:]),
                            out=outs[1], lse=lses[1])
    merged, lse = attention.merge_states(outs, lses, return_lse=True)
    np.testing.assert_allclose(merged, whole, atol=2e-6)
    np.testing.assert_allclose(lse, whole_lse, rtol=1e-5, atol=2e-6)
    assert attention.merge_states(outs, lses, out=outs[0]) is not None


def test_partitions_reduce_to_the_whole() -> None:
    rng = np.random.default_rng(14)
    case = Paged(rng, [3, 14])
    q = rng.standard_normal((2, 4, 8), np.float32)
    sinks = rng.standard_normal(4).astype(np.float32)
    arguments = (q, case.cache, case.block_table, case.seq_lens)
    whole, whole_lse = attention.paged_decode(*arguments, sinks=sinks, return_lse=True)
    max_logits, exp_sums = np.zeros((2, 2, 4, 2), np.float32)
    tmp_out = np.zeros((2, 4, 2, 8), np.float32)
    attention.paged_decode_partial(*arguments, max_logits, exp_sums, tmp_out, partition_tokens=8)
    assert (max_logits[0, :, 1] == -np.inf).all()
    out, lse = np.zeros_like(q), np.zeros((2, 4), np.float32)
    attention.reduce_splits(max_logits, exp_sums, tmp_out, out, sinks=sinks, lse=lse)
    np.testing.assert_allclose(out, whole, atol=2e-6)
    np.testing.assert_allclose(lse, whole_lse, rtol=1e-5, atol=2e-6)


def test_self_attention_needs_no_cache() -> None:
    rng = np.random.default_rng(8)
    q, k, v = rng.standard_normal((3, 9, 2, 8), np.float32)
    starts = np.array([0, 4, 9], np.int32)
    out = attention.varlen_self_attention(q, k, v, starts, window_left=2)
    for begin, end in ((0, 4), (4, 9)):
        for row in range(begin, end):
            for head in range(2):
                expected, _ = dense(q[row, head], k[begin:end, head], v[begin:end, head], scale=8**-0.5,
                                    first=row - begin, window_left=2)
                np.testing.assert_allclose(out[row, head], expected, atol=2e-6)


def test_keys_are_rotated_and_blended() -> None:
    rng = np.random.default_rng(9)
    keys = rng.standard_normal((5, 1, 8), np.float32)
    positions = np.arange(5) + 3
    out = attention.rotate_keys(keys, positions)
    angle = positions[:, None] * 10000.0 ** (-np.arange(4) / 4)
    left, right = keys[:, 0, :4], keys[:, 0, 4:]
    np.testing.assert_allclose(out[:, 0, :4], left * np.cos(angle) - right * np.sin(angle), atol=1e-5)
    attention.rotate_keys(out, np.zeros(5, np.int64), from_positions=positions, out=out)
    np.testing.assert_allclose(out, keys, atol=1e-5)

    new = keys.copy()
    new[2] += 1
    count = attention.hkvd_count(5, 0.3, 1)
    imp = np.full(count, -1, np.int32)
    attention.select_hkvd(new, keys, imp, ratio=0.3)
    assert imp.tolist() == [2, 4]
    k_old, v_old = keys.copy(), keys.copy()
    attention.fuse_kv(imp, new[imp], new[imp], k_old, v_old)
    np.testing.assert_array_equal(k_old, new)


def test_the_metadata_of_a_step() -> None:
    builder = attention.AttentionMetadataBuilder([attention.KVGroup(50), attention.KVGroup(50, window=8)],
                                                 max_num_reqs=4, max_num_tokens=64, max_seq_len=64)
    table = np.arange(1, 9, dtype=np.int32).reshape(2, 4)
    builder.build([0, 40], np.array([5, 1]), [table, [[9, 10, 11], table[0]]], padded_num_reqs=3, padded_num_tokens=8)
    assert builder.permutation.tolist()[:2] == [1, 0]  # the decode first
    meta = builder.metadata()
    assert (meta.num_decodes, meta.num_prefills, meta.max_query_len, meta.attn_state) == (1, 1, 5, "chunked_prefill")
    assert meta.query_start_loc.tolist() == [0, 1, 6, 6] and meta.seq_lens.tolist() == [41, 5, 0]
    assert meta.block_table[0, :3].tolist() == [5, 6, 7]
    assert meta.slot_mapping.tolist() == [7 * 16 + 8, 16, 17, 18, 19, 20, -1, -1]
    assert meta.positions[:6].tolist() == [40, 0, 1, 2, 3, 4]
    assert not meta.seq_lens.flags.writeable
    own = np.full((4, 6), 7, np.int32)
    slots = np.zeros(20, np.int64)[::2]
    meta.copy_to(block_table=own, slot_mapping=slots)
    np.testing.assert_array_equal(own[:3, :4], meta.block_table)
    assert (own[:, 4:] == 7).all() and (own[3] == 7).all()
    np.testing.assert_array_equal(slots[:8], meta.slot_mapping)
    # The device's form of the same.
    again = np.zeros(8, np.int64)
    attention.compute_slot_mapping(meta.query_start_loc, meta.positions, meta.block_table, again, 16)
    np.testing.assert_array_equal(again, meta.slot_mapping)

    lens = meta.seq_lens
    refusal("block_ids has 1 groups, expected 2", builder.build, [0], [1], [table])
    refusal("99", builder.build, [0, 0], [1, 1], [[[99], [1]], [[1], [2]]])
    assert lens.tolist() == [41, 5, 0]
    refusal("copy_to: block_table is i32", meta.copy_to, block_table=own[:2])
    del builder, meta
    gc.collect()
    assert lens.tolist() == [41, 5, 0]  # the array keeps the builder


def test_lists_of_slots() -> None:
    rng = np.random.default_rng(13)
    starts, lengths = np.array([0, 3, 5], np.int32), np.array([3, 9], np.int32)
    positions = np.array([0, 1, 2, 7, 8], np.int32)
    table = rng.permutation(8).reshape(2, 4).astype(np.int32)

    def slot(token: int, row: int) -> int:
        return int(table[int(token >= 3), row // 4]) * 4 + row % 4

    indices, lens = np.full((6, 5), 99, np.int32), np.full(6, 99, np.int32)
    attention.build_swa_indices(starts, lengths, table, indices, lens, window=5, block_size=4)
    for t, p in enumerate(positions):
        seen = [slot(t, j) for j in range(max(0, p - 4), p + 1)]
        assert indices[t].tolist() == seen + [-1] * (5 - len(seen)) and lens[t] == len(seen)
    assert lens[5] == 0

    slots = np.zeros(6, np.int64)
    padded = np.append(positions, 0).astype(np.int32)
    attention.build_compressed_slots(starts, padded, table, slots, ratio=2, block_size=4)
    assert slots.tolist() == [-1, slot(0, 0), -1, slot(3, 3), -1, -1]

    chosen = np.array([[1, -1, 0], [-1, -1, -1], [2, 1, 0], [8, 3, -1], [0, 1, 2]], np.int32)
    expected = [[slot(t, r) if r >= 0 else -1 for r in rows] for t, rows in enumerate(chosen.tolist())]
    counts = np.zeros(5, np.int32)
    attention.build_topk_slots(starts, chosen, table, chosen, counts, block_size=4)  # in place
    assert [sorted(row) for row in chosen.tolist()] == [sorted(row) for row in expected]
    assert counts.tolist() == [2, 0, 3, 2, 3]

    rows, lens = np.zeros((5, 3), np.int32), np.zeros(5, np.int32)
    attention.build_dense_compressed_indices(starts, positions, rows, lens, ratio=3)
    assert lens.tolist() == [0, 0, 1, 2, 3] and rows[4].tolist() == [0, 1, 2]
    window, lens = np.zeros((5, 2), np.int32), np.zeros(5, np.int32)
    attention.combine_prefill_indices(starts, lengths, window, lens, window=2, rows_per_request=6)
    # Of the second request, whose 2 tokens see one before: rows 6 to 8 of the buffer.
    assert window.tolist() == [[0, -1], [0, 1], [1, 2], [6, 7], [7, 8]] and lens.tolist() == [1, 2, 2, 2, 2]
    refusal("^build_swa_indices: window is 0", lambda: attention.build_swa_indices(
        starts, lengths, table, indices, lens, window=0, block_size=4))


def test_block_tables_of_the_manager() -> None:
    """The manager's table is read in place."""
    from conftest import make_manager

    manager = make_manager(num_blocks=20)
    request = manager.new_request("a", list(range(20)))
    manager.allocate_slots(request, 20)
    rng = np.random.default_rng(2)
    k, v = rng.standard_normal((2, 20, 1, 8), np.float32)
    storage = np.zeros((2, 20, 16, 1, 8), np.float32)
    cache = attention.KVCache(*storage)
    builder = attention.AttentionMetadataBuilder([attention.KVGroup(20)], max_num_reqs=1, max_num_tokens=32,
                                                 max_seq_len=64)
    builder.build([0], [20], [[manager.get_blocks(request)]])
    meta = builder.metadata()
    attention.reshape_and_cache(k, v, meta.slot_mapping, cache)
    out = attention.paged_prefill(k, cache, meta.query_start_loc, meta.seq_lens, meta.block_table)
    np.testing.assert_allclose(out, attention.varlen_self_attention(k, k, v, meta.query_start_loc), atol=2e-6)


def test_block_sparse_keys() -> None:
    rng = np.random.default_rng(21)
    case = Paged(rng, [40, 23], dim=4, value_dim=4)
    q = rng.standard_normal((5 + 23, 4, 4), np.float32)
    starts = np.array([0, 5, 28], np.int32)
    for step, rank in ((1, 0), (2, 1), (-1, 0)):
        rule = attention.BlockSparse(local_blocks=1, vert_stride=3, block_size=4, head_sliding_step=step, tp_rank=rank)
        assert (rule.local_blocks, rule.vert_stride, rule.block_size) == (1, 3, 4)
        out = attention.paged_prefill(q, case.cache, starts, case.seq_lens, case.block_table, block_sparse=rule)
        last = np.array([4, 27])
        decoded = attention.paged_decode(q[last], case.cache, case.block_table, case.seq_lens, block_sparse=rule)
        np.testing.assert_allclose(decoded, out[last], atol=2e-6)
        for request, length in enumerate(case.lengths):
            count = starts[request + 1] - starts[request]
            for i, head in itertools.product(range(count), range(4)):
                k, v = case.rows(request, head // 2)
                p, block = length - count + i, np.arange(length) // 4
                offset = (rank * 4 + head) * step + 1 if step >= 0 else (rank * 2 + head // 2) * -step + 1
                seen = (np.arange(length) <= p) & ((block > p // 4 - 1) | ((block + offset) % 3 == 0))
                expected, _ = dense(q[starts[request] + i, head], k[seen], v[seen], scale=0.5, causal=False)
                np.testing.assert_allclose(out[starts[request] + i, head], expected, atol=2e-6)
    refusal("^BlockSparse: vert_stride is 1; at least 2", lambda: attention.BlockSparse(local_blocks=1, vert_stride=1))
    refusal("^paged_decode: block_sparse.block_size is 0", lambda: attention.paged_decode(
        q[:2], case.cache, case.block_table, case.seq_lens,
        block_sparse=attention.BlockSparse(local_blocks=1, vert_stride=2, block_size=0)))


def test_masks_of_every_form() -> None:
    rng = np.random.default_rng(22)
    lengths, counts = [9, 14], [3, 5]
    case = Paged(rng, lengths, dim=4, value_dim=4)
    starts = np.array([0, 3, 8], np.int32)
    q = rng.standard_normal((8, 2, 4), np.float32)
    hidden = rng.random((2, 2, 5, 16)) < 0.4  # requests, heads, rows, keys

    def prefill(mask: Any, **options: Any) -> Array:
        return attention.paged_prefill(q, case.cache, starts, case.seq_lens, case.block_table, mask=mask, causal=False,
                                       **options)

    def check(out: Array, hides: Any) -> None:
        for request, length in enumerate(lengths):
            for i, head in itertools.product(range(counts[request]), range(2)):
                k, v = case.rows(request, head)
                seen = ~np.array([hides(request, head, i, j) for j in range(length)])
                expected, _ = dense(q[starts[request] + i, head], k[seen], v[seen], scale=0.5, causal=False)
                np.testing.assert_allclose(out[starts[request] + i, head], expected, atol=2e-6)

    check(prefill(hidden), lambda b, h, i, j: hidden[b, h, i, j])
    check(prefill(attention.Mask(hidden[:, :1], form="per_head")), lambda b, h, i, j: hidden[b, 0, i, j])
    check(prefill(attention.Mask(hidden[:, 1])), lambda b, h, i, j: hidden[b, 1, i, j])
    added = np.where(hidden[0, 0], -np.inf, 0).astype(np.float32)
    check(prefill(attention.Mask(added, form="shared", encoding="additive")), lambda b, h, i, j: hidden[0, 0, i, j])
    # Bits of each request's own rows and keys, one after another.
    bits = attention.pack_mask([hidden[b, 0, :counts[b], :lengths[b]] for b in range(2)])
    assert bits.nbytes == -(-(3 * 9 + 5 * 14) // 8)
    check(prefill(attention.Mask(bits, form="ragged_bits")), lambda b, h, i, j: hidden[b, 0, i, j])
    # A template serves any length.
    causal = np.triu(np.ones((64, 64), np.int8), 1)
    offsets = [lengths[b] - counts[b] for b in range(2)]
    check(prefill(attention.Mask(causal, form="template", sparse_mode=3)), lambda b, h, i, j: j > i + offsets[b])
    check(prefill(attention.Mask(causal, form="template", sparse_mode=4, pre_tokens=2, next_tokens=0)),
          lambda b, h, i, j: not offsets[b] + i - 2 <= j <= offsets[b] + i)
    check(prefill(attention.Mask(None, sparse_mode=0)), lambda b, h, i, j: False)
    by_position = rng.random((16, 16)) < 0.4
    check(prefill(attention.Mask(by_position, rows_are_absolute=True)),
          lambda b, h, i, j: by_position[offsets[b] + i, j])
    # A decode has a row per request.
    last = np.array([2, 7])
    out = attention.paged_decode(q[last], case.cache, case.block_table, case.seq_lens, mask=hidden[:, 0, :1])
    for request, length in enumerate(lengths):
        k, v = case.rows(request, 0)
        seen = ~hidden[request, 0, 0, :length]
        expected, _ = dense(q[last[request], 0], k[seen], v[seen], scale=0.5, causal=False)
        np.testing.assert_allclose(out[request, 0], expected, atol=2e-6)

    refusal("^Mask: form is bits; one of shared, per_request", lambda: attention.Mask(bits, form="bits"))
    refusal("^Mask: encoding is on; one of additive", lambda: attention.Mask(bits, encoding="on"))
    refusal("^Mask: array is None; only sparse_mode=0", lambda: attention.Mask(None))
    refusal("^paged_prefill: mask must have 2 .* or be a Mask with a form", lambda: prefill(bits))
    refusal("^paged_prefill: mask_rows_are_absolute is given beside a Mask",
            lambda: prefill(attention.Mask(by_position), mask_rows_are_absolute=True))
    refusal("^paged_prefill: .*mask", lambda: prefill(attention.Mask(bits[:4], form="ragged_bits")))
    refusal(r"^pack_mask: masks\[1\] is float64\[2, 2\]; bool",
            lambda: attention.pack_mask([np.zeros((1, 1), bool), np.zeros((2, 2))]))


def test_blocks_are_copied_swapped_and_filled() -> None:
    rng = np.random.default_rng(23)
    layers = [Paged(rng, [12]) for _ in range(2)]
    before = [(layer.k.copy(), layer.v.copy()) for layer in layers]
    attention.copy_blocks([layer.cache for layer in layers], [(0, 2), (1, 3)])
    for layer, (k, v) in zip(layers, before, strict=True):
        for now, then in ((layer.k, k), (layer.v, v)):
            np.testing.assert_array_equal(now, then[[0, 1, 0, 1]])
    other_k, other_v = np.zeros((2, 6, 4, 2, 8), np.float32)
    other = attention.KVCache(other_k, other_v)
    attention.swap_blocks(layers[0].cache, other, np.array([[3, 5], [0, 1]]), threads=attention.ThreadPool(2))
    np.testing.assert_array_equal(other_k[[5, 1]], layers[0].k[[3, 0]])
    np.testing.assert_array_equal(other_v[[5, 1]], layers[0].v[[3, 0]])
    assert not other_k[[0, 2, 3, 4]].any()
    turned = np.zeros((2, 6, 2, 4, 8), np.float32)
    attention.convert_layout(other, attention.KVCache(turned[0], turned[1], layout="hnd"))
    np.testing.assert_array_equal(turned[0], other_k.swapaxes(1, 2))
    attention.fill_blocks(other, [5], 0xFF)
    assert np.isnan(other_k[5]).all() and other_k[1].any() and not np.isnan(other_k[:5]).any()

    kept = other_k.copy()
    with pytest.raises(kvblocks.KVBlocksError, match="^swap_blocks: .*6"):
        attention.swap_blocks(layers[0].cache, other, [(0, 0), (1, 6)])
    refusal("^swap_blocks: ", lambda: attention.swap_blocks(layers[0].cache, other, [(0, 2), (1, 2)]))
    refusal("^fill_blocks: byte is 256; 0 to 255", lambda: attention.fill_blocks(other, [0], 256))
    caches: list[Any] = [other, None]
    refusal(r"^copy_blocks: caches\[1\] is None", lambda: attention.copy_blocks(caches, [(0, 1)]))
    refusal("^copy_blocks: stream is given", lambda: attention.copy_blocks([other], [(0, 1)], stream=1))
    other_k.flags.writeable = False
    refusal("^fill_blocks: cache is read-only", lambda: attention.fill_blocks(attention.KVCache(other_k, other_v), [0]))
    np.testing.assert_array_equal(other_k, kept)
    triple: Any = [(0, 1, 2)]
    with pytest.raises(TypeError):
        attention.copy_blocks([other], triple)


def test_plans_of_the_host() -> None:
    rng = np.random.default_rng(24)
    lengths = [70, 3, 0, 41]
    case = Paged(rng, lengths)
    q = rng.standard_normal((4, 4, 8), np.float32)
    planner = attention.SplitPlanner(max_num_reqs=4, max_num_parts=3)
    refusal(r"^SplitPlanner: plan\(\) was not called", lambda: planner.ranges)
    refusal("^paged_decode: plan is a SplitPlanner without a plan", lambda: attention.paged_decode(
        q, case.cache, case.block_table, case.seq_lens, plan=planner))
    whole = attention.paged_decode(q, case.cache, case.block_table, case.seq_lens)
    for options in ({"tile": 8, "overhead": 1, "num_parts": 3}, {"split_tokens": 16}, {"num_splits": 2}):
        planner.plan(case.seq_lens, block_size=case.block_size, **options)
        ranges, offsets = planner.ranges, planner.split_offsets
        assert len(offsets) == 5 and offsets[-1] == len(ranges) > 4
        for request, length in enumerate(lengths):
            own = ranges[offsets[request]:offsets[request + 1]]
            assert [piece[0] for piece in own] == [request] * len(own) and own[0][1] == 0
            assert all(a[2] == b[1] for a, b in zip(own, own[1:], strict=False))
            assert own[-1][2] == max(1, -(-length // planner.tile))
        out = attention.paged_decode(q, case.cache, case.block_table, case.seq_lens, plan=planner)
        np.testing.assert_allclose(out, whole, atol=2e-6)
    assert planner.num_parts >= 1
    fixed = attention.paged_decode(q, case.cache, case.block_table, case.seq_lens, split_tokens=16)
    planner.plan(case.seq_lens, block_size=case.block_size, split_tokens=16)
    np.testing.assert_array_equal(
        attention.paged_decode(q, case.cache, case.block_table, case.seq_lens, plan=planner), fixed)

    kept = planner.ranges
    refusal("^SplitPlanner.plan: seq_lens is i64", lambda: planner.plan(np.array([1]), block_size=4))
    refusal("^SplitPlanner.plan: .*-1", lambda: planner.plan(np.array([-1], np.int32), block_size=4))
    refusal("^SplitPlanner.plan: split_tokens and num_splits are given",
            lambda: planner.plan(case.seq_lens, block_size=4, split_tokens=4, num_splits=2))
    assert planner.ranges == kept
    refusal("^paged_decode: plan is given beside split_tokens", lambda: attention.paged_decode(
        q, case.cache, case.block_table, case.seq_lens, plan=planner, num_splits=2))
    with pytest.raises(kvblocks.KVBlocksError, match="^paged_decode: the plan is for 4 requests"):
        attention.paged_decode(q[:2], case.cache, case.block_table[:2], case.seq_lens[:2], plan=planner)
    three: Any = 3
    with pytest.raises(TypeError, match="plan must be a SplitPlanner or a DecodePlan"):
        attention.paged_decode(q, case.cache, case.block_table, case.seq_lens, plan=three)


def test_backends_by_name() -> None:
    rng = np.random.default_rng(25)
    case = Paged(rng, [50], dim=64, value_dim=64)
    q = (3 * rng.standard_normal((1, 8, 64))).astype(np.float32)

    def decode() -> Array:
        return attention.paged_decode(q, case.cache, case.block_table, case.seq_lens)

    exact = np.stack([dense(q[0, h], *case.rows(0, h // 4), scale=0.125, first=49)[0] for h in range(8)])
    usual = decode()
    with attention.use_backend("cpu_reference"):
        reference = decode()
        with attention.use_backend(None):
            np.testing.assert_array_equal(decode(), usual)
        # Another thread's calls are its own.
        other: list[Array] = []
        thread = threading.Thread(target=lambda: other.append(decode()))
        thread.start()
        thread.join()
        np.testing.assert_array_equal(other[0], usual)
        np.testing.assert_array_equal(decode(), reference)
    # Rounded once.
    np.testing.assert_array_equal(reference[0], exact.astype(np.float32))
    with attention.use_backend("cpu"):
        np.testing.assert_array_equal(decode(), usual)
    with attention.use_backend("cuda"):
        refusal("^paged_decode: the backend is cuda, the arrays are on host", decode)
    np.testing.assert_array_equal(decode(), usual)
    with pytest.raises(kvblocks.InvalidArgumentError, match="^use_backend: name is simd; one of cpu, cpu_reference, cuda"):
        with attention.use_backend("simd"):
            pass
    np.testing.assert_array_equal(decode(), usual)
    assert attention.workspace_bytes("index_topk", max_tokens=3, max_rows=64) == 768


def test_refusals_name_the_argument_and_write_nothing() -> None:
    rng = np.random.default_rng(1)
    case = Paged(rng, [5, 6])
    q = rng.standard_normal((2, 4, 8), np.float32)
    out = np.full_like(q, 3)

    def decode(**changes: Any) -> None:
        arguments = {"q": q, "cache": case.cache, "block_table": case.block_table, "seq_lens": case.seq_lens,
                     "out": out, **changes}
        attention.paged_decode(**arguments)

    refusal(r"^paged_decode: seq_lens is i32\[1\]; dimension 0 must be R = 2 as in q",
            lambda: decode(seq_lens=case.seq_lens[:1]))
    refusal("^paged_decode: block_table is i64", lambda: decode(block_table=case.block_table.astype(np.int64)))
    refusal("^paged_decode: window_left and window_right are -5", lambda: decode(window_left=-5))
    refusal("^paged_decode: q cannot be used: stride -", lambda: decode(q=q[::-1]))
    refusal("^paged_decode: q has a stride of 9 bytes", lambda: decode(q=np.zeros(80, np.int8)[:72].view(
        np.dtype([("x", np.float32), ("y", np.int8), ("z", np.float32)]))["x"].reshape(1, 1, 8)))
    refusal("^paged_decode: q has elements of DLPack type code", lambda: decode(q=q.astype(np.complex64)))
    refusal("^paged_decode: k_scale is given|^paged_decode: k_scale", lambda: decode(k_scale=2.0))
    refusal("^paged_decode: split_tokens and num_splits are given", lambda: decode(split_tokens=4, num_splits=2))
    refusal("^paged_decode: stream is given; operations on host memory have none", lambda: decode(stream=1))
    refusal("^paged_decode: out shares memory with q", lambda: decode(q=out))
    with pytest.raises(TypeError, match="paged_decode: q must be an array of numpy, torch .* got <class 'list'>"):
        decode(q=[1.0])
    read_only = out.copy()
    read_only.flags.writeable = False
    refusal("^paged_decode: out is read-only", lambda: decode(out=read_only))
    blocks = case.block_table.copy()
    blocks[1, 0] = 99
    refusal("^paged_decode: block_table.* is 99", lambda: decode(block_table=blocks))
    assert (out == 3).all()

    keys = np.zeros((2, 2, 8), np.float32)
    case.k.flags.writeable = False
    frozen = attention.KVCache(case.k, case.v)
    decode(cache=frozen)
    refusal("^reshape_and_cache: cache is read-only", lambda: attention.reshape_and_cache(
        keys, keys, np.array([0, 1]), frozen))
    refusal("^reshape_and_cache: slot_mapping has 3 twice", lambda: attention.reshape_and_cache(
        keys, keys, np.array([3, 3]), case.cache))
    refusal(r"^KVCache\(layout=\"nhd\"\): v is None", lambda: attention.KVCache(case.k))
    refusal("^KVCache: layout is bhsd; one of paged_x, nhd", lambda: attention.KVCache(case.k, case.v, layout="bhsd"))
    refusal("^KVCache: k is f32.*; layout hnd has 4", lambda: attention.KVCache(case.k[0], case.v[0], layout="hnd"))
    refusal("^Tensor: dtype is float7; one of", lambda: attention.Tensor(q, "float7"))
    refusal("^Tensor: array has elements of 32 bits", lambda: attention.Tensor(q, "bfloat16"))
    refusal("^Workspace: error_flags", lambda: attention.Workspace(error_flags=q))
    refusal("^DecodePlan: memory is on the host", lambda: attention.DecodePlan(q))
    refusal("^workspace_bytes: op is decode; one of paged_decode", lambda: attention.workspace_bytes("decode"))
    assert attention.workspace_bytes("paged_decode", max_reqs=4, num_heads=8, value_head_size=64) > 0


class Foreign:
    """An array of another library, by DLPack alone."""

    def __init__(self, array: Array, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device
        self.options: dict[str, Any] = {}

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **options: Any) -> Any:
        self.options = options
        options.pop("stream", None)
        return self.array.__dlpack__(**options)


def test_elements_of_odd_sizes_are_refused() -> None:
    index = np.zeros(2, np.int32)
    for size in (0, 40):
        refusal(f"^gather_rows: rows has elements of {size} bytes; expected 1 to 8",
                lambda size=size: attention.gather_rows(np.zeros((2, 3), f"V{size}"), index))


def test_rows_behind_pointers_are_refused() -> None:
    buffers = pytest.importorskip("_testbuffer")
    rows = buffers.ndarray(list(range(6)), shape=[2, 3], format="i", flags=buffers.ND_PIL)
    refusal(r"^gather_rows: rows has rows behind pointers \(a suboffset in dimension 0\)",
            lambda: attention.gather_rows(rows, np.zeros(2, np.int32)))


def test_any_library_with_dlpack() -> None:
    rng = np.random.default_rng(11)
    case = Paged(rng, [5])
    q = rng.standard_normal((1, 4, 8), np.float32)
    out = np.zeros_like(q)
    expected = attention.paged_decode(q, case.cache, case.block_table, case.seq_lens)
    foreign = Foreign(q)
    attention.paged_decode(foreign, case.cache, Foreign(case.block_table), case.seq_lens, out=Foreign(out))
    np.testing.assert_array_equal(out, expected)
    assert foreign.options == {"max_version": (1, 1)}
    frozen = np.zeros_like(q)
    frozen.flags.writeable = False
    refusal("out is read-only", lambda: attention.paged_decode(q, case.cache, case.block_table, case.seq_lens,
                                                               out=Foreign(frozen)))
    refusal("out is None, and is allocated for arrays of numpy and torch only", lambda: attention.paged_decode(
        foreign, case.cache, case.block_table, case.seq_lens))


def test_arrays_live_as_long_as_they_are_shown() -> None:
    class Owner(np.ndarray[Any, Any]):
        pass

    k = np.zeros((2, 4, 1, 8), np.float32).view(Owner)
    alive = weakref.ref(k)
    cache = attention.KVCache(k, k.copy())
    tensor = attention.Tensor(cache.k)
    del k, cache
    gc.collect()
    assert alive() is not None and tensor.shape == (2, 4, 1, 8)
    del tensor
    gc.collect()
    assert alive() is None

    q = np.zeros((1, 1, 8), np.float32)
    count = sys.getrefcount(q)
    case = Paged(np.random.default_rng(0), [3], kv_heads=1)
    for _ in range(10):
        attention.paged_decode(q, case.cache, case.block_table, case.seq_lens)
        with pytest.raises(kvblocks.InvalidArgumentError):
            attention.paged_decode(q, case.cache, case.block_table, case.seq_lens, scale=-1.0)
    assert sys.getrefcount(q) == count
    own = np.zeros(8)
    own.resize(16, refcheck=False)  # no buffer is held any more


def test_long_calls_let_other_threads_run() -> None:
    rng = np.random.default_rng(12)
    q = rng.standard_normal((96, 4, 32), np.float32)
    starts = np.array([0, 96], np.int32)
    results: list[Array] = []

    def work() -> None:
        for _ in range(3):
            results.append(attention.varlen_self_attention(q, q, q, starts))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 9 and all((result == results[0]).all() for result in results)


def test_layers_by_name() -> None:
    rng = np.random.default_rng(5)
    builder = attention.AttentionMetadataBuilder(
        [attention.KVGroup(9, manager_block_size=4)], max_num_reqs=2, max_num_tokens=8, max_seq_len=8)
    builder.build([0, 0], [5, 3], [[[3, 7], [5]]])
    meta = builder.metadata()
    rows, other = np.zeros((2, 9, 4, 40), np.float32)
    cache, expected_cache = (attention.KVCache(k, layout="mla_latent", latent_rank=32) for k in (rows, other))
    q, kv_c, k_pe, sinks = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 4, 40), (8, 32), (8, 8), 4))
    attention.concat_and_cache_mla(kv_c, k_pe, meta.slot_mapping, expected_cache)
    expected = attention.mla_decode(q, expected_cache, meta.block_table, meta.seq_lens, scale=24**-0.5, sinks=sinks,
                                    query_start_loc=meta.query_start_loc)

    context = attention.ForwardContext()
    context.add_layer("latent", cache, num_heads=4, head_size=24, sinks=sinks)
    context.add_layer("reader", cache, num_heads=4, head_size=24, sinks=sinks, shares_cache_of="latent")
    assert context.output_shape("latent", [8, 160]) == (8, 128)
    out = context.unified_attention("latent", q, kv_c, k_pe)
    assert out.shape == expected.shape and not out.any() and not rows.any()  # no step: profiling
    context.set_metadata({"latent": meta, "reader": meta})
    np.testing.assert_allclose(context.unified_attention("latent", q, kv_c, k_pe), expected, rtol=1e-5, atol=1e-6)
    assert (rows == other).all()
    again = context.unified_attention("reader", q, kv_c * 2, k_pe)
    np.testing.assert_allclose(again, expected, rtol=1e-5, atol=1e-6)
    assert (rows == other).all()


def test_cuda_is_said_to_be_missing() -> None:
    if attention.has_cuda:
        pytest.skip("built with CUDA")

    class OnDevice(Foreign):
        """The host's memory, said to be a GPU's: nothing may read it."""

        def __dlpack__(self, **options: Any) -> Any:
            assert options.pop("stream") == -1  # no synchronisation
            return device_capsule(self.array)

    case = Paged(np.random.default_rng(0), [3])
    q = OnDevice(np.zeros((1, 2, 8), np.float32), (2, 0))
    with pytest.raises(kvblocks.KVBlocksError, match="paged_decode: the arrays are on cuda:0, and .* without CUDA"):
        attention.paged_decode(q, case.cache, case.block_table, case.seq_lens, max_seq_len=3, out=q)
    refusal("max_seq_len is None; on CUDA", attention.paged_decode, q, case.cache, case.block_table, case.seq_lens)
    group = attention.KVGroup(9)
    builder = attention.AttentionMetadataBuilder([group], max_num_reqs=1, max_num_tokens=8, max_seq_len=8)
    with pytest.raises(kvblocks.KVBlocksError, match="DeviceMetadata: device is 0, and .* without CUDA"):
        attention.DeviceMetadata(builder)
    host = np.zeros((1, 2, 8), np.float32)
    refusal("seq_lens is on cuda:0; the context is on host", lambda: attention.paged_decode(
        host, case.cache, case.block_table, OnDevice(case.seq_lens, (2, 0)), max_seq_len=3))


def test_the_current_stream_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from kvblocks.attention import _current_stream

    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=7 + device)))
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda device: SimpleNamespace(ptr=9 + device)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    of = {name: type("Array", (), {"__module__": name})() for name in ("torch", "cupy.ndarray", "jax")}
    assert [_current_stream(array, 1) for array in of.values()] == [8, 10, 0]


def device_capsule(array: Array) -> Any:
    """A DLPack capsule of an array that says device cuda:0."""
    import ctypes

    capsule = array.__dlpack__()
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    pointer = get(capsule, b"dltensor")
    ctypes.c_int32.from_address(pointer + 8).value = 2  # DLTensor: data, then the device's type
    return capsule


def test_import_kvblocks_does_not_load_attention() -> None:
    code = "import kvblocks, sys; assert 'kvblocks._attention' not in sys.modules; kvblocks.attention.KVCache"
    subprocess.run([sys.executable, "-c", code], check=True)
