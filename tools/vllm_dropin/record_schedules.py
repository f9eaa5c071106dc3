"""Records what vLLM's scheduler does with drawn settings and requests, for the simulator to do the same.

    python record_schedules.py draw FOLDER [--count=300] [--seed=1]     FOLDER/x_SEED_N.jsonl.gz, N from 0
    python record_schedules.py check FILE...                            recordings made elsewhere, made again
    python record_schedules.py shrink --replayer=PROGRAM FILE...        fewer requests and settings that still differ

`draw` drives the scheduler as vLLM's engine core does, with a fake model and simulated time; the same seed gives the same
bytes. Settings that vLLM refuses are passed over and counted. `check` takes settings and requests of each file and compares
each line that the scheduler then gives with the file's. PROGRAM is //tests/conformance:schedules. The last line counts.
"""

from __future__ import annotations

import fixed_hashes  # noqa: F401, I001

import argparse
import collections
import gzip
import itertools
import json
import pathlib
import random
import subprocess
import sys
import zlib
from typing import Any

import draws
import setups
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

FIRST_OUTPUT_DOCUMENT = 100_000
MOST_CALLS = 20_000  # of the scheduler in one recording; a recording that needs more is stuck

Line = dict[str, Any]


class Stuck(Exception):
    """vLLM waits for ever, or gives a request no tokens though nothing else is there."""


