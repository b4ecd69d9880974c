#!/bin/bash
# Weak scaling (Shoeybi et al., arXiv:1909.08053, section 5.1): 1 to MOST (2) ranks, equal work a rank, t1 / tN. One command:
#
#   test/bench/weak_scaling.sh BUILD        environment: as test/bench/grid.sh
#
# On two cores that is two points, and it says so.
exec "$(dirname "$0")/grid.sh" "${1:?usage: weak_scaling.sh BUILD}" weak
