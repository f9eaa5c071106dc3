#!/usr/bin/env python3
"""How well constants do that were chosen without the points that they are judged by.

    tools/leave_out.py CHOSEN.csv OTHER.csv ...

Each file is what one set of constants says:

    bazel run -c opt //bench:silicon -- --rows=FILE --CONSTANT=VALUE ... POINTS

For each model and each device: mean error of TPOT and TTFT in per cent with the first file's set, and with the one of
all sets that is best on the other points, by the sum of both errors, averaged over models on a device. Then the bands
by kind of model and generation of device with the first set, which sim/cost/table_clock.cc has.
"""

import csv
import statistics
import sys

LATENT, DENSE = ("Kimi", "DeepSeek", "GLM"), ("Llama", "Qwen3-32B")


def read(path):
    points = {}
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            model = row["model"].split("/")[-1]
            kind = "latent attention" if model.startswith(LATENT) else "dense" if model.startswith(DENSE) else "experts"
            generation = "Blackwell" if row["gpu"].startswith("b") else "Hopper"
            tpot = abs(float(row["predicted_tpot_ms"]) / float(row["tpot_ms"]) - 1)
            ttft = abs(float(row["predicted_ttft_ms"]) / float(row["ttft_ms"]) - 1)
            points[row["id"]] = {"model": model, "device": row["gpu"], "band": f"{kind}, {generation}", "tpot": tpot,
                                 "ttft": ttft if row["campaign"] == "inferencex" else None}
    return points


def errors(points, what):
    return [100 * p[what] for p in points if p[what] is not None]


def mean(points, what):
    values = errors(points, what)
    return f"{statistics.mean(values):5.1f}" if values else "    -"


def badness(points):
    groups = {}
    for p in points:
        groups.setdefault((p["model"], p["device"]), []).append(p)
    return statistics.mean(sum(statistics.mean(errors(g, w)) for w in ("tpot", "ttft") if errors(g, w))
                           for g in groups.values())


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sets = [read(path) for path in sys.argv[1:]]
    first = sets[0].values()
    print(f"{'left out':28}{'points':>7}   TPOT: fitted, left out   TTFT: fitted, left out")
    for key in ("model", "device"):
        for value in sorted({p[key] for p in first}):
            best = min(sets, key=lambda s: badness([p for p in s.values() if p[key] != value]))
            judged, other = ([p for p in s.values() if p[key] == value] for s in (sets[0], best))
            print(f"{value:28}{len(judged):7}   {mean(judged, 'tpot')}  {mean(other, 'tpot')}            "
                  f"{mean(judged, 'ttft')}  {mean(other, 'ttft')}")
    print(f"\n{'band':28}{'points':>7}   TPOT: median, 90th       TTFT: median, 90th")
    for band in sorted({p["band"] for p in first}):
        points = [p for p in first if p["band"] == band]
        text = f"{band:28}{len(points):7}"
        for what in ("tpot", "ttft"):
            values = sorted(errors(points, what))
            text += f"   {statistics.median(values):5.1f}  {values[round(0.9 * (len(values) - 1))]:5.1f}         "
        print(text.rstrip())


if __name__ == "__main__":
    main()
