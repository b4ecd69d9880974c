#!/usr/bin/env bash
# cmake --install honours DESTDIR and the GNU folders; the installed programs and pages are there and start.
set -u
source=$1 bin=$2 scratch=$3
failed=0
report() { echo "$*"; failed=1; }
rm -rf "$scratch"; mkdir -p "$scratch"
DESTDIR=$scratch cmake --install "$(dirname "$bin")" --prefix /usr > "$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
for program in mt-preprocess mt-train mt-reshard mt-eval mt-generate; do
  "$scratch/usr/bin/$program" --version > /dev/null || report "the installed $program does not start"
  [ -f "$scratch/usr/share/man/man1/$program.1" ] || report "no installed page $program.1"
done
for page in mt-shards mt-checkpoint; do
  [ -f "$scratch/usr/share/man/man5/$page.5" ] || report "no installed page $page.5"
done
[ -f "$scratch/usr/share/mt/config/shakespeare.conf" ] || report "no installed share/mt/config/shakespeare.conf"
[ -e "$scratch/usr/share/mt/quickstart.sh" ] && report "quickstart.sh needs the sources and is installed without them"
# Hardening: position-independent, relocations read-only and bound at start, stack protector used.
for program in mt-train mt-reshard; do
  readelf -h "$scratch/usr/bin/$program" | grep -q 'Type:.*DYN' || report "$program is not position-independent"
  readelf -d "$scratch/usr/bin/$program" | grep -q 'BIND_NOW\|FLAGS.*NOW' || report "$program is not bound at start"
  readelf -lW "$scratch/usr/bin/$program" | grep -q GNU_RELRO || report "$program has no read-only relocations"
done
rm -rf "$scratch"
exit $failed
