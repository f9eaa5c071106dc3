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

# --- Tiers behind replicas: one behind one replica is the same, shared or not; a fleet shares what it stored ---
tier=host:9GiB:read=20GB/s
unnamed() { grep -v '"tier": "\|"is_shared"' out | sed 's/,$//'; }
expect 0 '' replay --num-blocks=400 --json --tier=$tier
unnamed >alone.json
expect 0 '' replay --num-blocks=400 --json --tier=$tier:shared
unnamed | cmp - alone.json || fail "sharing with nobody changes something"
loaded() { sed -n 's/.*"loaded_tokens": "\([0-9]*\)".*/\1/p' out | head -1; }
expect 0 '' replay --num-blocks=400 --replicas=3 --json --check-invariants --tier=$tier
own=$(loaded)
expect 0 '' replay --num-blocks=400 --replicas=3 --json --check-invariants --tier=$tier:shared
cp out shared.json
[ "$(loaded)" -gt "$((own * 5 / 4))" ] || fail "a shared tier gives $(loaded) tokens, tiers of their own $own"
expect 0 '' replay --num-blocks=400 --replicas=3 --json --check-invariants --tier=$tier:shared
cmp out shared.json || fail "two runs over a shared tier differ"
expect 2 'two have the name' replay --num-blocks=400 --replicas=3 --tier=host:1GiB:read=20GB/s,$tier:shared
expect 0 '' replay --num-blocks=400 --replicas=3 --tier=near:1GiB:read=20GB/s,$tier:shared
grep -q '^tiers .* loaded' out && grep -q '^host  *shared; ' out || fail "no tiers of a fleet: $(cat out)"
expect 2 'expected shared in it, as "host" before it is' replay --tier=$tier:shared,disk:9GiB:read=1GB/s

finish
