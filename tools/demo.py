# SPDX-License-Identifier: Apache-2.0
"""The main job on one machine, with no network: raw text -> shards -> training -> kill -9 -> resume -> the same losses.

`./dev demo` runs this. Everything it writes lies below --out (default: demo-out), which is made anew.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXT = ROOT / "examples/data/austen"
BIN = pathlib.Path(sys.executable).parent
TASKS = 5  # raw files, array tasks and shards; the last one is held out for validation
VOCABULARY = 4096
STEPS, SAVE_EVERY = 24, 8
MODEL = ["--batch-size", "4", "--seq-len", "128", "--dim", "128", "--layers", "2"]


class DemoError(Exception):
    pass


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def millrace(*arguments: str) -> dict:
    """The last JSON object a verb prints."""
    command = [str(BIN / "millrace"), *arguments, "--json", "--quiet"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise DemoError(f"{' '.join(command)} ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def train_tokenizer(files: list[pathlib.Path], path: pathlib.Path) -> None:
    """A byte-level BPE with a Llama-3 style beginning-of-text token, by the package `tokenizers`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|begin_of_text|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(f) for f in files], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    tokenizer.save(str(path))


def prepare(out: pathlib.Path) -> dict:
    say(f"1/4  cutting {len(list(TEXT.glob('*.txt')))} novels into {TASKS} files and training a tokenizer on them")
    novels = [str(p) for p in sorted(TEXT.glob("*.txt"))]
    millrace("split", *novels, "--out", str(out / "raw"), "--parts", str(TASKS), "--documents", "paragraph")
    raw = sorted((out / "raw").glob("part-*.txt"))
    train_tokenizer(raw, out / "tokenizer.json")
    say(f"2/4  preparing: {TASKS} tasks, as an array job would run them, then the manifest")
    total = {"documents": 0, "tokens": 0, "input_bytes": 0, "output_bytes": 0, "seconds": 0.0, "cpu_seconds": 0.0}
    shards = str(out / "shards")
    for task in range(TASKS):
        report = millrace(
            *("prepare", *map(str, raw), "--tokenizer", str(out / "tokenizer.json"), "--out", shards),
            *("--task", f"{task}/{TASKS}", "--documents", "paragraph"),
        )
        for name in total:
            total[name] += report[name]
    millrace("prepare", "--finish", shards)
    return total


