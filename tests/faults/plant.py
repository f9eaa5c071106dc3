"""Copies the core and its tests with all faults of faults.py planted in them.

    plant.py --headers FOLDER --units UNIT.cc... --sources SOURCE...

Headers go to FOLDER/planted, sources are joined to the given translation units. Includes of the copied headers name the
copies, so that they never meet the originals. Stops if a fault's old text does not stand exactly once in its file, or if
two faults overlap: the list cannot rot unnoticed.
"""

import argparse
import os
import re
import sys

from faults import FAULTS

NOT_CORE = re.compile(r"_(test|fuzz|benchmark|main)\.cc$")

# Run in this order, until one fails: short ones first. The first ones test parts that the others
# do not reach: full tables, compared tokens.
TESTS = [
    "block_pool/block_tokens_test.cc",
    "block_pool/prefix_content_test.cc",
    "block_pool/block_pool_test.cc",
    "block_pool/prefix_hash_table_test.cc",
    "block_pool/eviction/eviction_policies_test.cc",
    "block_pool/eviction/hazard_policy_test.cc",
    "managers/manager_options_test.cc",
    "managers/version_rules_test.cc",
    "offload/offload_manager_test.cc",
    "offload/offload_random_test.cc",
    "tests/property/block_hash_property_test.cc",
    "tests/property/eviction_policy_property_test.cc",
    "tests/property/lookup_explanation_property_test.cc",
    "tests/property/manager_property_test.cc",
    "tests/exhaustive/exhaustive_test.cc",
]


def plant(path, text):
    spans = []
    for number, fault in enumerate(FAULTS, start=1):
        if fault.file != path:
            continue
        count = text.count(fault.old)
        if count != 1:
            sys.exit(f"plant.py: fault {number} ({fault.name}): its old text stands {count} times in {path}, expected once")
        begin = text.index(fault.old)
        condition = f"::kvblocks::faults::Active({number})"
        spans.append((begin, begin + len(fault.old), fault.new.replace("{F}", condition), fault.name))
    spans.sort()
    planted, end = "", 0
    for begin, stop, new, name in spans:
        if begin < end:
            sys.exit(f"plant.py: fault ({name}) overlaps another one in {path}")
        planted += text[end:begin] + new
        end = stop
    return planted + text[end:]


def included_as(path):
    return path.removeprefix("include/")


def copy_of(path, copied):
    with open(path, encoding="ascii") as source:
        text = plant(path, source.read())
    text = re.sub('#include "([^"]+)"', lambda m: m[0] if m[1] not in copied else f'#include "planted/{m[1]}"', text)
    if path in TESTS:
        # What a test keeps to itself stays apart from the other tests of the unit.
        own = os.path.basename(path)[:-len(".cc")]
        text = re.sub(r"^namespace \{$", f"namespace {own} {{", text, flags=re.M)
    return f'#line 1 "{path}"\n{text}\n'


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--headers", required=True)
    parser.add_argument("--units", nargs="+", required=True)
    parser.add_argument("--sources", nargs="+", required=True)
    arguments = parser.parse_args()
    known = set(arguments.sources)
    for number, fault in enumerate(FAULTS, start=1):
        if fault.file not in known:
            sys.exit(f"plant.py: fault {number} ({fault.name}): there is no source {fault.file}")
    for path in TESTS:
        if path not in known:
            sys.exit(f"plant.py: there is no test {path}")

    copied = {included_as(path) for path in known if path.endswith(".h")}
    fault_header = '#include "tests/faults/active_fault.h"\n'
    for path in arguments.sources:
        if path.endswith(".h"):
            target = os.path.join(arguments.headers, "planted", included_as(path))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="ascii") as copy:
                copy.write(fault_header + copy_of(path, copied))

    core = sorted(path for path in known if path.endswith(".cc") and not NOT_CORE.search(path))
    num_test_units = min(len(TESTS), len(arguments.units) // 2)
    num_core_units = len(arguments.units) - num_test_units
    for paths, units in ((core, arguments.units[:num_core_units]), (TESTS, arguments.units[num_core_units:])):
        for index, unit in enumerate(units):
            begin, end = len(paths) * index // len(units), len(paths) * (index + 1) // len(units)
            with open(unit, "w", encoding="ascii") as out:
                out.write(fault_header + "".join(copy_of(path, copied) for path in paths[begin:end]))


if __name__ == "__main__":
    main()
