#!/usr/bin/env python3
"""Compares the training step of `phalanx bench step` with PyTorch's own stack on this machine.

    benchmarks/compare.py BUILD [--sizes tiny wide] [--cases single ddp fsdp] [--quick]

All programs of a case run at the same time but only one is ever awake (SIGSTOP and SIGCONT), so that
turns are short and lie next to each other. A pair is one turn of each; the figure is the median over
the pairs of (PyTorch's time awake per step / ours) with its range. Peak memory is measured in runs of its
own: the proportional set sizes of all ranks, summed, sampled while steps run.

Lines are appended to benchmarks/results/compare.jsonl. Needs the Python that has torch
(.venv/bin/python, or --python).
"""
import argparse
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from record import ROOT, command_text, describe

HERE = ROOT / "benchmarks"
# Sequences of a step over all ranks; tokens of a sequence.
SIZES = {"tiny": (8, 256), "wide": (4, 512)}
CASES = {"single": (1, "none"), "ddp": (2, "none"), "fsdp": (2, "optim_grads_params")}
KEEP_MEMORY = {  # glibc keeps what is freed
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "1000000000000",
    "MALLOC_TOP_PAD_": "67108864",
}


class Program:
    """Some ranks in one process group of their own; stopped unless it is their turn."""

    def __init__(self, name, command, ranks, environment, log):
        self.name, self.command, self.ends, self.failed = name, command, [], False
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.processes = []
        group = 0
        for rank in range(ranks):
            env = os.environ | environment | {
                "OMP_NUM_THREADS": str(max(1, os.cpu_count() // ranks)),
                "RANK": str(rank), "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log,
                                       stdin=subprocess.DEVNULL, process_group=group, cwd=ROOT)
            self.processes.append(process)
            group = group or process.pid
        self.group = group
        self.arrived = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.processes[0].stdout:
            value = json.loads(line)
            if "end_s" not in value:
                continue
            with self.arrived:
                self.ends.append(value["end_s"])
                self.arrived.notify()
        with self.arrived:
            self.failed = True
            self.arrived.notify()

    def signal(self, number):
        os.killpg(self.group, number)

    def wait_for(self, steps, limit=300):
        """Until so many more steps have ended."""
        with self.arrived:
            want = len(self.ends) + steps
            if not self.arrived.wait_for(lambda: self.failed or len(self.ends) >= want, limit) or (
                    self.failed and len(self.ends) < want):
                raise RuntimeError(f"{self.name}: no step in {limit} s, or it failed: "
                                   + " ".join(self.command))
            return self.ends[-steps:]

    def cpu_seconds(self):
        ticks = 0
        for process in self.processes:
            words = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.signal(signal.SIGSTOP)
        self.stopped = time.monotonic()
        self.cpu_at_stop = self.cpu_seconds()

    def turn(self, steps):
        """Wall and CPU seconds awake per step, and the cores that others took."""
        awake = self.stopped - self.ends[-1]  # of the step in which the last turn ended
        busy, own, start = busy_seconds(), self.cpu_at_stop, time.monotonic()
        self.signal(signal.SIGCONT)
        end = self.wait_for(steps)[-1]
        self.stop()
        wall, own = self.stopped - start, self.cpu_at_stop - own
        others = max(0.0, busy_seconds() - busy - own) / wall
        return (awake + end - start) / steps, own / steps, others

    def pss_bytes(self):
        total = 0
        for process in self.processes:
            with open(f"/proc/{process.pid}/smaps_rollup") as lines:
                total += next(int(l.split()[1]) for l in lines if l.startswith("Pss:")) * 1024
        return total

    def end(self):
        for number in (signal.SIGKILL, signal.SIGCONT):
            try:
                self.signal(number)
            except ProcessLookupError:
                pass
        for process in self.processes:
            process.wait()


def busy_seconds():
    user, nice, system, _, _, irq, soft, steal = map(
        int, open("/proc/stat").readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def commands(args, size, case):
    """name -> (command, environment)"""
    ranks, strategy = CASES[case]
    sequences = SIZES[size][0]
    ours = [f"{args.build}/phalanx", "bench", "step", f"configs/{size}.toml", "--json", "--steps=0",
            f"--parallel.strategy={strategy}", f"--batch.global={sequences}",
            f"--batch.micro={sequences // ranks}", "--optimizer.clip_norm=0"]
    torch = [args.python, str(HERE / "peers/torch_train.py"), f"--size={size}",
             f"--strategy={case}", f"--batch={sequences // ranks}", "--steps=0"]
    peers = {"torch": (torch, {}), "torch+malloc": (torch, KEEP_MEMORY),
             "torch+compile": (torch + ["--compile"], {})}
    return {"phalanx": (ours, {})} | {name: peers[name] for name in args.peers}


def run_pairs(args, size, case, rows, log):
    """Per program and pair: wall and CPU seconds per step, and other processes' cores."""
    ranks = CASES[case][0]
    programs, turns = [], {name: [] for name in rows}
    try:
        for name, (command, environment) in rows.items():
            programs.append(Program(name, command, ranks, environment, log))
            programs[-1].wait_for(3)  # warm-up
            programs[-1].stop()
            time.sleep(0.1)
        for pair in range(args.pairs):
            for program in programs if pair % 2 == 0 else reversed(programs):
                turns[program.name].append(program.turn(args.steps[size]))
    finally:
        for program in programs:
            program.end()
    return turns


def run_memory(rows, case, log):
    """Peak of the summed proportional set sizes during steps, per program."""
    peaks = {}
    for name, (command, environment) in rows.items():
        program = Program(name, command, CASES[case][0], environment, log)
        try:
            program.wait_for(2)
            steps, peak = len(program.ends) + 3, 0
            while len(program.ends) < steps and not program.failed:
                peak = max(peak, program.pss_bytes())
                time.sleep(0.005)
            peaks[name] = peak
        finally:
            program.end()
    return peaks


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--quick", action="store_true", help="3 pairs")
    parser.add_argument("--peers", nargs="+", choices=["torch", "torch+malloc", "torch+compile"],
                        default=["torch", "torch+malloc"])
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--out", default=str(HERE / "results/compare.jsonl"))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no program is left stopped
    args.build = os.path.abspath(args.build)
    args.pairs = args.pairs or (3 if args.quick else 7)
    args.steps = {"tiny": 4, "wide": 1}
    machine = describe(args.python)
    print(f"PyTorch {machine['torch']}, {machine['cores']} cores, {machine['cpu']}, commit "
          f"{machine['commit']}")
    print(f"{'size':6}{'case':8}{'program':16}{'tokens/s':>10}{'ours/its':>10}{'range':>14}"
          f"{'by CPU':>8}{'peak PSS MB':>13}{'others':>8}")
    with tempfile.TemporaryFile("w+") as log:
        try:
            for size in args.sizes:
                for case in args.cases:
                    compare(args, size, case, machine, log)
        except RuntimeError:
            log.seek(0)
            sys.stderr.write(log.read()[-4000:])
            raise


def paired(theirs, ours):
    """Median of the paired ratios, and their range."""
    ratios = sorted(a / b for a, b in zip(theirs, ours))
    return [round(r, 3) for r in (statistics.median(ratios), ratios[0], ratios[-1])]


def compare(args, size, case, machine, log):
    rows = commands(args, size, case)
    turns = run_pairs(args, size, case, rows, log)
    peaks = run_memory(rows, case, log)
    ranks, tokens = CASES[case][0], SIZES[size][0] * SIZES[size][1]
    columns = {name: list(zip(*turns[name])) for name in rows}  # wall, cpu, others
    for name, (command, environment) in rows.items():
        wall, cpu, others = columns[name]
        ratio = paired(wall, columns["phalanx"][0])
        line = {
            "size": size, "case": case, "program": name, "ranks": ranks,
            "threads": max(1, os.cpu_count() // ranks), "tokens_per_step": tokens,
            "tokens_per_s": round(tokens / statistics.median(wall), 1),
            "ours_over_its": ratio[0], "range": ratio[1:], "pairs": len(wall),
            "ours_over_its_cpu": paired(cpu, columns["phalanx"][1]),
            "seconds_per_step": [round(s, 4) for s in wall],
            "cpu_seconds_per_step": [round(s, 4) for s in cpu],
            "peak_pss_bytes": peaks[name], "other_cores": round(statistics.median(others), 2),
            "command": command_text(command),
            "environment": environment, **machine}
        print(f"{size:6}{case:8}{name:16}{line['tokens_per_s']:>10}{ratio[0]:>10}"
              f"{ratio[1]:>7}-{ratio[2]:<6}{line['ours_over_its_cpu'][0]:>8}"
              f"{peaks[name] / 1e6:>13.0f}{line['other_cores']:>8}", flush=True)
        os.makedirs(os.path.dirname(args.out), exist_ok=True)
        with open(args.out, "a") as out:
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
