# Sourced by ./kvsim and ./test.sh: makes sure that what the build needs is installed.
#
# Looks for the packages that are missing. As root, or through sudo at a terminal, installs them with apt and says so;
# elsewhere prints the command to run and stops with exit status 2.

kvblocks_packages=(
  # Bazel and the rule sets that its default workspace asks for
  bazel-bootstrap bazel-skylib bazel-platforms bazel-rules-java bazel-rules-proto
  # compiler and libraries
  g++ libabsl-dev libprotobuf-dev protobuf-compiler libssl-dev libxxhash-dev
  libsimdjson-dev libcli11-dev libzmq3-dev cppzmq-dev libboost-dev libzstd-dev zlib1g-dev libhwy-dev
  # tests and benchmarks
  libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev libboost-context-dev
  # matrix products of the example engine
  libopenblas-dev
)

# For sanitizers and fuzzers.
kvblocks_sanitizer_packages=(clang lld libclang-rt-dev)

# For tests/packaging/check_cmake.sh and check_python.sh only.
kvblocks_packaging_packages=(cmake ninja-build pkg-config dpkg-dev file python3-dev python3-venv)

kvblocks_missing_packages() {
  local installed package
  # One query for all; it fails if a package is unknown to dpkg, but still prints the others.
  installed=$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "${kvblocks_packages[@]}" 2>/dev/null)
  for package in "${kvblocks_packages[@]}"; do
    grep -qx "$package installed" <<<"$installed" || printf '%s\n' "$package"
  done
}

# kvblocks_prepare [PACKAGE...]: packages besides those that the build needs
kvblocks_prepare() {
  kvblocks_packages+=("$@")
  if ! command -v dpkg-query >/dev/null; then
    command -v bazel >/dev/null && return 0
    echo "kvblocks: this is no Debian system; install Bazel and the libraries of tools/prepare.sh by hand" >&2
    exit 2
  fi
  local missing as_root=()
  mapfile -t missing < <(kvblocks_missing_packages)
  [ "${#missing[@]}" -eq 0 ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    if [ -t 0 ] && [ -t 2 ] && command -v sudo >/dev/null; then
      as_root=(sudo)
    else
      echo "kvblocks: these packages are missing; install them and try again:" >&2
      echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
      exit 2
    fi
  fi
  echo "kvblocks: installing with apt: ${missing[*]}" >&2
  if ! { "${as_root[@]}" apt-get update -qq &&
         "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
           apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >&2; then
    echo "kvblocks: apt could not install them; see its messages above" >&2
    exit 2
  fi
}
