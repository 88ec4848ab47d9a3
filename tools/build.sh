#!/usr/bin/env bash
# build.sh DIR [cmake flags]: configures and builds with clang 19 (or CC and CXX), ninja, and ccache
# and lld where present.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1
shift
export CC=${CC:-clang-19} CXX=${CXX:-clang++-19}
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
flags=()
command -v ccache >/dev/null && flags+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
[[ $CXX == clang* ]] && command -v ld.lld-19 >/dev/null && flags+=(-DCMAKE_EXE_LINKER_FLAGS=--ld-path=ld.lld-19 -DCMAKE_SHARED_LINKER_FLAGS=--ld-path=ld.lld-19)
wanted=$CXX
for flag in "$@"; do
  if [[ $flag =~ ^-DCMAKE_CXX_COMPILER(:[A-Z]+)?= ]]; then wanted=${flag#*=}; fi
done
compiler=$(command -v "${wanted%% *}") || { echo "CXX is '$wanted', which is no program" >&2; exit 1; }
cache=$dir/CMakeCache.txt
# CMake keeps the compiler that a folder began with, so with another one it begins anew.
if [ -f "$cache" ] && ! grep -q "^CMAKE_CXX_COMPILER:[A-Z]*=$compiler$" "$cache"; then
  rm -rf "$cache" "$dir/CMakeFiles" "$dir/build.ninja"
fi
if [ ! -f "$dir/build.ninja" ] || [ "$*" != "$(cat "$dir/flags" 2>/dev/null)" ]; then
  cmake -S . -B "$dir" -G Ninja "${flags[@]}" "$@" >"$dir.log" 2>&1 || { cat "$dir.log" >&2; exit 1; }
  mv "$dir.log" "$dir/configure.log"
  echo "$*" >"$dir/flags"
fi
exec ninja -C "$dir" ${TARGETS:-}
