"""A KV connector whose other side is a die: part of a prompt lies elsewhere, and transfers end some steps later."""

from __future__ import annotations

import random
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus


class RandomConnector(KVConnectorBase_V1, SupportsHMA):
    """The scheduler's side. Settings: seed, block_size, can_fail."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._draw = random.Random(extra["seed"])
        self._block_size = extra["block_size"]
        self._can_fail = extra["can_fail"]
        self._num_groups = len(kv_cache_config.kv_cache_groups)
        self._offered: dict[str, tuple[int, int, bool]] = {}  # tokens before, tokens, whether it takes time
        self._loads: dict[str, list[int]] = {}  # under way; the blocks that are written
        self._loads_of_step: dict[str, list[int]] = {}
        self._sends: set[str] = set()
        self.num_loads = self.num_sends = self.num_failures = 0

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        draw = self._draw
        if draw.random() < 0.03:
            return None, False
        # A request computes at least its last token, unless the load takes time.
        takes_time = draw.random() < 0.5
        most = (request.num_prompt_tokens - (0 if takes_time else 1) - num_computed_tokens) // self._block_size
        num_tokens = draw.randint(0, max(0, most)) * self._block_size if draw.random() < 0.4 else 0
        self._offered[request.request_id] = (num_computed_tokens, num_tokens, takes_time and num_tokens > 0)
        return num_tokens, takes_time and num_tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if hasattr(blocks, "compare"):
            blocks.compare()
        if num_external_tokens == 0:
            return
        before, _, takes_time = self._offered[request.request_id]
        first = before // self._block_size
        written = blocks.get_block_ids()[0][first : first + num_external_tokens // self._block_size]
        (self._loads if takes_time else self._loads_of_step)[request.request_id] = written
        self.num_loads += 1

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        # What was aborted or failed sends nothing; a load of it may be under way.
        if request.status != RequestStatus.FINISHED_LENGTH_CAPPED or self._draw.random() < 0.7:
            return False, None
        self._sends.add(request.request_id)
        self.num_sends += 1
        return True, None

    @property
    def is_busy(self) -> bool:
        return bool(self._loads or self._sends)

    def transfers(self) -> KVConnectorOutput:
        """What a worker reports after a step."""
        draw = self._draw
        received = {r for r in sorted(self._loads) if draw.random() < 0.3}
        sent = {r for r in sorted(self._sends) if draw.random() < 0.3}
        invalid: set[int] = set()
        failed: set[str] = set()
        if self._can_fail:
            for request_id, blocks in [*self._loads_of_step.items(), *((r, self._loads[r]) for r in sorted(received))]:
                if draw.random() > 0.2:
                    continue
                if self._num_groups == 1:
                    invalid.update(blocks[draw.randrange(len(blocks)) :])
                elif request_id in received:
                    failed.add(request_id)
                self.num_failures += 1
        self._loads_of_step.clear()
        for request_id in received:
            del self._loads[request_id]
        self._sends -= sent
        return KVConnectorOutput(
            finished_sending=sent, finished_recving=received, invalid_block_ids=invalid, failed_recving=failed
        )

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        raise AssertionError("of a worker, which there is none")

    def wait_for_layer_load(self, layer_name: str) -> None:
        raise AssertionError("of a worker, which there is none")

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        raise AssertionError("of a worker, which there is none")

    def wait_for_save(self) -> None:
        raise AssertionError("of a worker, which there is none")
