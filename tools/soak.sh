#!/usr/bin/env bash
# soak.sh BUILD: the long checks beside `make test`: the g++ build with its tests, the debug build (released
# memory is poisoned), and the fault tests of BUILD over and over.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
jobs=$(nproc)  # which heeds OMP_NUM_THREADS
export OMP_NUM_THREADS=1
# What kills ranks, breaks disks and races, over and over.
faults='Failure|Join|Order|Collectives|Run|LoadedRanks|Launchers|Signals|Checkpointer|Faults|SavingFaults'
faults+='|Space|S3Faults|Storage|Processes|Trainer|TrainCommand|SilentDisk|Output|Launch|Guard|Resume|Examples'
for suite in ${faults//|/ }; do
  grep -rqE "^TEST\($suite," tests || { echo "soak.sh: no test of $suite" >&2; exit 1; }
done
CC=gcc CXX=g++ tools/build.sh build-gcc -DCMAKE_BUILD_TYPE=Release
ctest --test-dir build-gcc --output-on-failure -j "$jobs"
tools/build.sh build-debug -DCMAKE_BUILD_TYPE=Debug
ctest --test-dir build-debug --output-on-failure -j "$jobs"
ctest --test-dir "$build" --output-on-failure -j "$jobs" --repeat until-fail:5 -R "^($faults)\\."
PHALANX_SOAK_SECONDS=300 "$build/tests/comm_tests" --gtest_filter='Soak.*'
# Runs killed 50 times at random moments; a thousand random meshes.
PHALANX_SOAK=1 "$build/tests/run_tests" --gtest_filter='Killed.*'
PHALANX_SOAK=1 "$build/tests/state_tests" --gtest_filter='Property.*'
