# SPDX-License-Identifier: Apache-2.0
"""The corpus of benchmarks/tokenizer as raw text of one shape: documents of 4 kB, or a paragraph each.

A blank line lies between two documents and nowhere inside one, so that Millrace's paragraphs and text.split("\\n\\n") are the same.
"""

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FLAVOURS = ("prose", "code", "multilingual")
SHAPES = {"4kB": 4000, "paragraph": 0}  # least size of a document; paragraphs are joined up to it


def source(work: Path) -> Path:
    """The folder of prose.jsonl, code.jsonl and multilingual.jsonl, about 250 MB; made from what is installed here."""
    folder = work / "corpus"
    if not (folder / "multilingual.jsonl").exists():
        subprocess.run([sys.executable, str(HERE.parent / "tokenizer/corpus.py"), str(folder)], check=True)
    return folder


def documents(path: Path, least: int):
    with path.open(encoding="utf-8") as file:
        for line in file:
            open_document = ""
            for paragraph in json.loads(line)["text"].replace("\r", "\n").split("\n\n"):
                lines = (text.rstrip(" \t") for text in paragraph.split("\n"))
                paragraph = "\n".join(text for text in lines if text)
                if not paragraph.strip():
                    continue
                open_document = f"{open_document}\n{paragraph}" if open_document else paragraph
                if len(open_document) >= least:
                    yield open_document
                    open_document = ""
            if open_document:
                yield open_document


def make(work: Path, shape: str, megabytes: float | None) -> Path:
    """A folder with a text file for each flavour, of `megabytes` in all if given."""
    folder = work / f"{shape}-{'all' if megabytes is None else f'{megabytes:g}MB'}"
    if folder.exists():
        return folder
    started = folder.with_suffix(".part")
    started.mkdir(parents=True, exist_ok=True)
    for flavour in FLAVOURS:
        limit = sys.maxsize if megabytes is None else megabytes * 1e6 / len(FLAVOURS)
        with (started / f"{flavour}.txt").open("wb") as out:
            for document in documents(source(work) / f"{flavour}.jsonl", SHAPES[shape]):
                out.write(document.encode() + b"\n\n")
                if out.tell() >= limit:
                    break
    started.rename(folder)
    return folder


def packed(work: Path, raw: Path) -> dict[str, Path]:
    """The documents of a folder of text as jsonl, plain and packed, and as Parquet: name -> folder."""
    import pyarrow
    import pyarrow.parquet

    texts = [text for path in sorted(raw.iterdir()) for text in path.read_text().split("\n\n") if text]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    folders = {name: work / f"{raw.name}-{name}" for name in ("jsonl", "jsonl.gz", "jsonl.zst", "parquet")}
    for name, folder in folders.items():
        path = folder / f"documents.{name}"
        if path.exists():
            continue
        folder.mkdir(exist_ok=True)
        if name == "parquet":
            pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
        else:
            codec = {"jsonl": None, "jsonl.gz": "gzip", "jsonl.zst": "zstd"}[name]
            with pyarrow.output_stream(path, compression=codec) as out:
                out.write(lines)
    return folders
