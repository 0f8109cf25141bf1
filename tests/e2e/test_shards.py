# SPDX-License-Identifier: Apache-2.0
"""shards ls, check, index and cat, on shards of ours and of other tools."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from conftest import Millrace, expected_ids, visible_files

TEXTS = ["the first", "second", "with <\x1b[31m> an escape", "fourth"]


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A tar as Python's tarfile writes it, without an index."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    with tarfile.open(folder / "f-000000.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for i, text in enumerate(TEXTS):
            for field, data in (
                ("text.txt", text.encode()),
                ("token_ids.json", json.dumps(expected_ids(text)).encode()),
            ):
                member = tarfile.TarInfo(f"sample{i:03}.{field}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return folder


def tar_of(shards: Path) -> Path:
    (tar,) = shards.glob("*.tar")
    return tar


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_ls(millrace: Millrace, shards: Path, foreign: Path):
    ran = millrace("shards", "ls", shards, "--json")
    shard, total = ran.object("shard"), ran.object("total")
    assert shard["url"].endswith(tar_of(shards).name)
    assert (shard["samples"], shard["index"], total["samples"]) == (9, True, 9)
    assert shard["bytes"] == tar_of(shards).stat().st_size and shard["tokens"] == total["tokens"] > 0
    both = millrace("shards", "ls", tar_of(shards), foreign, "--json")
    assert both.objects("shard")[0]["samples"] == 9
    assert (both.objects("shard")[1]["samples"], both.objects("shard")[1]["index"]) == (None, False)
    assert (both.object("total")["samples"], both.object("total")["shards"]) == (None, 2)
    assert millrace("shards", "ls", foreign / "f-{000000..000000}.tar").out.splitlines()[1].split()[1:3] == ["-", "-"]
    tar_of(shards).unlink()
    assert millrace("shards", "ls", shards, "--json").object("shard")["bytes"] is None
    assert "missing" in millrace("shards", "ls", shards).out


def test_ls_of_nothing(millrace: Millrace, tmp_path: Path):
    assert "no shards" in millrace.fails("shards", "ls", tmp_path)
    assert "gone.tar" in millrace.fails("shards", "ls", "gone.tar")
    millrace.fails("shards", "ls", "s{0..")


def test_check(millrace: Millrace, shards: Path):
    ran = millrace("shards", "check", shards, "--json")
    assert ran.object("shard_check")["ok"] and ran.object("shard_check")["index"]
    assert ran.object("check_summary")["damaged"] == 0
    assert "no damage found" in millrace("shards", "check", shards).out


@pytest.mark.parametrize("where", [0, 600, 1600, -600])
def test_check_finds_a_flipped_bit(millrace: Millrace, shards: Path, where: int):
    flip(tar_of(shards), where)
    ran = millrace("shards", "check", shards, "--json", status=3)
    finding = ran.objects("finding")[0]
    assert finding["code"] == "corruption" and tar_of(shards).name in finding["message"]
    assert ran.object("check_summary")["damaged"] == 1
    assert "1 damaged" in millrace("shards", "check", shards, status=3).out


def test_check_finds_what_is_missing_or_cut(millrace: Millrace, shards: Path, foreign: Path):
    tar = tar_of(foreign)
    tar.write_bytes(tar.read_bytes()[:3000])
    finding = millrace("shards", "check", foreign, "--json", status=3).object("finding")
    assert "f-000000.tar" in finding["message"]
    index = Path(f"{tar_of(shards)}.index")
    kept = index.read_bytes()
    index.unlink()
    assert "missing" in millrace("shards", "check", shards, "--json", status=3).object("finding")["message"]
    index.write_bytes(kept[:-1])
    millrace("shards", "check", shards, status=3)
    index.write_bytes(kept)
    millrace("shards", "check", shards)
    tar_of(shards).unlink()
    assert millrace("shards", "check", shards, "--json", status=3).object("finding")["code"] == "not_found"
    assert "gone.tar" in millrace.fails("shards", "check", "gone.tar")


def test_check_of_a_damaged_manifest(millrace: Millrace, shards: Path):
    manifest = shards / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_text(manifest.read_text()[:-10])
    assert "manifest.json" in millrace("shards", "check", shards, "--json", status=3).object("finding")["message"]


def test_check_without_an_index_says_so(millrace: Millrace, foreign: Path):
    assert "1 shard without an index" in millrace("shards", "check", foreign).out
    summary = millrace("shards", "check", foreign, "--json").object("check_summary")
    assert (summary["without_index"], summary["samples"]) == (1, len(TEXTS))


def test_index(millrace: Millrace, foreign: Path):
    before = visible_files(foreign)
    dry = millrace("shards", "index", foreign, "--dry-run", "--json")
    assert dry.object("index")["dry_run"] and visible_files(foreign) == before
    built = millrace("shards", "index", foreign, "--json").object("index")
    assert (built["samples"], built["ids_field"]) == (len(TEXTS), "token_ids.json")
    assert built["tokens"] == sum(len(expected_ids(text)) for text in TEXTS)
    first = visible_files(foreign)
    assert set(first) - set(before) == {"f-000000.tar.index"}
    summary = millrace("shards", "index", foreign, "--json").object("index_summary")
    assert (summary["built"], summary["kept"]) == (0, 1)
    assert "built: 1, 0 there before" in millrace("shards", "index", foreign, "--force").out
    assert visible_files(foreign) == first
    assert millrace("shards", "check", foreign, "--json").object("check_summary")["without_index"] == 0
    # A damaged one is named together with the way out.
    flip(foreign / "f-000000.tar.index", 40)
    assert "--force" in millrace.fails("shards", "index", foreign)
    millrace("shards", "index", foreign, "--force")
    assert visible_files(foreign) == first


def test_index_of_a_bin_needs_its_idx(millrace: Millrace, tmp_path: Path):
    bin_file = tmp_path / "a.bin"
    bin_file.write_bytes(b"\1\0\2\0")
    assert (
        "it needs a.idx beside it" in millrace.fails("shards", "index", bin_file).replace(f"{tmp_path}/", "")
        and not (tmp_path / "a.bin.index").exists()
    )
    (tmp_path / "a.idx").write_bytes(b"no idx")
    assert "no Megatron idx" in millrace.fails("shards", "index", bin_file)


def test_index_does_not_touch_what_prepare_wrote(millrace: Millrace, shards: Path):
    before = visible_files(shards)
    millrace.fails("shards", "index", shards, "--force")
    assert visible_files(shards) == before


def test_cat(millrace: Millrace, foreign: Path):
    all_samples = millrace("shards", "cat", foreign, "--json").objects("sample")
    assert [sample["text"] for sample in all_samples] == TEXTS
    assert [sample["ids"] for sample in all_samples] == [expected_ids(text) for text in TEXTS]
    assert all_samples[1]["key"] == "sample001" and all_samples[1]["fields"]["text.txt"] == len(TEXTS[1])
    assert millrace("shards", "cat", foreign, "--sample", 2, "--json").object("sample") == all_samples[2]
    assert len(millrace("shards", "cat", foreign, "--limit", 3, "--json").objects()) == 3
    tail = millrace("shards", "cat", foreign, "--sample", 1, "--limit", 9, "--json").objects("sample")
    assert tail == all_samples[1:]
    assert "ids" not in millrace("shards", "cat", foreign, "--fields", "--limit", 1, "--json").object("sample")
    text = millrace("shards", "cat", foreign).out
    assert "\x1b" not in text and "sample003" in text and f"{len(expected_ids(TEXTS[0]))} ids" in text
    assert "there are 4" in millrace.fails("shards", "cat", foreign, "--sample", 4)


def tar_with(path: Path, members: list[tuple[str, bytes | tuple[bytes, str]]]) -> None:
    """Files, and links as (type, target)."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                member.type, member.linkname = content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def test_a_field_with_capital_letters_is_taken_by_every_verb(millrace: Millrace, tmp_path: Path):
    ids = json.dumps([1, 2, 3]).encode()
    tar_with(
        tmp_path / "a.tar", [("x.Token_IDs.JSON", ids), ("x.TXT", b"one"), ("y.token_ids.json", ids), ("y.Txt", b"two")]
    )
    assert millrace("shards", "check", "a.tar", "--json").object("shard_check")["ok"]
    assert millrace("shards", "index", "a.tar", "--json").object("index")["tokens"] == 6
    cat = millrace("shards", "cat", "a.tar", "--json").objects("sample")
    assert [(each["ids"], each["text"]) for each in cat] == [([1, 2, 3], "one"), ([1, 2, 3], "two")]
    assert millrace("shards", "ls", "a.tar", "--json").object("shard")["samples"] == 2


