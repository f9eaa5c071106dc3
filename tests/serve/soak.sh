#!/usr/bin/env bash
# kvsim serve under load for a while, with clients that leave, answers that fail or are cut, and replicas that crash; every step's
# state is checked. At the end every request must have been answered or have met a fault, and the process must end well: with
# a sanitizer's build, without a leak.
#   tests/serve/soak.sh KVSIM LOAD [SECONDS]
# LOAD is the program of //bench:serve. Exit status: 0 all well, 1 not.
set -u
kvsim=$1 load=$2 seconds=${3:-600}
folder=$(mktemp -d)
"$kvsim" serve --port=21400 --replicas=2 --num-blocks=1500 --max-model-len=8192 --time=fixed --step-time=2ms --check-invariants \
  --fault-errors=0.01 --fault-cuts=0.01 --policy=priority >"$folder/out" 2>"$folder/err" &
server=$!
until grep -qs 21401 "$folder/out"; do sleep 0.1; done
resident() { awk '/VmRSS/ {print $2}' "/proc/$server/status"; }
end=$((SECONDS + seconds)) round=0 bad=0 total=0
while [ "$SECONDS" -lt "$end" ]; do
  round=$((round + 1))
  # Long answers in streams, and short ones, at once; a replica crashes in between.
  "$load" --port=21400 --replicas=2 --connections=100 --requests=1500 --max-tokens=60 --prompt-tokens=400 --stream \
    --abort-percent=20 --faults-are-fine >"$folder/streams" 2>&1 &
  streams=$!
  "$load" --port=21400 --replicas=2 --connections=40 --requests=4000 --abort-percent=5 --faults-are-fine >"$folder/short" 2>&1 &
  short=$!
  sleep 2
  curl -s -o "$folder/crash" "http://127.0.0.1:$((21400 + round % 2))/kvsim/faults" -d '{"crash_seconds": 0.5}'
  wait "$streams" || { bad=$((bad + 1)); cat "$folder/streams"; }
  wait "$short" || { bad=$((bad + 1)); cat "$folder/short"; }
  total=$((total + 5500))
  [ $((round % 10)) -eq 1 ] && echo "round $round: $total requests, $(resident) kB resident"
  kill -0 "$server" || { bad=$((bad + 1)); break; }
done
curl -s http://127.0.0.1:21400/metrics | grep -E '^kvsim_(http_answers|crashes|clock_lag_max)'
echo "$round rounds, $total requests, $(resident) kB resident"
kill "$server"
wait "$server"
status=$?
cat "$folder/err"
[ "$status" -eq 0 ] && [ "$bad" -eq 0 ] && echo "all well"
