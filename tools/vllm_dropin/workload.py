"""Random workloads on a real scheduler of vLLM, with a model that is a hash function."""

from __future__ import annotations

import functools
import json
import pathlib
import random
import tempfile
import zlib
from typing import Any

import families
from both_managers import BothManagers, Difference, Tally
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from kvblocks.vllm.connectors import check_connectors

MAX_MODEL_LEN = 512
VOCABULARY = 40

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@functools.cache
def model_config(max_model_len: int = MAX_MODEL_LEN) -> ModelConfig:
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


class Config:
    """A scheduler's settings, drawn for a family."""

    def __init__(self, family: families.Family, kind: str, draw: random.Random, connects: bool) -> None:
        self.is_async = kind == "async"
        transfer = None
        if connects:
            transfer = KVTransferConfig(
                kv_connector="RandomConnector",
                kv_connector_module_path="connector",
                kv_role=draw.choice(["kv_both", "kv_consumer"]),
                kv_load_failure_policy=draw.choice(["recompute", "fail"]),
                kv_connector_extra_config={
                    "seed": draw.random(), "block_size": family.block_size, "can_fail": not self.is_async
                },
            )  # fmt: skip
        chunked = draw.random() < 0.8
        budget = draw.choice([32, 64, 128]) if chunked else MAX_MODEL_LEN
        self.vllm = VllmConfig(
            model_config=model_config(),
            scheduler_config=SchedulerConfig(
                max_num_seqs=draw.choice([4, 8, 16]),
                max_num_batched_tokens=budget,
                max_model_len=MAX_MODEL_LEN,
                enable_chunked_prefill=chunked or family.mamba,
                async_scheduling=self.is_async,
                is_encoder_decoder=False,
                policy="priority" if kind == "priority" else "fcfs",
                watermark=draw.choice([0.0, 0.0, 0.05]),
                scheduler_reserve_full_isl=draw.random() < 0.7,
            ),
            cache_config=CacheConfig(
                block_size=family.block_size,
                enable_prefix_caching=not family.encoder,
                mamba_cache_mode="align" if family.mamba else "none",
            ),
            device_config=DeviceConfig("cpu"),
            kv_events_config=KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
            kv_transfer_config=transfer,
        )


