#!/usr/bin/env bash
# Communicators of processes, through shared memory and through messages.
set -u
. "$(dirname "$0")/mpi.sh"
failed=0
for carrier in shared messages; do
  for ranks in 1 2 3 4 8; do
    found=$(timeout 120 mpirun -n "$ranks" "$2/../test/communicator_ranks" "$carrier" 2>&1)
    status=$?
    echo "$carrier: $found"
    [ "$status" = 0 ] && [ "$found" = "$ranks ranks: all cases hold" ] || { echo "status $status"; failed=1; }
  done
done
exit $failed
