"""Settings drawn as widely as vLLM takes them. What it refuses, it refuses when a scheduler is made or first asked."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

from setups import Config, READS_HIDDEN_STATES

METHODS = [*READS_HIDDEN_STATES, "eagle", "mtp_modules", "ngram", "draft_model", "parallel_draft_model"]
SIMULATED_KINDS = ["full_attention", "sliding_window", "chunked_local_attention", "mamba"]
MORE_KINDS = ["mla", "sliding_window_mla", "mamba_none"]
# What a workload of the lockstep may have beside plain requests.
HAPPENINGS = ["aborts", "resets", "evictions", "salts", "images", "reports", "unread", "sessions"]


def _chance(draw: random.Random, probability: float) -> bool:
    return draw.random() < probability


def _groups(draw: random.Random, kinds: list[str], base: int, simulated: bool) -> list[dict[str, Any]]:
    """One to eight groups. Half of the draws have two kinds at most, as models do."""
    chosen = draw.sample(kinds, draw.randint(1, 2)) if _chance(draw, 0.5) else kinds
    if _chance(draw, 0.7) and "full_attention" not in chosen:
        chosen = [*chosen, "full_attention"]
    unequal = _chance(draw, 0.35)
    size_of = {kind: base * (draw.choice([1, 1, 2, 3, 4]) if unequal else 1) for kind in kinds}
    groups = []
    for _ in range(draw.choice([1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 8])):
        kind = draw.choice(chosen)
        size = base * draw.choice([1, 2, 4]) if unequal and _chance(draw, 0.15) else size_of[kind]
        group: dict[str, Any] = {"kind": kind, "block_size": size}
        if kind.startswith("sliding_window"):
            group["window"] = draw.choice([1, 2, size, 2 * size, draw.randint(1, 6 * size)])
        elif kind == "chunked_local_attention":
            group["window"] = size * draw.randint(1, 6) - (not simulated and _chance(draw, 0.02))
        groups.append(group)
        if simulated and kind == "mamba":
            group["block_size"] = size_of[kind]  # recordings name one, which splits prompts
    # Layers of a model mostly differ in kind only.
    return [next(g for g in groups if g["kind"] == group["kind"]) if _chance(draw, 0.5) else group for group in groups]


def settings(draw: random.Random, simulated: bool) -> Config:
    """A scheduler's settings: for the simulator what recordings of schedules can name, for the manager more."""
    base = draw.choice([4, 8, 16, 32] if simulated else [2, 4, 4, 4, 8, 16])
    # vLLM caches no prefixes beside states that are not aligned.
    prefix_caching = _chance(draw, 0.92)
    kinds = SIMULATED_KINDS + ([] if simulated else MORE_KINDS)
    if not simulated and _chance(draw, 0.98):
        kinds = [kind for kind in kinds if kind != ("mamba_none" if prefix_caching else "mamba")]
    groups = [dict(group) for group in _groups(draw, kinds, base, simulated)]
    if not simulated and _chance(draw, 0.03):
        groups = [{"kind": kind, "block_size": base} for kind in ("full_attention", "cross_attention")]
    encoder = any(g["kind"] == "cross_attention" for g in groups)
    method = draw.choice(METHODS) if _chance(draw, 0.5) and not encoder else None
    drafts = 0 if method is None else draw.randint(2 if method == "mtp_modules" else 1, 4)
    if _chance(draw, 0.6 if method in READS_HIDDEN_STATES else 0.1):
        for group in groups:
            if _chance(draw, 0.4):
                group["draft"] = True
    states = [g["block_size"] for g in groups if g["kind"] == "mamba"]
    common = math.lcm(*(g["block_size"] for g in groups))
    sparse = any(not g["kind"].startswith(("full", "mla", "chunked", "cross")) for g in groups) or _chance(draw, 0.05)
    config: Config = {
        "mode": draw.choice(["sync", "async"]),
        "num_blocks": 0,
        "block_size": states[0] if states else min(g["block_size"] for g in groups),
        "groups": groups,
        "max_num_seqs": draw.choice([2, 4, 8, 16]),
        "max_num_batched_tokens": draw.choice([16, 32, 64, 64, 128, 128, 256]),
        "max_model_len": 512,
        "policy": draw.choice(["fcfs", "fcfs", "priority"]),
        "chunked_prefill": _chance(draw, 0.85),
        "long_prefill_threshold": draw.choice([0, 0, 0, draw.randint(4, 48)]),
        "watermark": draw.choice([0, 0, 0.02, 0.1]),
        "reserve_full_isl": _chance(draw, 0.7),
        "drafts": drafts,
        "method": method,
        "lookahead_hashes": _chance(draw, 0.6),
        "retention": draw.choice([0, 0, 0, None, None, *([common, 2 * common, 4 * common] if sparse else [])]),
        "prefix_caching": prefix_caching and not encoder,
        "step_ms": draw.choice([5, 20, 33]),
    }
    if config["long_prefill_threshold"] > 0:
        config["adaptive_threshold"] = _chance(draw, 0.3)
    if _chance(draw, 0.15):
        config["prefill_interval"] = draw.randint(2, 5)
    if _chance(draw, 0.1):
        config["max_num_active_seqs"] = draw.randint(1, config["max_num_seqs"])
    # Requests that have some blocks of each group, and pools for one to a few of them.
    longest = max(100, 4 * common if not simulated else 6 * base)
    config["max_model_len"] = draw.choice([512, 2 * longest]) if simulated else max(512, 2 * longest)
    if not config["chunked_prefill"]:
        config["max_num_batched_tokens"] = config["max_model_len"]
    per_request = sum(-(-longest // g["block_size"]) + 4 for g in groups)
    config["num_blocks"] = 1 + int(per_request * draw.choice([1.3, 1.6, 2.5, 4, 8]))
    if simulated:
        return config
    if _chance(draw, 0.2):
        config["hash_block_size"] = draw.choice([1, 2, base, math.gcd(*(g["block_size"] for g in groups))])
    if _chance(draw, 0.08):
        config["dcp"] = 2
    for group in groups:
        if group["kind"].startswith("sliding_window") and _chance(draw, 0.1):
            group["extra"] = draw.randint(0, 3)
        if group["kind"].startswith("mamba") and _chance(draw, 0.3):
            group["speculative"] = draw.randint(0, 3)
    has_states = any(g["kind"].startswith("mamba") for g in groups)
    if not has_states and not encoder and "dcp" not in config and _chance(draw, 0.3):
        config["connector"] = {
            "kv_connector": "RandomConnector",
            "kv_connector_module_path": "connector",
            "kv_role": draw.choice(["kv_both", "kv_consumer"]),
            "kv_load_failure_policy": draw.choice(["recompute", "fail"]),
            "kv_connector_extra_config": {
                "seed": draw.random(), "block_size": common, "can_fail": config["mode"] == "sync"
            },
        }  # fmt: skip
    config["events"] = config["log_stats"] = True
    config["happenings"] = [h for h in HAPPENINGS if _chance(draw, 0.6)]
    if "connector" in config or encoder:
        config["happenings"] = [h for h in config["happenings"] if h != "sessions"]
    return config


def requests(draw: random.Random, config: Config) -> list[dict[str, Any]]:
    """For the simulator. Prompts begin with shared documents, repeat others, or go on where another request ended."""
    unit = max(g["block_size"] for g in config["groups"])
    most = config["max_model_len"] - 2
    documents = {i: draw.randint(1, 4 * unit) for i in range(1, draw.randint(2, 5))}
    gap = draw.choice([0, 10, 50, 200])
    aborts = draw.choice([0, 0, 0.2])
    made: list[dict[str, Any]] = []
    time = 0
    for row in range(draw.randint(8, 40)):
        time += draw.choice([0, draw.randint(0, 2 * gap)])
        prompt = [[document := draw.choice(list(documents)), 0, documents[document]]] if _chance(draw, 0.7) else []
        if made and _chance(draw, 0.35):
            before = draw.randrange(len(made))
            prompt = [list(piece) for piece in made[before]["p"]]
            if _chance(draw, 0.5):
                prompt.append([100_000 + before, 0, made[before]["out"]])
        if not prompt or _chance(draw, 0.7):
            prompt.append([1000 + row, 0, draw.choice([unit, draw.randint(1, 3 * unit)])])
        out = draw.choice([1, draw.randint(1, 12), draw.randint(1, 40)])
        while sum(n for _, _, n in prompt) > most - 1:
            prompt[-1][2] -= min(prompt[-1][2], sum(n for _, _, n in prompt) - most + 1)
            if prompt[-1][2] == 0:
                prompt.pop()
        request: dict[str, Any] = {"t": time, "p": prompt, "out": out}
        if config["policy"] == "priority":
            request["prio"] = draw.randrange(3)
        if _chance(draw, aborts):
            request["abort"] = draw.randint(1, 400)
        if config["drafts"]:
            request["acc"] = [draw.randint(0, config["drafts"]) for _ in range(draw.randint(1, 6))]
        made.append(request)
    return made


def simpler(config: Config) -> Iterator[Config]:
    """Settings that are one step simpler, for looking for the least that still shows a difference."""
    for index in range(len(config["groups"])):
        if len(config["groups"]) > 1:
            yield {**config, "groups": [g for i, g in enumerate(config["groups"]) if i != index]}
    for name in ("connector", "dcp", "hash_block_size", "max_num_active_seqs", "prefill_interval", "adaptive_threshold"):
        if name in config:
            yield {k: v for k, v in config.items() if k != name}
    for happening in config.get("happenings", []):
        yield {**config, "happenings": [h for h in config["happenings"] if h != happening]}
    plain = {
        "drafts": 0, "policy": "fcfs", "mode": "sync", "watermark": 0, "long_prefill_threshold": 0, "retention": 0,
        "chunked_prefill": True, "reserve_full_isl": True, "num_blocks": 400, "max_num_seqs": 8,
    }  # fmt: skip
    for name, value in plain.items():
        if config[name] != value and (name != "num_blocks" or config[name] < value):
            yield {**config, name: value} | ({"method": None} if name == "drafts" else {})
    for index, group in enumerate(config["groups"]):
        for name in ("draft", "extra", "speculative"):
            if name in group:
                slim = {k: v for k, v in group.items() if k != name}
                yield {**config, "groups": [*config["groups"][:index], slim, *config["groups"][index + 1 :]]}
