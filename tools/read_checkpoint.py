#!/usr/bin/env python3
"""Reads a checkpoint by docs/checkpoint.md alone: read_checkpoint.py FOLDER prints its tensors;
load(folder) gives them as numpy arrays, {(name, role): array}; bfloat16 widened to float32."""
import json
import os
import sys
import numpy

try:
    import xxhash
except ImportError:  # then hashes are not compared
    xxhash = None

DTYPES = {"float64": "<f8", "float32": "<f4", "bfloat16": "<u2", "float16": "<f2",
          "int64": "<i8", "int32": "<i4", "int16": "<i2", "uint8": "|u1", "bool": "|b1"}


def check_hash(data, expected, what):
    if xxhash and xxhash.xxh3_128_hexdigest(data) != expected:
        raise ValueError(f"{what} is damaged: its hash is not {expected}")


def read_manifest(folder):
    path = os.path.join(folder, "manifest.json")
    with open(path, "rb") as manifest, open(path + ".xxh128") as line:
        text = manifest.read()
        check_hash(text, line.read().split()[0], path)
    fields = json.loads(text)
    if (fields["format"], fields["format_version"]) != ("phalanx checkpoint", 1):
        raise ValueError(f"{path} is of another format: {fields['format']}")
    for name, size in fields["files"].items():
        if os.path.basename(name) != name or os.path.getsize(os.path.join(folder, name)) != size:
            raise ValueError(f"{name} does not have the {size} bytes of the manifest")
    return fields


def read_tensor(folder, tensor):
    dtype = numpy.dtype(DTYPES[tensor["dtype"]])
    whole, filled = numpy.zeros(tensor["shape"], dtype), 0
    for part in tensor["parts"]:
        with open(os.path.join(folder, part["file"]), "rb") as file:
            file.seek(part["file_offset"])
            data = file.read(part["bytes"])
        check_hash(data, part["xxh3_128"], f"{tensor['name']} in {part['file']}")
        box = tuple(slice(o, o + s) for o, s in zip(part["offset"], part["size"]))
        whole[box] = numpy.frombuffer(data, dtype).reshape(part["size"])
        filled += numpy.prod(part["size"], dtype=int)
    if filled != whole.size:
        raise ValueError(f"{tensor['name']}: {filled} of {whole.size} elements")
    # A bfloat16 is the upper half of a float32.
    return (whole.astype("<u4") << 16).view("<f4") if tensor["dtype"] == "bfloat16" else whole


def load(folder):
    return {(t["name"], t["role"]): read_tensor(folder, t) for t in read_manifest(folder)["tensors"]}


if __name__ == "__main__":
    for (name, role), array in load(sys.argv[1]).items():
        print(name, role, array.dtype, list(array.shape), array.sum(dtype="f8"))
