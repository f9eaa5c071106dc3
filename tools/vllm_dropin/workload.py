"""Random workloads on a real scheduler of vLLM, with a model that is a hash function."""

from __future__ import annotations

import math
import random
import zlib
from typing import Any

import setups
from both_managers import BothManagers, Tally
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched import scheduler as scheduler_module
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from kvblocks.vllm.plugin import check_settings

VOCABULARY = 40


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
    """A scheduler with the settings and a random workload on it."""

    def __init__(self, config: setups.Config, seed: str, max_calls: int, manager: Any = BothManagers) -> None:
        self.draw = random.Random(seed)
        self.config = config
        self.max_calls = max_calls
        self.manager_class = manager
        self.has_encoder = "cross_attention" in setups.kinds(config)
        # Prompts of several blocks of each group.
        self.scale = min(6.0, max(1.0, math.lcm(*(g["block_size"] for g in config["groups"])) / 6))
        self.prefixes = [self._piece(1, 48) for _ in range(4)]

    def _tokens(self, n: int) -> list[int]:
        return [self.draw.randint(3, VOCABULARY) for _ in range(n)]

    def _piece(self, least: int, most: int) -> list[int]:
        return self._tokens(self.draw.randint(least, int(most * self.scale)))

    def has(self, happening: str, probability: float) -> bool:
        return happening in self.config["happenings"] and self.draw.random() < probability

    def scheduler(self) -> Scheduler:
        """Raises what vLLM raises where it refuses the settings, and UnsupportedError where the plugin does."""

        def make_manager(**kwargs: Any) -> Any:
            manager = self.manager_class(**kwargs)
            return EncoderTokens(manager) if self.has_encoder else manager

        scheduler_module.KVCacheManager = make_manager
        scheduler = setups.scheduler(self.config)
        check_settings(scheduler.vllm_config, scheduler.kv_cache_config)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(scheduler.hash_block_size, sha256, scheduler.num_hash_lookahead_tokens)
        return scheduler

    def request(self, number: int) -> Request:
        draw = self.draw
        prompt = list(draw.choice(self.prefixes))
        prompt = prompt[: draw.randint(1, len(prompt))] if draw.random() < 0.5 else prompt
        prompt += self._piece(0, 30)
        if draw.random() < 0.2:
            self.prefixes[draw.randrange(4)] = prompt + self._piece(1, 12)
            self.prefixes[draw.randrange(4)] = self._piece(1, 48)
        prompt = prompt[: int(80 * self.scale)] or [3]
        features = None
        if self.has("images", 0.15) and len(prompt) > 6:
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
            extra_args={"kv_cache_report_mode": "full"} if self.has("reports", 0.15) else None,
            prompt_logprobs=None,
        )
        if self.has("unread", 0.08):
            params.skip_reading_prefix_cache = True
        return Request(
            request_id=f"r{number}",
            prompt_token_ids=prompt,
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(number),
            mm_features=features,
            cache_salt=draw.choice(["salt", "pepper"]) if self.has("salts", 0.15) else None,
            priority=draw.randrange(3) if self.config["policy"] == "priority" else 0,
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
        self.turns: dict[str, int] = {}  # of the streaming sessions
        scheduler = self.scheduler()
        manager = scheduler.kv_cache_manager
        draw = self.draw
        number = 0
        running: list[Any] = []
        rate = draw.choice([0.2, 0.5, 1.0])
        depth = 2 if self.config["mode"] == "async" else 1
        while tally.calls.total() < self.max_calls and tally.facts["steps"] < self.max_calls:
            while draw.random() < rate and len(scheduler.requests) < 24:
                scheduler.add_request(self.request(number))
                number += 1
            if "sessions" in self.config["happenings"]:
                self.continue_sessions(scheduler, tally)
            if self.has("aborts", 0.03) and scheduler.requests:
                scheduler.finish_requests(draw.choice(list(scheduler.requests)), RequestStatus.FINISHED_ABORTED)
                tally.facts["aborts"] += 1
            if self.has("resets", 0.015):
                # vLLM cannot give back what sessions hold between their turns, or loaded requests.
                may_preempt = not any(r.streaming_queue is not None for r in scheduler.requests.values())
                if scheduler.connector is not None:
                    holds = scheduler.connector.is_busy or scheduler.kv_holding_waiting or scheduler.defer_block_free
                    may_preempt = not holds
                scheduler.reset_prefix_cache(reset_running_requests=draw.random() < 0.3 and may_preempt)
            if self.has("evictions", 0.015) and hasattr(manager, "theirs"):
                manager.evict_blocks({draw.randrange(1, self.config["num_blocks"]) for _ in range(3)})
            before = {r.request_id: r.num_preemptions for r in scheduler.running}
            step = scheduler.schedule()
            tally.facts["steps"] += 1
            tally.facts["preemptions"] += sum(
                scheduler.requests[r].num_preemptions > n for r, n in before.items() if r in scheduler.requests
            )
            step.is_chunk = {r: scheduler.requests[r].is_prefill_chunk for r in step.num_scheduled_tokens}
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
        if self.config["drafts"] and self.config["mode"] == "sync":
            ids = [r.request_id for r in scheduler.running]
            drafts = [self._tokens(self.draw.randint(0, self.config["drafts"])) for _ in ids]
            scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))

    def output(self, scheduler: Scheduler, step: Any) -> ModelRunnerOutput:
        """The model: tokens that the latest ones decide, and some drafts accepted."""
        ids = list(step.num_scheduled_tokens)
        sampled = []
        for request_id in ids:
            if step.is_chunk[request_id]:
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


__all__ = ["Run"]
