"""Runs a test program once per planted fault, and prints what caught each.

    run_faults.py [--gtest_filter=FILTER] [--record] PROGRAM [NUMBER...]

With a fault some test must fail (or the library stop at a broken invariant, or the program crash or hang); the tests that
are asked must pass without one. noticed_by.json names the test that noticed each fault the last time: it is asked first, and
all the others only if it notices nothing any more. --record brings that file up to date. Builds with debug checks, as those
under sanitizers are, try every tenth fault only: there the tests are slow, and what counts is that the tests notice, not with
which flags.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

FOLDER = os.path.dirname(os.path.abspath(__file__))
NOTICED_BY = os.path.join(FOLDER, "noticed_by.json")
sys.path.insert(0, FOLDER)
from faults import FAULTS, OPEN  # noqa: E402

TIMEOUT_S = 60

# A few cases of the quick tests notice most faults. All tests, with all cases, run for the others.
QUICK = "--gtest_filter=-*ExhaustiveTest*:*HitPatternTest*"
QUICK_SCALE, SCALE = "0.05", "2"


def run(program, number, timeout=TIMEOUT_S, scale=SCALE):
    """Returns the exit status, None for a hang, and the output."""
    environment = dict(os.environ)
    environment.update({
        "KVBLOCKS_FAULT": str(number),
        "KVBLOCKS_EXHAUSTIVE_LENGTH": "5",
        "KVBLOCKS_PROPERTY_SCALE": scale,
        # What fails is of interest, not the smallest case of it.
        "RC_PARAMS": "seed=20231 noshrink=1",
    })
    for name in [name for name in environment if name.startswith(("TEST_", "GTEST_", "XML_"))]:
        del environment[name]  # a failing child is no failing test
    try:
        done = subprocess.run([*program, "--gtest_fail_fast"], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as hang:
        return None, (hang.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")


def caught_by(status, output):
    """The test that noticed, and how: after how many cases, or what the program said when it died."""
    if status is None:
        return last_started(output), "hang, stopped after three times its usual time"
    if status < 0:
        broken = re.search(r"broken invariant: (.*)", output)
        return last_started(output), (broken.group(0) if broken else signal.Signals(-status).name)[:70]
    failed = re.search(r"\[  FAILED  \] ([^,\s]+)", output)
    if failed is None:  # a sanitizer ended the program
        error = re.search(r"(ERROR: .*|runtime error: .*)", output)
        return last_started(output), (error.group(1) if error else f"exit status {status}")[:70]
    test = short(failed.group(1))
    falsified = re.search(r"Falsifiable after (\d+) test", output)
    if falsified:
        found = re.search(r"\nRC_FAIL.*\n+(.+)", output)
        return test, f"case {falsified.group(1)}: {found.group(1)[:60] if found else 'an exception'}"
    found = re.search(r"Which is: \"?(.*? after: .*?)\"?\n", output) or re.search(r"after: .*", output)
    if found:
        text = found.group(1) if found.lastindex else found.group(0)
        return test, f"{text.count(',') + 1} actions: {text.split(' after: ')[0].split(': ')[-1][:50]}"
    found = re.search(r"Failure\n(.*)", output)
    return test, found.group(1).strip().rstrip(":")[:60] if found else ""


def noticing_test(status, output):
    """Its whole name, for --gtest_filter."""
    failed = re.search(r"\[  FAILED  \] ([^,\s]+)", output) if status is not None and status > 0 else None
    return failed.group(1) if failed else re.findall(r"\[ RUN      \] (\S+)", output)[-1]


def short(test):
    """Settings/ExhaustiveTest.AgreesWithTheOracle/Full -> ExhaustiveTest/Full."""
    parts = test.split("/")
    return "/".join(parts[-2:]).replace(".AgreesWithTheOracle", "") if len(parts) > 1 else test


def last_started(output):
    return short(re.findall(r"\[ RUN      \] (\S+)", output)[-1])


def share_of_this_shard(numbers):
    """Bazel's protocol of sharded tests: each of TEST_TOTAL_SHARDS processes takes its share."""
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        with open(os.environ["TEST_SHARD_STATUS_FILE"], "w", encoding="ascii"):
            pass
    return numbers[int(os.environ.get("TEST_SHARD_INDEX", 0))::int(os.environ.get("TEST_TOTAL_SHARDS", 1))]