class EncoderTokens:
    """A manager that hears of an encoder's tokens when a request is admitted, as that of an encoder-decoder does."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def allocate_slots(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.num_computed_tokens == 0 and "new_computed_blocks" in kwargs:
            kwargs["num_encoder_tokens"] = zlib.crc32(request.request_id.encode()) % 60
        return self._manager.allocate_slots(request, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)


class Run:
    """One scheduler with a random workload of one family. `kind` is sync, async or priority."""

    def __init__(self, name: str, kind: str, seed: int, max_calls: int, manager: Any = BothManagers) -> None:
        self.draw = random.Random(f"{name} {kind} {seed}")
        self.family = families.FAMILIES[name]()
        self.scheduler_kind = kind
        self.max_calls = max_calls
        self.manager_class = manager
        self.num_drafts = 2 if self.family.prefill_lookahead or self.family.use_eagle else 0
        longest = 100
        per_request = sum(-(-longest // g.block_size) + 4 for g, _ in self.family.groups)
        self.num_blocks = 1 + int(per_request * self.draw.choice([1.6, 2.5, 4, 8]))
        self.prefixes = [self._tokens(self.draw.randint(1, 48)) for _ in range(4)]
        self.connects = not self.family.mamba and not self.family.encoder and self.draw.random() < 0.35

    def _tokens(self, n: int) -> list[int]:
        return [self.draw.randint(3, VOCABULARY) for _ in range(n)]

    def scheduler(self) -> Scheduler:
        family = self.family

        def make_manager(**kwargs: Any) -> Any:
            kwargs["use_eagle"] = family.use_eagle
            kwargs["num_hash_lookahead_tokens"] = family.hash_lookahead
            kwargs["num_prefill_lookahead"] = family.prefill_lookahead
            manager = self.manager_class(**kwargs)
            return EncoderTokens(manager) if family.encoder else manager

        config = Config(family, self.scheduler_kind, self.draw, self.connects)
        config.vllm.cache_config.num_gpu_blocks = self.num_blocks
        check_connectors(config.vllm, family.config(self.num_blocks))
        scheduler_module.KVCacheManager = make_manager
        scheduler = (AsyncScheduler if config.is_async else Scheduler)(
            vllm_config=config.vllm,
            kv_cache_config=family.config(self.num_blocks),
            structured_output_manager=StructuredOutputManager(config.vllm),
            block_size=family.block_size,
            hash_block_size=family.hash_block_size,
            log_stats=True,
        )
        scheduler.num_spec_tokens = scheduler.num_lookahead_tokens = self.num_drafts
        scheduler.num_prefill_lookahead = family.prefill_lookahead
        if config.is_async:
            scheduler._spec_token_placeholders = [-1] * self.num_drafts
        return scheduler

    @functools.cached_property
    def hasher(self) -> Any:
        init_none_hash(sha256)
        return get_request_block_hasher(self.family.hash_block_size, sha256, self.family.hash_lookahead)

    def request(self, number: int) -> Request:
        draw = self.draw
        prompt = list(draw.choice(self.prefixes))
        prompt = prompt[: draw.randint(1, len(prompt))] if draw.random() < 0.5 else prompt
        prompt += self._tokens(draw.randint(0, 30))
        if draw.random() < 0.2:
            self.prefixes[draw.randrange(4)] = prompt + self._tokens(draw.randint(1, 12))
            self.prefixes[draw.randrange(4)] = self._tokens(draw.randint(1, 48))
        prompt = prompt[:80]
        features = None
        if draw.random() < 0.1 and len(prompt) > 6:
            offset = draw.randrange(len(prompt) - 4)
            features = [
                MultiModalFeatureSpec(
                    data=None, modality="image", identifier=f"image{draw.randrange(2)}",
                    mm_position=PlaceholderRange(offset=offset, length=draw.randint(1, 4)),
                )
            ]
        params = SamplingParams(
            max_tokens=draw.randint(1, 40),
            ignore_eos=True,
            extra_args={"kv_cache_report_mode": "full"} if draw.random() < 0.1 else None,
            prompt_logprobs=None,
        )
        if draw.random() < 0.05:
            params.skip_reading_prefix_cache = True
        return Request(
            request_id=f"r{number}",
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(number),
            mm_features=features,
            cache_salt=draw.choice(["salt", "pepper"]) if draw.random() < 0.1 else None,
            priority=draw.randrange(3) if self.scheduler_kind == "priority" else 0,
            session_id=f"s{number % 5}" if draw.random() < 0.2 else None,
            block_hasher=self.hasher,
        )

    def turn(self, request_id: str, num_turns: int) -> Request:
        """One turn of a streaming session: a piece of input after which a few tokens are sampled.

        The last one has no content and ends the session.
        """
        draw = self.draw
        is_last = num_turns == 5 or (num_turns > 0 and draw.random() < 0.2)
        first = draw.choice(self.prefixes)[:30] if num_turns == 0 and draw.random() < 0.7 else []
        return Request(
            request_id=request_id,
            prompt_token_ids=first + self._tokens(draw.randint(1, 10)),
            sampling_params=SamplingParams(max_tokens=draw.randint(1, 5), ignore_eos=True),
            pooling_params=None,
            arrival_time=0.0,
            block_hasher=self.hasher,
            resumable=not is_last,
        )

    def continue_sessions(self, scheduler: Scheduler, tally: Tally) -> None:
        """Opens a session or gives one its next turn, whether the engine waits for it or still computes the last."""
        draw = self.draw
        self.turns = {name: n for name, n in self.turns.items() if name in scheduler.requests}
        if len(self.turns) < 3 and draw.random() < 0.05:
            name = f"t{tally.facts['sessions']}"
            tally.facts["sessions"] += 1
            scheduler.add_request(self.turn(name, 0))
            self.turns[name] = 1
        for name, num_turns in list(self.turns.items()):
            if draw.random() < 0.1:
                turn = self.turn(name, num_turns)
                scheduler.add_request(turn)
                tally.facts["turns"] += 1
                if turn.resumable:
                    self.turns[name] += 1
                else:
                    del self.turns[name]

    def go(self, tally: Tally) -> None:
        BothManagers.tally = tally
        self.is_chunk: dict[int, dict[str, bool]] = {}
        self.turns: dict[str, int] = {}  # of the streaming sessions
        has_sessions = self.draw.random() < 0.5 and not self.connects and not self.family.encoder
        scheduler = self.scheduler()
        manager = scheduler.kv_cache_manager
        draw = self.draw
        number = 0
        running: list[Any] = []
        rate = draw.choice([0.2, 0.5, 1.0])
        depth = 2 if self.scheduler_kind == "async" else 1
        while tally.calls.total() < self.max_calls:
            while draw.random() < rate and len(scheduler.requests) < 24:
                scheduler.add_request(self.request(number))
                number += 1
            if has_sessions:
                self.continue_sessions(scheduler, tally)
            if draw.random() < 0.02 and scheduler.requests:
                scheduler.finish_requests(draw.choice(list(scheduler.requests)), RequestStatus.FINISHED_ABORTED)
                tally.facts["aborts"] += 1
            if draw.random() < 0.01:
                # vLLM cannot give back what sessions hold between their turns, or loaded requests.
                may_preempt = not any(r.streaming_queue is not None for r in scheduler.requests.values())
                if self.connects:
                    holds = scheduler.connector.is_busy or scheduler.kv_holding_waiting or scheduler.defer_block_free
                    may_preempt = not holds
                scheduler.reset_prefix_cache(reset_running_requests=draw.random() < 0.3 and may_preempt)
            if draw.random() < 0.01 and hasattr(manager, "theirs"):
                manager.evict_blocks({draw.randrange(1, self.num_blocks) for _ in range(3)})
            before = {r.request_id: r.num_preemptions for r in scheduler.running}
            step = scheduler.schedule()
            tally.facts["steps"] += 1
            tally.facts["preemptions"] += sum(
                scheduler.requests[r].num_preemptions > n for r, n in before.items() if r in scheduler.requests
            )
            self.is_chunk[id(step)] = {r: scheduler.requests[r].is_prefill_chunk for r in step.num_scheduled_tokens}
            running.append(step)
            if len(running) >= depth or not step.num_scheduled_tokens:
                self.finish_step(scheduler, running.pop(0))
            scheduler.make_stats()
        while running:
            self.finish_step(scheduler, running.pop(0))
        scheduler.finish_requests(list(scheduler.requests), RequestStatus.FINISHED_ABORTED)
        if hasattr(manager, "compare_all"):
            manager.compare_all()
        if scheduler.connector is not None:
            tally.facts["runs with a connector"] += 1
            tally.facts["loads"] += scheduler.connector.num_loads
            tally.facts["failed loads"] += scheduler.connector.num_failures
            tally.facts["sends"] += scheduler.connector.num_sends

    def finish_step(self, scheduler: Scheduler, step: Any) -> None:
        scheduler.update_from_output(step, self.output(scheduler, step))
        self.is_chunk.pop(id(step), None)
        if self.num_drafts and self.scheduler_kind != "async":
            ids = [r.request_id for r in scheduler.running]
            scheduler.update_draft_token_ids(
                DraftTokenIds(ids, [self._tokens(self.draw.randint(0, self.num_drafts)) for _ in ids])
            )

    def output(self, scheduler: Scheduler, step: Any) -> ModelRunnerOutput:
        """The model: tokens that the latest ones decide, and some drafts accepted."""
        ids = list(step.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            if self.is_chunk[id(step)].get(request_id):
                sampled.append([])
            elif request_id not in scheduler.requests:
                sampled.append([5])
            else:
                drafts = len(step.scheduled_spec_decode_tokens.get(request_id, ()))
                tokens = scheduler.requests[request_id]._all_token_ids
                base = zlib.crc32(repr(tokens[-6:]).encode())
                count = 1 + self.draw.randint(0, drafts)
                sampled.append([3 + (base + i * 7) % (VOCABULARY - 3) for i in range(count)])
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=sampled,
            kv_connector_output=None if scheduler.connector is None else scheduler.connector.transfers(),
        )  # fmt: skip


__all__ = ["Config", "Difference", "Run"]
