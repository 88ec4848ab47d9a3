#!/usr/bin/env bash
# Installs what is missing: Debian packages by apt, LibTorch (the torch wheel) into .venv.
# `install.sh test` adds what the tests compare with, `install.sh sanitize` the sanitizers, `install.sh soak`
# the other compiler. With everything there it does not touch the network.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-build}

packages=(clang-19 lld-19 clang-format-19 cmake ninja-build ccache git python3-venv libgtest-dev
  libtomlplusplus-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev
  libxxhash-dev libcurl4-openssl-dev libpugixml-dev zlib1g-dev)
[ "$what" = sanitize ] && packages+=(libclang-rt-19-dev)
[ "$what" = soak ] && packages+=(g++)
[ "$what" != build ] && packages+=(openmpi-bin)
missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  sudo=$([ "$(id -u)" = 0 ] || echo sudo)
  echo "installing ${missing[*]}" >&2
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

wanted=requirements.txt
[ "$what" != build ] && wanted=requirements-test.txt
stamp=.venv/installed-$wanted
if ! cmp -s "$wanted" "$stamp"; then
  [ -x .venv/bin/python ] || python3 -m venv .venv
  echo "installing $wanted into .venv" >&2
  .venv/bin/pip install -q --disable-pip-version-check -r "$wanted"
  cp "$wanted" "$stamp"
fi
