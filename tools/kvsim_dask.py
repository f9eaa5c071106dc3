#!/usr/bin/env python3
"""Runs the points of a sweep on a Dask cluster, each by `kvsim point`.

  tools/kvsim_dask.py SPEC [--kvsim=PATH] [--results=FILE] [--scheduler=ADDRESS | --workers=N]
  tools/kvsim_dask.py SPEC --test                 the self-test, on two local workers

Dask (Debian python3-distributed, or `pip install distributed`) hands points out one by one, as costs differ a thousandfold,
and hands a point out again when the worker that had it is gone. kvsim, the specification and what it names must be at the
same paths on every worker. Each finished point is one line of the results file, as `kvsim sweep` writes it, so that either
goes on where the other stopped; a point that the file has is not run again. `kvsim sweep SPEC` then prints the table.

From another program, two functions are all there is:

  futures = submit(client, kvsim, spec, skip=finished(results))
  collect(futures, results)
"""

import argparse
import json
import os
import subprocess
import sys


def points(kvsim, spec):
    """(index, name) of every point."""
    done = subprocess.run([kvsim, "point", f"--spec={spec}", "--list"], capture_output=True, text=True, check=True)
    return [(int(index), name) for index, name in (line.split() for line in done.stdout.splitlines())]


def finished(results):
    """Names of the points that a results file has. A last line that is not whole is cut off."""
    names = set()
    if not os.path.exists(results):
        return names
    with open(results, "rb+") as f:
        whole = f.read()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            f.truncate(end)
    for line in whole[:end].splitlines():
        names.add(json.loads(line)["name"])
    return names


def run_point(kvsim, spec, index):
    """One line of JSON. Runs on a worker."""
    done = subprocess.run([kvsim, "point", f"--spec={spec}", f"--index={index}"], capture_output=True, text=True)
    # 1: the point has no figures, and its line says why.
    if done.returncode not in (0, 1) or not done.stdout.endswith("\n"):
        raise RuntimeError(f"kvsim point --spec={spec} --index={index}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def submit(client, kvsim, spec, skip=(), retries=3, run=run_point):
    """A future per point that is not among `skip`. Points of one content are one point."""
    first = {}
    for index, name in points(kvsim, spec):
        if name not in skip:
            first.setdefault(name, index)
    # Dask knows a task by its key: a point that is under way is not handed out twice.
    return [client.submit(run, kvsim, spec, index, key=f"kvsim-{name}", retries=retries, pure=False)
            for name, index in first.items()]


def collect(futures, results, progress=None):
    """Appends each point's line as it comes. Returns how many there were; raises what a point raised after its retries,
    when all others are written."""
    from distributed import as_completed

    names = finished(results)
    error = None
    count = 0
    with open(results, "ab", buffering=0) as f:
        for future in as_completed(futures):
            try:
                line = future.result()
            except Exception as e:  # noqa: one point that fails must not lose the others
                error = error or e
                continue
            name = json.loads(line)["name"]
            if name not in names:
                names.add(name)
                f.write(line.encode())
            count += 1
            # A worker that goes away from now on takes nothing with it that is needed again.
            future.release()
            if progress:
                progress(count, len(futures))
    if error:
        raise error
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", help="specification of the sweep")
    parser.add_argument("--kvsim", default="kvsim", help="the program, on every worker")
    parser.add_argument("--results", help="file of finished points [SPEC without its ending + .results.jsonl]")
    parser.add_argument("--scheduler", help="address of a Dask scheduler; without it a cluster on this machine")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="of that cluster")
    parser.add_argument("--test", action="store_true", help="kill a worker in the middle, and check that nothing is lost")
    options = parser.parse_args()
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        sys.exit("kvsim_dask: Dask is missing; apt-get install python3-distributed, or pip install distributed")
    spec = os.path.abspath(options.spec)
    kvsim = os.path.abspath(options.kvsim) if os.path.sep in options.kvsim else options.kvsim
    results = options.results or os.path.splitext(spec)[0] + ".results.jsonl"
    if options.test:
        sys.exit(test(kvsim, spec))
    cluster = None
    if not options.scheduler:
        cluster = LocalCluster(n_workers=options.workers, threads_per_worker=1, dashboard_address=None)
    with Client(options.scheduler or cluster) as client:
        futures = submit(client, kvsim, spec, skip=finished(results))
        tell = (lambda n, all: print(f"\r{n} of {all} points", end="", file=sys.stderr)) if sys.stderr.isatty() else None
        count = collect(futures, results, tell)
        print(f"{count} points run; {results} has {len(finished(results))}")
    if cluster:
        cluster.close()


