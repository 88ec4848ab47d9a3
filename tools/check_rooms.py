#!/usr/bin/env python3
"""Fails if a room includes a room below it in the list of docs/design.md, if a plain room includes
LibTorch, or if a light header includes a heavy one."""
import pathlib
import re
import sys

ROOMS = """base spec config device comm autograd kernels nn models data checkpoint shard pipeline optim
parallel train launch report plan cli""".split()
PLAIN = {"base", "spec", "config", "launch", "plan"}
HEAVY_HEADER = re.compile(r"<(torch/|ATen/(?!core/Tensor\.h))")
HEAVY_ALLOWED = {"phalanx/shard/module.h"}

root = pathlib.Path(__file__).resolve().parent.parent
errors = []
for path in sorted((root / "phalanx").rglob("*")):
    if path.suffix not in (".h", ".cpp", ".cu"):
        continue
    name = str(path.relative_to(root))
    room = name.split("/")[1]
    if room not in ROOMS:
        errors.append(f"{name}: '{room}' is not in the list of rooms")
        continue
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = f"{name}:{number}"
        included = re.match(r'\s*#include "phalanx/(\w+)/', line)
        if included and ROOMS.index(included[1]) > ROOMS.index(room):
            errors.append(f"{where}: {room} includes {included[1]}, a room below it")
        if included and room in PLAIN and included[1] not in PLAIN:
            errors.append(f"{where}: {room} knows no LibTorch and includes {included[1]}")
        if not line.startswith("#include <"):
            continue
        if room in PLAIN and re.search(r"<(torch|ATen|c10)/", line):
            errors.append(f"{where}: {room} includes LibTorch")
        if path.suffix == ".h" and HEAVY_HEADER.search(line) and name not in HEAVY_ALLOWED:
            errors.append(f"{where}: headers include ATen/core/Tensor.h at most")
        if "torch/csrc/autograd/" in line and room != "autograd":
            errors.append(f"{where}: only the room autograd includes the engine")
print("\n".join(errors), file=sys.stderr)
sys.exit(bool(errors))
