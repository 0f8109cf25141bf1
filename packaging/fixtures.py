# SPDX-License-Identifier: Apache-2.0
"""What bare_session.py works on. Needs Pillow, which draws the pictures."""

import io
import json
import tarfile
from pathlib import Path

from PIL import Image

CLUSTER = """\
Region: us-east-1
Image: {Os: alinux2023}
HeadNode: {InstanceType: m5.large, Networking: {SubnetId: subnet-0123456789abcdef0}}
Scheduling:
  Scheduler: slurm
  SlurmQueues:
    - Name: gpu
      ComputeResources: [{Name: l40s, InstanceType: g6e.12xlarge, MinCount: 0, MaxCount: 4}]
      Networking: {SubnetIds: [subnet-0123456789abcdef0]}
"""


def byte_letters() -> list[str]:
    """The letters that stand for the 256 bytes in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def tokenizer(pretokenizer: dict) -> str:
    """A byte-level BPE without merges: an id a byte."""
    letters = byte_letters()
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": pretokenizer,
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "vocab": {letter: i for i, letter in enumerate(letters)}, "merges": []},
        }
    )


def pictures(file: Path) -> None:
    """A WebDataset tar: six samples of one colour each, as JPEG, PNG and WebP, with a class."""
    with tarfile.open(file, "w") as tar:
        for i, kind in enumerate(("jpg", "png", "webp") * 2):
            content = io.BytesIO()
            Image.new("RGB", (32, 24), (40 * i, 128, 255 - 40 * i)).save(content, {"jpg": "jpeg"}.get(kind, kind))
            for name, data in ((f"{i:03}.{kind}", content.getvalue()), (f"{i:03}.cls", str(i).encode())):
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def write(folder: Path) -> None:
    pictures(folder / "pictures.tar")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    # No scanner knows this expression, so Oniguruma has it.
    cut = {"type": "Split", "pattern": {"Regex": "(?<=a)[b-d]{1,3}|x+y"}, "behavior": "Isolated", "invert": False}
    byte_level_only = byte_level | {"use_regex": False}
    odd = {"type": "Sequence", "pretokenizers": [cut, byte_level_only]}
    (folder / "tokenizer.json").write_text(tokenizer(byte_level))
    (folder / "odd.json").write_text(tokenizer(odd))
    (folder / "text.txt").write_text("".join(f"line {i} of a text: abcd xxy\n" for i in range(2000)))
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "layout.yaml").write_text(
        f'mode: "0770"\nmounts: [{{path: {folder}/fsx, mountpoint: false}}]\ndirectories:\n  - {{path: {folder}/fsx/data}}\n'
    )
    (folder / "fsx").mkdir()
