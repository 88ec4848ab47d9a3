#!/usr/bin/env python3
"""Saves or loads the state of `checkpoint_bench` with torch.distributed.checkpoint, one JSON line each time.

    torchrun --standalone --no-python --nproc-per-node 2 python dcp_checkpoint.py save FOLDER --megabytes 2048
    torchrun --standalone --no-python --nproc-per-node 4 python dcp_checkpoint.py load FOLDER

Tensors are DTensors cut in rows. Saving flushes files as DCP does by default; before loading, the files'
pages leave the page cache. Times are those of the slowest rank, in seconds.
"""
import argparse
import json
import os
import pathlib
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

WIDTH = 4096


def state_of(megabytes, mesh):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    state = {}
    for i in range(max(1, megabytes // 64)):
        for name, shape in ((f"layers.{i}.weight", (WIDTH, WIDTH)), (f"layers.{i}.bias", (WIDTH,))):
            rows = WIDTH * (rank + 1) // ranks - WIDTH * rank // ranks
            local = torch.full((rows, *shape[1:]), float(i + rank))
            state[name] = DTensor.from_local(local, mesh, [Shard(0)])
    return state


def drop_pages(folder):
    dist.barrier()
    if dist.get_rank() == 0:
        for path in pathlib.Path(folder).rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=["save", "load"])
    parser.add_argument("folder")
    parser.add_argument("--megabytes", type=int, default=2048)
    parser.add_argument("--times", type=int, default=1)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = state_of(arguments.megabytes, mesh)
    for _ in range(arguments.times):
        drop_pages(arguments.folder)
        begin = time.perf_counter()
        if arguments.mode == "save":
            dcp.save(state, storage_writer=dcp.FileSystemWriter(arguments.folder, overwrite=True))
        else:
            dcp.load(state, checkpoint_id=arguments.folder)
        slowest = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            print(json.dumps({"mode": arguments.mode, "ranks": dist.get_world_size(),
                              "megabytes": arguments.megabytes, "seconds": slowest.item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
