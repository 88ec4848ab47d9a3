"""Loss and gradients of transformers' GPT-2 in float64: gpt2_oracle.py TIME DIR ...

Each DIR holds config.json, tokens.bin and targets.bin (int64 [batch, TIME]) and one float64 file per
tensor of the state dict. Writes loss.bin, logits.bin and NAME.gradient.bin."""
import os
import sys

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def run(folder, time):
    def read(name, dtype):
        return torch.from_numpy(np.fromfile(os.path.join(folder, name + ".bin"), dtype))

    def write(name, tensor):
        tensor.detach().numpy().astype(np.float64).tofile(os.path.join(folder, name + ".bin"))

    config = GPT2Config.from_json_file(os.path.join(folder, "config.json"))
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(read(name, np.float64).view(parameter.shape))
    tokens, targets = (read(name, np.int64).view(-1, time) for name in ("tokens", "targets"))
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    loss.backward()
    write("loss", loss.view(1))
    write("logits", logits)
    for name, parameter in model.named_parameters():
        write(name + ".gradient", parameter.grad)


for folder in sys.argv[2:]:
    run(folder, int(sys.argv[1]))
