# SPDX-License-Identifier: Apache-2.0
"""ckpt export and import with torch, safetensors and transformers as the oracles."""

import json
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="this PyTorch has no torch.distributed")

from checkpoint_helpers import TinyModel, bits, restored, saved, train  # noqa: E402
from millrace.torch import convert  # noqa: E402

import millrace as mr  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # DCP warns that one process works alone


def ckpt(*arguments, status=0):
    """The answer of `millrace ckpt ... --json`."""
    binary = os.environ.get("MILLRACE_BIN", "millrace")
    words = [binary, "ckpt", *map(str, arguments), "--json"]
    ran = subprocess.run(
        words, capture_output=True, text=True, timeout=120, env={**os.environ, "MILLRACE_PYTHON": sys.executable}
    )
    assert ran.returncode == status, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def trained(seed):
    model = TinyModel(seed)
    optim = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, optim, 2, seed)
    return model, optim


def test_safetensors_reads_an_export_and_an_import_gives_it_back(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, optim = trained(1)
    saved(tmp_path / "run", 3, {"model": model, "optim": optim})
    assert ckpt("export", tmp_path / "run", tmp_path / "m.safetensors", "--format", "safetensors")["tensors"] == 6
    loaded = safetensors.load_file(tmp_path / "m.safetensors")
    for name, value in loaded.items():
        assert bits(value) == bits(model.state_dict()[name]), name
    # Files of the reference writer go in, and restore() puts them into the module.
    plain = torch.nn.Linear(5, 3)
    safetensors.save_file(plain.state_dict(), tmp_path / "plain.safetensors")
    ckpt("import", tmp_path / "plain.safetensors", tmp_path / "in", "--step", 8, "--memory", 40)
    other = torch.nn.Linear(5, 3)
    assert restored(tmp_path / "in", {"model": other}) == 8
    assert bits(other.state_dict()) == bits(plain.state_dict())


def test_an_export_replaces_an_earlier_one(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    for step in (1, 2):
        saved(tmp_path / "run", step, {"model": torch.nn.Linear(40, 9)})
    out = tmp_path / "out"

    def names():
        return sorted(path.name for path in out.iterdir())

    ckpt("export", tmp_path / "run", out, "--step", 1)
    assert names() == ["model.safetensors"]
    (out / "config.json").write_text("{}")
    ckpt("export", tmp_path / "run", out, "--step", 2, "--max-file-size", "200B")
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert names() == sorted({*index["weight_map"].values(), "config.json", "model.safetensors.index.json"})
    ckpt("export", tmp_path / "run", out, "--step", 1)
    assert names() == ["config.json", "model.safetensors"]
    # One that fails half-way leaves no index over files of two steps.
    ckpt("export", tmp_path / "run", out, "--step", 2, "--max-file-size", "200B")
    (out / "model-00002-of-00002.safetensors").unlink()
    (out / "model-00002-of-00002.safetensors").mkdir()
    ckpt("export", tmp_path / "run", out, "--step", 1, "--max-file-size", "200B", status=1)
    assert "model.safetensors.index.json" not in names()
    assert safetensors.load_file(out / "model-00001-of-00002.safetensors")


def test_transformers_loads_and_generates(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed (./dev check frameworks)")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path / "like")
    saved(tmp_path / "run", 1, {"model": model})
    done = ckpt("export", tmp_path / "run", tmp_path / "hf", "--like", tmp_path / "like", "--max-file-size", "20kB")
    assert done["files"] > 2
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert bits(loaded.state_dict()["lm_head.weight"]) == bits(model.state_dict()["lm_head.weight"])
    ids = torch.tensor([[1, 5, 9]])
    wanted = model.generate(ids, max_new_tokens=5, do_sample=False)
    assert loaded.eval().generate(ids, max_new_tokens=5, do_sample=False).tolist() == wanted.tolist()


def dcp_state(seed):
    model, optim = trained(seed)
    return {
        "model": model.state_dict(),
        "optim": optim.state_dict(),
        "step": seed,
        "t": torch.arange(6.0).view(2, 3).t(),
    }


def test_a_checkpoint_of_dcp_goes_in_and_out(tmp_path):
    state = dcp_state(5)
    dcp.save(state, checkpoint_id=tmp_path / "theirs")
    done = ckpt("import", tmp_path / "theirs", tmp_path / "ours", "--step", 30, "--memory", 2000)
    assert done["from"] == "dcp" and done["parts"] > 1
    ours = dcp_state(6)
    dcp.load(ours, storage_reader=mr.torch.dcp.StorageReader(tmp_path / "ours" / "step-30"))
    assert bits(ours) == bits(state)

    assert ckpt("export", tmp_path / "ours", tmp_path / "back", "--format", "dcp")["step"] == 30
    back = dcp_state(7)
    dcp.load(back, checkpoint_id=tmp_path / "back")  # the stock reader
    assert bits(back) == bits(state)
    with pytest.raises(FileExistsError, match="there is a checkpoint already"):
        convert.export_dcp(str(tmp_path / "ours"), 30, str(tmp_path / "back"))
    # A step of the Checkpointer goes out by the names of its tensors.
    model, _ = trained(8)
    saved(tmp_path / "native", 2, {"model": model})
    convert.export_dcp(str(tmp_path / "native"), 2, str(tmp_path / "weights"))
    live = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    del live["model"]["head.weight"]  # tied: stored once
    dcp.load(live, checkpoint_id=tmp_path / "weights")
    assert bits(live["model"]["embed.weight"]) == bits(model.embed.weight)


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil-was-here",)


def test_pickles_run_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dcp.save(dcp_state(1), checkpoint_id=tmp_path / "bad")
    (tmp_path / "bad" / ".metadata").write_bytes(pickle.dumps(Evil()))
    answer = ckpt("import", tmp_path / "bad", tmp_path / "ours", status=1)
    assert "system, which no checkpoint of DCP needs" in answer["message"]
    (tmp_path / "bad" / ".metadata").write_bytes(b"no pickle")
    with pytest.raises(ValueError, match=r"\.metadata: "):
        convert.import_dcp("bad", "ours", 0, 1000)
    torch.save({"a": torch.ones(2), "evil": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match=r"evil\.pt: it holds objects of \w+\.system; save"):
        convert.import_torch("evil.pt", "ours", 0, 1000)
    torch.save({"a": torch.ones(200)}, tmp_path / "cut.pt")
    os.truncate(tmp_path / "cut.pt", 700)
    with pytest.raises(ValueError, match=r"cut\.pt: it is damaged or cut off"):
        convert.import_torch("cut.pt", "ours", 0, 1000)
    assert not list(tmp_path.rglob("evil-was-here")) and not list(tmp_path.glob("ours/step-*/manifest.json"))


def test_a_cut_file_of_dcp_is_refused(tmp_path):
    dcp.save(dcp_state(1), checkpoint_id=tmp_path / "cut")
    (file,) = (tmp_path / "cut").glob("*.distcp")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="it ends at"):
        convert.import_dcp(str(tmp_path / "cut"), str(tmp_path / "ours"), 0, 1000)
    assert not list(tmp_path.glob("ours/step-*/manifest.json"))


def test_files_of_torch_save_go_in(tmp_path):
    model, optim = trained(3)
    torch.save({"model": model.state_dict(), "optim": optim.state_dict(), "step": 9}, tmp_path / "all.pt")
    convert.import_torch(str(tmp_path / "all.pt"), str(tmp_path / "run"), 9, 700)
    other, other_optim = trained(4)
    live = {"model": other, "optim": other_optim, "step": 0}
    assert restored(tmp_path / "run", live) == 9 and live["step"] == 9
    assert bits(other.state_dict()) == bits(model.state_dict())
    assert bits(other_optim.state_dict()) == bits(optim.state_dict())
    torch.save(model.state_dict(), tmp_path / "weights.bin")  # weights alone
    assert convert.import_torch(str(tmp_path / "weights.bin"), str(tmp_path / "weights"), 0, 1 << 20)["parts"] == 1
    with pytest.raises(FileExistsError, match="step 0 already"):
        convert.import_torch(str(tmp_path / "weights.bin"), str(tmp_path / "weights"), 0, 1 << 20)
    fresh, _ = trained(6)
    assert restored(tmp_path / "weights", {"model": fresh}) == 0
    # A tensor beside state dicts is an entry of its own.
    torch.save({"model": model.state_dict(), "epoch": 3, "rng": torch.get_rng_state()}, tmp_path / "rng.pt")
    convert.import_torch(str(tmp_path / "rng.pt"), str(tmp_path / "rng"), 0, 1 << 20)
    state = {"model": fresh, "epoch": 0, "rng": torch.zeros(torch.get_rng_state().shape, dtype=torch.uint8)}
    assert restored(tmp_path / "rng", state) == 0 and state["epoch"] == 3
    assert torch.equal(state["rng"], torch.get_rng_state())
    assert bits(fresh.state_dict()) == bits(model.state_dict())
