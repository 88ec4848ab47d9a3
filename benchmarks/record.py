#!/usr/bin/env python3
"""Keeps what a benchmark prints, with what its lines need to be read later.

    COMMAND | benchmarks/record.py FILE COMMAND...

Passes stdin on; each line of JSON is appended to benchmarks/results/FILE with the command and describe().
"""
import datetime
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def output_of(*command):
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return run.stdout.strip() if run.returncode == 0 else ""


def describe(python=ROOT / ".venv/bin/python"):
    """Commit, with -dirty where the tree is not the commit's (results apart), and machine."""
    commit = output_of("git", "rev-parse", "--short", "HEAD") or "unknown"
    if output_of("git", "status", "--porcelain", "--", ".", ":!benchmarks/results"):
        commit += "-dirty"
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), "")
    torch = output_of(str(python), "-c", "from importlib.metadata import version; print(version('torch'))")
    return {"torch": torch, "commit": commit, "cores": os.cpu_count(), "cpu": cpu,
            "load": os.getloadavg()[0], "date": datetime.date.today().isoformat()}


def command_text(words):
    """As it is typed in the root of the sources."""
    return " ".join(os.path.relpath(word, ROOT) if str(word).startswith("/") else str(word) for word in words)


def keep(file, line):
    path = ROOT / "benchmarks/results" / file
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as out:
        out.write(json.dumps(line) + "\n")


def main():
    file, command = sys.argv[1], sys.argv[2:]
    machine = describe()  # the load before, not that of the benchmark
    for line in sys.stdin:
        sys.stdout.write(line)
        sys.stdout.flush()
        if line.startswith("{"):
            keep(file, json.loads(line) | {"command": command_text(command)} | machine)


if __name__ == "__main__":
    main()
