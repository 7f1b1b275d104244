#!/usr/bin/env bash
# Installs the Debian packages that Fathom builds with, and the text that quickstart trains on.
# Run as root, or as a user who may sudo. Safe to run again.
set -euo pipefail

required=(
  g++ git python3 ca-certificates
  bazel-bootstrap bazel-rules-cc bazel-rules-java bazel-rules-proto bazel-platforms bazel-skylib
  libprotobuf-dev protobuf-compiler libabsl-dev libgtest-dev libgmock-dev
  libdnnl-dev libopenblas-openmp-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev
  libzstd-dev libsimdjson-dev libboost-context-dev
  libopenmpi-dev openmpi-bin
)
# Webster's dictionary of 1913: without it quickstart trains on a smaller text, and says so.
optional=(dict-gcide)

missing() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

as_root() {
  if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

if ! command -v apt-get >/dev/null; then
  echo "setup.sh: this system has no apt-get; install the equivalents of: ${required[*]}" >&2
  echo "setup.sh: and set FATHOM_SYSTEM_PREFIX to their prefix (README, 'Building elsewhere')" >&2
  exit 1
fi

mapfile -t wanted < <(missing "${required[@]}" "${optional[@]}")
if [ "${#wanted[@]}" -eq 0 ]; then
  echo "setup.sh: all packages are installed"
  exit 0
fi
echo "setup.sh: installing ${wanted[*]}"
export DEBIAN_FRONTEND=noninteractive
as_root apt-get update -qq
mapfile -t needed < <(missing "${required[@]}")
if [ "${#needed[@]}" -gt 0 ]; then
  as_root apt-get install -y -qq --no-install-recommends "${needed[@]}" >/dev/null
fi
for package in $(missing "${optional[@]}"); do
  as_root apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
    echo "setup.sh: $package cannot be installed: quickstart will use a smaller text" >&2
done
echo "setup.sh: done"
