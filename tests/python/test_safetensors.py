# SPDX-License-Identifier: Apache-2.0
"""millrace.safetensors and millrace.torch.safetensors: what the package safetensors writes and reads, they do."""

import json
import struct
import sys

import numpy as np
import pytest

import millrace as mr

reference = pytest.importorskip("safetensors", reason="the package safetensors is not installed")
from safetensors import numpy as reference_numpy  # noqa: E402

PLAIN = ["bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32",
         "float64", "complex64"]  # fmt: skip


def arrays():
    values = {f"a.{name}": (np.arange(24).reshape(4, 6) % 7).astype(name) for name in PLAIN}
    values |= {"scalar": np.array(3.5), "empty": np.empty((2, 0), np.int8), 'é "x"': np.arange(3)}
    return values


def equal(one, two):
    return one.keys() == two.keys() and all(
        one[name].dtype == two[name].dtype and one[name].shape == two[name].shape
        and one[name].tobytes() == two[name].tobytes() for name in one
    )  # fmt: skip


def test_files_are_the_references_to_the_byte(tmp_path):
    values = arrays()
    for metadata in (None, {"format": "np"}):
        mr.safetensors.save_file(values, tmp_path / "ours", metadata)
        reference_numpy.save_file(values, tmp_path / "theirs", metadata)
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
        assert equal(mr.safetensors.load_file(tmp_path / "theirs"), values)
        assert equal(reference_numpy.load_file(tmp_path / "ours"), values)


def test_arrays_of_any_layout(tmp_path):
    values = {"strided": np.arange(24).reshape(4, 6)[::2, ::-1], "big": np.ones(3, ">f4"), "t": np.eye(3)[:, :2].T}
    mr.safetensors.save_file(values, tmp_path / "x", durable=False)
    loaded = mr.safetensors.load_file(str(tmp_path / "x"))
    assert all(np.array_equal(loaded[name], values[name]) for name in values)
    with pytest.raises(TypeError, match="x: safetensors has no dtype for"):
        mr.safetensors.save_file({"x": np.array(["a"])}, tmp_path / "y")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    "index",
    [np.s_[:], np.s_[1], np.s_[-1], np.s_[1:3], np.s_[..., 2], np.s_[:, 1:4], np.s_[2:, 0], np.s_[5:2], np.s_[-3:-1, -2],
     np.s_[1:9], (), np.s_[..., 1:3, :], np.s_[0, 0, 0]],
)  # fmt: skip
def test_slices_are_those_of_the_reference(tmp_path, index):
    whole = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    mr.safetensors.save_file({"w": whole}, tmp_path / "x", {"format": "pt", "key": "value"})
    with mr.safetensors.safe_open(tmp_path / "x") as ours, reference.safe_open(tmp_path / "x", "np") as theirs:
        assert ours.keys() == list(theirs.keys()) and ours.metadata() == theirs.metadata()
        part = ours.get_slice("w")
        assert part.get_shape() == theirs.get_slice("w").get_shape() and part.get_dtype() == "F32"
        assert np.array_equal(part[index], whole[index]) and part[index].shape == whole[index].shape
        assert np.array_equal(ours.get_tensor("w"), theirs.get_tensor("w"))


def test_what_cannot_be_read_is_said(tmp_path):
    mr.safetensors.save_file({"b": np.ones((2, 3)), "a": np.ones(4, np.int64)}, tmp_path / "x")
    with mr.safetensors.safe_open(tmp_path / "x") as file:
        assert file.keys() == ["a", "b"] and file.offset_keys() == ["a", "b"] and file.metadata() is None
        with pytest.raises(KeyError, match="no tensor c"):
            file.get_tensor("c")
        for index, error in ((np.s_[::2], ValueError), (np.s_[2], IndexError), (np.s_[0, 0, 0], IndexError)):
            with pytest.raises(error):
                file.get_slice("b")[index]
    with pytest.raises(ValueError, match="is closed"):
        file.get_tensor("a")
    with pytest.raises(FileNotFoundError):
        mr.safetensors.load_file(tmp_path / "none")
    content = bytearray((tmp_path / "x").read_bytes())
    content[12] = 0xFF
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(mr.CorruptionError, match="bad"):
        mr.safetensors.load_file(tmp_path / "bad")
    with pytest.raises(ValueError, match=r"millrace\.torch\.safetensors"):
        mr.safetensors.safe_open(tmp_path / "x", "pt")