class Engine:
    """vLLM's scheduler in the loop of its engine core."""

    def __init__(self, config: setups.Config, requests: list[dict[str, Any]]) -> None:
        self.config, self.requests = config, requests
        self.scheduler = setups.scheduler(config)
        self.depth = self.scheduler.vllm_config.max_concurrent_batches
        self.manager = self.scheduler.kv_cache_manager
        init_none_hash(sha256)
        self.hasher = None
        if config["prefix_caching"]:
            self.hasher = get_request_block_hasher(
                self.scheduler.hash_block_size, sha256, self.scheduler.num_hash_lookahead_tokens
            )
        self.tokens: dict[tuple[int, int], int] = {}
        self.made: dict[int, Request] = {}
        self.num_verifications: collections.Counter[int] = collections.Counter()
        self.preempted: list[int] = []
        self.new_blocks: dict[int, list[list[int]]] = {}
        self.lines: list[Line] = []
        self.time = self.device_free = self.num_steps = 0
        self.arrivals = collections.deque(range(len(requests)))
        self.aborts = collections.deque(
            sorted((r["t"] + r["abort"], row) for row, r in enumerate(requests) if r.get("abort"))
        )
        self._listen()

    def _listen(self) -> None:
        """Hears of preemptions and of new blocks, which the scheduler's output has only joined with hits."""
        preempt, allocate = self.scheduler._preempt_request, self.manager.allocate_slots

        def heard_preempt(request: Request, *args: Any, **kwargs: Any) -> None:
            self.preempted.append(int(request.request_id))
            preempt(request, *args, **kwargs)

        def heard_allocate(request: Request, *args: Any, **kwargs: Any) -> Any:
            blocks = allocate(request, *args, **kwargs)
            if blocks is not None:
                ids = [[i for i in group if i] for group in blocks.get_block_ids()]
                self.new_blocks[int(request.request_id)] = ids
            return blocks

        self.scheduler._preempt_request = heard_preempt
        self.manager.allocate_slots = heard_allocate

    def derived(self) -> Line:
        scheduler, vllm = self.scheduler, self.scheduler.vllm_config
        speculation = vllm.speculative_config
        return {
            "lookahead_slots": scheduler.num_lookahead_tokens,
            "hash_lookahead_tokens": scheduler.num_hash_lookahead_tokens,
            "drop_last_hit_block": scheduler.use_eagle_block_drop,
            "max_in_flight_tokens": vllm.max_in_flight_tokens,
            "steps_in_flight": self.depth,
            "prefill_lookahead_tokens": scheduler.num_prefill_lookahead,
            "draft_slots": speculation.max_num_new_slots_for_drafting if speculation else 0,
            "watermark_blocks": self.manager.watermark_blocks,
            "scheduler_block_size": scheduler.block_size,
            "hash_block_size": scheduler.hash_block_size,
        }

    def _token(self, document: int, position: int) -> int:
        return self.tokens.setdefault((document, position), len(self.tokens) + 3)

    def _request(self, row: int) -> Request:
        told = self.requests[row]
        prompt = [self._token(d, s + i) for d, s, n in told["p"] for i in range(n)]
        return Request(
            request_id=str(row),
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(max_tokens=told["out"], ignore_eos=True),
            pooling_params=None,
            arrival_time=told["t"] + row * 1e-6,
            priority=told.get("prio", 0),
            block_hasher=self.hasher,
        )

    def _deliver(self) -> None:
        while self.arrivals and self.requests[self.arrivals[0]]["t"] <= self.time:
            row = self.arrivals.popleft()
            self.made[row] = self._request(row)
            self.scheduler.add_request(self.made[row])
        self._abort("loop")

    def _abort(self, where: str) -> None:
        rows: list[int] = []
        late = []  # act when their requests were delivered
        while self.aborts and self.aborts[0][0] <= self.time:
            row = self.aborts[0][1]
            if row not in self.made:
                late.append(self.aborts[0])
            elif not self.made[row].is_finished():
                rows.append(row)
            self.aborts.popleft()
        self.aborts.extendleft(reversed(late))
        if rows:
            # One at a time: of several the scheduler makes a set, whose order depends on the process.
            for row in rows:
                self.scheduler.finish_requests(str(row), RequestStatus.FINISHED_ABORTED)
            self.lines.append({"abort": rows, "t": self.time, "at": where})

    def run(self) -> list[Line]:
        queue: collections.deque[tuple[Any, Line | None, int, set[int]]] = collections.deque()
        idle = False  # the last call did nothing, nor can the next one before something comes
        for _ in range(MOST_CALLS):
            self._deliver()
            if self.scheduler.has_requests():
                step, line, admitted = self._schedule()
                end = self.time
                if step.num_scheduled_tokens:
                    line["start"] = max(self.time, self.device_free)
                    end = self.device_free = line["start"] + self.config["step_ms"]
                queue.append((step, line, end, admitted))
                idle = line is None
                if len(queue) < self.depth and (step.num_scheduled_tokens or self.scheduler.has_requests()):
                    continue
            elif not queue:
                if not self._skip_to_next_event():
                    return self._end()
                continue
            step, line, end, admitted = queue.popleft()
            self.time = max(self.time, end)
            self._abort("outputs")
            self._outputs(step, line, admitted)
            if idle and not queue and line is None and self.scheduler.has_unfinished_requests():
                if not self._skip_to_next_event():
                    raise Stuck
        raise Stuck

    def _skip_to_next_event(self) -> bool:
        while self.aborts and (late := self.made.get(self.aborts[0][1])) and late.is_finished():
            self.aborts.popleft()
        times = [self.requests[self.arrivals[0]]["t"]] if self.arrivals else []
        times += [self.aborts[0][0]] if self.aborts and self.aborts[0][1] in self.made else []
        if not times:
            return False
        self.time = max(self.time, min(times))
        return True

    def _schedule(self) -> tuple[Any, Line | None, set[int]]:
        self.preempted.clear()
        self.new_blocks.clear()
        step = self.scheduler.schedule()
        running, waiting = self.scheduler.get_request_counts()
        line: Line = {
            "t": self.time, "run": running, "wait": waiting, "free": self.manager.block_pool.get_num_free_blocks()
        }  # fmt: skip
        if self.preempted:
            line["pre"] = list(self.preempted)
        cached = step.scheduled_cached_reqs
        admitted = {int(new.req_id) for new in step.scheduled_new_reqs} | {int(row) for row in cached.resumed_req_ids}
        if not step.num_scheduled_tokens:
            if not self.preempted:
                return step, None, admitted
            self.lines.append(line)
            return step, line, admitted
        line["i"] = self.num_steps
        self.num_steps += 1
        line["sched"] = []
        for name, num_tokens in step.num_scheduled_tokens.items():
            row = int(name)
            hit = self.made[row].num_computed_tokens - num_tokens if row in admitted else None
            drafts = len(step.scheduled_spec_decode_tokens.get(name, ()))
            line["sched"].append([row, num_tokens, hit, self.new_blocks[row], drafts])
        step.is_chunk = {row: self.made[row].is_prefill_chunk for row, *_ in line["sched"]}
        self.lines.append(line)
        return step, line, admitted

    def _outputs(self, step: Any, line: Line | None, admitted: set[int]) -> None:
        names = list(step.num_scheduled_tokens)
        sampled = []
        for name in names:
            row = int(name)
            request = self.made[row]
            if step.is_chunk[row]:
                sampled.append([])
                continue
            count = 1
            drafts = len(step.scheduled_spec_decode_tokens.get(name, ()))
            if drafts and row not in admitted and not request.is_finished():
                accepted = self.requests[row].get("acc") or [0]
                count += min(drafts, accepted[self.num_verifications[row] % len(accepted)])
                self.num_verifications[row] += 1
            first = request.num_output_tokens
            sampled.append([self._token(FIRST_OUTPUT_DOCUMENT + row, first + i) for i in range(count)])
        before = {int(name): self.made[int(name)].num_output_tokens for name in names}
        unfinished = [row for row in before if not self.made[row].is_finished()]
        output = ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=sampled
        )
        self.scheduler.update_from_output(step, output)
        if self.config["drafts"] and self.config["mode"] == "sync" and names:
            drafts = [[0] * self.config["drafts"] for _ in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))
        if names:
            line["out"] = [self.made[row].num_output_tokens - before[row] for row in before]
            finished = [row for row in unfinished if self.made[row].is_finished()]
            if finished:
                line["fin"] = finished

    def _end(self) -> list[Line]:
        pool = self.manager.block_pool
        queue = b"".join(b.block_id.to_bytes(4, "little") for b in pool.free_block_queue.get_all_free_blocks())
        self.lines.append({
            "end": True, "t": self.time, "steps": self.num_steps, "free": pool.get_num_free_blocks(),
            "queue_crc32": zlib.crc32(queue), "keyed_blocks": sum(b.block_hash is not None for b in pool.blocks),
        })  # fmt: skip
        return self.lines


