# SPDX-License-Identifier: Apache-2.0
"""Our side of each "coming from" page works as it stands there, on data as the other program leaves it."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pages import DOCS, ROOT, run_page
from PIL import Image

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

pytest.importorskip("torch", reason="PyTorch is not installed")


def tokenizer_file(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = Tokenizer(models.BPE({character: i for i, character in enumerate(sorted(alphabet))}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    made.save(str(folder / "tokenizer.json"))


def pictures(folder: Path) -> None:
    """What TarWriter leaves: tars without an index."""
    (folder / "pictures").mkdir()
    for shard in range(4):
        with tarfile.open(folder / "pictures" / f"{shard:03}.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            for number in range(16):
                picture = io.BytesIO()
                Image.new("RGB", (32, 32), (shard * 60, number * 15, 0)).save(picture, "JPEG")
                for field, data in (("jpg", picture.getvalue()), ("cls", str(number % 10).encode())):
                    member = tarfile.TarInfo(f"{shard}-{number}.{field}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def write_mds(folder: Path, columns: dict[str, tuple[str, int | None]], samples: list[bytes]) -> None:
    """What MDSWriter leaves, by the description of the format: a head of offsets, sizes of the open columns, values."""
    folder.mkdir()
    begin = 4 * (len(samples) + 2)
    offsets = np.cumsum([begin, *map(len, samples)]).astype("<u4")
    data = struct.pack("<I", len(samples)) + offsets.tobytes() + b"".join(samples)
    (folder / "shard.00000.mds").write_bytes(data)
    facts = {
        "column_encodings": [encoding for encoding, _ in columns.values()], "column_names": list(columns),
        "column_sizes": [size for _, size in columns.values()],
        "compression": None, "format": "mds", "hashes": [], "raw_data": {"basename": "shard.00000.mds",
        "bytes": len(data), "hashes": {}}, "samples": len(samples), "size_limit": 1 << 26, "version": 2, "zip_data": None,
    }  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"shards": [facts], "version": 2}))


def mds(folder: Path) -> None:
    """Numbers and texts; ids as LLM Foundry stores them; a tokenizer."""
    tokenizer_file(folder)
    texts = [struct.pack("<I", len(text)) + struct.pack("<q", n) + text for n in range(64) for text in [b"text %d" % n]]
    write_mds(folder / "corpus", {"number": ("int", 8), "text": ("str", None)}, texts)
    ids = [np.arange(n, n + 2048, dtype="<i8").tobytes() for n in range(64)]
    write_mds(folder / "tokens", {"tokens": ("bytes", None)}, [struct.pack("<I", len(each)) + each for each in ids])


def megatron(folder: Path) -> None:
    """What preprocess_data.py leaves, by the rules of IndexedDataset; and text and a tokenizer."""
    tokenizer_file(folder)
    (folder / "corpus.jsonl").write_text('{"text": "one document"}\n{"text": "another"}\n')
    (folder / "old").mkdir()
    documents = [[5, 6, 7, 8, 9], [1, 2], list(range(20, 40))]
    (folder / "old/corpus_text_document.bin").write_bytes(b"".join(np.array(d, "<u2").tobytes() for d in documents))
    sizes = np.array([len(document) for document in documents], "<i4")
    begins = np.concatenate([[0], np.cumsum(sizes[:-1] * 2)]).astype("<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(documents), len(documents) + 1)
    bounds = np.arange(len(documents) + 1, dtype="<i8")
    idx = head + sizes.tobytes() + begins.tobytes() + bounds.tobytes()
    (folder / "old/corpus_text_document.idx").write_bytes(idx)


def text_files(folder: Path) -> None:
    (folder / "data/below").mkdir(parents=True)
    (folder / "data/a.txt").write_text("a\n")
    (folder / "data/below/b.txt").write_text("b\n" * 100_000)


def nothing(folder: Path) -> None:
    pass


BEFORE: dict[str, Callable[[Path], None]] = {
    "webdataset": pictures, "streaming": mds, "litdata": nothing, "dcp": nothing, "megatron": megatron,
}  # fmt: skip


@pytest.mark.parametrize("name", BEFORE)
def test_our_side_works(name: str, binary: str, tmp_path: Path):
    folder = tmp_path / "folder"
    folder.mkdir()
    BEFORE[name](folder)
    assert run_page(DOCS / "coming-from" / f"{name}.md", folder, binary) >= 1


def test_our_side_of_s5cmd_works(binary: str, tmp_path: Path, s3, bucket: str):
    folder = tmp_path / "folder"
    folder.mkdir()
    text_files(folder)
    page = DOCS / "coming-from" / "s5cmd.md"
    assert run_page(page, folder, binary, s3.env, {"s3://corpus": f"s3://{bucket}"}) >= 1


def test_every_page_is_run():
    assert {page.stem for page in (DOCS / "coming-from").glob("*.md")} == {*BEFORE, "s5cmd"}, ROOT
