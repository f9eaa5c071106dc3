#!/bin/bash
# The pages of `kvsim --html`, of every kind of report: what is in them, and, where there is a node, what their script
# draws of it. node is not needed to build or run kvsim.
here=$(cd "$(dirname "$0")" && pwd)
. "$(dirname "$0")/kvsim_checks.sh"

slo=--slo=ttft:500ms:p90,tpot:20ms
expect 0 '' replay --num-blocks=1500 $slo --html=replay.html --json-file=a.json --quiet
expect 0 '' replay --num-blocks=700 $slo --json-file=b.json --quiet
expect 0 '' replay --num-blocks=1500 --time=fixed --html=fixed.html --quiet
expect 0 '' replay --model=gpt-oss-20b --num-blocks=3000 --html=groups.html --quiet
expect 0 '' compare a.json b.json --html=compare.html --quiet
expect 0 '' compare a.json a.json --html=same.html --quiet
expect 0 '' replay --replicas=4 --router=prefix --event-delay=1s --num-blocks=1000 --html=fleet.html --quiet
expect 0 '' replay --replicas=40 --router=round-robin --num-blocks=500 --html=forty.html --quiet
expect 0 '' replay --prefill-replicas=2 --decode-replicas=2 --html=split.html --quiet
"$kvsim" plan --model=gemma-3-27b --device=h200 --html=plan.html >/dev/null || fail "no page of a plan"
expect 0 '' curve --block-sizes 16 64 256 --what-if=shuffled --html=curve.html --quiet
expect 0 '' curve --sizes 300 600 --tiers 900 1200 --html=tiers.html --quiet
expect 0 '' sweep --grid num-blocks=500:1000:*2 --grid block-size=16,64 --speedup=60 --pareto=hit-rate,pool-gib \
  --metrics=hit-rate,ttft-p99,output-tokens-per-s --html=sweep.html --quiet
write_trace
cp trace.jsonl '<img src=x onerror=alert(1)>.jsonl'
expect 0 '' replay '<img src=x onerror=alert(1)>.jsonl' --html=hostile.html --quiet

pages='replay fixed groups compare same fleet forty split plan curve tiers sweep hostile'
for page in $pages; do
  grep -q '^<script type="application/json" id="report">{"kind":"[A-Za-z]*"' $page.html || fail "$page.html has no report"
  [ "$(tail -1 $page.html)" = '</html>' ] || fail "$page.html has no end"
done
grep -q '<img' hostile.html && fail "a name became markup"

if node --version >/dev/null 2>&1; then
  node "$here/kvsim_pages_test.js" $(for page in $pages; do echo $page=$page.html; done) || fail "pages are not drawn as expected"
else
  echo "SKIPPED, for there is no node: what the script of pages draws"
fi
finish