# --- The self-test ---


def run_and_log(kvsim, spec, index):
    """run_point, slow enough to be killed in the middle, that leaves a line when it starts and one when it ends."""
    import time

    log = spec + ".log"
    with open(log, "a") as f:
        f.write(f"start {index} {os.getpid()}\n")
    time.sleep(0.3)
    line = run_point(kvsim, spec, index)
    with open(log, "a") as f:
        f.write(f"end {index} {os.getpid()}\n")
    return line


def test(kvsim, spec):
    import signal
    import tempfile
    import threading
    import time
    from distributed import Client, LocalCluster

    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "sweep.textproto")
        with open(spec) as source, open(copy, "w") as target:
            target.write(source.read())
        log, results = copy + ".log", os.path.join(folder, "sweep.results.jsonl")
        everything = dict(points(kvsim, copy))
        assert len(everything) >= 8, f"{spec} has {len(everything)} points, the test needs 8 or more"

        def read_log():
            if not os.path.exists(log):
                return []
            with open(log) as f:
                return [line.split() for line in f]

        def lines():
            with open(results) as f:
                return [json.loads(line)["name"] for line in f]

        killed = []

        def kill_one():
            # When some points are finished and others are under way, the worker of one that runs.
            while True:
                entries = read_log()
                ended = {index for what, index, _ in entries if what == "end"}
                running = [(index, pid) for what, index, pid in entries if what == "start" and index not in ended]
                if len(ended) >= 2 and running:
                    os.kill(int(running[-1][1]), signal.SIGKILL)
                    killed.append(running[-1])
                    return
                time.sleep(0.02)

        # Two workers that are processes of their own; the cluster's nannies start a killed one again.
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            killer = threading.Thread(target=kill_one)
            killer.start()
            collect(submit(client, kvsim, copy, run=run_and_log), results)
            killer.join()
            time.sleep(2)
            workers = len(client.scheduler_info()["workers"])
        entries = read_log()
        starts = [index for what, index, _ in entries if what == "start"]
        ends = [index for what, index, _ in entries if what == "end"]
        print(f"killed the worker of point {killed[0][0]} (process {killed[0][1]}) in the middle; {workers} workers at the end")
        print(f"{len(everything)} points, {len(starts)} starts, {len(ends)} ends, {len(lines())} lines")
        assert sorted(lines()) == sorted(set(everything.values())), "a point is lost, or twice in the results"
        assert len(set(ends)) == len(ends), "a point that had finished was run again"
        assert starts.count(killed[0][0]) == 2, "the point that was killed was not run again"
        assert workers == 2, "the worker was not started again"

        # A cluster that begins anew, with half of the results and half a line, runs what is missing.
        kept = lines()[: len(everything) // 2]
        with open(results) as f:
            text = f.readlines()
        with open(results, "w") as f:
            f.writelines(text[: len(kept)])
            f.write(text[len(kept)][:50])
        os.remove(log)
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            count = collect(submit(client, kvsim, copy, skip=finished(results), run=run_and_log), results)
        assert count == len(everything) - len(kept), f"{count} points were run, {len(everything) - len(kept)} were missing"
        assert sorted(lines()) == sorted(set(everything.values())), "a point is lost, or twice in the results"
        print(f"begun anew with {len(kept)} lines and half a one: {count} points run, {len(lines())} lines")
        # kvsim sweep finds every point done, and prints the table of them.
        done = subprocess.run([kvsim, "sweep", copy, "--csv=-"], capture_output=True, text=True, check=True)
        assert f"has {len(everything)} finished points" in done.stderr, done.stderr
        assert len(done.stdout.splitlines()) == len(everything) + 1
    print("passed")
    return 0


if __name__ == "__main__":
    main()
