"""PyTorch's side of dcp_test.cpp and torch_save_test.cpp: writes what they read, checks what they wrote.

torch_oracle.py dcp FOLDER      saves DCP folders with 1 and 2 processes
torch_oracle.py check FOLDER    loads the DCP folder FOLDER/exported as PyTorch's users do
torch_oracle.py save FOLDER     torch.save files
Beside each saved thing lies NAME.json: the tensors that it holds, their names and roles here, and
their bytes in files.
"""

import json
import os
import sys
import zipfile

import torch


def pattern(shape, dtype, seed):
    count = torch.Size(shape).numel()
    values = 2 if dtype == torch.bool else 251
    return ((torch.arange(count) * 37 + seed) % values).to(dtype).reshape(shape)


class Expected:
    """The tensors that a reader should find under `name`."""

    def __init__(self, folder, name):
        self.path, self.list = os.path.join(folder, name), []

    def add(self, name, tensor, role="parameter"):
        file = f"{self.path}.{len(self.list)}.bin"
        tensor = tensor.detach().contiguous()
        with open(file, "wb") as out:
            out.write(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        self.list.append({"name": name, "role": role, "dtype": str(tensor.dtype)[6:],
                          "shape": list(tensor.shape), "file": file})

    def write(self, step=0):
        with open(self.path + ".json", "w") as out:
            json.dump({"step": step, "tensors": self.list}, out)


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32,
          torch.int16, torch.uint8, torch.bool]


def save_flat_dcp(folder):
    """One process, keys at the top, every type, unusual shapes, values that are no tensors."""
    import torch.distributed.checkpoint as dcp
    state = {f"layer.{i}.weight": pattern([3 + i, 5], d, i) for i, d in enumerate(DTYPES)}
    state["scalar"] = pattern([], torch.float32, 9)
    state["empty"] = torch.empty([0, 4])
    state["turned"] = pattern([6, 4], torch.float32, 3).t()
    state["four"] = pattern([2, 3, 4, 5], torch.bfloat16, 11)
    expected = Expected(folder, "flat")
    for name, tensor in state.items():
        expected.add(name, tensor)
    expected.write()
    state["note"] = "a text"
    state["loader"] = {"epoch": 3, "names": ["a", "b"]}
    dcp.save(state, checkpoint_id=folder + "/flat", no_dist=True)


