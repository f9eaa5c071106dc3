#!/usr/bin/env python3
"""Draws docs/house.svg, the picture of the rooms and of what each includes, from the includes themselves.

  tools/draw_house.py            writes the picture
  tools/draw_house.py --check    compares it with the file instead; exit status 1 if they differ

A room is a few folders that belong together (COLUMNS), tests and test support left out. It stands above all that it includes.
Arrows that follow from others are left out: where A includes B and B includes C, there is none from A to C. Exit status 2, with
their names: folders or rooms that include each other, and folders without a room.
"""

import argparse
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from tree_files import implemented_headers, included_files, list_files

PICTURE = "docs/house.svg"
SOURCES = (".h", ".cc", ".cu", ".cuh", ".c")
# Columns from left to right, with title, colour and at most six rooms. A room has a title and folders; a folder belongs to the
# room that names it or, if none does, the nearest folder above it.
COLUMNS = [
    ("Attention", "#dcf0dc", [
        ("tensors, caches, operations", ("attention/tensor", "attention/cache", "attention/ops")),
        ("batches and masks", ("attention/metadata", "attention/masks")),
        ("CPU", ("attention/cpu",)),
        ("backends and layers", ("attention/backends", "attention/blend", "attention/verify", "attention", "kvblocks/attention.h")),
        ("CUDA", ("attention/cuda",)),
        ("from a plan to memory", ("memory",)),
    ]),
    ("KV-cache library", "#d7e8f7", [
        ("checks", ("checks",)),
        ("blocks", ("block_pool",)),
        ("what layers store", ("specs",)),
        ("managers", ("managers", "kvblocks/kv_cache.h", "kvblocks/planning.h", "kvblocks/request.h")),
        ("events and tiers", ("events", "offload")),
        ("bindings", ("c", "python")),
    ]),
    ("Simulator", "#fbe9cf", [
        ("step times", ("sim/cost",)),
        ("workloads", ("sim/trace", "sim/gen", "sim/example")),
        ("one replica", ("sim", "sim/engine", "sim/tiers")),
        ("reports", ("sim/report",)),
        ("kinds of run", ("sim/fleet", "sim/curve", "sim/serve", "sim/verify")),
        ("commands", ("sim/commands", "sim/sweep")),
    ]),
]
LEFT_OUT = ("tests", "bench", "examples", "third_party", "tools", "docs")
# Public headers without sources, and their rooms.
HEADER_ONLY = {
    "attention_args.h": "attention/ops",
    "attention_ops.h": "attention/ops",
    "c/kvblocks.h": "c",
    "check.h": "checks",
    "device_types.h": "attention/tensor",
    "eviction_policy.h": "block_pool",
    "huge_page_allocator.h": "block_pool",
    "kv_event.h": "block_pool",
    "version.h": "checks",
}
# Rooms whose inside is their own affair.
CLOSED = ("attention/cuda",)

BOX_WIDTH, BOX_HEIGHT, ROW, GAP, PAD, TITLE = 226, 44, 66, 48, 14, 26


def room_of(path, public_rooms):
    """The folder that a source belongs to, or None. A public header belongs to the folder that implements it; one that
    only includes others is a room of its own."""
    if path.startswith("include/"):
        return public_rooms.get(path, path[len("include/"):])
    folder = os.path.dirname(path)
    if not folder or folder.split("/")[0] in LEFT_OUT or "testing" in folder.split("/"):
        return None
    if re.search(r"_(test|fuzz|benchmark|main)\.\w+$", path):
        return None
    for closed in CLOSED:
        if folder.startswith(closed + "/"):
            return closed
    return folder


def read_graph(root):
    files = set(list_files(root))
    texts = {}
    for path in files:
        if path.endswith(SOURCES):
            with open(os.path.join(root, path), encoding="utf-8") as f:
                texts[path] = f.read()
    library = {path: text for path, text in texts.items() if path.endswith(".cc") and room_of(path, {})
               and not path.startswith("python/")}
    public_rooms = {"include/kvblocks/" + header: room for header, room in HEADER_ONLY.items()}
    public_rooms.update(implemented_headers(library, files)[1])
    graph = {}
    for path, text in sorted(texts.items()):
        room = room_of(path, public_rooms)
        if room is not None:
            graph.setdefault(room, set()).update(room_of(header, public_rooms) for header in included_files(text, files))
    return {room: {need for need in needs if need in graph and need != room} for room, needs in graph.items()}


def floors_of(graph):
    """Room -> floor; SystemExit with the circle if there is one."""
    floors, path = {}, []

    def visit(room):
        if room in path:
            circle = path[path.index(room):] + [room]
            print("folders include each other: " + " -> ".join(circle), file=sys.stderr)
            raise SystemExit(2)
        if room not in floors:
            path.append(room)
            floors[room] = 1 + max([visit(need) for need in sorted(graph[room])], default=-1)
            path.pop()
        return floors[room]

    for room in sorted(graph):
        visit(room)
    return floors


def reduced(graph):
    """The arrows that do not follow from others."""
    below = {}

    def reach(room):
        if room not in below:
            below[room] = set()
            for need in graph[room]:
                below[room] |= {need} | reach(need)
        return below[room]

    return {room: {need for need in needs if not any(need in reach(other) for other in needs if other != need)}
            for room, needs in graph.items()}


