"""Copies sources to a folder, with all faults of faults.py planted in them.

    plant.py OUTPUT_FOLDER INCLUDE_PREFIX SOURCE...

Includes of the copied folders get INCLUDE_PREFIX, so that the copies never meet the originals. Stops if a fault's old
text does not stand exactly once in its file, or if two faults overlap: the list cannot rot unnoticed.
"""

import os
import re
import sys

from faults import FAULTS

COPIED = ("block_pool", "managers", "tests/oracle", "tests/property", "tests/exhaustive")


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
    planted += text[end:]
    if spans:
        planted = '#include "tests/faults/active_fault.h"\n' + planted
    return planted


def main():
    output, prefix, sources = sys.argv[1], sys.argv[2], sys.argv[3:]
    known = set(sources)
    for number, fault in enumerate(FAULTS, start=1):
        if fault.file not in known:
            sys.exit(f"plant.py: fault {number} ({fault.name}): there is no source {fault.file}")
    includes = re.compile('#include "(' + "|".join(COPIED) + ")/")
    for path in sources:
        with open(path, encoding="ascii") as source:
            text = plant(path, source.read())
        target = os.path.join(output, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="ascii") as copy:
            copy.write(includes.sub(rf'#include "{prefix}/\1/', text))


if __name__ == "__main__":
    main()
