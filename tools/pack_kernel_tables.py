#!/usr/bin/env python3
"""Packs measured kernel times into the one file that kvsim reads: sim/cost/tables/kernel_tables.pb.

    tools/pack_kernel_tables.py FOLDER [--wheel=UNPACKED] sim/cost/tables/kernel_tables.pb

FOLDER has <device>/<operation>.csv.gz with a header; the last column is time_us. Kept is what the clock reads:
GEMMs per dtype, attention per head shape (prompts one by one), experts with uneven load, the collectives of captured
graphs, those that engines fuse with norms, whole blocks of latent attention. A time is kept as its binary logarithm, in steps of 1/2048; a row of a grid
as differences to the time before. The form is sim/cost/kernel_tables.proto, written here by hand so that the tool
needs no package; UNPACKED, the files of the wheel aisimulate, gives NEWER tables and FURTHER experts and needs pyarrow. Prints what was
packed and the largest error of rounding.
"""

import csv
import gzip
import math
import os
import sys
import zlib

STEPS_PER_OCTAVE = 2048

ATTRIBUTION = """\
Kernel measurements: from aiconfigurator-core 0.12.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES,
Apache-2.0; modified: units, columns, thinned, duplicates merged; packed by tools/pack_kernel_tables.py, times rounded.
Products, attention (sparse included), experts and fused all-reduces of H100, H200, B200 and B300: from aisimulate
0.13.0.dev202610270000000085, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES, Apache-2.0; modified in the same way.
"""

WHEEL_DATA = "aisimulate_core/systems/data"