def home_of(folder):
    """The (column, place in it) of the room that a folder belongs to; SystemExit if there is none."""
    homes = {f: (column, place) for column, (_, _, rooms) in enumerate(COLUMNS) for place, (_, names) in enumerate(rooms)
             for f in names}
    above = folder
    while above and above not in homes:
        above = os.path.dirname(above)
    if not above:
        print(f"{folder} is in no room: name it in COLUMNS of tools/draw_house.py", file=sys.stderr)
        raise SystemExit(2)
    return homes[above]


def rooms_of(graph):
    """Room -> the rooms that it includes, from what folders include."""
    rooms = {}
    for folder, needs in graph.items():
        room = home_of(folder)
        rooms.setdefault(room, set()).update(home_of(need) for need in needs)
        rooms[room].discard(room)
    return rooms


def rows_of(rooms):
    """Room -> row, from 0 at the bottom: above all that it includes, and alone in its column."""
    floors, rows, last = floors_of(rooms), {}, {}
    for room in sorted(rooms, key=lambda room: (floors[room], room)):
        rows[room] = 1 + max([rows[need] for need in rooms[room]] + [last.get(room[0], -1)], default=-1)
        last[room[0]] = rows[room]
    return rows


def arrow(x, y, to_x, to_y, between):
    """The path from a box to one below it: in the same column straight down, or round the boxes between them; else from side
    to side."""
    middle = BOX_HEIGHT / 2
    if x == to_x and not between:
        line = f"M{x + BOX_WIDTH / 2:.0f} {y + BOX_HEIGHT}V{to_y - 1}"
    elif x == to_x:
        line = (f"M{x} {y + middle:.0f}C{x - 34} {y + middle:.0f} {x - 34} {to_y + middle - 6:.0f} "
                f"{x - 1} {to_y + middle - 6:.0f}")
    else:
        begin, end = (x, to_x + BOX_WIDTH + 1) if to_x < x else (x + BOX_WIDTH, to_x - 1)
        bend = (end - begin) / 2
        line = (f"M{begin} {y + middle:.0f}C{begin + bend:.0f} {y + middle:.0f} {end - bend:.0f} {to_y + middle:.0f} "
                f"{end} {to_y + middle:.0f}")
    return f'<path d="{line}" fill="none" stroke="#667" stroke-width="1.3" marker-end="url(#head)"/>'


def folders_text(folders):
    """attention/tensor, attention/cache, attention -> attention/tensor, cache."""
    first, *others = [f for f in folders if not f.startswith("kvblocks/") and not folders[0].startswith(f + "/")]
    return ", ".join([first] + [f.removeprefix(first.split("/")[0] + "/") for f in others])


def draw(graph):
    floors_of(graph)  # names a circle of folders
    rooms = rooms_of(graph)
    rows = rows_of(rooms)
    num_rows = 1 + max(rows.values())
    width = 2 * PAD + len(COLUMNS) * (BOX_WIDTH + GAP)
    height = TITLE + num_rows * ROW + 2 * PAD + 16

    def place(room):
        return PAD + GAP // 2 + room[0] * (BOX_WIDTH + GAP), TITLE + PAD + (num_rows - 1 - rows[room]) * ROW

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
           f'font-family="sans-serif" font-size="15">',
           '<title>The rooms of kvblocks and what each includes</title>',
           '<defs><marker id="head" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
           '<path d="M0 0L6 3L0 6z" fill="#667"/></marker></defs>',
           f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for column, (title, _, _) in enumerate(COLUMNS):
        x = PAD + GAP // 2 + column * (BOX_WIDTH + GAP)
        out.append(f'<text x="{x + BOX_WIDTH / 2:.0f}" y="20" text-anchor="middle" fill="#334">{title}</text>')
    for room, needs in sorted(reduced(rooms).items()):
        for need in sorted(needs):
            between = any(r[0] == room[0] and rows[need] < rows[r] < rows[room] for r in rooms)
            out.append(arrow(*place(room), *place(need), between))
    for room in sorted(rooms):
        x, y = place(room)
        _, colour, names = COLUMNS[room[0]]
        title, folders = names[room[1]]
        centre = x + BOX_WIDTH // 2
        out.append(f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5" fill="{colour}" stroke="#889"/>')
        out.append(f'<text x="{centre}" y="{y + 18}" text-anchor="middle" fill="#112">{title}</text>')
        out.append(f'<text x="{centre}" y="{y + 36}" text-anchor="middle" font-size="13" fill="#445">'
                   f'{folders_text(folders)}</text>')
    out.append(f'<text x="{PAD + GAP // 2}" y="{height - 10}" font-size="13" fill="#445">An arrow points to what a room includes. '
               'tests, bench and examples include all of them.</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser.add_argument("--root", default=here, help="the tree to draw")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    picture = draw(read_graph(options.root))
    path = os.path.join(options.root, PICTURE)
    if not options.check:
        with open(path, "w", encoding="utf-8") as f:
            f.write(picture)
        return 0
    with open(path, encoding="utf-8") as f:
        if f.read() == picture:
            return 0
    print(f"{PICTURE} is not what the includes give; run tools/draw_house.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
