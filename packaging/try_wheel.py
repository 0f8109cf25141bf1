#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Installs wheels of Millrace in bare environments and works with them there.

Usage: try_wheel.py WHEEL...

For every Python from 3.11 to 3.13 that is on this machine: a fresh virtual environment with the wheel, NumPy and one
version of pyarrow; then bare_session.py in it, with an empty environment, another HOME, and the libraries that the
build used hidden (a private mount puts an empty file over each). The pyarrow versions of wheel.py are tried one after
the other. The torch of this interpreter is tried with the Python of its version. S3 is the server of MILLRACE_TEST_S3
and MILLRACE_TEST_S3_TLS; without them that part is left out, and that is said. Ends with a table of the files, their
sizes and the libraries that they load.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import check_wheel
import fixtures
import pythons
import wheel

HERE = Path(__file__).resolve().parent
HIDDEN = (
    "curl|onig|zstd|xxhash|yaml|uring|pugixml|simdjson|fmt|arrow|parquet|ssl|crypto|jpeg|png16|webp|dav1d|SvtAv1Enc"
    "|avcodec|avformat|avutil|swscale"
)
# Python's own ssl and hashlib need these; what Millrace needs of them must be inside it, which the maps of its processes tell.
KEPT = "ssl|crypto"


def hidden_libraries() -> list[str]:
    pattern = re.compile(rf"lib({HIDDEN})[\w.+-]*\.so")
    folders = ("/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib")
    files = (file for folder in map(Path, folders) if folder.is_dir() for file in folder.iterdir())
    return sorted({str(f.resolve()) for f in files if pattern.match(f.name) and not re.match(f"lib({KEPT})", f.name)})


def can_hide() -> bool:
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


def bare(command: list[str], home: Path, extra: dict[str, str]) -> subprocess.CompletedProcess:
    """With nothing of this machine's environment, and without the libraries and the source tree where that can be done."""
    inside = [
        "env",
        "-i",
        f"HOME={home}",
        "PATH=/usr/bin:/bin",
        "LANG=C.UTF-8",
        *(f"{k}={v}" for k, v in extra.items()),
    ]
    inside += command
    if can_hide():
        mounts = "".join(f"mount --bind /dev/null '{library}'\n" for library in hidden_libraries())
        script = f"set -e\n{mounts}mount -t tmpfs none '{HERE.parent}'\nexec \"$@\"\n"
        inside = ["unshare", "-rm", "sh", "-c", script, "sh", *inside]
    return subprocess.run(inside, cwd=home, capture_output=True, text=True, timeout=300)


def install(python: Path, folder: Path, file: Path, pyarrow: str | None) -> Path:
    subprocess.run([python, "-m", "venv", folder], check=True)
    packages = [str(file), "numpy", *([f"pyarrow=={pyarrow}"] if pyarrow else [])]
    pip = [folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    subprocess.run([*pip, *packages], check=True)
    return folder / "bin" / "python"


def s3_environment() -> dict[str, str]:
    """Over TLS where the server has it: then OpenSSL is tried too."""
    if not (endpoint := os.environ.get("MILLRACE_TEST_S3_TLS") or os.environ.get("MILLRACE_TEST_S3")):
        print("try_wheel.py: no MILLRACE_TEST_S3: S3 is not tried (./dev check wheel starts a server)", file=sys.stderr)
        return {}
    chosen = {"AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        chosen[name] = os.environ[name]
    return chosen


def torch_layer(folder: Path) -> Path | None:
    """This interpreter's torch, copied with the packages that it needs; None without one."""
    left, names = ["torch"], set()
    while left:
        name = re.split(r"[^\w.-]", left.pop())[0].lower()
        if name in names:
            continue
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another system, or an extra
        names.add(name)
        left += [need for need in package.requires or [] if "extra ==" not in need]
        for file in package.files or []:
            if ".." not in file.parts and "__pycache__" not in file.parts and file.locate().exists():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), folder / file)
    return folder if "torch" in names else None


