# SPDX-License-Identifier: Apache-2.0
"""Makes the documentation site of docs/, the command's --help and the package's docstrings.

    build_docs.py MILLRACE PYTHON OUT

MILLRACE is the command, PYTHON has the packages of requirements-docs.txt, OUT gets a folder for this version, a list of
all versions that lie there, and an index.html that leads to this one. Pages that are made lie beside OUT in
OUT-pages. Any warning of the generator, a dead link among them, is an error.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Public modules with a page of their own, and what each is for.
MODULES = {
    "millrace": "For everyone who calls Millrace from Python. None of these names needs torch.",
    "millrace.torch": "For training loops in PyTorch: tensors, checkpoints, stop signals.",
    "millrace.torch.dcp": "For those who keep torch.distributed.checkpoint and want it on our storage.",
    "millrace.torch.lightning": "For training loops in Lightning.",
    "millrace.torch.trainer": "For the Trainer of transformers.",
    "millrace.lerobot": "For robot datasets: frames, windows, conversion. NumPy arrays.",
    "millrace.torch.lerobot": "For robot policies in PyTorch: the frames of LeRobot's own class.",
    "millrace.video": "For frames of videos by number.",
    "millrace.episodes": "For episodes as CSV, NPZ and packed files.",
    "millrace.safetensors": "For files of tensors, as NumPy arrays.",
    "millrace.chat": "For fine-tuning data: conversations as ids and masks.",
    "millrace.slurm": "For scripts that ask Slurm or submit to it.",
    "millrace.fsspec": "For pandas, pyarrow, datasets and others that read through fsspec.",
    "millrace.link": "For programs that wait for a link, or release and restore what it keeps in step.",
    "millrace.results": "For those who use what the functions return.",
}
# Classes of the C++ core that public functions return.
INSIDE = {"millrace.torch": ["millrace._core.PendingSave"]}
LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")


def navigation(index: str) -> list[tuple[str, list]]:
    """The sections of index.md, each with its pages: (title, path), or (title, pages) for a section below."""
    sections: list[tuple[str, list]] = []
    seen = set()
    pages: list = []
    for line in index.splitlines():
        if line.startswith("## "):
            pages = []
            sections.append((line[3:].strip(), pages))
        elif line.startswith("### "):
            pages = []
            sections[-1][1].append((line[4:].strip(), pages))
        else:
            for title, path in LINK.findall(line):
                if sections and path not in seen:
                    seen.add(path)
                    pages.append((title[0].upper() + title[1:], path))
    return sections


def as_nav(pages: list) -> list:
    """As mkdocs.yml has it."""
    return [{title: below if isinstance(below, str) else as_nav(below)} for title, below in pages]


def verbs(millrace: str) -> dict[str, list[list[str]]]:
    """The verbs by their first word, in the order of --help."""

    def listed(*path: str) -> list[str]:
        text = help_of(millrace, list(path))
        return re.findall(r"^  ([a-z-]+) ", text.split("Verbs:")[1], re.M) if "Verbs:" in text else []

    return {first: [[first, second] for second in listed(first)] or [[first]] for first in listed()}


def help_of(millrace: str, verb: list[str]) -> str:
    return subprocess.run([millrace, *verb, "--help"], capture_output=True, text=True, check=True).stdout


def verb_section(millrace: str, verb: list[str]) -> str:
    """What --help of a verb says: what it does as text, its examples, then usage and flags."""
    text, examples = help_of(millrace, verb).rstrip().split("Examples:\n")
    about, usage = re.split(r"^(?=Usage:|OPTIONS|millrace .*\[)", text, maxsplit=1, flags=re.M)
    name = "millrace " + " ".join(verb)
    commands = "\n".join(line.strip() for line in examples.splitlines())
    return f"## {name}\n\n{as_text(about)}\n\n```console\n{commands}\n```\n\n```text\n{usage.strip()}\n```\n"


def as_text(plain: str) -> str:
    """Plain text as Markdown: what would be a sign there stays one."""
    joined = "\n\n".join(" ".join(part.split()) for part in plain.strip().split("\n\n"))
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", joined)


def write_command_pages(millrace: str, folder: pathlib.Path) -> list:
    folder.mkdir(parents=True)
    nav = []
    for first, below in verbs(millrace).items():
        head = (
            f"# millrace {first}\n\nFor users of the command: what `--help` says. [The command line](../../cli.md) has"
        )
        head += " what is common to all verbs.\n\n"
        (folder / f"{first}.md").write_text(head + "\n".join(verb_section(millrace, verb) for verb in below))
        nav.append((f"millrace {first}", f"reference/command/{first}.md"))
    return nav


def write_python_pages(folder: pathlib.Path) -> list:
    folder.mkdir(parents=True)
    nav = []
    for module, about in MODULES.items():
        name = "package.md" if module == "millrace" else module.removeprefix("millrace.") + ".md"
        more = "".join(f"\n## {each.rpartition('.')[2]}\n\n::: {each}\n" for each in INSIDE.get(module, ()))
        (folder / name).write_text(f"# {module}\n\n{about}\n\n::: {module}\n{more}")
        nav.append((module, f"reference/python/{name}"))
    return nav


def version() -> str:
    found = re.search(r"VERSION ([0-9.]+) LANGUAGES", (ROOT / "CMakeLists.txt").read_text())
    assert found
    return found.group(1)


LIST_ITEM = re.compile(r"([-*]|1\.) ")


def with_lists(text: str) -> str:
    """A page with an empty line before each list. GitHub needs none behind a paragraph; Python's Markdown does."""
    lines: list[str] = []
    is_fenced = is_list = False
    for line in text.split("\n"):
        if line.startswith("```"):
            is_fenced = not is_fenced
        if not line.strip():
            is_list = False
        elif not is_fenced and LIST_ITEM.match(line):
            if not is_list and lines and lines[-1].strip():
                lines.append("")
            is_list = True
        lines.append(line)
    return "\n".join(lines)


