#!/usr/bin/env python3
"""Draws docs/house.svg, the picture of the folders and of what each may include, from the includes themselves.

  tools/draw_house.py            writes the picture
  tools/draw_house.py --check    compares it with the file instead; exit status 1 if they differ

A box is a folder, tests and test support left out. It stands one floor above the highest folder that it includes from. Arrows
that follow from others are left out: where A includes B and B includes C, there is none from A to C. Folders that include
each other have no floor, so the script names them and stops with exit status 2.
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
# Columns from left to right, with title and colour. Other folders with sources stand on top: they are for all columns.
COLUMNS = [
    ("Attention", "#dcf0dc", ("attention",)),
    ("KV-cache library", "#d7e8f7", ("checks", "specs", "block_pool", "managers")),
    ("Simulator", "#fbe9cf", ("sim",)),
]
TOP = ("What others include", "#eadff2")
LEFT_OUT = ("tests", "bench", "examples", "third_party", "tools", "docs")
# Public headers without sources, and their rooms.
HEADER_ONLY = {
    "attention_args.h": "attention/ops",
    "attention_ops.h": "attention/ops",
    "c/kvblocks.h": "c",
    "check.h": "checks",
    "eviction_policy.h": "block_pool",
    "huge_page_allocator.h": "block_pool",
    "kv_event.h": "block_pool",
    "version.h": "checks",
}
# Rooms whose inside is their own affair.
CLOSED = ("attention/cuda",)

BOX_HEIGHT, ROW, GAP, PAD, TITLE = 26, 56, 12, 14, 24


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


def width_of(room):
    return 7 * len(room) + 18


def draw(graph):
    floors = floors_of(graph)
    top_rooms = sorted(r for r in graph if not any(r.split("/")[0] in rooms for _, _, rooms in COLUMNS))
    num_floors = 1 + max(floors[r] for r in graph if r not in top_rooms)
    columns = []
    left = PAD
    for title, colour, roots in COLUMNS:
        rows = [sorted(r for r in graph if r.split("/")[0] in roots and floors[r] == floor) for floor in range(num_floors)]
        width = max([sum(width_of(r) + GAP for r in row) - GAP for row in rows if row] + [len(title) * 8])
        columns.append((title, colour, left, width, rows))
        left += width + 2 * PAD + GAP
    total_width = left - GAP
    top_graph = {room: graph[room] & set(top_rooms) for room in top_rooms}
    top_floors = floors_of(top_graph)
    num_top_floors = 1 + max(top_floors.values(), default=-1)
    top_height = num_top_floors * ROW + TITLE - 6 if top_rooms else 0
    height = top_height + num_floors * ROW + TITLE + 2 * PAD
    boxes = {}  # room -> (x, y, width, colour)
    for _, colour, left, width, rows in columns:
        for floor, row in enumerate(rows):
            used = sum(width_of(r) + GAP for r in row) - GAP
            x = left + (width - used) / 2 + PAD / 2
            for room in row:
                boxes[room] = (x, top_height + TITLE + PAD + (num_floors - 1 - floor) * ROW, width_of(room), colour)
                x += width_of(room) + GAP
    arrows = reduced(graph)
    for floor in range(num_top_floors):  # each above the middle of what it includes, from left to right
        centre = {}
        for room in top_rooms:
            if top_floors[room] == floor:
                places = [boxes[need][0] + boxes[need][2] / 2 for need in arrows[room] if need in boxes]
                centre[room] = sum(places) / len(places) if places else total_width
        x = PAD
        for room in sorted(centre, key=lambda room: (centre[room], room)):
            x = max(x, centre[room] - width_of(room) / 2)
            x = min(x, total_width - PAD - width_of(room))
            boxes[room] = (x, TITLE + 6 + (num_top_floors - 1 - floor) * ROW, width_of(room), TOP[1])
            x += width_of(room) + GAP

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total_width:.0f} {height}" width="{total_width:.0f}" '
           f'font-family="sans-serif" font-size="12">',
           '<title>The folders of kvblocks and what each includes</title>',
           '<defs><marker id="head" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto">'
           '<path d="M0 0L6 3L0 6z" fill="#667"/></marker></defs>',
           f'<rect width="{total_width:.0f}" height="{height}" fill="#fff"/>']
    if top_rooms:
        out.append(f'<rect x="{PAD / 2}" y="4" width="{total_width - PAD:.0f}" height="{top_height - 8}" rx="6" fill="#f8f5fb"/>')
        out.append(f'<text x="{PAD}" y="20" fill="#556">{TOP[0]}</text>')
    for title, _, left, width, _ in columns:
        out.append(f'<rect x="{left - PAD / 2:.0f}" y="{top_height + 2}" width="{width + 2 * PAD:.0f}" '
                   f'height="{num_floors * ROW + TITLE}" rx="6" fill="#f6f7f9"/>')
        out.append(f'<text x="{left:.0f}" y="{top_height + 18}" fill="#556">{title}</text>')
    for room, needs in sorted(arrows.items()):
        x, y, width, _ = boxes[room]
        for need in sorted(needs):
            to_x, to_y, to_width, _ = boxes[need]
            from_x, target_x = x + width / 2, to_x + to_width / 2
            from_y = y + BOX_HEIGHT
            bend = (to_y - from_y) / 2
            out.append(f'<path d="M{from_x:.0f} {from_y}C{from_x:.0f} {from_y + bend:.0f} {target_x:.0f} {to_y - bend:.0f} '
                       f'{target_x:.0f} {to_y - 1}" fill="none" stroke="#889" stroke-opacity="0.7" marker-end="url(#head)"/>')
    for room, (x, y, width, colour) in sorted(boxes.items()):
        out.append(f'<rect x="{x:.0f}" y="{y}" width="{width}" height="{BOX_HEIGHT}" rx="4" fill="{colour}" stroke="#889"/>')
        out.append(f'<text x="{x + width / 2:.0f}" y="{y + 17}" text-anchor="middle" fill="#112">{room}</text>')
    out.append(f'<text x="{PAD}" y="{height - 10}" fill="#556">An arrow points to what a folder includes. '
               'tests/, bench/ and examples/ stand above all of it.</text>')
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
