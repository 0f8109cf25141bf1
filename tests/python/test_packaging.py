# SPDX-License-Identifier: Apache-2.0
"""What the project says about its packages, held together; the wheels themselves are tried by ./dev check wheel."""

import os
import re
import struct
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "packaging"))
import check_wheel  # noqa: E402
import wheel  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIBRARIES = tomllib.loads((ROOT / "packaging" / "libraries.toml").read_text())


def sources() -> list[Path]:
    """Files of the project that speak to users."""
    folders = ("src", "python", "docs", "examples", "tools", "packaging", "cmake")
    found = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.is_file()]
    found += [ROOT / name for name in ("README.md", "HACKING.md", "CONTRIBUTING.md", "CHANGELOG.md", "dev")]
    return [file for file in found if file.suffix not in (".so", ".pyc", ".safetensors")]


def test_every_pip_install_names_the_distribution() -> None:
    assert PROJECT["name"] == "millrace-io"
    wrong, extras = [], set()
    for file in sources():
        for line in file.read_text(errors="replace").splitlines():
            if named := re.search(r"pip install [^`]*?['\"]?(millrace[\w-]*)(?:\[(\w+)\])?", line):
                extras.add(named[2])
                wrong += [f"{file}: {line.strip()}"] if named[1] != PROJECT["name"] else []
    assert not wrong
    assert {None, "parquet", "chat", "fsspec"} <= extras <= {None, *PROJECT["optional-dependencies"]}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_version_changelog_tags_and_golden_files_agree() -> None:
    """docs/release.md: the changelog's top section is of the version in CMakeLists.txt, and a tag has a dated section."""
    (version,) = re.findall(r"^project\(millrace VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
    heads = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    sections = [re.fullmatch(r"(\d+\.\d+\.\d+) \((unreleased|20\d\d-\d\d-\d\d)\)", head) for head in heads]
    assert all(sections), heads
    named = {section[1]: section[2] for section in sections if section}
    assert list(named) == sorted(named, key=numbers, reverse=True) and len(named) == len(heads)
    assert next(iter(named)) == version
    assert "unreleased" not in list(named.values())[1:]
    folders = [path.name for path in (ROOT / "tests/golden").iterdir() if re.fullmatch(r"[\d.]+", path.name)]
    assert folders and set(folders) <= set(named)
    if not (ROOT / ".git").exists():
        return  # of a source distribution
    tags = subprocess.run(["git", "tag", "--list", "v*"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert all(named.get(tag[1:], "unreleased") != "unreleased" for tag in tags), tags


def test_the_range_of_pyarrow_is_one() -> None:
    majors = [int(version.split(".")[0]) for version in wheel.PYARROWS]
    assert majors == list(range(majors[0], majors[-1] + 1))
    assert PROJECT["optional-dependencies"]["parquet"] == [f"pyarrow>={majors[0]},<{majors[-1] + 1}"]
    text = (ROOT / "docs" / "prepare.md").read_text()
    assert f"pyarrow {majors[0]} to {majors[-1]}" in text
    assert all(f"{version.rsplit('.', 1)[0]}" in text for version in wheel.PYARROWS)


def test_every_linked_library_is_pinned_with_its_licence() -> None:
    names = {"libxxhash": "xxhash", "libzstd": "zstd", "yaml-0.1": "libyaml", "libcurl": "curl"}
    text = (ROOT / "cmake" / "deps.cmake").read_text()
    linked = re.findall(r"^millrace_package\(([\w-]+)|^millrace_pkgconfig\(\w+ (\S+)", text, re.M)
    needed = {names.get(name := package or module, name.lower()) for package, module in linked}
    needed |= {"ffmpeg", "dav1d", "svt-av1", "libjpeg-turbo", "libpng", "libwebp"}  # of video and pictures
    assert needed == {name.lower() for name in LIBRARIES}
    for pin in LIBRARIES.values():
        assert re.fullmatch(r"[0-9a-f]{64}", pin["sha256"]) and pin["license"] and pin["spdx"], pin
        assert "installed" in pin or {"source", "version", "file"} <= pin.keys(), pin


def test_missing_libraries_are_named_one_by_one(tmp_path: Path) -> None:
    packages = ("tl-expected", "fmt", "nlohmann_json", "simdjson", "CLI11", "ZLIB", "OpenSSL", "pugixml")
    command = [Path(sys.executable).parent / "cmake", "-S", ROOT, "-B", tmp_path, "-DMILLRACE_TESTS=OFF"]
    command += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={Path(sys.executable).parent / 'ninja'}"]
    command += [f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in packages]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PKG_CONFIG_LIBDIR": str(tmp_path)})
    assert ran.returncode != 0
    for package in ("libexpected-dev", "libsimdjson-dev", "libzstd-dev", "libonig-dev", "liburing-dev", "libssl-dev"):
        assert len(re.findall(rf"\(Debian, Ubuntu: {package};", ran.stderr)) == 1, ran.stderr
    (line,) = re.findall(r"apt-get install.*", ran.stderr.replace("\n  ", " "))
    assert line.count("-dev") == 14 and "pip install millrace-io" in ran.stderr


def elf(*needed: str, runpath: str = "") -> bytes:
    """A file with the dynamic section alone."""
    names = b"\0" + b"\0".join(name.encode() for name in (*needed, runpath)) + b"\0"
    entries, at = [], 1
    for name in needed:
        entries.append((1, at))
        at += len(name) + 1
    if runpath:
        entries.append((29, at))
    dynamic = 64 + 2 * 56
    entries += [(5, dynamic + 16 * (len(entries) + 2)), (0, 0)]
    body = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = dynamic + len(body) + len(names)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    return head + load + struct.pack("<IIQQQQQQ", 2, 6, dynamic, dynamic, 0, len(body), len(body), 8) + body + names


def write_wheel(folder: Path, name: str = "", change: dict[str, bytes] | None = None) -> Path:
    """One that check_wheel.py finds right, with some files of another content; an empty one is left out."""
    info, data = "millrace_io-1.dist-info", "millrace_io-1.data"
    files = {
        "millrace/_core.abi3.so": elf("libc.so.6", "libstdc++.so.6"),
        "millrace/libmillrace_parquet_2600.so": elf("libarrow.so.2600", "libparquet.so.2600", "libc.so.6"),
        f"{data}/scripts/millrace": elf("libc.so.6"),
        f"{info}/licenses/LICENSE": b"text",
        f"{info}/licenses/nanobind/LICENSE": b"text",
        **{f"{info}/licenses/{library}/{pin['license']}": b"text" for library, pin in LIBRARIES.items()},
    }
    path = folder / (name or "millrace_io-1-cp312-abi3-manylinux_2_34_x86_64.whl")
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in (files | (change or {})).items():
            if content:
                archive.writestr(file, content)
    return path


def test_a_right_wheel_passes(tmp_path: Path) -> None:
    assert check_wheel.problems(write_wheel(tmp_path), [str(tmp_path)]) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"millrace/_core.abi3.so": elf("libcurl.so.4")}, "needs libcurl.so.4"),
        ({"millrace/_core.abi3.so": elf("libc.so.6", runpath="/home/me/build")}, "search path /home/me/build"),
        ({"millrace/_core.abi3.so": b""}, "_core"),
        ({"millrace/libmillrace_parquet_2600.so": elf("libarrow.so.2500")}, "needs libarrow.so.2500"),
        ({"millrace/libmillrace_parquet_2600.so": b""}, "Parquet"),
        ({"millrace/__init__.py": b"# /build/tree/x.py"}, "holds the path /build/tree"),
        ({"millrace_io-1.data/scripts/millrace": b"#!/usr/bin/python3"}, "not the native program"),
        ({f"millrace_io-1.dist-info/licenses/curl/{LIBRARIES['curl']['license']}": b""}, "no licence text of curl"),
        ({"millrace/large": os.urandom(check_wheel.MAX_BYTES)}, "bytes are more than"),
    ],
)
def test_a_wrong_wheel_is_told(tmp_path: Path, change: dict[str, bytes], said: str) -> None:
    found = check_wheel.problems(write_wheel(tmp_path, change=change), ["/build/tree"])
    assert any(said in problem for problem in found), found