def record(config: setups.Config, requests: list[dict[str, Any]]) -> tuple[Line, list[Line]]:
    engine = Engine(config, requests)
    derived = engine.derived()
    return derived, engine.run()


def text(line: Line) -> str:
    return json.dumps(line, separators=(",", ":"))


def check(files: list[pathlib.Path]) -> int:
    """Whether the recorder gives what others recorded."""
    num_failed = num_steps = 0
    for file in files:
        first, *expected = (json.loads(line) for line in gzip.open(file, "rt"))
        try:
            derived, lines = record(first["config"], first["requests"])
        except Exception as error:
            derived, lines = {"error": f"{type(error).__name__}: {error}"}, []
        if "derived" in first and {k: derived.get(k) for k in first["derived"]} != first["derived"]:
            num_failed += 1
            print(f"{file.name}: derived\n  recorded {text(first['derived'])}\n  now      {text(derived)}", flush=True)
            continue
        pairs = itertools.zip_longest(expected, lines)
        at = next((i for i, (a, b) in enumerate(pairs) if a is None or b is None or text(a) != text(b)), None)
        num_steps += len(lines)
        if at is not None:
            num_failed += 1
            show = [text(x[at]) if at < len(x) else "no more lines" for x in (expected, lines)]
            print(f"{file.name}:{at + 2}\n  recorded {show[0]}\n  now      {show[1]}", flush=True)
    print(f"{num_steps} lines compared")
    print(f"{len(files) - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0


def draw(folder: pathlib.Path, count: int, seed: int) -> int:
    """Files x_SEED_N with settings that vLLM takes."""
    folder.mkdir(parents=True, exist_ok=True)
    refused: collections.Counter[str] = collections.Counter()
    num_made = num_steps = number = 0
    while num_made < count:
        random_numbers = random.Random(f"{seed} {number}")
        config = draws.settings(random_numbers, simulated=True)
        requests = draws.requests(random_numbers, config)
        name = f"x_{seed}_{number}"
        number += 1
        try:
            derived, lines = record(config, requests)
        except Exception as error:
            # What vLLM refuses, and requests that no pool of this size can hold: it waits for ever then.
            refused[f"{type(error).__name__}: {str(error)[:70]}"] += 1
            continue
        num_made += 1
        num_steps += lines[-1]["steps"]
        first = {"format": "kvsched 1", "engine": "vllm 0.33.0", "name": name, "config": config, "requests": requests}
        write(folder / f"{name}.jsonl.gz", [{**first, "derived": derived}, *lines])
    print(f"{num_made} recordings of {num_steps} steps; refused {refused.total()}:")
    for why, times in sorted(refused.items()):
        print(f"  {times:4d} {why}")
    return 0


def write(path: pathlib.Path, lines: list[Line]) -> None:
    content = "".join(text(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(content.encode(), mtime=0))


def shrink(file: pathlib.Path, replayer: str) -> int:
    """Prints the smallest recording found on which the replayer still differs."""
    first = json.loads(gzip.open(file, "rt").readline())
    config, requests = first["config"], first["requests"]
    trial = file.with_name(f"shrunk_{file.name}")

    def differs(config: setups.Config, requests: list[dict[str, Any]]) -> bool:
        try:
            derived, lines = record(config, requests)
        except Exception:
            return False
        write(trial, [{**first, "config": config, "requests": requests, "derived": derived}, *lines])
        return subprocess.run([replayer, trial], capture_output=True).returncode == 1

    found = True
    while found:
        found = False
        size = len(requests)
        while size > 0:
            at = 0
            while at < len(requests):
                fewer = _without(requests, at, size)
                if fewer and differs(config, fewer):
                    requests, found = fewer, True
                else:
                    at += size
            size //= 2
        for row, request in enumerate(requests):
            for name in ("out", "acc", "abort", "prio"):
                less = {"out": 1}.get(name)
                if name not in request or request[name] == less:
                    continue
                slim = {k: v for k, v in request.items() if k != name} | ({name: less} if less else {})
                if differs(config, simpler := [*requests[:row], slim, *requests[row + 1 :]]):
                    requests, found, request = simpler, True, slim
        for candidate in draws.simpler(config):
            if differs(candidate, requests):
                config, found = candidate, True
                break
    differs(config, requests)
    print(gzip.open(trial, "rt").read(), end="", flush=True)
    return subprocess.run([replayer, trial]).returncode


def _without(requests: list[dict[str, Any]], at: int, size: int) -> list[dict[str, Any]]:
    """Without some of them; outputs that later prompts repeat keep the numbers of their rows."""
    number = {row: i for i, row in enumerate(r for r in range(len(requests)) if not at <= r < at + size)}
    fewer = []
    for row in number:
        prompt = []
        for document, start, count in requests[row]["p"]:
            if document >= FIRST_OUTPUT_DOCUMENT:
                writer = document - FIRST_OUTPUT_DOCUMENT
                document = FIRST_OUTPUT_DOCUMENT + number[writer] if writer in number else 50_000 + writer
            prompt.append([document, start, count])
        fewer.append({**requests[row], "p": prompt})
    return fewer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["draw", "check", "shrink"])
    parser.add_argument("files", type=pathlib.Path, nargs="+")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replayer", help="built from //tests/conformance:schedules")
    args = parser.parse_args()
    if args.what == "draw":
        return draw(args.files[0], args.count, args.seed)
    if args.what == "shrink":
        return max([shrink(file, args.replayer) for file in args.files])
    return check(args.files)


if __name__ == "__main__":
    sys.exit(main())
