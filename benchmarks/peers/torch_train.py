#!/usr/bin/env python3
"""Trains the GPT-2 of `phalanx bench step` with PyTorch's own stack and prints one JSON line a step.

    python torch_train.py --size tiny --strategy single --batch 8
    torchrun --standalone --no-python --nproc-per-node 2 python torch_train.py --size wide --strategy fsdp --batch 2

Lines of rank 0: {"step": 3, "end_s": seconds of CLOCK_MONOTONIC, "loss": ...}. Strategies: single;
ddp (DistributedDataParallel with gradients as bucket views); fsdp (fully_shard on every block and on
the model). AdamW is the fused one.
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

# layers, width, heads, vocabulary, sequence length
SIZES = {"tiny": (6, 384, 6, 256, 256), "wide": (4, 1024, 16, 8192, 512)}


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        parts = self.qkv(x).split(width, dim=2)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, length):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        self.register_buffer("indices", torch.arange(length), persistent=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions(self.indices)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def distribute(model, strategy, compile_):
    if compile_:
        for layer in [model] if strategy != "fsdp" else model.layers:
            layer.compile()
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    if strategy == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--strategy", choices=["single", "ddp", "fsdp"], default="single")
    parser.add_argument("--batch", type=int, required=True, help="sequences per rank")
    parser.add_argument("--steps", type=int, default=10, help="0: until killed")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    threads = int(os.environ.get("OMP_NUM_THREADS", 0)) or max(1, os.cpu_count() // ranks)
    torch.set_num_threads(threads)
    if ranks > 1:
        dist.init_process_group("gloo")
    layers, width, heads, vocabulary, length = SIZES[args.size]
    torch.manual_seed(0)
    model = distribute(Gpt2(layers, width, heads, vocabulary, length), args.strategy, args.compile)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    torch.manual_seed(1 + rank)
    step = 0
    while args.steps == 0 or step < args.steps:
        rows = torch.randint(0, vocabulary, (args.batch, length + 1))
        loss = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        line = {"step": step, "end_s": time.monotonic(), "loss": loss.item()}
        if rank == 0:
            print(json.dumps(line), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