def test_white_space_before_the_header(tmp_path):
    header = b" \r\n\t" + json.dumps({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + b"ab")
    assert equal(mr.safetensors.load_file(tmp_path / "x"), reference_numpy.load_file(tmp_path / "x"))


def test_bfloat16_and_float8_are_those_of_ml_dtypes(tmp_path):
    import ml_dtypes

    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    values = {name: torch.arange(8).to(getattr(torch, name))
              for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)}  # fmt: skip
    mr.torch.safetensors.save_file(values, tmp_path / "x")
    loaded = mr.safetensors.load_file(tmp_path / "x")
    for name, tensor in values.items():
        assert loaded[name].dtype == np.dtype(getattr(ml_dtypes, name))
        assert loaded[name].tobytes() == tensor.view(torch.uint8).numpy().tobytes()
    mr.safetensors.save_file(loaded, tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == (tmp_path / "x").read_bytes()


def test_bfloat16_needs_ml_dtypes(tmp_path, monkeypatch):
    header = json.dumps({"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + b"ab")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ModuleNotFoundError, match="pip install ml_dtypes"):
        mr.safetensors.load_file(tmp_path / "x")


def test_tensors(tmp_path):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from safetensors import torch as reference_torch

    model = torch.nn.Sequential(torch.nn.Linear(70, 30), torch.nn.Embedding(3, 5).to(torch.bfloat16))
    state = model.state_dict()
    mr.torch.safetensors.save_file(state, tmp_path / "ours", {"format": "pt"})
    reference_torch.save_file(state, tmp_path / "theirs", {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    loaded = mr.torch.safetensors.load_file(tmp_path / "theirs", device="cpu")
    assert loaded.keys() == state.keys() and all(torch.equal(loaded[name], state[name]) for name in state)
    with mr.torch.safetensors.safe_open(tmp_path / "ours", framework="pt", device="cpu") as file:
        assert torch.equal(file.get_slice("0.weight")[3:5], state["0.weight"][3:5])
        assert torch.equal(file.get_slice("0.weight")[..., 2], state["0.weight"][..., 2])

    t = torch.arange(24.0).view(4, 6)
    mr.torch.safetensors.save_file({"t": t.t(), "half": t.clone()[:2], "p": torch.nn.Parameter(t + 1)}, tmp_path / "x")
    loaded = mr.torch.safetensors.load_file(tmp_path / "x")
    assert torch.equal(loaded["t"], t.t()) and torch.equal(loaded["half"], t[:2]) and torch.equal(loaded["p"], t + 1)
    mr.torch.safetensors.save_file({"top": t[:2], "bottom": t[2:]}, tmp_path / "x")  # one storage, no shared byte
    for shared in ({"a": t, "b": t}, {"a": t, "b": t[1:]}, {"a": t[1:3], "b": t[2:], "c": t[:1]}):
        with pytest.raises(RuntimeError, match="share memory"):
            mr.torch.safetensors.save_file(shared, tmp_path / "y")
        with pytest.raises(RuntimeError):
            reference_torch.save_file(shared, tmp_path / "y")
    with pytest.raises(TypeError, match=r"x: a tensor of torch\.complex128"):
        mr.torch.safetensors.save_file({"x": torch.ones(2, dtype=torch.complex128)}, tmp_path / "y")
    assert not (tmp_path / "y").exists()  # nothing is left of what was refused
