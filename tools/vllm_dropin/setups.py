"""What a user sets, as a dictionary, and what vLLM makes of it: its configurations and a scheduler.

The dictionary is that of recorded schedules (the field "config" of their first line), with more kinds of groups and:
per group extra (tokens that a window keeps for a drafter), speculative (further states); hash_block_size (finer hashes),
dcp (ranks that share each position's blocks), connector (settings of KVTransferConfig), events, log_stats.
"""

from __future__ import annotations

import functools
import json
import pathlib
import tempfile
import types
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, KVEventsConfig, KVTransferConfig, ModelConfig, SchedulerConfig
from vllm.config import SpeculativeConfig, VllmConfig
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.structured_output import StructuredOutputManager

Config = dict[str, Any]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 1 << 20,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# Methods of drafting that look at the target model's hidden states.
READS_HIDDEN_STATES = ("eagle", "parallel_eagle", "mtp", "mtp_modules", "dflash", "dspark")


@functools.cache
def model_config(max_model_len: int) -> ModelConfig:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="kvblocks_vllm_"))
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return ModelConfig(
        model=str(folder),
        tokenizer=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=max_model_len,
        seed=0,
    )


def speculation(method: str, num_drafts: int, lookahead_hashes: bool) -> SpeculativeConfig:
    """vLLM's own answers about a method, without the draft model that its constructor wants to load."""
    config = SpeculativeConfig.__new__(SpeculativeConfig)
    num_modules = num_drafts if method == "mtp_modules" else 1
    config.method = {"mtp_modules": "mtp"}.get(method, method.removeprefix("parallel_"))
    config.num_speculative_tokens = num_drafts
    config.parallel_drafting = method.startswith("parallel_")
    config.disable_lookahead_block_hashes = not lookahead_hashes
    config.draft_model_config = types.SimpleNamespace(
        hf_config=types.SimpleNamespace(num_nextn_predict_layers=num_modules, model_type="")
    )
    return config


def group_spec(group: dict[str, Any], config: Config) -> KVCacheSpec:
    kind, block_size = group["kind"], group["block_size"]
    heads: dict[str, Any] = {"block_size": block_size, "num_kv_heads": 1, "head_size": 8, "dtype": torch.bfloat16}
    # What the planner does: V2 drafters with modules read so many tokens again.
    modules = config["drafts"] if config["method"] == "mtp_modules" else 0
    extra = group.get("extra", max(0, modules - 1))
    if kind == "full_attention":
        return FullAttentionSpec(**heads)
    if kind == "mla":
        return MLAAttentionSpec(**heads)
    if kind == "sliding_window":
        return SlidingWindowSpec(**heads, sliding_window=group["window"], extra_retained_tokens=extra)
    if kind == "sliding_window_mla":
        return SlidingWindowMLASpec(**heads, sliding_window=group["window"], extra_retained_tokens=extra)
    if kind == "chunked_local_attention":
        return ChunkedLocalAttentionSpec(**heads, attention_chunk_size=group["window"])
    if kind == "cross_attention":
        return CrossAttentionSpec(**heads)
    assert kind in ("mamba", "mamba_none"), kind
    return MambaSpec(
        block_size=block_size,
        shapes=((4, 4),),
        dtypes=(torch.float32,),
        mamba_cache_mode="none" if kind == "mamba_none" else "align",
        num_speculative_blocks=group.get("speculative", config["drafts"]),
    )


def kinds(config: Config) -> set[str]:
    return {group["kind"] for group in groups(config)}


def groups(config: Config) -> list[dict[str, Any]]:
    return config["groups"] or [{"kind": "full_attention", "block_size": config["block_size"]}]


def kv_cache_config(config: Config) -> KVCacheConfig:
    return KVCacheConfig(
        num_blocks=config["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec([f"layer{i}"], group_spec(group, config), is_eagle_group=group.get("draft", False))
            for i, group in enumerate(groups(config))
        ],
        prefix_cache_retention_interval=config["retention"],
    )


def vllm_config(config: Config) -> VllmConfig:
    max_model_len = config["max_model_len"]
    connector = config.get("connector")
    made = VllmConfig(
        model_config=model_config(max_model_len),
        scheduler_config=SchedulerConfig(
            max_num_seqs=config["max_num_seqs"],
            max_num_active_seqs=config.get("max_num_active_seqs"),
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_model_len=max_model_len,
            enable_chunked_prefill=config["chunked_prefill"],
            long_prefill_token_threshold=config["long_prefill_threshold"],
            long_prefill_token_threshold_adaptive=config.get("adaptive_threshold") or False,
            prefill_schedule_interval=config.get("prefill_interval") or 1,
            async_scheduling=config["mode"] == "async",
            is_encoder_decoder=False,
            policy=config["policy"],
            watermark=config["watermark"],
            scheduler_reserve_full_isl=config["reserve_full_isl"],
        ),
        cache_config=CacheConfig(
            block_size=config["block_size"],
            enable_prefix_caching=config["prefix_caching"],
            prefix_match_unit=config.get("hash_block_size"),
            mamba_cache_mode="align" if "mamba" in kinds(config) else "none",
        ),
        device_config=DeviceConfig("cpu"),
        kv_events_config=(
            KVEventsConfig(enable_kv_cache_events=True, publisher="null") if config.get("events") else None
        ),
        kv_transfer_config=KVTransferConfig(**connector) if connector else None,
    )
    # Constructors of vLLM round these or want more devices.
    made.cache_config.block_size = config["block_size"]
    made.cache_config.enable_prefix_caching = config["prefix_caching"]
    made.cache_config.num_gpu_blocks = config["num_blocks"]
    made.parallel_config.decode_context_parallel_size = config.get("dcp", 1)
    made.scheduler_config.enable_chunked_prefill = config["chunked_prefill"]
    if config["drafts"]:
        made.speculative_config = speculation(config["method"], config["drafts"], config["lookahead_hashes"])
        made._set_max_num_scheduled_tokens()
    return made


def scheduler(config: Config) -> Scheduler:
    """As an engine core makes it. Raises what vLLM raises where it refuses the settings."""
    vllm = vllm_config(config)
    cache = kv_cache_config(config)
    block_size, hash_block_size = resolve_kv_cache_block_sizes(cache, vllm)
    return (AsyncScheduler if config["mode"] == "async" else Scheduler)(
        vllm_config=vllm,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(vllm),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=config.get("log_stats", False),
    )
