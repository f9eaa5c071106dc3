"""The cache of one full-attention group as plain lists and dicts: slow, and short enough to be read.

Keys are whole prefixes instead of hashes, so nothing collides and nothing is shared with the code that is
tested.
"""

from __future__ import annotations


class NaiveRequest:
    def __init__(self, tokens: list[int]) -> None:
        self.tokens = list(tokens)
        self.table: list[int] = []
        self.num_computed = 0


class NaiveManager:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.queue = list(range(1, num_blocks))  # free blocks; the first goes next
        self.references = [0] * num_blocks
        self.key_of: dict[int, tuple[int, ...]] = {}
        self.cached: dict[tuple[int, ...], list[int]] = {}  # in the order of registration

    def lookup(self, request: NaiveRequest) -> list[int]:
        hits = []
        for end in range(self.block_size, len(request.tokens), self.block_size):
            blocks = self.cached.get(tuple(request.tokens[:end]))
            if not blocks:
                break
            hits.append(blocks[0])
        return hits

    def allocate(self, request: NaiveRequest, num_new: int, hits: list[int]) -> list[int] | None:
        slots = request.num_computed + len(hits) * self.block_size + num_new
        needed = -(-slots // self.block_size) - len(request.table) - len(hits)
        from_queue = sum(self.references[block] == 0 for block in hits)
        if max(needed, 0) > len(self.queue) - from_queue:
            return None
        for block in hits:
            if self.references[block] == 0:
                self.queue.remove(block)
            self.references[block] += 1
        new = []
        for _ in range(needed):
            block = self.queue.pop(0)
            key = self.key_of.pop(block, None)
            if key is not None:
                self.cached[key].remove(block)
            self.references[block] = 1
            new.append(block)
        request.table += hits + new
        for i in range(min(slots, len(request.tokens)) // self.block_size):
            block = request.table[i]
            if block not in self.key_of:
                key = tuple(request.tokens[: (i + 1) * self.block_size])
                self.key_of[block] = key
                self.cached.setdefault(key, []).append(block)
        return new

    def free(self, request: NaiveRequest) -> None:
        front: list[int] = []
        back: list[int] = []
        for block in reversed(request.table):
            self.references[block] -= 1
            if self.references[block] == 0:
                (back if block in self.key_of else front).append(block)
        self.queue = front + self.queue + back
        request.table = []
        request.num_computed = 0
