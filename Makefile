# `make help` lists the targets.
SHELL := /bin/bash
BUILD ?= build
CMAKE_FLAGS ?= -DCMAKE_BUILD_TYPE=Release
JOBS ?= $(shell nproc)

.PHONY: help run build install test check soak sanitize bench docs format clean
help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install:  ## what the build needs: Debian packages, LibTorch in .venv (nothing if all is there)
	@tools/install.sh

build: install  ## build/phalanx
	@tools/build.sh $(BUILD) $(CMAKE_FLAGS)

run: install  ## train a small GPT-2 on two ranks, and go on where it was when called again
	@TARGETS=phalanx tools/build.sh $(BUILD) $(CMAKE_FLAGS)
	@tools/quickstart.sh $(BUILD)

check: install  ## formatting and the order of includes between rooms
	@tools/check_format.sh
	@python3 tools/check_rooms.py

test: build check  ## every test
	@tools/install.sh test
	@OMP_NUM_THREADS=1 ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)

sanitize:  ## the tests under ASan and UBSan
	@tools/install.sh sanitize
	@tools/build.sh build-sanitize -DCMAKE_BUILD_TYPE=Debug -DPHALANX_SANITIZE=address,undefined -DPHALANX_BENCHMARKS=OFF
	@tools/sanitize.sh build-sanitize

soak: build sanitize  ## the long tests: sanitizers, the g++ build, fault loops
	@tools/install.sh soak
	@tools/soak.sh $(BUILD)

bench: build  ## the benchmarks, beside their peers
	@benchmarks/run.sh $(BUILD)

docs: build  ## docs/config.md from the table of keys
	@$(BUILD)/phalanx config reference > $(BUILD)/config.md
	@mv $(BUILD)/config.md docs/config.md

format:  ## clang-format over everything
	@git ls-files '*.h' '*.cpp' | xargs clang-format-19 -i

clean:  ## remove what was built
	@rm -rf build build-*
