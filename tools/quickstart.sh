#!/usr/bin/env bash
# quickstart.sh BUILD: trains the model of configs/quickstart.toml on two ranks with fully sharded
# state, on the C++ headers that came with LibTorch; goes on where it was when called again.
set -euo pipefail
cd "$(dirname "$0")/.."
phalanx=${1:-build}/phalanx
config=configs/quickstart.toml
run=runs/quickstart

include=$(echo .venv/lib/python3*/site-packages/torch/include)
tokenize() {  # NAME HEADERS...
  local file=$run/data/$1.tokens
  [ -f "$file" ] && return
  mkdir -p "$run/data"
  "$phalanx" data tokenize --extension .h --append-end-of-document -o "$file" "${@:2}" >&2
}
tokenize train "$include/torch/csrc" "$include/c10/core"
tokenize validation "$include/c10/util/intrusive_ptr.h" "$include/c10/util/ArrayRef.h"

# Once the config's steps are done, every call trains up to the next hundred.
steps=$(sed -n 's/^steps = //p' $config)
finished=$(sed -n 's/^step-//p' $run/checkpoints/latest 2>/dev/null || true)
if [ "${finished:-0}" -ge "$steps" ]; then steps=$(((finished / 100 + 1) * 100)); fi

trap : INT  # the ranks save and leave; this script says so
code=0
"$phalanx" run --nproc-per-node 2 -- train $config --train.steps=$steps || code=$?
if [ $code = 75 ]; then echo "stopped and saved; 'make run' goes on from there" >&2; fi
[ $code = 0 ] || exit $code

echo
echo "A sample (the first line is the prompt):"
echo
"$phalanx" generate --checkpoint $run --prompt $'#pragma once\n\n#include <' --tokens 400 --temperature 0.7
cat <<END

Next:
  make run                                    train 100 steps further
  $phalanx verify $config   do two ranks compute what one computes?
  $phalanx eval $config     the loss over the validation data
END
