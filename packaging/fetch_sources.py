#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches the source packages of libraries.toml with apt, checks them against their pins and unpacks them.

Usage: fetch_sources.py FOLDER

Runs on Debian or Ubuntu with Debian 12's sources among those of apt; needs no root. FOLDER gets one folder a library,
with Debian's patches applied, and the file `order` (name, version and licence file of each, in the order in which they
are built). build_libraries.sh compiles it, here or in a container without a network.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
APT = Path("/etc/apt")


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_source_lists(folder: Path) -> None:
    """The system's own package lists, as lists of source packages."""
    for file in [*APT.glob("sources.list"), *(APT / "sources.list.d").iterdir()]:
        if file.suffix == ".sources":
            text = re.sub(r"(?m)^Types:.*$", "Types: deb-src", file.read_text())
        elif file.suffix == ".list":
            text = re.sub(r"(?m)^deb\b", "deb-src", file.read_text())
        else:
            continue
        if "debian" in text:  # other vendors' lists may have no sources
            (folder / file.name).write_text(text)


class Apt:
    """apt-get over its own lists, in a temporary folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        lists = folder / "lists"
        parts = folder / "parts"
        for each in (lists / "partial", parts):
            each.mkdir(parents=True)
        write_source_lists(parts)
        self.options = [
            "-oDir::Etc::sourcelist=/dev/null",
            f"-oDir::Etc::sourceparts={parts}",
            f"-oDir::State::lists={lists}",
            "-oDebug::NoLocking=1",
        ]
        self.run("update")

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["apt-get", "-q", *self.options, *arguments], cwd=self.folder, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    def fetch(self, source: str, version: str, file: str) -> Path:
        """One file may be missing on a mirror while the pinned one is there, so the status decides nothing."""
        said = self.run("source", "--download-only", f"{source}={version}")
        if not (self.folder / file).exists():
            sys.exit(
                f"fetch_sources.py: {file} of {source} {version} cannot be had; `apt-cache showsrc {source}` tells which "
                f"versions there are: pin one in packaging/libraries.toml\n{said}"
            )
        return self.folder / file


def unpack(archive: Path, target: Path) -> None:
    if archive.suffix == ".dsc":
        # It holds the sums of the archives beside it, which dpkg-source checks.
        subprocess.run(["dpkg-source", "--no-check", "-x", archive, target], check=True, capture_output=True)
        return
    target.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", target, "--strip-components=1"], check=True)


def check(file: Path, pinned: str) -> None:
    if (found := sha256(file)) != pinned:
        sys.exit(f"fetch_sources.py: {file.name} has the SHA-256 {found}, and libraries.toml pins {pinned}")


def fetch(name: str, pin: dict[str, str], apt: Apt, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    if installed := pin.get("installed"):
        if not Path(installed).exists():
            sys.exit(f"fetch_sources.py: {installed} is missing: ./dev build installs the package that holds it")
        check(Path(installed), pin["sha256"])
        target.mkdir()
        shutil.copy(installed, target)
        return
    file = apt.fetch(pin["source"], pin["version"], pin["file"])
    check(file, pin["sha256"])
    unpack(file, target)


def version_of(pin: dict[str, str]) -> str:
    return pin.get("version", pin["sha256"])


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1])
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    pins = tomllib.loads((HERE / "libraries.toml").read_text())
    order = "".join(f"{name} {version_of(pin)} {pin['license']}\n" for name, pin in pins.items())
    if (folder / "order").exists() and (folder / "order").read_text() == order:
        return
    with tempfile.TemporaryDirectory() as temporary:
        apt = Apt(Path(temporary))
        for name, pin in pins.items():
            print(f"==> source of {name} {version_of(pin)}", file=sys.stderr)
            fetch(name, pin, apt, folder / name)
    for copy in folder.glob("*.orig.tar.*"):  # dpkg-source leaves them
        copy.unlink()
    (folder / "order").write_text(order)


if __name__ == "__main__":
    main()
