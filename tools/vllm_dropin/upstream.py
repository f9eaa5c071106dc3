"""Compares two runs of vLLM's own tests: with its manager and with kvblocks'.

    python upstream.py vllm.xml kvblocks.xml [--all]

Both are pytest's --junitxml. A test that passes with vLLM's manager and fails with ours is *refused*
where ours refused the test's settings by name (UnsupportedError), *internal* where the test asks for a
part of vLLM's manager that no scheduler or worker reads, *named* where docs/vllm.md says what differs,
and *failed* otherwise; the last line counts these as failed. --all shows the refused and the internal
ones, too.
"""

from __future__ import annotations

import argparse
import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

# What the failure says if a test looks into the manager, the pool or the blocks themselves.
INTERNAL = re.compile(
    r"^AttributeError: .*'(KVCacheManager|Coordinator|SingleTypeManager|BlockPool|_Blocks|Blocks?|Manager|tuple)' object has "
    r"no attribute|^AssertionError: No CrossAttentionManager found in coordinator"
)

# Differences that docs/vllm.md lists, by the beginning of the test's name.
NAMED = {
    "test_hybrid_local_kv_retention_interval_rejects_invalid": "the error has other words",
    "test_positive_retention_rejects_full_attention": "the error has other words",
    "test_finished_spec_request_caches_completed_blocks": "hashes have lookahead, and the manager gets the option that they have none",
    "test_scheduler_publishes_lookahead_blocks_at_allocation": "hashes have lookahead, and the manager gets the option that they have none",
    "test_no_spec_decode_padding_up_to_max_model_len": "a new request has computed tokens without blocks",
    "test_streaming_lookahead_hashes_follow_recomputed_kv": "blocks are compared by identity",
    "test_mamba_boundary_handoffs_do_not_pin_obsolete_blocks": "states are offered to a connector",
    "test_lookahead_checkpoint_has_available_hash": "a state exported inside a step ends in the step's last block",
    "test_pure_swa_retention_interval_caches_sparse_tails": "the name of a class is compared",
}


def outcomes(path: str) -> dict[str, tuple[str, str]]:
    """By test: passed, skipped or failed, and the failure's message."""
    found: dict[str, tuple[str, str]] = {}
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        state, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                state, message = "failed", child.get("message", "") + "\n" + (child.text or "")
            elif child.tag == "skipped" and state == "passed":
                state = "skipped"
        found[name] = (state, message)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm")
    parser.add_argument("kvblocks")
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    theirs, ours = outcomes(args.vllm), outcomes(args.kvblocks)
    columns = ("tests", "vLLM", "both", "refused", "internal", "named", "failed")
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    named: list[tuple[str, str, str]] = []
    for name, (state, _) in sorted(theirs.items()):
        of_file = counts[name.partition("::")[0]]
        of_file["tests"] += 1
        if state != "passed":
            continue
        of_file["vLLM"] += 1
        own_state, message = ours.get(name, ("failed", "was not run"))
        if own_state == "passed":
            of_file["both"] += 1
            continue
        first = message.strip().partition("\n")[0]
        reason = NAMED.get(name.partition("::")[2].partition("[")[0])
        if "UnsupportedError" in message:
            kind = "refused"
        elif INTERNAL.match(first):
            kind = "internal"
        else:
            kind = "named" if reason else "failed"
        of_file[kind] += 1
        named.append((kind, name, reason if kind == "named" else first[:160]))
    print(f"{'':34s}" + "".join(f"{column:>10s}" for column in columns))
    for file, of_file in counts.items():
        print(f"{file:34s}" + "".join(f"{of_file[column]:10d}" for column in columns))
    total: collections.Counter[str] = collections.Counter()
    for of_file in counts.values():
        total.update(of_file)
    print(f"{'all':34s}" + "".join(f"{total[column]:10d}" for column in columns))
    gained = sum(ours.get(name, ("", ""))[0] == "passed" for name, (state, _) in theirs.items() if state == "failed")
    print(f"{gained} tests fail with vLLM's manager and pass with kvblocks'")
    for kind, name, message in named:
        if kind in ("named", "failed") or args.all:
            print(f"{kind}: {name}: {message}")
    print(f"{total['both']} passed, {total['failed']} failed")
    return 1 if total["failed"] or not total["both"] else 0


if __name__ == "__main__":
    sys.exit(main())
