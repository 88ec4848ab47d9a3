#!/usr/bin/env bash
# Fails with the names of the files that clang-format would change.
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.h' '*.cpp' | xargs -r clang-format-19 --dry-run -Werror
