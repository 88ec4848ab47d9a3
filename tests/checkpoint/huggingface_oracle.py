"""Weights as `transformers` writes and reads them: huggingface_oracle.py DIR

Loads every folder in DIR/exported with GPT2LMHeadModel.from_pretrained, strictly, and writes
logits.bin (float64 [2, 7, vocabulary]) of tokens.bin beside it, and info.json. Makes folders of random
models in DIR/made with tokens.bin and logits.bin, in the forms that are found in the wild."""
import json
import os
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()


def write_logits(model, folder):
    tokens = torch.from_numpy(np.fromfile(os.path.join(folder, "tokens.bin"), np.int64)).view(2, 7)
    with torch.no_grad():
        logits = model.double().eval()(tokens).logits
    logits.numpy().tofile(os.path.join(folder, "logits.bin"))


def check(folder):
    model, info = GPT2LMHeadModel.from_pretrained(
        folder, output_loading_info=True, dtype="auto", attn_implementation="eager")
    problems = {key: sorted(map(str, value)) for key, value in info.items() if value}
    with open(os.path.join(folder, "info.json"), "w") as file:
        json.dump({"problems": problems, "dtype": str(model.dtype)}, file)
    write_logits(model, folder)


def make(name, dtype=torch.float32, heads=2, layers=2, tied=True, shard="1GB", old=False):
    folder = os.path.join(sys.argv[1], "made", name)
    os.makedirs(folder)
    torch.manual_seed(len(name) + heads)
    config = GPT2Config(n_embd=24, n_head=heads, n_layer=layers, vocab_size=61, n_positions=16,
                        tie_word_embeddings=tied, attn_pdrop=0.25, bos_token_id=None,
                        eos_token_id=None, attn_implementation="eager")
    config.summary_note = {"kept": ["as", "it", "is"]}  # a key that nobody knows
    model = GPT2LMHeadModel(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    if old:  # as the files of 2019: no prefix, masks among the weights, the head beside
        tensors = {}
        for key, value in model.state_dict().items():
            tensors[key.removeprefix("transformer.")] = value.clone().contiguous()
        for layer in range(layers):
            mask = torch.tril(torch.ones(16, 16, dtype=torch.bool)).view(1, 1, 16, 16)
            tensors[f"h.{layer}.attn.bias"] = mask
            tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        config.save_pretrained(folder)
    else:
        model.save_pretrained(folder, max_shard_size=shard)
    np.random.RandomState(3).randint(0, 61, 14).astype(np.int64).tofile(
        os.path.join(folder, "tokens.bin"))
    write_logits(model, folder)


exported = os.path.join(sys.argv[1], "exported")
for name in sorted(os.listdir(exported)):
    check(os.path.join(exported, name))
make("tied", shard="20KB")
make("untied", tied=False)
make("bfloat16", dtype=torch.bfloat16)
make("float16", dtype=torch.float16)
make("old", old=True)
for heads in (1, 4, 6):
    make(f"heads{heads}", heads=heads, layers=1)
