# SPDX-License-Identifier: Apache-2.0
"""The whole path on one machine with a real S3 server and a real Slurm: `./dev demo --cluster`.

Raw text goes into a bucket, the bucket into a directory, an array job makes shards of it, a training on two nodes reads
them from the bucket and loses a node, a robot policy is trained and requeued, and the model is exported and generates
text. Each step prints the command that did it. All that it writes lies below --out (default: demo-cluster), which is
made anew; the services lie in a folder of their own below $TMPDIR, and end with the demo unless --keep is given.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
SERVICES = ROOT / "tests/services"
TEXT = ROOT / "examples/data/austen"
BIN = pathlib.Path(sys.executable).parent
# Three nodes for the training that loses one, and two for the one that nobody disturbs.
GROUPS = ("main:nodes=3,cpus=8,memory_mb=64000,gpus=0", "quiet:nodes=2,cpus=8,memory_mb=64000,gpus=0")
S3_PROGRAMS = ("radosgw", "ceph-mon", "ceph-osd", "radosgw-admin", "monmaptool")
SLURM_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged")


class DemoError(Exception):
    pass


class Sizes:
    """What --small changes: the same path, with less of everything."""

    def __init__(self, small: bool):
        self.novels = 1 if small else 6
        self.tasks = 2 if small else 4
        self.vocabulary = 512 if small else 4096
        self.steps, self.save_every, self.kill_at = (24, 4, 9) if small else (60, 10, 25)
        self.model = "--batch-size 2 --seq-len 32 --dim 32 --layers 1 --heads 2" if small else (
            "--batch-size 4 --seq-len 128 --dim 128 --layers 2 --heads 4")  # fmt: skip
        self.policy_steps, self.policy_save, self.policy_stop_at = 30, 10, 12
        self.robot = not small


class Services:
    """An S3 server and a Slurm in one folder, and the environment that reaches them."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.facts: dict[str, str] = {}

    def start(self, with_s3: bool) -> None:
        wanted = S3_PROGRAMS + SLURM_PROGRAMS if with_s3 else SLURM_PROGRAMS
        path = f"{os.environ['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin"
        if missing := [program for program in wanted if not shutil.which(program, path=path)]:
            raise DemoError(
                f"not installed: {', '.join(missing)}; `./dev demo --cluster` installs them with apt, where it may"
            )
        if with_s3:
            self._run("s3_server", "start", "--size-gib", "8", str(self.folder / "s3"))
        groups = [word for group in GROUPS for word in ("--group", group)]
        self._run("slurm_cluster", "start", *groups, "--conf", "SlurmdTimeout=5", str(self.folder / "slurm"))

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([SERVICES / program, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise DemoError(f"{program} {' '.join(arguments)}: {done.stderr.strip()}")
        self.facts |= dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)

    def end(self) -> None:
        for program, name in (("slurm_cluster", "slurm"), ("s3_server", "s3")):
            if (self.folder / name).exists():
                subprocess.run([SERVICES / program, "destroy", self.folder / name], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, out: pathlib.Path) -> dict[str, str]:
        """Variables of jobs and commands, on top of the caller's."""
        found = {
            "PATH": f"{out / 'bin'}:{BIN}:{os.environ['PATH']}:/usr/sbin:/sbin",
            "SLURM_CONF": self.facts["SLURM_CONF"],
            "MILLRACE_LEDGER": str(out / "ledger"),
            "MILLRACE_LINKS": str(out / "links"),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        if "S3_ENDPOINT" not in self.facts:
            return found | {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION")
        return found | {key: self.facts[key] for key in keys} | {"AWS_ENDPOINT_URL_S3": self.facts["S3_ENDPOINT"]}

    def kill_node(self, node: str) -> None:
        """SIGKILL to a node's daemon and to all that runs there, as a power cut does."""
        spool, conf = f"{self.folder}/slurm/spool/{node}", f"SLURM_CONF={self.facts['SLURM_CONF']}".encode()

        def of_node(process: pathlib.Path) -> bool:
            variables = (process / "environ").read_bytes().split(b"\0")
            if f"SLURMD_NODENAME={node}".encode() in variables and conf in variables:
                return True
            step = (process / "comm").read_text() == "slurmstepd\n"
            return step and any(os.readlink(link).startswith(spool) for link in (process / "fd").iterdir())

        os.kill(int(self.facts[f"SLURM_PID_{node}"]), signal.SIGKILL)
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if of_node(process):
                    os.kill(int(process.name), signal.SIGKILL)


class Demo:
    def __init__(self, out: pathlib.Path, services: Services, sizes: Sizes, url: str):
        self.out, self.services, self.sizes = out, services, sizes
        self.corpus, self.runs = f"{url}/corpus", f"{url}/runs"
        self.spans: list[dict] = []  # of the time line
        self.objects: list[dict] = []  # what verbs printed with --json, for the report
        self.result: dict = {"exact": {}}
        self.link: subprocess.Popen | None = None
        self.begin = time.time()
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "AWS_", "MILLRACE_"))}
        self.env = clean | services.environment(out)

    # --- printing and running

    def say(self, text: str) -> None:
        print(text, flush=True)

    @contextlib.contextmanager
    def step(self, title: str):
        number = len([span for span in self.spans if span["lane"] == "steps"]) + 1
        self.say(f"\n== {number}. {title}  [{time.time() - self.begin:.0f} s]")
        span = {"lane": "steps", "name": title, "begin": time.time(), "end": 0.0}
        self.spans.append(span)
        yield
        span["end"] = time.time()

    def run(self, command: str, shown: int = 4, statuses: tuple[int, ...] = (0,)) -> str:
        """Prints and runs a command line in the demo's folder; `shown`: how many of its last lines are printed."""
        self.say(f"$ {command}")
        with open(self.out / "commands.sh", "a") as log:
            log.write(command + "\n")
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.out,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with open(self.out / "output.txt", "a") as log:
            log.write(f"$ {command}\n{done.stdout}")
        if done.returncode not in statuses:
            raise DemoError(f"`{command}` ended with status {done.returncode}:\n{done.stdout[-3000:]}")
        lines = done.stdout.rstrip().splitlines()
        for line in lines[-shown:] if shown else []:
            self.say(f"  {line[:150]}")
        return done.stdout

    def json(self, command: str, statuses: tuple[int, ...] = (0,)) -> list[dict]:
        """The objects that a verb prints with --json; not printed."""
        done = subprocess.run(
            ["bash", "-c", f"{command} --json --quiet"], cwd=self.out, env=self.env, stdout=subprocess.PIPE, text=True
        )
        if done.returncode not in statuses:
            raise DemoError(f"`{command}` ended with status {done.returncode}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def until(self, what: str, ready: Callable[[], bool], timeout_s: float = 120) -> None:
        end = time.monotonic() + timeout_s
        while not ready():
            if time.monotonic() > end:
                raise DemoError(f"after {timeout_s:.0f} s still no {what}; logs are in {self.out / 'fsx/logs'}")
            time.sleep(0.1)

    def mark(self, lane: str, name: str) -> None:
        now = time.time()
        self.spans.append({"lane": lane, "name": name, "begin": now, "end": now})

    # --- the path

    def prepare_folder(self) -> None:
        (self.out / "raw").mkdir()
        for novel in sorted(TEXT.glob("*.txt"))[: self.sizes.novels]:
            shutil.copy(novel, self.out / "raw")
        for script in ("pretrain_lm.py", "train_vla.py", "generate.py"):
            shutil.copy(ROOT / "examples" / script, self.out)
        tools = self.out / "bin"
        tools.mkdir()
        # The node names of this Slurm do not resolve: all its nodes are this machine.
        (tools / "scontrol").write_text(
            '#!/bin/bash\n[ "$2" = hostnames ] && echo localhost || exec '
            f'{shutil.which("scontrol", path="/usr/bin:" + os.environ["PATH"])} "$@"\n'
        )
        (tools / "scontrol").chmod(0o755)
        exports = "".join(
            f"export {key}={shlex.quote(value)}\n" for key, value in self.services.environment(self.out).items()
        )
        (self.out / "env.sh").write_text(f"# source it to work with the demo's services\n{exports}")
        ends = "".join(
            f"{shlex.quote(str(SERVICES / program))} destroy {shlex.quote(str(self.services.folder / name))}\n"
            for program, name in (("slurm_cluster", "slurm"), ("s3_server", "s3"))
        )
        (self.out / "end").write_text(
            f"#!/bin/sh\n# ends the demo's services\n{ends}rmdir {shlex.quote(str(self.services.folder))}\n"
        )
        (self.out / "end").chmod(0o755)

    def stage(self) -> None:
        with self.step("Raw text goes into a bucket, with proof"):
            self.run(f"millrace stage raw {self.corpus}/raw --create-bucket")
            self.run(f"millrace verify raw {self.corpus}/raw", 1)

    def start_link(self) -> None:
        with self.step("The directories of the cluster, from one declaration"):
            (self.out / "fsx").mkdir()
            (self.out / "layout.yaml").write_text(LAYOUT.format(mount=self.out / "fsx"))
            self.run("cat layout.yaml", 9)
            self.run("millrace layout apply layout.yaml", 1)
        with self.step("The bucket and a directory of the cluster are kept in step"):
            self.run(
                f"millrace link add fsx/corpus {self.corpus} --name corpus --import new,changed --export new,changed", 1
            )
            self.run("millrace link run corpus --once", 2)
            command = "millrace link run corpus --quiet"
            self.say(f"$ {command} &")
            with open(self.out / "link.log", "w") as log:
                self.link = subprocess.Popen(
                    command.split(),
                    cwd=self.out,
                    env=self.env,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self.run("ls -sh fsx/corpus/raw", 3)

    def prepare(self) -> None:
        tasks = self.sizes.tasks
        with self.step("Split, tokenise in an array job, check"):
            self.run(
                f"millrace split fsx/corpus/raw/*.txt --documents paragraph --out fsx/corpus/parts --parts {tasks}", 1
            )
            sys.path.insert(0, str(ROOT / "tools"))
            import demo

            demo.VOCABULARY = self.sizes.vocabulary
            demo.train_tokenizer(sorted((self.out / "fsx/corpus/parts").glob("*.txt")), self.out / "fsx/tokenizer.json")
            self.say(
                f"  (a tokenizer of {self.sizes.vocabulary} tokens, trained on it by the package tokenizers: fsx/tokenizer.json)"
            )
            self.run(
                "millrace job new preprocess --input 'fsx/corpus/parts/*.txt' --tokenizer fsx/tokenizer.json --output fsx/corpus/shards"
                f" --tasks {tasks} --cpus-per-gpu 1 --log-dir fsx/logs --out preprocess.sbatch -- --documents paragraph", 1)  # fmt: skip
            self.run("millrace job lint preprocess.sbatch", 1)
            self.run("millrace job submit preprocess.sbatch --watch", 2)
            self.run("millrace prepare --finish fsx/corpus/shards", 1)
            self.run("millrace shards check fsx/corpus/shards", 1)
        with self.step("The shards are proven to be in the bucket"):
            self.run("millrace link wait fsx/corpus/shards", 1)
            self.run(f"millrace shards check {self.corpus}/shards", 1)

    def plan(self) -> None:
        with self.step("Plan two models on 16 nodes, and write their cluster's file"):
            self.run("millrace plan batch --gpu h200 --parameters 8.03B --layers 32 --hidden 4096 --vocabulary 128256"
                     " --tokens 8192 --zero 3 --shards 64 --recompute selective | head -7", 7)  # fmt: skip
            self.run(
                "millrace plan nodes --nodes 16 --instance p5e.48xlarge --model llama:weight=3 --model groot:weight=1 --spares 1 | head -5",
                5,
            )
            self.run(
                "millrace plan checkpoint --parameters 8.03B --models 2 --quota 7.7TB --bandwidth 7.03GB/s --keep-last 2 --gpus 64 | head -12",
                12,
            )
            (self.out / "spec.yaml").write_text(SPEC)
            self.run("cat spec.yaml", 20)
            self.run("millrace cluster new spec.yaml --out cluster.yaml", 1)
            self.run("millrace cluster lint cluster.yaml --fail-on warning", 1)

    def training(self, name: str) -> str:
        """The command that writes a training's batch script."""
        sizes, partition = self.sizes, "quiet" if name == "quiet" else "main"
        shards = (
            f"'{self.corpus}/shards/{{00000..{sizes.tasks - 2:05d}}}.tar'"
            if sizes.tasks > 2
            else f"{self.corpus}/shards/00000.tar"
        )
        return (
            f"millrace job new train --name {name} --partition {partition} --nodes 2 --gpus 0 --cpus-per-gpu 2 --shared --mem 4G"
            " --time 30 --monitor 1"
            f" --max-restarts 3 --log-dir fsx/logs --out {name}.sbatch --"
            f" pretrain_lm.py --shards {shards} --valid {self.corpus}/shards/{sizes.tasks - 1:05d}.tar"
            f" --cache '{self.out}/nodes/$SLURMD_NODENAME/cache' --cache-bytes 1GB --tokenizer fsx/tokenizer.json"
            f" --out {self.runs}/{name} --tier '{self.out}/nodes/$SLURMD_NODENAME/{name}' --tier {self.out}/fsx/{name}"
            f" --record fsx/records/{name} --log-file fsx/{name}.jsonl --model-files fsx/model-files"
            f" --steps {sizes.steps} --save-every {sizes.save_every} {sizes.model}"
        )

    def lines(self, name: str) -> list[dict]:
        path = self.out / f"fsx/{name}.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def losses(self, name: str) -> dict[int, str]:
        """By step. A step that was trained twice must have given the same bits."""
        found: dict[int, str] = {}
        for line in self.lines(name):
            if found.setdefault(line["step"], line["loss_hex"]) != line["loss_hex"]:
                raise DemoError(
                    f"{name}: step {line['step']} has two losses, {found[line['step']]} and {line['loss_hex']}"
                )
        return dict(sorted(found.items()))

    def submit(self, name: str, check: bool = True) -> int:
        if check:
            self.run(f"millrace job lint {name}.sbatch", 1)
            self.run(f"millrace job check {name}.sbatch --probe", 5)
        text = self.run(f"millrace job submit {name}.sbatch", 1)
        return int(re.findall(r"job (\d+)", text)[0])

    def nodes_of(self, job: int) -> list[str]:
        shown = self.json(f"millrace job show {job}")[0]["node_list"]
        found = []
        for prefix, ranges in re.findall(r"([a-z]+)(?:\[([\d,-]+)\])", shown) or []:
            for part in ranges.split(","):
                first, _, last = part.partition("-")
                found += [f"{prefix}{i}" for i in range(int(first), int(last or first) + 1)]
        return found or shown.split(",")

    def train(self) -> None:
        sizes = self.sizes
        with self.step("A training on two nodes is checked and submitted, and the same one to compare with"):
            for name in ("lm", "quiet"):
                self.run(self.training(name), 1)
            job = self.submit("lm")
            quiet = self.submit("quiet", check=False)
        with self.step(f"A node of it is killed with -9 behind step {sizes.kill_at}"):
            self.until(f"step {sizes.kill_at}", lambda: any(line["step"] >= sizes.kill_at for line in self.lines("lm")))
            node = self.nodes_of(job)[-1]
            self.say(f"$ kill -9 ...  # the daemon of node {node}, and all that runs there")
            self.services.kill_node(node)
            self.mark("training", f"kill -9 of {node}")
            killed_at = self.lines("lm")[-1]["step"]
        with self.step("Slurm notices, the job is requeued on other nodes and goes on by itself"):
            self.run(f"millrace job wait {job} {quiet}", 6)
            self.run(f"millrace job logs {job} | tail -n 4", 4)
            used = self.nodes_of(job)
            if node in used:
                raise DemoError(f"the job ended on {used}, with the dead {node} among them")
            self.compare("lm", "quiet", sizes.steps)
            first = min((line["step"] for line in self.lines("lm")[::-1]), default=0)
            self.result["kill"] = {"node": node, "at_step": killed_at, "ended_on": used, "first": first}
            self.run(f"millrace ckpt ls {self.runs}/lm", 3)

    def compare(self, name: str, quiet: str, steps: int) -> None:
        ours, theirs = self.losses(name), self.losses(quiet)
        if list(theirs) != list(range(1, steps + 1)):
            raise DemoError(f"{quiet}: steps {list(theirs)} are not 1 to {steps}")
        exact = ours == theirs
        self.result["exact"][name] = exact
        self.say(f"  {len(ours)} losses of {name}, {sum(ours.get(k) == v for k, v in theirs.items())} of them equal to the"
                 f" undisturbed run's, to the last bit")  # fmt: skip
        if not exact:
            raise DemoError(f"the losses of {name} differ from those of {quiet}")

    def robot(self) -> None:
        sizes = self.sizes
        with self.step("A robot dataset: made, checked, converted, into the bucket"):
            self.run("millrace lerobot demo arm-v2 --version 2.1 --codec h264 --fps 10", 1)
            self.run("millrace lerobot validate arm-v2", 1)
            self.run("millrace lerobot convert arm-v2 fsx/arm --to 3.0", 1)
            self.run("millrace lerobot validate fsx/arm --deep", 1)
            self.run(f"millrace sync fsx/arm {self.corpus}/arm", 1)
        with self.step("A policy is trained on it on two nodes, requeued half-way, and compared likewise"):
            for name, partition in (("policy", "main"), ("policy-quiet", "quiet")):
                self.run(
                    f"millrace job new train --name {name} --partition {partition} --nodes 2 --gpus 0 --cpus-per-gpu 2 --shared --mem 4G"
                    " --time 30 --monitor 0"
                    f" --log-dir fsx/logs --out {name}.sbatch -- train_vla.py --dataset fsx/arm"
                    f" --tokenizer fsx/tokenizer.json --out {self.runs}/{name} --log-file fsx/{name}.jsonl --steps {sizes.policy_steps}"
                    f" --save-every {sizes.policy_save} --batch-size 4 --dim 64 --layers 2", 0)  # fmt: skip
            job = self.submit("policy")
            quiet = self.submit("policy-quiet", check=False)
            self.until(
                f"step {sizes.policy_stop_at}",
                lambda: any(line["step"] >= sizes.policy_stop_at for line in self.lines("policy")),
            )
            self.run(f"millrace job requeue {job}", 1)
            self.mark("training", "requeue of the policy")
            self.run(f"millrace job wait {job} {quiet}", 6)
            self.compare("policy", "policy-quiet", sizes.policy_steps)

    def export(self) -> None:
        with self.step("The model becomes a Hugging Face folder, and generates"):
            self.run(f"millrace ckpt export {self.runs}/lm model --like fsx/model-files", 1)
            self.run("ls -sh model", 6)
            if importlib.util.find_spec("transformers") is None:
                self.say("  not generated: transformers is not installed here")
                return
            text = self.run("python generate.py model 'It is a truth universally acknowledged'", 3)
            self.result["generated"] = text.strip().splitlines()[-1]

    def look_back(self) -> None:
        with self.step("What differs between the two runs, and what a doctor says"):
            self.run("millrace runs diff fsx/records/lm fsx/records/quiet", 12)
            self.run("millrace runs show fsx/records/lm", 30)
            self.run("millrace doctor fsx/records/lm", 12, (0, 3))
            self.objects += self.json("millrace runs diff fsx/records/lm fsx/records/quiet")
            self.objects += self.json("millrace doctor fsx/records/lm", (0, 3))
            self.objects += self.json("millrace runs show fsx/records/lm")

    def report(self) -> None:
        """The page of all: the parts that the verbs make with --html, and the time line of the steps before them."""
        page = self.out / "report.html"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        version = self.run("millrace --version", 0).split()[-1]
        about = {"type": "report", "title": "From text to a model", "command": "./dev demo --cluster",
                 "host": os.uname().nodename, "time": now, "version": version}  # fmt: skip
        inputs = [("record", name, f"fsx/records/{name}") for name in ("lm", "quiet")]
        inputs += [("samples", path.stem, path) for path in sorted((self.out / "fsx/logs").glob("gpu-*.csv"))]
        lines = [about, *({"type": "report_span"} | span for span in self.spans), *self.objects]
        lines += [
            {"type": "report_input", "kind": kind, "name": name, "path": str(self.out / path)}
            for kind, name, path in inputs
        ]
        source = self.out / "report.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        from millrace.report import write_report

        write_report(source, page)
        source.unlink()
        self.result["report"] = str(page)
        self.say(f"\nreport: {page}")

    def everything(self) -> None:
        self.prepare_folder()
        self.stage()
        self.start_link()
        self.prepare()
        self.plan()
        self.train()
        if self.sizes.robot:
            self.robot()
        self.export()
        self.look_back()
        self.report()

    def end(self) -> None:
        if self.link is not None and self.link.poll() is None:
            self.link.terminate()
            try:
                self.link.wait(20)
            except subprocess.TimeoutExpired:
                self.link.kill()
                self.link.wait()


LAYOUT = """\
mounts: [{{path: {mount}, mountpoint: false}}]
directories:
  - {{path: "{mount}/{{corpus,logs,records}}"}}
"""

SPEC = """\
region: us-east-2
instance: p5e.48xlarge
count: 16
reservation: cr-0123456789abcdef0
subnet: subnet-0aaaaaaaaaaaabbbb
head_subnet: subnet-0aaaaaaaaaaaacccc
buckets: [corpus, {name: runs, write: true}]
storage:
  - {mount: /fsx, gib: 7200, mbps_per_tib: 1000}
models: [llama, groot]
"""


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev demo --cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "demo-cluster", help="folder that is made anew")
    parser.add_argument("--small", action="store_true", help="less of everything, and no robot: under a minute")
    parser.add_argument("--keep", action="store_true", help="leave the services up, and say how to end them")
    parser.add_argument(
        "--s3",
        metavar="URL",
        help="a bucket, or a folder in one, of a service that AWS_* leads to, in place of one's own",
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object, last")
    args = parser.parse_args()
    out = args.out.absolute()
    if out.exists() and any(out.iterdir()) and not (out / ".millrace-demo").exists():
        parser.error(f"{out} is not empty and not of a demo: name another --out")
    if (out / "end").exists():
        subprocess.run(
            [out / "end"], check=False, stderr=subprocess.DEVNULL
        )  # of a demo with --keep, or one that was killed
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / ".millrace-demo").touch()
    signal.signal(signal.SIGTERM, interrupted)
    services = Services(pathlib.Path(tempfile.mkdtemp(prefix="millrace-demo-")))
    demo: Demo | None = None
    kept = False
    begin = time.monotonic()
    try:
        print(f"starting {'a Slurm' if args.s3 else 'an S3 server and a Slurm'} of five nodes", flush=True)
        services.start(args.s3 is None)
        demo = Demo(out, services, Sizes(args.small), args.s3 or "s3://demo")
        demo.everything()
        demo.result["seconds"] = round(time.monotonic() - begin, 1)
        print(f"\nall done in {demo.result['seconds']:.0f} s; everything is in {out}")
        if args.json:
            print(json.dumps(demo.result))
        kept = args.keep
        if kept:
            print(f"The services are up. To use them:  source {out / 'env.sh'}\nTo end them:  {out / 'end'}")
        return 0
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: stopped", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if demo is not None:
            demo.end()
        if not kept:
            services.end()


if __name__ == "__main__":
    sys.exit(main())
