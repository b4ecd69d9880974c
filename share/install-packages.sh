#!/bin/sh
# usage: sh share/install-packages.sh build|test
# Installs the Debian packages that building (or also testing) needs and that are not there yet; says which.
set -eu

# Several compilers would do; these are what a fresh Debian 12 lacks.
packages="g++ cmake ninja-build pkg-config libopenmpi-dev openmpi-bin libhdf5-dev libboost-program-options-dev
 libsimdjson-dev nlohmann-json3-dev libzstd-dev zlib1g-dev libutf8proc-dev libxxhash-dev jq"
tests="libgtest-dev libbenchmark-dev clang libclang-rt-14-dev hdf5-tools python3-h5py python3-numpy python3-venv librandom123-dev libpcre2-dev mandoc strace zstd
 clang-format-14 universal-ctags valgrind bsdextrautils git procps util-linux slurmctld slurmd slurm-client munge"

case "${1:-}" in
  build) ;;
  test) packages="$packages $tests" ;;
  *) echo "usage: sh share/install-packages.sh build|test" >&2; exit 2 ;;
esac

missing=""
for package in $packages; do
  state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$state" = "install ok installed" ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
  exit 0
fi

if [ "$(id -u)" -eq 0 ]; then
  as_root=""
elif command -v sudo >/dev/null 2>&1; then
  as_root="sudo"
else
  echo "install-packages: these packages are missing, and neither root nor sudo is at hand:$missing" >&2
  exit 4
fi
echo "install-packages: installing with apt-get:$missing" >&2
$as_root apt-get update -qq >&2
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >&2