def loader_speed(out: pathlib.Path) -> dict:
    """The speed of the loader without training: packed rows, as fast as one consumer takes them."""
    import millrace as mr

    pattern = str(out / "shards" / f"{{00000..{TASKS - 2:05d}}}.tar")
    begin = time.perf_counter()
    tokens = 0
    with mr.Loader(pattern, batch_size=16, seq_len=512, collate="pack", epochs=5) as loader:
        for batch in loader:
            tokens += batch["input_ids"].size
    seconds = time.perf_counter() - begin
    return {"tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds}


class Run:
    """One training run in its own folder; several processes may work on it, one after another."""

    def __init__(self, out: pathlib.Path, name: str, ranks: int):
        self.folder = out / name
        self.folder.mkdir()
        self.checkpoints = self.folder / "checkpoints"
        self.ranks = ranks
        self.known: list[int] = []  # its processes, once it writes
        shards = [str(out / "shards" / f"{task:05d}.tar") for task in range(TASKS)]
        launcher = [sys.executable]
        if ranks > 1:
            launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        self.command = [
            *launcher, str(ROOT / "examples/pretrain_lm.py"), "--shards", *shards, "--valid", "1",
            "--tokenizer", str(out / "tokenizer.json"), "--out", str(self.checkpoints), "--steps", str(STEPS),
            "--save-every", str(SAVE_EVERY), *MODEL,
        ]  # fmt: skip

    def start(self, log: str) -> subprocess.Popen:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": ""}
        with open(self.folder / f"{log}.out", "w") as output:
            return subprocess.Popen(
                [*self.command, "--log-file", str(self.folder / f"{log}.jsonl")],
                stdout=output, stderr=subprocess.STDOUT, env=environment,
            )  # fmt: skip

    def finish(self, process: subprocess.Popen, log: str) -> list[dict]:
        if process.wait() != 0:
            text = (self.folder / f"{log}.out").read_text()[-3000:]
            raise DemoError(f"training ended with status {process.returncode}; {self.folder / log}.out ends:\n{text}")
        return self.lines(log)

    def lines(self, log: str) -> list[dict]:
        path = self.folder / f"{log}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def kill(self, process: subprocess.Popen) -> None:
        """SIGKILL to every process of the run; torchrun's ranks are in sessions of their own, and go first: to look for
        them takes longer than a checkpoint does."""
        for pid in self.known:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def processes(self) -> list[int]:
        found = subprocess.run(["pgrep", "-f", str(self.checkpoints)], stdout=subprocess.PIPE, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def between_checkpoints(self, process: subprocess.Popen) -> bool:
        """Two steps behind a checkpoint."""
        lines = self.lines("killed")
        return (
            bool(lines)
            and lines[-1]["step"] >= SAVE_EVERY + 2
            and bool(list(self.checkpoints.glob("step-*/manifest.json")))
        )

    def while_writing(self, process: subprocess.Popen) -> bool:
        """A second step's files are being written and not committed yet."""
        steps = list(self.checkpoints.glob("step-*"))
        if steps and not self.known:
            self.known = self.processes()
        return len(steps) >= 2 and any(not (s / "manifest.json").exists() and any(s.rglob("*rank-*")) for s in steps)


def kill_and_resume(out: pathlib.Path, name: str, ranks: int, when: str, reference: list[dict]) -> dict:
    for attempt in range(5):
        run = Run(out, f"{name}-{attempt}", ranks)
        process = run.start("killed")
        reached = getattr(run, when)
        while process.poll() is None and not reached(process):
            time.sleep(0.0005 if when == "while_writing" else 0.01)
        run.kill(process)
        committed = sorted(
            int(p.parent.name.removeprefix("step-")) for p in run.checkpoints.glob("step-*/manifest.json")
        )
        unfinished = [p for p in run.checkpoints.glob("step-*") if not (p / "manifest.json").exists()]
        if committed and committed[-1] < STEPS and (when != "while_writing" or unfinished):
            break
    else:
        raise DemoError(f"{name}: never caught the moment to kill it")
    seen = run.lines("killed")[-1]["step"]
    lines = run.finish(run.start("resumed"), "resumed")
    expected = {line["step"]: line["loss_hex"] for line in reference}
    first = lines[0]["step"]
    equal = [line["loss_hex"] == expected[line["step"]] for line in lines]
    if first != committed[-1] + 1 or lines[-1]["step"] != STEPS:
        raise DemoError(
            f"{name}: went on at step {first} behind checkpoints {committed} and ended at {lines[-1]['step']}"
        )
    return {"ranks": ranks, "when": when.replace("_", " "), "killed_at_step": seen, "resumed_from": committed[-1],
            "losses_compared": len(equal), "losses_equal": sum(equal), "exact": all(equal)}  # fmt: skip


def train(out: pathlib.Path) -> tuple[dict, list[dict]]:
    kills = []
    stats = {}
    for ranks in (1, 2):
        say(
            f"{ranks + 2}/4  training on {ranks} rank{'s' * (ranks > 1)}: uninterrupted, then killed with -9 twice and resumed"
        )
        reference_run = Run(out, f"reference-{ranks}", ranks)
        reference = reference_run.finish(reference_run.start("train"), "train")
        for when in ("between_checkpoints", "while_writing"):
            kills.append(kill_and_resume(out, f"killed-{when}-{ranks}", ranks, when, reference))
        if ranks == 1:
            steady = reference[2:]
            stats = {
                "steps": len(reference),
                "first_loss": reference[0]["loss"],
                "last_loss": reference[-1]["loss"],
                "valid_loss": reference[-1]["valid_loss"],
                "tokens_per_s": sorted(line["tokens_per_s"] for line in steady)[len(steady) // 2],
                "data_wait_s": sum(line["data_wait_s"] for line in steady),
                "first_data_wait_s": reference[0]["data_wait_s"],
                "save_stall_s": sum(line["save_stall_s"] for line in reference),
                "saves": sum(line["save_stall_s"] > 0 for line in reference),
            }
    return stats, kills


def table(result: dict) -> str:
    p, load, t = result["prepare"], result["load"], result["train"]
    rows = [
        ("prepare", f"{p['documents']:,} documents, {p['tokens']:,} tokens, {p['input_bytes'] / 1e6:.1f} MB of text -> {p['output_bytes'] / 1e6:.1f} MB of shards"),
        ("", f"{p['input_bytes'] / p['seconds'] / 1e6:.0f} MB/s, {p['input_bytes'] / p['cpu_seconds'] / 1e6:.0f} MB per CPU-second"),
        ("loader could give", f"{load['tokens_per_s']:,.0f} tokens/s"),
        ("training took", f"{t['tokens_per_s']:,.0f} tokens/s (loss {t['first_loss']:.3f} -> {t['last_loss']:.3f}, validation {t['valid_loss']:.3f})"),
        ("waited for data", f"{t['data_wait_s'] * 1e3:.1f} ms in {t['steps'] - 2} steps, and {t['first_data_wait_s'] * 1e3:.0f} ms for the first batch"),
        ("waited for saves", f"{t['save_stall_s'] * 1e3:.1f} ms in {t['saves']} checkpoints"),
    ]  # fmt: skip
    for kill in result["kills"]:
        rows.append((
            f"kill -9, {kill['ranks']} rank{'s' if kill['ranks'] > 1 else ''}",
            f"{kill['when']}, at step {kill['killed_at_step']}: resumed from {kill['resumed_from']}, "
            f"{kill['losses_equal']} of {kill['losses_compared']} losses equal to the last bit",
        ))  # fmt: skip
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def next_steps(out: pathlib.Path) -> str:
    shown = os.path.relpath(out)
    return f"""
Files are in {shown}: raw/ tokenizer.json shards/ and a folder for each training run. Try next:
  source .venv/bin/activate
  millrace shards ls {shown}/shards
  millrace shards cat {shown}/shards/00000.tar --limit 2
  millrace ckpt ls {shown}/reference-1/checkpoints
  python examples/pretrain_lm.py --help
  ./dev bench"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "demo-out", help="folder that is made anew")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    args = parser.parse_args()
    if args.out.exists() and any(args.out.iterdir()) and not (args.out / ".millrace-demo").exists():
        parser.error(f"{args.out} is not empty and not of a demo: name another --out")
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    (args.out / ".millrace-demo").touch()
    begin = time.perf_counter()
    try:
        result = {"prepare": prepare(args.out), "load": loader_speed(args.out)}
        result["train"], result["kills"] = train(args.out)
    except DemoError as error:
        say(f"demo: {error}")
        return 1
    result["seconds"] = time.perf_counter() - begin
    result["out"] = str(args.out)
    if args.json:
        print(json.dumps(result))
    else:
        print(table(result))
        print(next_steps(args.out))
    return 0 if all(kill["exact"] for kill in result["kills"]) else 1


if __name__ == "__main__":
    sys.exit(main())