def save_sharded(rank, folder, port):
    """Two processes: FSDP2 with dimensions that do not divide, AdamW, under {"app": ...}."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Linear(7, 3, bias=False),
                                torch.nn.Linear(3, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 4) * (rank + 1)).sum().backward()
        optimizer.step()
    weights, states = get_state_dict(model, optimizer)
    dcp.save({"app": {"model": weights, "optimizer": states, "epoch": 2}},
             checkpoint_id=folder + "/sharded")
    expected = Expected(folder, "sharded")
    for name, tensor in weights.items():
        whole = tensor.full_tensor()
        moments = {key: states["state"][name][key].full_tensor()
                   for key in ("exp_avg", "exp_avg_sq")}
        if rank == 0:
            expected.add(name, whole)
            for role, moment in moments.items():
                expected.add(name, moment, role)
    if rank == 0:
        expected.write(step=3)
    dist.destroy_process_group()


def in_two_processes(function, *arguments):
    import socket

    import torch.distributed.checkpoint.state_dict  # once, before there are two processes
    import torch.distributed.fsdp
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                function(rank, *arguments, port)
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    assert codes == [0, 0], codes


def read_expected(folder, name):
    with open(f"{folder}/{name}.json") as file:
        listed = json.load(file)
    for entry in listed["tensors"]:
        with open(entry["file"], "rb") as file:
            raw = bytearray(file.read())
        dtype = getattr(torch, entry["dtype"])
        entry["tensor"] = (torch.frombuffer(raw, dtype=dtype) if raw
                           else torch.empty(0, dtype=dtype)).reshape(entry["shape"])
    return listed


def same(a, b, what):
    assert a.dtype == b.dtype and a.shape == b.shape, (what, a.dtype, b.dtype, a.shape, b.shape)
    assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)), what


def key_of(entry):
    if entry["role"] == "parameter":
        return "model." + entry["name"]
    return f"optimizer.state.{entry['name']}.{entry['role']}"


def check_whole(folder):
    """dcp.load into empty tensors, and dcp_to_torch_save."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
    listed = read_expected(folder, "exported")
    state = {"model": {}, "optimizer": {"state": {}}}
    names = set()
    for entry in listed["tensors"]:
        names.add(key_of(entry))
        target = torch.empty_like(entry["tensor"])
        if entry["role"] == "parameter":
            state["model"][entry["name"]] = target
        else:
            slots = state["optimizer"]["state"].setdefault(entry["name"], {})
            slots[entry["role"]] = target
            if entry["role"] == "exp_avg":
                slots["step"] = torch.empty([])
                names.add(f"optimizer.state.{entry['name']}.step")
    metadata = dcp.FileSystemReader(folder + "/exported").read_metadata()
    assert set(metadata.state_dict_metadata) == names, set(metadata.state_dict_metadata) ^ names
    dcp.load(state, checkpoint_id=folder + "/exported", no_dist=True)
    dcp_to_torch_save(folder + "/exported", folder + "/exported.pt")
    saved = torch.load(folder + "/exported.pt", weights_only=True)
    for found in (state, saved):
        for entry in listed["tensors"]:
            if entry["role"] == "parameter":
                same(found["model"][entry["name"]], entry["tensor"], entry["name"])
            else:
                slots = found["optimizer"]["state"][entry["name"]]
                same(slots[entry["role"]], entry["tensor"], key_of(entry))
                assert slots.get("step", torch.tensor(0)) in (0, listed["step"])


def check_buffers(folder):
    """A module's own state_dict, with what batch norm counts, and a mask."""
    import torch.distributed.checkpoint as dcp
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    module.register_buffer("mask", torch.zeros(2, 3, dtype=torch.bool))
    state = {"model": module.state_dict()}
    dcp.load(state, checkpoint_id=folder + "/norm", no_dist=True)
    listed = {entry["name"]: entry["tensor"] for entry in read_expected(folder, "norm")["tensors"]
              if entry["role"] in ("parameter", "buffer")}
    assert set(state["model"]) == set(listed)
    for name, tensor in listed.items():
        same(state["model"][name], tensor, name)


def check_large(folder):
    """A parameter in several chunks."""
    import torch.distributed.checkpoint as dcp
    state = {"model": {"big": torch.empty(5, 60000 * 251, dtype=torch.uint8)}}
    dcp.load(state, checkpoint_id=folder + "/large", no_dist=True)
    same(state["model"]["big"], torch.arange(251, dtype=torch.uint8).repeat(5, 60000), "big")