def test_links_are_counted(millrace: Millrace, tmp_path: Path):
    """They hold no data: a sample of links is missing."""
    text = b"a text"
    members: list = [
        ("a.txt", text),
        ("b.txt", (tarfile.LNKTYPE, "a.txt")),
        ("c.txt", (tarfile.SYMTYPE, "a.txt")),
        ("d.txt", text),
    ]
    tar_with(tmp_path / "a.tar", members)
    ran = millrace("shards", "check", "a.tar", "--json")
    assert (ran.object("shard_check")["samples"], ran.object("shard_check")["links"]) == (2, 2)
    assert ran.object("check_summary")["links"] == 2
    built = millrace("shards", "index", "a.tar", "--json").object("index")
    assert (built["samples"], built["links"]) == (2, 2)
    ran = millrace("shards", "check", "a.tar", "--json")  # with the index
    assert (ran.object("shard_check")["index"], ran.object("check_summary")["links"]) == (True, 2)
    assert "2 links in the archives hold no data" in millrace("shards", "check", "a.tar").out
    tar_with(tmp_path / "b.tar", [("a.txt", text)])
    assert millrace("shards", "index", "b.tar", "--json").object("index")["links"] == 0
    assert "link" not in millrace("shards", "check", "b.tar").out


def test_members_without_a_dot_are_counted_and_named(millrace: Millrace, tmp_path: Path):
    """No sample can have them: the key of a sample ends at a dot. webdataset loses them in silence."""
    names = ["000.txt", "001", "dir.v1/002", "003.txt", "__notes__/x", "__shardindex__"]
    tar_with(tmp_path / "a.tar", [(name, b"x") for name in names])
    for indexed in (False, True):
        found = millrace("shards", "check", "a.tar", "--json")
        assert (found.object("shard_check")["samples"], found.object("shard_check")["unnamed"]) == (2, 2)
        assert found.object("check_summary")["unnamed"] == 2
        text = millrace("shards", "check", "a.tar").out
        assert "2 files in the archives have no dot" in text and "the first is 001" in text
        if not indexed:
            assert millrace("shards", "index", "a.tar", "--json").object("index")["unnamed"] == 2
    # A label of a volume, as GNU tar writes it, is no member.
    label = bytearray((tmp_path / "a.tar").read_bytes()[:512])
    label[156:157], label[124:135] = b"V", b"0" * 11
    label[148:156] = b" " * 8
    label[148:156] = b"%06o\0 " % sum(label)
    (tmp_path / "v.tar").write_bytes(bytes(label) + (tmp_path / "a.tar").read_bytes())
    assert millrace("shards", "check", "v.tar", "--json").object("shard_check")["samples"] == 2
