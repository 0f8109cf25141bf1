# SPDX-License-Identifier: Apache-2.0
"""Works with an installed millrace-io as a user would, and sees that it opened no library but the system's basic ones.

Run by try_wheel.py in a folder with the files of fixtures.py. Needs only Python, NumPy and the wheel. `--parquet`:
pyarrow is there too; `--torch FOLDER`: torch is there, in that folder. The last line of output is JSON: the version of
Python and what was done.
"""

import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

BIN = Path(sys.executable).parent
SYSTEM = re.compile(r"/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|libresolv|libnss_\w+|ld-linux[\w-]+)[.-]")


def millrace(*arguments: object, status: int = 0) -> str:
    done = subprocess.run([str(BIN / "millrace"), *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, (arguments, done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout + done.stderr


def command_line() -> None:
    with open(BIN / "millrace", "rb") as program:
        assert program.read(4) == b"\x7fELF", "the command is a script"
    assert re.match(r"millrace \d", millrace("--version"))
    millrace("split", "text.txt", "--out", "raw", "--parts", 3)
    millrace("prepare", "raw", "--tokenizer", "tokenizer.json", "--out", "shards")
    assert "2000" in millrace("shards", "ls", "shards", "--json")
    millrace("shards", "check", "shards")
    millrace("cp", "shards", "copy", "--recursive")
    millrace("sync", "shards", "copy")
    millrace("verify", "shards", "copy")
    millrace("ls", "copy")
    millrace("plan", "gpus")
    millrace("cluster", "lint", "cluster.yaml", "--fail-on", "never")
    millrace("job", "new", "train", "--out", "train.sbatch", "--", "train.py")
    millrace("layout", "apply", "layout.yaml")
    assert Path("fsx/data").is_dir()


def tokenizers() -> None:
    """A known pattern, and one that needs Oniguruma, from both sides."""
    import millrace as mr

    text = "zabcdx xxxy"
    for name in ("tokenizer.json", "odd.json"):
        tokenizer = mr.Tokenizer.from_file(name)
        assert tokenizer.decode(tokenizer.encode(text)) == text, name
    millrace("prepare", "text.txt", "--tokenizer", "odd.json", "--out", "odd-shards")


def loader() -> None:
    import millrace as mr

    with mr.Loader("shards", global_batch_size=4, seq_len=64, collate="pack", seed=1, rank=0, world_size=1) as batches:
        batch = next(batches)
        assert batch["input_ids"].shape == (4, 64)
        state = batches.state_dict()
        following = next(batches)["input_ids"].copy()
    with mr.Loader("shards", global_batch_size=4, seq_len=64, collate="pack", seed=1, rank=0, world_size=1) as batches:
        batches.load_state_dict(state)
        assert (next(batches)["input_ids"] == following).all()


def save_and_load(url: str) -> None:
    """Of an array, by what millrace.torch.Checkpointer uses; torch is not here."""
    import numpy

    from millrace import _core

    weights = numpy.arange(1000, dtype=numpy.float32)
    saver = _core.Saver(url, attempt=_core.make_attempt(url))
    entry = ("w", "F32", [1000], [0], [1000], weights.ctypes.data)
    saver.save(1, [entry], "{}").wait()
    saver.close()
    found = numpy.zeros_like(weights)
    _core.Checkpoint(url, 1).load([("w", [0], [1000], found.ctypes.data)])
    assert (found == weights).all()
    millrace("ckpt", "verify", url)


def checkpoint() -> None:
    save_and_load("checkpoints")


def pictures() -> None:
    """Of each codec, in their colours."""
    import numpy

    import millrace as mr

    fields = {"image": mr.image("jpg;png;webp"), "cls": mr.integer()}
    with mr.SampleLoader("pictures.tar", fields=fields, batch_size=6, shuffle=False) as batches:
        batch = next(batches)
    pictures = numpy.stack(batch["image"])
    assert pictures.shape == (6, 24, 32, 3)
    for i in batch["cls"]:
        wanted = [40 * i, 128, 255 - 40 * i]
        assert abs(pictures[i].mean((0, 1)) - wanted).max() < 4, (i, pictures[i][0, 0])


def robot_data() -> None:
    """Video is written, read, converted and fed; FFmpeg is the wheel's own."""
    import numpy

    import millrace as mr

    millrace("lerobot", "demo", "arm", "--episodes", 2)
    millrace("lerobot", "validate", "arm")
    millrace("lerobot", "convert", "arm", "arm-v2", "--to", "2.1")
    said = millrace("lerobot", "demo", "none", "--codec", "h264", status=1)
    assert "libx264" in said, said
    camera = "observation.images.front"
    first, second = mr.lerobot.Dataset("arm"), mr.lerobot.Dataset("arm-v2")
    assert first[30][camera].std() > 10  # not one colour
    assert numpy.array_equal(first[30][camera], second[30][camera])
    with mr.lerobot.Loader(first, batch_size=8, seed=1) as batches:
        assert next(batches)[camera].shape[0] == 8


def torch_training() -> None:
    """A loader's tensors and a checkpoint of a model with its optimizer."""
    import torch

    import millrace as mr

    def parts() -> dict:
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64)
        return {"model": model, "optimizer": torch.optim.AdamW(model.parameters())}

    settings = {"global_batch_size": 4, "seq_len": 64, "collate": "pack", "seed": 1, "rank": 0, "world_size": 1}
    state = parts()
    with mr.torch.Loader("shards", **settings) as batches, mr.torch.Checkpointer("torch-checkpoints") as checkpointer:
        state["model"](next(batches)["input_ids"].float()).sum().backward()
        state["optimizer"].step()
        checkpointer.save(1, {**state, "loader": batches}).wait()
        fresh = {**parts(), "loader": batches}
        assert checkpointer.restore(fresh) == 1
    for name, tensor in state["model"].state_dict().items():
        assert torch.equal(tensor, fresh["model"].state_dict()[name]), name


def s3() -> None:
    import millrace as mr

    bucket = f"s3://wheel-{uuid.uuid4().hex[:12]}"
    millrace("stage", "shards", f"{bucket}/shards", "--create-bucket")
    millrace("verify", "shards", f"{bucket}/shards")
    millrace("prepare", "text.txt", "--tokenizer", "tokenizer.json", "--out", f"{bucket}/remote")
    assert mr.ls(f"{bucket}/shards")
    with mr.Loader(f"{bucket}/shards", global_batch_size=4, seq_len=64, collate="pack", seed=1) as batches:
        next(batches)
    save_and_load(f"{bucket}/checkpoints")
    millrace("rm", bucket, "--recursive", "--force-root")


def parquet() -> None:
    """From both sides: each finds pyarrow by itself."""
    import millrace as mr

    assert "1000" in millrace("prepare", "table.parquet", "--tokenizer", "tokenizer.json", "--out", "rows", "--json")
    assert mr.prepare("table.parquet", tokenizer="tokenizer.json", out="rows-too")["documents"] == 1000


def no_parquet() -> None:
    said = millrace("prepare", "table.parquet", "--tokenizer", "tokenizer.json", "--out", "none", status=1)
    assert "pip install 'millrace-io[parquet]'" in said, said


def libraries_that_are_not_found() -> list[str]:
    """As the dynamic linker sees each file. Arrow is opened before the adapter that needs it."""
    import millrace

    files = [BIN / "millrace", *Path(millrace.__file__).parent.glob("*.so")]
    said = [subprocess.run(["ldd", str(file)], capture_output=True, text=True).stdout for file in files]
    lines = [line.strip() for text in said for line in text.splitlines() if "not found" in line]
    return sorted({line for line in lines if not re.match(r"lib(arrow|parquet)\.so", line)})


def torch_folder() -> list[str]:
    return sys.argv[sys.argv.index("--torch") + 1 :][:1] if "--torch" in sys.argv else []


def foreign_libraries() -> list[str]:
    """Mapped files that neither this environment nor every system has."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    files = {line.split(maxsplit=5)[5] for line in maps if ".so" in line}
    own = (str(BIN.parent), sys.base_prefix, *torch_folder())
    # Python's own modules bring theirs (ssl, zlib); Millrace is what is asked about.
    python = re.compile(r"/lib(python|ssl|crypto|z|bz2|lzma|ffi|uuid|expat|b2)[\d.]*[.-]")
    return sorted(f for f in files if not f.startswith(own) and not SYSTEM.search(f) and not python.search(f))


def main() -> None:
    os.environ.pop("MILLRACE_PYARROW", None)
    steps = [command_line, tokenizers, loader, checkpoint, pictures]
    steps += [parquet, robot_data] if "--parquet" in sys.argv else [no_parquet]
    if torch_folder():
        sys.path.append(torch_folder()[0])
        steps.append(torch_training)
    if "AWS_ENDPOINT_URL" in os.environ:
        steps.append(s3)
    for step in steps:
        step()
    assert not (found := libraries_that_are_not_found()), found
    assert not (found := foreign_libraries()), found
    done = [step.__name__.replace("_", " ") for step in steps]
    print(json.dumps({"python": sys.version.split()[0], "done": done}))


if __name__ == "__main__":
    main()
