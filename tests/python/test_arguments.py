# SPDX-License-Identifier: Apache-2.0
"""Arguments and results: paths and dtypes of any kind, signatures, typed results, one line for a wrong argument."""

import inspect
import pathlib
import typing

import numpy as np
import pytest

import millrace as mr

FUNCTIONS = ["cp", "finish", "ls", "prepare", "rm", "split", "stage", "sync", "verify"]


@pytest.mark.parametrize("name", [*FUNCTIONS, "Loader"])
def test_help_shows_a_signature(name):
    signature = inspect.signature(getattr(mr, name))
    assert all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    assert all(p.annotation is not inspect.Parameter.empty for p in signature.parameters.values())
    assert inspect.getdoc(getattr(mr, name))
    if name != "Loader":
        assert signature.return_annotation is not inspect.Signature.empty


def test_defaults_are_those_of_the_extension():
    parameters = inspect.signature(mr.prepare).parameters
    assert parameters["format"].default == "webdataset" and parameters["task"].default is None
    assert parameters["out"].default is inspect.Parameter.empty
    assert parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mr.prepare("a", tokeniser="t", out="o"), "prepare() has no argument 'tokeniser'; did you mean 'tokenizer'?"),
        (lambda: mr.prepare("a", tokenizer="t"), "prepare(): missing a required argument: 'out'"),
        (lambda: mr.prepare(["a", 5], tokenizer="t", out="o"), "prepare(): inputs is str | PathLike[str] | Sequence[str | PathLike[str]], not the list ['a', 5]"),
        (lambda: mr.prepare("a", tokenizer="t", out="o", shard_bytes="1GB"), "prepare(): shard_bytes is int, not the str '1GB'"),
        (lambda: mr.prepare("a", tokenizer="t", out="o", task=3), "prepare(): task is tuple[int, int] | None, not the int 3"),
        (lambda: mr.cp("a", None), "cp(): target is str | PathLike[str], not None"),
        (lambda: mr.rm(5), "rm(): url is str | PathLike[str], not the int 5"),
        (lambda: mr.Loader("a", seq_len="3", batch_size=1), "Loader(): seq_len is int, not the str '3'"),
        (lambda: mr.Loader("a", seq_len=3, batch_size=1.5), "Loader(): batch_size is int | None, not the float 1.5"),
        (lambda: mr.Tokenizer.from_file(5), "Tokenizer.from_file(): path is str | PathLike[str], not the int 5"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_in_one_line(call, message):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == message


def test_encode_names_its_argument(dataset):
    with pytest.raises(TypeError) as error:
        mr.Tokenizer.from_file(dataset.tokenizer).encode(5)  # in C++
    assert str(error.value) == "Tokenizer.encode(): text is str, not int"


def test_paths_and_results(dataset, tmp_path):
    """Every function with pathlib.Path, and the keys of its result against its TypedDict."""
    source = tmp_path / "text"
    source.mkdir()
    (source / "a.txt").write_text("one\ntwo\n")
    parts = mr.split(source / "a.txt", out=tmp_path / "parts", parts=1)
    prepared = mr.prepare(source / "a.txt", tokenizer=dataset.tokenizer, out=tmp_path / "out")
    results = {
        "PrepareResult": prepared,
        "ShardResult": prepared["shards"][0],
        "FinishResult": mr.finish(tmp_path / "out"),
        "SplitPart": parts[0],
        "TransferResult": mr.sync(source, tmp_path / "copy"),
        "VerifyResult": mr.verify(source, tmp_path / "copy"),
        "ListEntry": next(mr.ls(tmp_path / "copy")),
        "StageResult": mr.stage(source, tmp_path / "staged"),
        "RemoveResult": mr.rm(tmp_path / "copy", recursive=True),
    }
    estimate = mr.prepare(source / "a.txt", tokenizer=dataset.tokenizer, out=tmp_path / "none", dry_run=True)
    assert set(estimate) == set(typing.get_type_hints(mr.results.PrepareResult))
    assert mr.mv(tmp_path / "out", tmp_path / "moved", recursive=True).keys() == results["TransferResult"].keys()
    assert mr.cp(source / "a.txt", tmp_path / "b.txt").keys() == results["TransferResult"].keys()
    for name, result in results.items():
        typed = getattr(mr.results, name)
        declared = typing.get_type_hints(typed)
        assert typed.__required_keys__ <= set(result) <= set(declared), name
        for key, kind in declared.items():
            if key not in result:
                continue
            plain = typing.get_origin(kind) or kind
            assert plain is typing.Literal or isinstance(result[key], plain), (name, key, result[key])
    with mr.open(source / "a.txt", "r") as file:
        assert file.read() == "one\ntwo\n"


@pytest.mark.parametrize("dtype", ["int32", np.int32, np.dtype("int32")])
def test_dtypes_and_numbers_of_numpy(dataset, dtype):
    shards = [pathlib.Path(path) for path in dataset.tars]
    with mr.Loader(shards, seq_len=np.int64(16), batch_size=np.uint8(4), dtype=dtype) as loader:
        batch = next(loader)
        assert batch["input_ids"].dtype == np.int32 and batch["input_ids"].shape == (4, 16)
    with pytest.raises(ValueError, match="'int64' or 'int32', not 'float32'"):
        mr.Loader(shards, seq_len=16, batch_size=4, dtype=np.float32)


def test_dtypes_of_torch(dataset):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with mr.torch.Loader(dataset.shards, seq_len=16, batch_size=4, dtype=torch.int32) as loader:
        assert next(loader)["input_ids"].dtype == torch.int32


def test_too_little_memory_is_a_memory_error(dataset):
    loader = mr.Loader(dataset.shards, seq_len=512, batch_size=64, memory_bytes=100_000)
    with loader, pytest.raises(MemoryError, match="raise memory_bytes to"):
        next(loader)