def session(python: Path, work: Path, tables: Path, pyarrow: str | None, torch: Path | None = None) -> None:
    """Everything that bare_session.py does; ends the program where it fails."""
    home = work / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    shutil.copy(HERE / "bare_session.py", home)
    fixtures.write(home)
    shutil.copy(tables, home / "table.parquet")
    extra = s3_environment()
    if (authority := os.environ.get("MILLRACE_TEST_S3_CA")) and extra:
        shutil.copy(authority, home / "ca.pem")
        extra["AWS_CA_BUNDLE"] = str(home / "ca.pem")
    arguments = [str(python), "bare_session.py", *(["--parquet"] if pyarrow else [])]
    arguments += ["--torch", str(torch)] if torch else []
    done = bare(arguments, home, extra)
    if done.returncode != 0:
        sys.exit(f"{python} with pyarrow {pyarrow}:\n{done.stdout}{done.stderr}")
    told = json.loads(done.stdout.splitlines()[-1])
    print(f"{told['python']}, pyarrow {pyarrow}: {', '.join(told['done'])}")


def fits(file: Path, version: str) -> bool:
    tag = file.name.split("-")[2]
    return tag == "cp311" if version == "3.11" else tag == "cp312"


def make_table(python: Path, file: Path) -> None:
    """By the pyarrow that the first environment has: old readers must read it, so with no new feature."""
    code = (
        "import pyarrow, pyarrow.parquet as p; p.write_table(pyarrow.table({'text': "
        f"[f'row {{i}} of it' for i in range(1000)]}}), {str(file)!r}, compression='zstd', row_group_size=300)"
    )
    subprocess.run([python, "-c", code], check=True)


def describe(file: Path) -> None:
    """Sizes and libraries of what is inside."""
    print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            content = archive.read(info)
            if content.startswith(b"\x7fELF"):
                libraries = " ".join(check_wheel.needed(content)[0])
                print(f"  {info.file_size / 1e6:6.2f} MB  {info.filename.split('/')[-1]}: {libraries}")


def main() -> None:
    files = [Path(argument).resolve() for argument in sys.argv[1:]]
    if not files:
        sys.exit(__doc__.split("\n\n")[1])
    if not can_hide():
        print("try_wheel.py: no private mounts here: the build's libraries are not hidden", file=sys.stderr)
    for file in files:
        check_wheel.check(file, [str(HERE.parent)])
        describe(file)
    with tempfile.TemporaryDirectory(prefix="millrace-wheel-") as temporary:
        work = Path(temporary)
        table = work / "table.parquet"
        left = list(wheel.PYARROWS)[::-1]
        for version, program in pythons.find_all().items():
            file = next((file for file in files if fits(file, version)), None)
            if file is None:
                print(f"try_wheel.py: Python {version}: no wheel for it", file=sys.stderr)
                continue
            python = install(program, work / version, file, left[0])
            if not table.exists():
                make_table(python, table)
            own = version == f"{sys.version_info[0]}.{sys.version_info[1]}"
            session(python, work, table, left[0], torch_layer(work / "torch") if own else None)
        # The rest of the range in the last environment: an adapter does not depend on Python's version.
        for pyarrow in left[1:]:
            target = work / "pyarrow"
            shutil.rmtree(target, ignore_errors=True)
            folder = wheel.pyarrow_folder(program, pyarrow, HERE.parent / "build" / "wheel" / "pyarrow")
            shutil.copytree(folder, target, ignore=shutil.ignore_patterns("include"))
            subprocess.run([python.parent / "pip", "uninstall", "--quiet", "--yes", "pyarrow"], check=True)
            site = next((python.parent.parent / "lib").glob("python3*/site-packages"))
            shutil.rmtree(site / "pyarrow", ignore_errors=True)
            shutil.move(target, site / "pyarrow")
            session(python, work, table, pyarrow)


if __name__ == "__main__":
    main()
