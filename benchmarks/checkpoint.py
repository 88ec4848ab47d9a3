#!/usr/bin/env python3
"""Checkpoints beside the bare disk and beside PyTorch DCP, in turns on the same disk.

    benchmarks/checkpoint.py BUILD [--megabytes 2048] [--pairs 7] [--folder FOLDER]

A round is: we save on 2 ranks, DCP saves on 2 ranks, we load the files on 4 ranks, DCP loads its on 4
ranks; the order of ours and DCP's alternates. Every program saves or loads once before it is timed. Inside
our rounds `checkpoint_bench` takes its own pairs with plain writes, reads and copies, in an order that
alternates from round to round. Prints the medians of the paired ratios with their ranges, and appends
them to benchmarks/results/checkpoint.jsonl. Needs 5 times the bytes in FOLDER, and the Python that has torch.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from record import ROOT, command_text, describe, keep

HERE = ROOT / "benchmarks"


def lines_of(command):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                         env=environment)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed with {run.returncode}:\n{run.stderr[-3000:]}")
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build")
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--folder", help="on the disk that is measured (default: a temporary folder)")
    parser.add_argument("--python", default=ROOT / ".venv/bin/python")
    arguments = parser.parse_args()
    build = pathlib.Path(arguments.build).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="phalanx-bench-", dir=arguments.folder))

    def ours(mode, ranks):
        return lines_of([build / "phalanx", "run", "--nproc-per-node", str(ranks), "--",
                         build / "checkpoint_bench", mode, folder / "ours", "--pairs", "1",
                         "--first", str(pair), "--megabytes", str(arguments.megabytes)])

    def dcp(mode, ranks):
        (folder / "dcp").mkdir(exist_ok=True)
        return lines_of([arguments.python, "-m", "torch.distributed.run", "--standalone", "--no-python",
                         "--nproc-per-node", str(ranks), arguments.python,
                         HERE / "peers/dcp_checkpoint.py", mode, folder / "dcp", "--times", "2",
                         "--megabytes", str(arguments.megabytes)])

    figures, machine = {}, describe(arguments.python)
    try:
        for pair in range(arguments.pairs):
            for mode, ranks in (("save", 2), ("load", 2), ("load", 4)):
                first, second = (ours, dcp) if pair % 2 == 0 else (dcp, ours)
                found = {first: first(mode, ranks), second: second(mode, ranks)}
                mine = {name: value for line in found[ours] for name, value in line.items()}
                name = mode if ranks == 2 else "load_resharded"
                peer = found[dcp][-1]["seconds"]
                values = {f"{name} / DCP": peer / mine[f"{mode}_s"]}
                if mode == "save":
                    values["save / plain write"] = mine["of_write"]
                    values["async step / copy"] = mine["of_copy"]
                else:
                    values[f"{name} / plain read"] = mine["of_read"]
                for what, value in values.items():
                    figures.setdefault(what, []).append(value)
                print(json.dumps({"pair": pair, "ours": mine, "dcp_s": peer}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for what, values in figures.items():
        line = {"what": what, "median": round(statistics.median(values), 3),
                "range": [round(min(values), 3), round(max(values), 3)], "pairs": len(values),
                "megabytes": arguments.megabytes, "command": command_text(sys.argv)} | machine
        print(json.dumps(line))
        keep("checkpoint.jsonl", line)


if __name__ == "__main__":
    main()