def check_sharded(rank, folder, port):
    """Loads into tensors that two processes shard along the first and the last dimension."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    for last in (False, True):
        state, wholes = {}, {}
        for entry in read_expected(folder, "exported")["tensors"]:
            whole = entry["tensor"]
            if whole.dim() == 0:
                continue
            placement = Shard(whole.dim() - 1 if last else 0)
            state[key_of(entry)] = distribute_tensor(torch.zeros_like(whole), mesh, [placement])
            wholes[key_of(entry)] = whole
        dcp.load(state, checkpoint_id=folder + "/exported")
        for key, whole in wholes.items():
            same(state[key].full_tensor(), whole, key)
    dist.destroy_process_group()


def save_files(folder):
    """torch.save files: good ones with what they hold, and others that have to be refused."""
    def save(name, value, **options):
        torch.save(value, f"{folder}/{name}.pt", **options)

    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    expected = Expected(folder, "module_state")
    state = model.state_dict()
    for name, tensor in state.items():
        expected.add(name, tensor)
    expected.write()
    save("module_state", state)

    base = pattern([8, 6], torch.float32, 5)
    tensors = {f"kind{i}": pattern([2, 3], d, i) for i, d in enumerate(DTYPES)}
    tensors.update(base=base, view=base[2:5, 1:4], turned=base.t(), row=base[3], tied=base,
                   stepped=base[::2, ::3], scalar=pattern([], torch.float64, 7), empty=torch.empty(3, 0),
                   widened=base[:, :1].expand(8, 3), last=base.view(-1)[47:],
                   parameter=torch.nn.Parameter(pattern([5], torch.float32, 1)))
    nested = {"model": {**tensors, "deep": {"er": pattern([2], torch.float32, 1)},
                        "list": [pattern([2], torch.float32, 2), pattern([3], torch.float32, 3)]},
              "optimizer": {"state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(4.0)}},
                            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": [0]}]},
              "ema": torch.ones(2), "epoch": 3, "big": 1 << 70, "none": None, "bytes": b"x"}
    expected = Expected(folder, "nested")
    for name, tensor in tensors.items():
        expected.add(name, tensor)
    expected.add("deep.er", nested["model"]["deep"]["er"])
    for i in range(2):
        expected.add(f"list.{i}", nested["model"]["list"][i])
    expected.add("ema", nested["ema"], "other")
    expected.write()
    save("nested", nested)
    for protocol in (3, 4, 5):
        save(f"protocol{protocol}", nested, pickle_protocol=protocol)

    expected = Expected(folder, "wrapped")
    wrapped = {"module._orig_mod." + name: tensor for name, tensor in state.items()}
    for name, tensor in state.items():
        expected.add(name, tensor)
    expected.write()
    save("wrapped", wrapped)
    expected = Expected(folder, "masks")
    gpt2 = {"wte.weight": base, "h.0.ln_1.weight": base[0].clone()}
    for name, tensor in gpt2.items():
        expected.add("transformer." + name, tensor)
    expected.write()
    save("masks", {**gpt2, "h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.int8),
                   "h.0.attn.masked_bias": torch.tensor(-1e4)})
    expected = Expected(folder, "one")
    expected.add("tensor", base)
    expected.write()
    save("one", base)

    save("bad_module", model)
    save("bad_complex", {"phase": torch.ones(3, dtype=torch.complex64)})
    save("bad_neg", {"signs": torch.ones(3, dtype=torch.complex64).conj().imag})
    save("bad_float8", {"w8": torch.ones(3).to(torch.float8_e4m3fn)})
    save("bad_sparse", {"sparse": torch.eye(3).to_sparse()})
    save("bad_nothing", {"epoch": 3})
    save("bad_old", state, _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), folder + "/bad_script.pt")
    with zipfile.ZipFile(folder + "/module_state.pt") as good:
        with zipfile.ZipFile(folder + "/bad_compressed.pt", "w", zipfile.ZIP_DEFLATED) as bad:
            for name in good.namelist():
                bad.writestr(name, good.read(name))
    with zipfile.ZipFile(folder + "/bad_zip.pt", "w") as bad:
        bad.writestr("a/readme", "nothing")

    class Runs:
        def __init__(self, function, *arguments):
            self.made = (function, arguments)

        def __reduce__(self):
            return self.made

    marker = folder + "/marker"
    save("evil_system", {"w": base, "x": Runs(os.system, f"touch {marker}")})
    save("evil_eval", {"w": base, "x": Runs(eval, f"open({marker!r}, 'w')")})
    save("evil_nested", {"w": base, "x": Runs(getattr, Runs(__import__, "os"), "system")})
    torch.load(folder + "/evil_system.pt", weights_only=False)
    assert os.path.exists(marker), "the trap does not work"
    os.remove(marker)


if __name__ == "__main__":
    what, where = sys.argv[1:]
    if what == "dcp":
        save_flat_dcp(where)
        in_two_processes(save_sharded, where)
    elif what == "check":
        check_whole(where)
        check_buffers(where)
        check_large(where)
        in_two_processes(check_sharded, where)
    else:
        save_files(where)