def test_a_wheel_for_newer_systems_only_is_told(tmp_path: Path) -> None:
    found = check_wheel.problems(write_wheel(tmp_path, "millrace_io-1-cp312-abi3-manylinux_2_35_x86_64.whl"), [])
    assert any("needs glibc 2.35" in problem for problem in found), found


def test_a_wheel_that_was_not_repaired_is_told(tmp_path: Path) -> None:
    found = check_wheel.problems(write_wheel(tmp_path, "millrace_io-1-cp312-abi3-linux_x86_64.whl"), [])
    assert any("not repaired" in problem for problem in found), found


def test_the_container_installs_what_dev_does() -> None:
    listed = re.search(r'^APT="(.*?)"', (ROOT / "dev").read_text(), re.DOTALL | re.MULTILINE)
    assert listed
    built = re.search(
        r"--no-install-recommends \\\n(.*?)&& rm", (ROOT / "packaging/Containerfile").read_text(), re.DOTALL
    )
    assert built
    assert built[1].replace("\\", " ").split() == listed[1].split()
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements-dev.txt").read_text(), re.MULTILINE))
    text = (ROOT / "packaging/Containerfile").read_text()
    assert f"pyarrow=={pins['pyarrow']}" in text and f"py-spy=={pins['py-spy']}" in text
    assert f"torch=={re.search(r'torch==([0-9.]+)', (ROOT / 'dev').read_text())[1]}" in text


def test_numpy_loads_with_the_first_thing_that_needs_it():
    """Else each process that only copies files, or prepares text, waits twice as long for its start."""
    program = (
        "import sys, millrace as mr; mr.cp, mr.sync, mr.prepare, mr.open, mr.Tokenizer, mr.Run; "
        "assert 'numpy' not in sys.modules; "
        "names = {name: getattr(mr, name) for name in mr.__all__ if name not in ('torch', 'fsspec', 'video', 'chat')}; "
        "assert names['Loader'] is mr.Loader is mr.loader.Loader and set(mr.__all__) <= set(dir(mr))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
