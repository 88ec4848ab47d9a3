#!/usr/bin/env bash
# sanitize.sh DIR: the tests of a build with ASan and UBSan. Leaks are LibTorch's at exit: not counted.
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=$(nproc)  # which heeds OMP_NUM_THREADS
export OMP_NUM_THREADS=1
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
exec ctest --test-dir "$1" --output-on-failure -j "$jobs" --timeout 900