# Tables of vLLM 0.25, measured in captured graphs throughout, for what the folder has of 0.24: file, columns.
NEWER_DEVICES = {"h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "b200": "b200_sxm", "b300": "b300_sxm"}
ATTENTION = {"head_dim": "head_dim", "kv_dtype": "kv_cache_dtype", "window_tokens": "window_size",
             "num_heads": "num_heads", "num_kv_heads": "num_key_value_heads", "batch": "batch_size"}
LATENT = {"kv_dtype": "kv_cache_dtype", "gemm_dtype": "gemm_type", "num_heads_local": "num_heads",
          "batch": "batch_size"}
NEWER = {
    "gemm": ("gemm/vllm/0.25.0/gemm_perf.parquet",
             {"dtype": "gemm_dtype", "n_outputs": "n", "k_inputs": "k", "m_tokens": "m"}),
    "attention_context": ("attention/vllm/0.25.0/context_attention_perf.parquet", ATTENTION | {"new_tokens": "isl"}),
    "attention_decode": ("attention/vllm/0.25.0/generation_attention_perf.parquet",
                         ATTENTION | {"context_tokens": ("isl", "step")}),
    "moe": ("moe/vllm/0.25.0/moe_perf.parquet",
            {"dtype": "moe_dtype", "hidden": "hidden_size", "expert_intermediate": "inter_size",
             "num_experts": "num_experts", "top_k": "topk", "moe_tp": "moe_tp_size", "moe_ep": "moe_ep_size",
             "distribution": "distribution", "tokens": "num_tokens"}),
    "mla_context": ("mla/vllm/0.25.0/mla_context_module_perf.parquet", LATENT | {"new_tokens": "isl"}),
    "mla_decode": ("mla/vllm/0.25.0/mla_generation_module_perf.parquet", LATENT | {"context_tokens": "step"}),
}

# Experts' kernels beside those that vLLM 0.25 takes by itself: device, file, the data type's name there and here.
FURTHER = [
    ("b200", "b200_sxm/moe/vllm/0.19.0/moe_perf.parquet", "fp8_block", "fp8_block_triton"),
    ("b200", "b200_sxm/moe/sglang/0.5.14/moe_perf.parquet", "w4a8_mxfp4_mxfp8", "w4a8_mxfp4_mxfp8"),
    ("b300", "b300_sxm/moe/sglang/0.5.14/moe_perf.parquet", "w4a8_mxfp4_mxfp8", "w4a8_mxfp4_mxfp8"),
]

# vLLM fuses an all-reduce with the norm after it by FlashInfer, whose kernel is TensorRT-LLM's all-reduce. By device and
# ranks: the MiB of a message up to which it does.
FUSED = "comm/trtllm/1.3.0rc20/custom_allreduce_perf.parquet"
FUSED_COLUMNS = {"gpus": "num_gpus", "message_elements": "message_size"}  # of 2 bytes
HOPPER_MIB = {2: 64, 4: 2, 8: 0.5}
FUSED_MIB = {"h100-sxm": HOPPER_MIB, "h200-sxm": HOPPER_MIB, "b200": {2: 64, 4: 32, 8: 1}, "b300": {2: 64, 4: 64, 8: 2}}

# Whole blocks of DeepSeek-V3.2, indexer included; the folder's were measured with eager launches.
SPARSE = {"sparse_mla_context": ("context", {"new_tokens": "isl"}),
          "sparse_mla_decode": ("generation", {"context_tokens": "step"})}

# Devices by the catalogue's names where the folder's differ.
CATALOGUE_NAMES = {"a100-sxm": "a100-sxm-80gb"}

# Operation: columns of the key, axes (the last one is continued as a power law), and which rows are kept.
OPERATIONS = {
    "gemm": (["dtype"], ["n_outputs", "k_inputs", "m_tokens"], lambda row: True),
    "attention_context": (["head_dim", "kv_dtype", "window_tokens", "num_heads", "num_kv_heads"], ["new_tokens"],
                          lambda row: row["batch"] == "1"),
    "attention_decode": (["head_dim", "kv_dtype", "window_tokens", "num_heads", "num_kv_heads"],
                         ["batch", "context_tokens"], lambda row: True),
    "moe": (["dtype", "hidden", "expert_intermediate", "num_experts", "top_k", "moe_tp", "moe_ep"], ["tokens"],
            lambda row: row["distribution"] == "power_law_1.01"),
    "allreduce": (["gpus"], ["message_bytes"], lambda row: row["mode"] == "vllm_graph"),
    "mla_context": (["kv_dtype", "gemm_dtype", "num_heads_local"], ["new_tokens"], lambda row: row["batch"] == "1"),
    "mla_decode": (["kv_dtype", "gemm_dtype", "num_heads_local"], ["batch", "context_tokens"], lambda row: True),
    "allreduce_fused": (["gpus"], ["message_bytes"], lambda row: True),
    "sparse_mla_context": (["kv_dtype", "gemm_dtype", "num_heads_local"], ["new_tokens"],
                           lambda row: row["batch"] == "1" and row["step"] == "0"),
    "sparse_mla_decode": (["kv_dtype", "gemm_dtype", "num_heads_local"], ["batch", "context_tokens"],
                          lambda row: is_power(row["context_tokens"]) and int(row["context_tokens"]) >= 128),
}


def is_power(text):
    return int(text) & (int(text) - 1) == 0


def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def zigzag(value):
    return value * 2 if value >= 0 else -value * 2 - 1


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def packed(number, values):
    return field(number, b"".join(varint(v) for v in values))


def log_time(time_us):
    return round(math.log2(time_us * 1e6) * STEPS_PER_OCTAVE)


def grid_message(key, rows, num_axes):
    """rows: {coordinates: time_us}; a corner that was not measured is a hole."""
    axes = [sorted({c[i] for c in rows}) for i in range(num_axes)]
    message = field(1, key.encode())
    for axis in axes:
        message += field(2, packed(1, [b - a for a, b in zip([0] + axis, axis)]))
    times, holes, index, worst = [], [], 0, 0.0
    before_in_row, row_start = 0, 0

    def walk(prefix):
        nonlocal index, worst, before_in_row, row_start
        if len(prefix) < num_axes - 1:
            for value in axes[len(prefix)]:
                walk(prefix + (value,))
            return
        first = True
        for value in axes[-1]:
            time_us = rows.get(prefix + (value,))
            if time_us is None:
                holes.append(index)
            else:
                log = log_time(time_us)
                worst = max(worst, abs(2 ** (log / STEPS_PER_OCTAVE) / 1e6 / time_us - 1))
                times.append(zigzag(log - (row_start if first else before_in_row)))
                if first:
                    row_start = log
                before_in_row = log
                first = False
            index += 1

    walk(())
    message += packed(3, times)
    if holes:
        message += packed(4, [b - a for a, b in zip([0] + holes, holes)])
    return message, len(times), worst


def wheel_rows(wheel, path, columns):
    """Rows of a table of the wheel, as texts by the names that the folder's files use."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(os.path.join(wheel, WHEEL_DATA, path)).to_pydict()
    for i in range(len(table["latency"])):
        row = {ours: str(sum(table[theirs][i] for theirs in source) if isinstance(source, tuple) else table[source][i])
               for ours, source in columns.items()}
        yield row | {"time_us": table["latency"][i] * 1000}


def newer_grids(wheel, device, name, rows):
    """Of the keys and axes' values that the folder's rows have."""
    if device not in NEWER_DEVICES or name not in NEWER:
        return {}
    keys, axes, keep = OPERATIONS[name]
    known = {tuple(row[k] for k in keys) for row in rows}
    values = [{row[a] for row in rows} for a in axes]
    grids = {}
    path, columns = NEWER[name]
    for row in wheel_rows(wheel, f"{NEWER_DEVICES[device]}/{path}", columns):
        key, at = tuple(row[k] for k in keys), [row[a] for a in axes]
        if key in known and keep(row) and all(v in axis for v, axis in zip(at, values)):
            add_faster(grids.setdefault("|".join(key), {}), at, row["time_us"])
    return grids


def add_faster(grid, at, time_us):
    """Where two kernels were measured, an engine takes the faster one."""
    at = tuple(int(v) for v in at)
    grid[at] = min(time_us, grid.get(at, time_us))


def further_experts(wheel, device):
    keys, axes, keep = OPERATIONS["moe"]
    grids = {}
    for name, path, theirs, ours in FURTHER:
        if name != device:
            continue
        for row in wheel_rows(wheel, path, NEWER["moe"][1]):
            if row["dtype"] == theirs and is_power(row["tokens"]) and int(row["moe_ep"]) <= 64 \
                    and int(row["moe_tp"]) <= 8 and keep(row):
                row["dtype"] = ours
                add_faster(grids.setdefault("|".join(row[k] for k in keys), {}), [row["tokens"]], row["time_us"])
    return grids


def fused_allreduces(wheel, device):
    grids = {}
    for row in wheel_rows(wheel, f"{NEWER_DEVICES[device]}/{FUSED}", FUSED_COLUMNS) if device in FUSED_MIB else []:
        message_bytes = 2 * int(row["message_elements"])
        if message_bytes <= FUSED_MIB[device].get(int(row["gpus"]), 0) * 2**20:
            add_faster(grids.setdefault(row["gpus"], {}), [message_bytes], row["time_us"])
    return grids


def sparse_blocks(wheel, device, name):
    keys, axes, keep = OPERATIONS[name]
    kind, columns = SPARSE[name]
    path = f"{NEWER_DEVICES[device]}/sparse_attention/vllm/0.24.0/dsa_{kind}_module_perf.parquet"
    columns = LATENT | {"step": "step", "op": "op_name", "architecture": "architecture"} | columns
    grids = {}
    for row in wheel_rows(wheel, path, columns):
        # Products of whole-tensor FP8 are not what the published model has.
        if row["op"] == f"dsa_{kind}_module" and row["architecture"] == "DeepseekV32ForCausalLM" \
                and row["gemm_dtype"] != "fp8" and keep(row):
            add_faster(grids.setdefault("|".join(row[k] for k in keys), {}), [row[a] for a in axes], row["time_us"])
    return grids


def pack_device(folder, wheel):
    operations, num_times, worst = b"", 0, 0.0
    for name, (keys, axes, keep) in OPERATIONS.items():
        path = os.path.join(folder, name + ".csv.gz")
        grids, rows = {}, []
        if os.path.exists(path):
            with gzip.open(path, "rt", newline="") as file:
                rows = list(csv.DictReader(file))
        for row in rows:
            if keep(row) and (name != "gemm" or row["dtype"] != "fp8_block"):
                grid = grids.setdefault("|".join(row[k] for k in keys), {})
                grid[tuple(int(row[a]) for a in axes)] = float(row["time_us"])
        if wheel:
            device = os.path.basename(folder)
            grids |= newer_grids(wheel, device, name, [row for row in rows if keep(row)])
            if name == "moe":
                grids |= further_experts(wheel, device)
            if name == "allreduce_fused":
                grids |= fused_allreduces(wheel, device)
            if name in SPARSE and device in NEWER_DEVICES:
                grids |= sparse_blocks(wheel, device, name)
        if not grids:
            continue
        message = field(1, name.encode())
        for key in sorted(grids):
            grid, count, error = grid_message(key, grids[key], len(axes))
            message += field(2, grid)
            num_times += count
            worst = max(worst, error)
        operations += field(1, message)
    return operations, num_times, worst


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--wheel=")]
    wheel = "".join(a[len("--wheel="):] for a in sys.argv[1:] if a.startswith("--wheel="))
    if len(arguments) != 2 or len(sys.argv) > 4:
        sys.exit(__doc__)
    folder, out = arguments
    devices = sorted(d for d in os.listdir(folder) if os.path.isdir(os.path.join(folder, d)))
    if not devices:
        sys.exit(f"{folder}: no folders of devices")
    data = field(1, b"kvblocks kernel tables 1") + field(2, ATTRIBUTION.encode())
    for device in devices:
        operations, num_times, worst = pack_device(os.path.join(folder, device), wheel)
        small = zlib.compress(operations, 9)
        name = CATALOGUE_NAMES.get(device, device)
        data += field(3, field(1, name.encode()) + field(2, small) + varint(3 << 3) + varint(len(operations)))
        print(f"{name}: {num_times} times, {len(small)} bytes, largest error of rounding {100 * worst:.3f} %")
    with open(out, "wb") as file:
        file.write(data)
    print(f"{out}: {len(data)} bytes")


if __name__ == "__main__":
    main()