def write_pages(millrace: str, pages: pathlib.Path) -> list[tuple[str, list]]:
    """All pages into a folder. Returns the navigation."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(DOCS, pages, ignore=shutil.ignore_patterns("site.yml"))
    changes = (ROOT / "CHANGELOG.md").read_text().replace("](docs/", "](")
    (pages / "changelog.md").write_text(changes.replace("# Changelog\n", "# Changelog\n\nFor users who upgrade.\n", 1))
    for page in pages.rglob("*.md"):
        page.write_text(with_lists(page.read_text()).replace("](../CHANGELOG.md)", "](changelog.md)"))
    sections = navigation((DOCS / "index.md").read_text())
    reference = next(below for title, below in sections if title == "Reference")
    reference.append(("Changelog", "changelog.md"))
    reference.append(("Command", write_command_pages(millrace, pages / "reference" / "command")))
    reference.append(("Python", write_python_pages(pages / "reference" / "python")))
    return [("Home", [("Home", "index.md")]), *sections]


def write_versions(out: pathlib.Path, this: str) -> None:
    """What the list of versions on each page reads, newest first, and the way in."""

    def key(name: str) -> list[int]:
        return [int(part) for part in name.split(".")]

    found = [path.name for path in out.iterdir() if path.is_dir() and re.fullmatch(r"[0-9]+(\.[0-9]+)*", path.name)]
    names = sorted(found, key=key, reverse=True)
    entries = [{"version": name, "title": name, "aliases": ["latest"] if name == names[0] else []} for name in names]
    (out / "versions.json").write_text(json.dumps(entries, indent=1) + "\n")
    (out / "index.html").write_text(
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>Millrace {this}</title>\n'
        f'<meta http-equiv="refresh" content="0; url={names[0]}/index.html">\n'
        f'<a href="{names[0]}/index.html">Millrace {names[0]}</a>\n</html>\n'
    )


def main() -> int:
    millrace, python, out = sys.argv[1], pathlib.Path(sys.argv[2]).absolute(), pathlib.Path(sys.argv[3]).absolute()
    work = out.with_name(out.name + "-pages")
    nav = write_pages(millrace, work / "pages")
    config = (DOCS / "site.yml").read_text()
    config = config.replace(
        "        python:\n", f"        python:\n          paths: [{json.dumps(str(ROOT / 'python'))}]\n"
    )
    config += f"docs_dir: pages\nsite_dir: site\nnav: {json.dumps(as_nav(nav))}\n"
    (work / "mkdocs.yml").write_text(config)
    built = subprocess.run(
        [python.parent / "zensical", "build", "--clean", "--strict", "-f", "mkdocs.yml"],
        cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if built.returncode != 0:
        print(built.stdout, file=sys.stderr)
        return 1
    this = version()
    shutil.rmtree(out / this, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    shutil.move(work / "site", out / this)
    write_versions(out, this)
    print(out / this / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