def main():
    record = "--record" in sys.argv
    options = [argument for argument in sys.argv[1:] if argument.startswith("--") and argument != "--record"]
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    program = [os.path.abspath(arguments[0]), *options]
    status, output = run([*program, "--gtest_filter=BuildMode*"], 0)
    if status != 0:
        print(output)
        sys.exit("run_faults.py: the program does not say how it was built")
    numbers = [int(n) for n in arguments[1:]] or list(range(1, len(FAULTS) + 1))
    if "build mode: with debug checks" in output:
        numbers = numbers[::10]
        print("Built with debug checks: every tenth fault only.")
    numbers = share_of_this_shard(numbers)

    with open(NOTICED_BY, encoding="utf-8") as file:
        noticed_by = json.load(file)
    begin = time.monotonic()
    recorded = {}
    for number in numbers:
        last = noticed_by.get(FAULTS[number - 1].name)
        if last:
            recorded.setdefault(last["scale"], set()).add(last["test"])
    times = {}

    def must_pass(chosen, scale):
        """What is asked about a fault has to pass without one; once each, and not before it is asked.

        Returns how long it may take with a fault: a test that is only slow has noticed nothing."""
        if (chosen, scale) in times:
            return times[(chosen, scale)]
        start = time.monotonic()
        status, output = run([*program, *([chosen] if chosen else [])], 0, timeout=600, scale=scale)
        if status != 0:
            print(output)
            sys.exit("run_faults.py: without a fault, the tests must pass")
        times[(chosen, scale)] = max(TIMEOUT_S, 3 * (time.monotonic() - start))
        return times[(chosen, scale)]

    survivors, searched = [], 0
    for count, number in enumerate(numbers, start=1):
        name = FAULTS[number - 1].name
        # What is run, with how many cases: from the quickest to all there is.
        rounds = [([], "", SCALE)]
        if not options:
            rounds.insert(0, ([QUICK], QUICK, QUICK_SCALE))
            if name in noticed_by:
                last = noticed_by[name]
                together = "--gtest_filter=" + ":".join(sorted(recorded[last["scale"]]))
                rounds.insert(0, ([f"--gtest_filter={last['test']}"], together, last["scale"]))
        for attempt, (chosen, without_fault, scale) in enumerate(rounds):
            timeout = must_pass(without_fault, scale)
            status, output = run([*program, *chosen], number, timeout, scale)
            if status != 0:
                searched += attempt > 0 or name not in noticed_by
                noticed_by[name] = {"test": noticing_test(status, output), "scale": scale}
                break
        progress = f"{count}/{len(numbers)} {number:3} {name:64}"
        if status == 0:
            print(f"{progress} SURVIVED{', as known' if name in OPEN else ''}", flush=True)
            if name not in OPEN:
                survivors.append(name)
            continue
        if name in OPEN:
            sys.exit(f"run_faults.py: fault {number} ({name}) is noticed: take it out of OPEN")
        test, how = caught_by(status, output)
        print(f"{progress} {test[:44]:44} {how}", flush=True)
    if record:
        lines = [f"{json.dumps(fault.name)}: {json.dumps(noticed_by[fault.name])}" for fault in FAULTS
                 if fault.name in noticed_by]
        with open(NOTICED_BY, "w", encoding="utf-8") as file:
            file.write("{\n" + ",\n".join(lines) + "\n}\n")
    known = sum(FAULTS[number - 1].name in OPEN for number in numbers)
    print(f"{len(numbers) - len(survivors) - known} of {len(numbers)} faults caught, {known} are known not to be, in {time.monotonic() - begin:.0f} s.")
    if searched and not record and not options:
        print(f"{searched} of them by another test than noticed_by.json names, which took longer: run with --record.")
    if survivors:
        sys.exit("Nobody noticed: " + "; ".join(survivors))


if __name__ == "__main__":
    main()
