#!/usr/bin/env bash
# run.sh BUILD [--quick]: every benchmark, beside its peers. Results are appended to
# benchmarks/results/*.jsonl with commit, cores and config. --quick: under 15 minutes on 2 cores.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "${1:?usage: benchmarks/run.sh BUILD [--quick]}")
quick=${2:-}
seconds=0.5
[ "$quick" = --quick ] && seconds=0.2
results=benchmarks/results
mkdir -p "$results"
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)

# Adds what a line needs to be read later, and keeps it: keep FILE
keep() {
  python3 -c '
import json, os, sys
for line in sys.stdin:
    sys.stdout.write(line)
    if line.startswith("{"):
        extra = {"commit": sys.argv[2], "cores": os.cpu_count(), "load": os.getloadavg()[0]}
        with open(sys.argv[1], "a") as out:
            out.write(json.dumps(json.loads(line) | extra) + "\n")
' "$results/$1" "$commit"
}

echo "load average $(cut -d' ' -f1-3 /proc/loadavg): figures are worth something on a quiet machine only"
echo "== limits of this machine"
"$build/phalanx" bench compute --json --seconds "$seconds" | keep compute.jsonl
echo "== collectives"
"$build/phalanx" bench comm --ranks 2 8 --json --seconds "$seconds" | keep comm.jsonl
echo "== overlap"
OMP_NUM_THREADS=1 "$build/phalanx" run --nproc-per-node 2 -- "$build/overlap_bench" | keep overlap.jsonl
echo "== checkpoints"
benchmarks/checkpoint.py "$build" ${quick:+--megabytes 512 --pairs 3}
echo "== checkpoints on other ranks: bytes read and memory"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$build/phalanx" run --nproc-per-node 2 -- "$build/reshard_bench" save "$folder" ${quick:+512}
"$build/phalanx" run --nproc-per-node 4 -- "$build/reshard_bench" load "$folder" | keep reshard.jsonl
echo "== steps beside PyTorch"
benchmarks/compare.py "$build" $quick
