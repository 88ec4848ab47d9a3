#!/usr/bin/env bash
# run.sh BUILD [--quick]: every benchmark, beside its peers. Results are appended to
# benchmarks/results/*.jsonl with command, commit and machine (record.py). --quick: 16 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${1:?usage: benchmarks/run.sh BUILD [--quick]}")
quick=${2:-}
seconds=0.5
[ "$quick" = --quick ] && seconds=0.2
# Runs a command and keeps its lines: keep FILE COMMAND...
keep() { "${@:2}" | python3 benchmarks/record.py "$@"; }

echo "load average $(cut -d' ' -f1-3 /proc/loadavg): figures are worth something on a quiet machine only"
echo "== limits of this machine"
keep compute.jsonl "$build/phalanx" bench compute --json --seconds "$seconds"
echo "== collectives"
keep comm.jsonl "$build/phalanx" bench comm --ranks 2 8 --json --seconds "$seconds"
echo "== overlap"
keep overlap.jsonl env OMP_NUM_THREADS=1 "$build/phalanx" run --nproc-per-node 2 -- "$build/overlap_bench"
echo "== checkpoints"
benchmarks/checkpoint.py "$build" ${quick:+--megabytes 512 --pairs 3}
echo "== checkpoints on other ranks: bytes read and memory"
folder=$(mktemp -d "$build/reshard.XXXXXX")
trap 'rm -rf "$folder"' EXIT
"$build/phalanx" run --nproc-per-node 2 -- "$build/reshard_bench" save "$folder" ${quick:+512}
keep reshard.jsonl "$build/phalanx" run --nproc-per-node 4 -- "$build/reshard_bench" load "$folder"
echo "== steps beside PyTorch"
benchmarks/compare.py "$build" $quick
