#!/usr/bin/env bash
# usage: training_quality.sh SOURCE BIN SCRATCH
# The recipe of share/config/shakespeare.conf with three seeds: prints the table and compares the mean.
MT_SEEDS="1 2 3" exec bash "$(dirname "$0")/../training_quality.sh" "$@"
