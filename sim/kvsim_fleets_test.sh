#!/bin/bash
# Runs kvsim replay and explain with several replicas.
. "$(dirname "$0")/kvsim_checks.sh"

# --- Several replicas ---
expect 0 '' replay --num-blocks=2000 --json
cp out alone.json
expect 0 '' replay --num-blocks=2000 --json --replicas=1
cmp out alone.json || fail "one replica is not what a replay is"
fleet="--num-blocks=2000 --replicas=3"
expect 0 '' replay $fleet --router=prefix --json --router-temperature=2 --event-loss=0.1
cp out fleet.json
expect 0 '' replay $fleet --router=prefix --json --router-temperature=2 --event-loss=0.1
cmp out fleet.json || fail "two runs of a fleet differ"
expect 0 '' replay $fleet --router=prefix --json --router-temperature=2 --event-loss=0.1 --router-seed=1
cmp -s out fleet.json && fail "a router draws alike with another seed"
expect 0 '' replay $fleet --router=oracle
grep -q '^claims .* too high for 0 requests' out || fail "an oracle claims too much: $(cat out)"
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 100 ] ||
  fail "the table of a fleet is wider than 100 columns"
expect 0 '' explain $fleet --router=prefix --request=row:40
grep -q 'was sent to replica [0-2] at .* by prefix' out || fail "explain says no replica: $(cat out)"
expect 2 'needs --request' explain $fleet
expect 2 'no such request' explain $fleet --request=row:99999999
expect 2 '^kvsim replay: --router needs --replicas of at least 2' replay --router=prefix
expect 2 '^kvsim replay: --event-loss means nothing to --router=random' replay $fleet --router=random --event-loss=0.1
expect 2 '^kvsim replay: --router: got "best", expected one of round-robin' replay $fleet --router=best
expect 2 '^kvsim replay: --hit-weight: got "-1", expected a number from 0' replay $fleet --router=prefix --hit-weight=-1
expect 2 '^kvsim replay: --session-factor: got "0.5", expected 0, or' replay $fleet --router=session --session-factor=0.5
expect 2 '^kvsim replay: --router-delay: got "5", expected a time' replay $fleet --router-delay=5
expect 2 '^kvsim replay: --steps works with one replica only' replay $fleet --steps=steps.csv
expect 2 'compares cached blocks, but prefix caching is off' replay $fleet --router=prefix --no-prefix-caching

# --- Replicas that start, stop and crash ---
plan="--num-blocks=2000 --replicas=2 --router=prefix --speedup=4"
says 'fleet 2 replicas .* 396 arrived, 396 finished .* 1 start (1 again), 1 stop, 1 crash lost [1-9].* requests* by crashes' \
  replay $plan --scale=20s:crash@0,40s:start,80s:stop@1 --start-time=10s
[ "$(awk '{ if (length($0) > m) m = length($0) } END { print m }' out)" -le 100 ] ||
  fail "the table of a plan is wider than 100 columns"
says '"requests_failed": "[1-9]' replay $plan --scale=20s:crash=2,21s:start --lost-requests=fail --json
says '396 arrived, 396 finished' replay --num-blocks=2000 --speedup=20 --scale-rule=queue:0.1:2 --max-replicas=3
expect 3 'requests wait at the router, the first is' replay $plan --scale=20s:crash=2
expect 2 '^kvsim replay: --scale: got "20s:sleep", expected TIME:ACTION' replay $plan --scale=20s:sleep
expect 2 '^kvsim replay: --scale-rule: got "queue:3:1", expected queue:LOW:HIGH' replay $plan --scale-rule=queue:3:1
expect 2 '^kvsim replay: --max-replicas needs --scale-rule' replay $plan --max-replicas=3
expect 2 '^kvsim replay: --min-replicas: got "3", expected a whole number from 1 to 2' replay $plan --scale-rule=queue:1:2 --min-replicas=3
expect 2 '^kvsim replay: --start-time needs --scale' replay $plan --start-time=1s
expect 2 '^kvsim replay: --lost-requests: got "drop", expected retry or fail' replay $plan --scale=1s:start --lost-requests=drop

finish
