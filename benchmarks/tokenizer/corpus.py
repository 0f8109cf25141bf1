#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Distinct real text from what installed Debian and Python packages hold: prose.jsonl, code.jsonl, multilingual.jsonl.

Repeated paragraphs are left out (licences, generated tables), so that a word cache meets the usual repetition of text
only. One document a line: {"text": ...}; at most 64 kB of one file are one document.

    python benchmarks/tokenizer/corpus.py OUT [--mb 100]
"""

import argparse
import contextlib
import gettext
import gzip
import hashlib
import json
import pathlib
import re
import sys

PYTHONS = sorted({pathlib.Path(p) for p in (sys.prefix, sys.base_prefix)})
ROOTS = {
    "prose": [
        "/usr/share/doc",
        "/usr/share/man/man1",
        "/usr/share/man",
        "/usr/share/info",
        "/usr/share/perl",
        *PYTHONS,
    ],
    "code": [*PYTHONS, "/usr/lib/python3", "/usr/include", "/usr/share/perl", "/usr/lib/gcc"],
    "multilingual": ["/usr/share/locale", "/usr/share/man", "/usr/share/doc", *PYTHONS],
}
PROSE = re.compile(
    r"(\.(txt|rst|md|html|info|pod|[1-8])(\.gz)?|README[^/]*|NEWS[^/]*|[Cc]hange[Ll]og(\.gz)?|changelog.*\.gz)$"
)
CODE = re.compile(r"\.(py|pyi|h|hpp|c|cpp|cc|js|pl|pm|sh|cu|cuh|java|go|rs)$")
FOREIGN = re.compile(r"\.(mo|po|[1-8](\.gz)?|txt|html)$")
ROFF = re.compile(r"^[.'].*$|\\f.|\\[&-]", re.MULTILINE)
TAGS = re.compile(r"<[^>]*>")
LIMIT = 64_000


def content(path):
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data[: 1 << 22].decode("utf-8")


def prose(path):
    if not PROSE.search(path.name) or re.search(r"/man/[a-z]{2}", str(path)):
        return ""
    text = content(path)
    if re.search(r"\.[1-8](\.gz)?$", path.name):
        return ROFF.sub("", text)
    return TAGS.sub("", text) if ".html" in path.name else text


def code(path):
    return content(path) if CODE.search(path.name) else ""


def multilingual(path):
    if path.suffix == ".mo":
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog  # the texts in the order of the file
        return "\n\n".join(value for key, value in catalogue.items() if key)
    if not FOREIGN.search(path.name):
        return ""
    text = ROFF.sub("", content(path))
    foreign = sum(c > "\x7f" for c in text)
    return TAGS.sub("", text) if foreign * 8 > len(text) else ""


def files(roots):
    seen = set()
    for root in roots:
        for path in sorted(pathlib.Path(root).rglob("*")):
            real = path.resolve()
            if real not in seen and path.is_file():
                seen.add(real)
                yield path


def documents(flavour, read, limit):
    """Texts of at most LIMIT characters, `limit` bytes in all."""
    seen, size = set(), 0
    for path in files(ROOTS[flavour]):
        text = ""
        with contextlib.suppress(OSError, UnicodeError, EOFError, ValueError, AttributeError, LookupError, TypeError):
            text = read(path)
        fresh, length = [], 0
        for paragraph in text.split("\n\n"):
            digest = hashlib.blake2b(paragraph.strip().encode("utf-8", "replace"), digest_size=8).digest()
            if digest in seen or len(paragraph) < 40:
                continue
            seen.add(digest)
            fresh.append(paragraph)
            length += len(paragraph)
            if length > LIMIT:
                yield "\n\n".join(fresh)
                size += length
                fresh, length = [], 0
        if fresh:
            yield "\n\n".join(fresh)
            size += length
        if size > limit:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--mb", type=int, default=100, help="of each flavour at most (default %(default)s)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for flavour, read in (("prose", prose), ("code", code), ("multilingual", multilingual)):
        count = size = 0
        with (args.out / f"{flavour}.jsonl").open("w", encoding="utf-8") as out:
            for text in documents(flavour, read, args.mb * 1_000_000):
                text = text.encode("utf-8", "ignore").decode()
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
                count += 1
                size += len(text.encode())
        print(f"{flavour}: {count:,} documents, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
