#!/usr/bin/env python3
"""Prints tests/conformance/testdata/vllm_hashes.txt: contents and the block hashes that vLLM 0.33.0 gives them.

  pip install cbor2 xxhash && pip download vllm==0.33.0 --no-deps
  unzip vllm-*.whl 'vllm/v1/core/kv_cache_utils.py' 'vllm/multimodal/utils.py' 'vllm/utils/hashing.py'
  tools/vllm_hash_vectors.py . > tests/conformance/testdata/vllm_hashes.txt

The hashing functions are taken out of vLLM's files and run without the rest of it. Every content also grows in
random steps, and its hashes must not depend on them.
"""

import ast
import bisect
import hashlib
import os
import random
import sys
from types import SimpleNamespace

NAMES = {
    "vllm/utils/hashing.py": {"sha256_cbor", "_xxhash_digest", "xxhash", "xxhash_cbor"},
    "vllm/multimodal/utils.py": {"get_mm_features_in_window"},
    "vllm/v1/core/kv_cache_utils.py": {
        "resolve_none_hash_seed", "init_none_hash", "_gen_mm_extra_hash_keys", "_gen_lora_extra_hash_keys",
        "_gen_prompt_embeds_extra_hash_keys", "generate_block_hash_extra_keys", "hash_block_tokens",
        "get_request_block_hasher", "generate_lookahead_block_hash_extra_keys", "DEFAULT_NONE_HASH_SEED",
        "_NON_CRYPTO_HASH_FUNCTIONS", "BlockHash",
    },
}


def load(folder):
    import cbor2
    import xxhash
    vllm = {"cbor2": cbor2, "_xxhash": xxhash, "hashlib": hashlib, "os": os, "bisect": bisect, "NewType": lambda _, t: t,
            "logger": SimpleNamespace(warning=lambda *_: None)}
    for path, names in NAMES.items():
        tree = ast.parse(open(os.path.join(folder, path)).read())
        future = ast.parse("from __future__ import annotations").body
        wanted = [node for node in tree.body if {getattr(node, "name", None)} & names or isinstance(node, ast.Assign)
                  and {target.id for target in node.targets if isinstance(target, ast.Name)} & names]
        exec(compile(ast.Module(future + wanted, []), path, "exec"), vllm)
    return vllm


def some_tokens(rng, count):
    limit = rng.choice([24, 300, 70000, 152000, 2**31])
    tokens = [rng.randrange(limit) for _ in range(count)]
    edges = [0, 23, 24, 255, 256, 65535, 65536, 2**31 - 1, -1, -24, -25, -256, -257, -65536, -65537, -2**31]
    return [rng.choice(edges) if rng.random() < 0.1 else token for token in tokens]


def some_text(rng):
    return rng.choice(["a", "adapter", "sälz", "x" * 23, "y" * 24, "z" * 300, "a b", "路径"])


def main():
    vllm = load(sys.argv[1])
    rng = random.Random(20261101)
    print("# Made by tools/vllm_hash_vectors.py.")
    for case in range(100):
        algorithm = ["sha256_cbor", "xxhash_cbor"][case % 2]
        seed = rng.choice([None, "", "0", "42", "a longer seed of more than 23 bytes"])
        if algorithm == "xxhash_cbor" and seed is None:
            seed = "0"  # or it would be random
        lookahead = rng.choice([0, 0, 1, 2, 3, 4, 30])
        block_size = rng.choice([1, 2, 4, 15, 16, 16, 17, 24, 40, 300])
        count = rng.randrange(7 if block_size < 40 else 3) * block_size + rng.randrange(block_size) + lookahead
        tokens = some_tokens(rng, count)
        os.environ.pop("PYTHONHASHSEED", None)
        if seed is not None:
            os.environ["PYTHONHASHSEED"] = seed
        function = vllm[algorithm]
        vllm["init_none_hash"](function)
        request = SimpleNamespace(mm_features=[], lora_request=None, cache_salt=None, prompt_embeds=None)
        print(f"case {case}\nalgorithm {algorithm}\nblock_size {block_size}\nlookahead {lookahead}")
        if seed is not None:
            print(f"seed {seed}".rstrip())
        if case >= 16:
            if rng.random() < 0.3:
                request.lora_request = SimpleNamespace(lora_name=some_text(rng), lora_path="/" + some_text(rng))
                print(f"lora_name {request.lora_request.lora_name}\nlora_path {request.lora_request.lora_path}")
            if rng.random() < 0.3:
                request.cache_salt = some_text(rng)
                print(f"salt {request.cache_salt}")
            at = rng.randrange(block_size * 2)
            while rng.random() < 0.6 and at < count + 3:
                length = rng.randrange(1, block_size * 2 + 2)
                identifier = some_text(rng)
                request.mm_features.append(SimpleNamespace(
                    identifier=identifier, mm_position=SimpleNamespace(offset=at, length=length)))
                print(f"feature {at} {length} {identifier}")
                at += length + rng.randrange(block_size + 1)
            if rng.random() < 0.2:
                request.prompt_embeds = tokens
                request._prompt_embeds_per_block_hashes = {}
                for begin in range(0, count, block_size):
                    end = begin + block_size + lookahead
                    digest = hashlib.sha256(f"rows {begin} to {end}".encode()).digest()
                    request._prompt_embeds_per_block_hashes[begin, end] = digest
                    print(f"embeddings {begin} {end} {digest.hex()}")
        print("tokens", *tokens)
        hasher = vllm["get_request_block_hasher"](block_size, function, lookahead)

        def hashes(steps):
            request.all_token_ids, request.block_hashes = [], []
            while len(request.all_token_ids) < count:
                start = len(request.all_token_ids)
                request.all_token_ids = tokens[:start + steps()]
                request.num_tokens = len(request.all_token_ids)
                request.block_hashes += hasher(request)
            return request.block_hashes

        fresh = hashes(lambda: count)
        for _ in range(20):
            assert hashes(lambda: rng.randrange(1, 20)) == fresh, case
        print("root", vllm["NONE_HASH"].hex())
        for value in fresh:
            print("hash", value.hex())


if __name__ == "__main__":
    main()
