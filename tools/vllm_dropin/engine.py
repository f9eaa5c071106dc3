"""A whole vLLM engine on a CPU: 500 requests with one manager; what happened goes to a file.

    VLLM_PLUGINS=kvblocks KVBLOCKS_VLLM=1 python engine.py run llama ours.json [--requests=500]
    python engine.py compare vllm.json ours.json

Requests share prefixes, the pool is small enough for preemptions, some are aborted. Written are the
tokens, each step's schedule with its block ids, the hit counters and the events. Weights are random.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import sys
import tempfile
from typing import Any

COMMON = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-6,
}

MODELS: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2},
    "gemma3": {
        **COMMON,
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "query_pre_attn_scalar": 32,
        "sliding_window": 64,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
    # Gated DeltaNet states in three of four layers, as Qwen3.5 has them. One state is as large as 17 tokens
    # of attention, so that blocks hold few.
    "qwen3_5": {
        **COMMON,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_num_value_heads": 1,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
}


def name(request_id: str) -> str:
    """Without what the engine appends at random."""
    return request_id.split("-")[0]


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "__struct_fields__"):
        return {"type": type(value).__name__, **{f: plain(getattr(value, f)) for f in value.__struct_fields__}}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def mend_built_in() -> None:
    """Gives vLLM 0.32's manager of Mamba states a rule of 0.33, which ours follows.

    A state that a request hits is keyed already. 0.32 keys it once more, and then lets the next request with
    the same prefix wait for a step, as if the state were only being computed.
    """
    import vllm
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    if not vllm.__version__.startswith("0.32."):
        return
    key_tail = MambaManager._cache_partial_tail_block

    def key_tail_once(self: Any, request: Any, num_tokens: int, **kwargs: Any) -> Any:
        blocks = self.req_to_blocks[request.request_id]
        index = (num_tokens - 1) // self.block_size
        if (
            request.request_id not in self._checkpoints
            and 0 <= index < len(blocks)
            and blocks[index].block_hash_num_tokens == num_tokens
        ):
            return None
        return key_tail(self, request, num_tokens, **kwargs)

    MambaManager._cache_partial_tail_block = key_tail_once


def run(model: str, output: str, num_requests: int) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.config import KVEventsConfig

    mend_built_in()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvblocks_vllm_"))
    (folder / "config.json").write_text(json.dumps(MODELS[model]))
    more: dict[str, Any] = {"mamba_cache_mode": "align"} if model == "qwen3_5" else {}
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder), tokenizer=str(folder), skip_tokenizer_init=True, load_format="dummy", seed=0,
            enforce_eager=True, dtype="bfloat16", max_model_len=512, block_size=32, max_num_seqs=16,
            max_num_batched_tokens=256, enable_prefix_caching=True, async_scheduling=False,
            num_gpu_blocks_override={"llama": 45, "gemma3": 160, "qwen3_5": 110}[model],
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"), **more,
        )
    )  # fmt: skip
    scheduler = engine.engine_core.engine_core.scheduler
    manager = scheduler.kv_cache_manager
    steps: list[Any] = []
    events: list[Any] = []
    counters = {"requests": 0, "queries": 0, "hits": 0, "preempted_requests": 0, "preempted_hits": 0}
    schedule, take, make = scheduler.schedule, manager.take_events, manager.make_prefix_cache_stats

    def recorded_schedule(*args: Any, **kwargs: Any) -> Any:
        step = schedule(*args, **kwargs)
        cached = step.scheduled_cached_reqs
        steps.append(
            [
                {name(r): n for r, n in step.num_scheduled_tokens.items()},
                [[name(r.req_id), plain(r.block_ids), r.num_computed_tokens] for r in step.scheduled_new_reqs],
                [[name(r) for r in cached.req_ids], plain(cached.new_block_ids), cached.num_computed_tokens],
                sorted(map(name, step.finished_req_ids)),
            ]
        )
        return step

    def recorded_events() -> Any:
        taken = take()
        events.extend(plain(event) for event in taken)
        return taken

    def recorded_stats() -> Any:
        stats = make()
        for name in counters:
            counters[name] += getattr(stats, name)
        return stats

    scheduler.schedule, manager.take_events = recorded_schedule, recorded_events
    manager.make_prefix_cache_stats = recorded_stats

    draw = random.Random(7)
    prefixes = [[draw.randrange(3, 500) for _ in range(draw.randint(20, 200))] for _ in range(6)]
    tokens: dict[str, list[int]] = {}
    waiting = num_requests
    preemptions = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and draw.random() < 0.6:
            prompt = draw.choice(prefixes) + [draw.randrange(3, 500) for _ in range(draw.randint(1, 60))]
            number = num_requests - waiting
            engine.add_request(
                f"r{number}",
                {"prompt_token_ids": prompt},
                SamplingParams(temperature=0.0, max_tokens=draw.randint(4, 60), ignore_eos=True, detokenize=False),
            )
            waiting -= 1
        if draw.random() < 0.05 and scheduler.requests:
            engine.abort_request([draw.choice(sorted(scheduler.requests, key=name))], internal=True)
        before = sum(r.num_preemptions for r in scheduler.requests.values())
        for answer in engine.step():
            tokens[name(answer.request_id)] = list(answer.outputs[0].token_ids)
        preemptions += max(0, sum(r.num_preemptions for r in scheduler.requests.values()) - before)
    recorded_stats()
    result = {
        "manager": type(manager).__module__, "tokens": tokens, "steps": steps, "counters": counters,
        "events": events, "preemptions": preemptions,
    }  # fmt: skip
    pathlib.Path(output).write_text(json.dumps(result))
    print(
        f"{model}: {result['manager']}: {num_requests} requests, {len(steps)} steps, "
        f"{sum(map(len, tokens.values()))} tokens, {len(events)} events, {preemptions} preemptions, {counters}"
    )


def compare(first: str, second: str) -> int:
    a, b = (json.loads(pathlib.Path(name).read_text()) for name in (first, second))
    if a["manager"] == b["manager"]:
        print(f"both runs had {a['manager']}")
        return 1
    different = [key for key in ("tokens", "steps", "counters", "events") if a[key] != b[key]]
    for key in different:
        at = next((i for i, (x, y) in enumerate(zip(a[key], b[key])) if x != y), "the end")
        print(f"{key} differ, at {at}: {str(a[key][at])[:300] if isinstance(at, int) and isinstance(a[key], list) else ''}")
    print("different" if different else "same tokens, steps, hit counters and events")
    return 1 if different else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "compare"])
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--requests", type=int, default=500)
    args = parser.parse_args()
    if args.what == "compare":
        return compare(args.first, args.second)
    run(args.first, args.second, args.requests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
