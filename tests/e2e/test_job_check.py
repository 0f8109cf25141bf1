# SPDX-License-Identifier: Apache-2.0
"""millrace job check on a real Slurm: each rule is brought about, and stays silent where its cause is mended."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path

import pytest
from conftest import REPOSITORY, Millrace
from hub_server import Hub
from s3_fixture import S3
from slurm_fixture import Slurm

TOKEN = "hf_PLANTEDabcdefghijklmnop"


@pytest.fixture
def jobs(millrace: Millrace, slurm: Slurm, tmp_path: Path) -> Millrace:
    """The binary with the real Slurm of the tests, and an environment that says nothing about the job."""
    clean = {
        name: value
        for name, value in millrace.env.items()
        if not name.startswith(("SBATCH", "HF_", "NCCL", "FI_", "TORCH_"))
    }
    millrace.env = clean | slurm.env | {"MILLRACE_LEDGER": str(tmp_path / "ledger"), "HOME": str(tmp_path)}
    return millrace


def script(folder: Path, body: str, *options: str) -> Path:
    path = folder / "job.sbatch"
    path.write_text("\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), body, ""]))
    return path


class Checked:
    def __init__(self, objects: list[dict]):
        self.found = {each["rule"]: each for each in objects if each["type"] == "lint"}
        self.answers: dict[str, list[dict]] = {}
        for each in objects:
            if each["type"] == "job_check":
                self.answers.setdefault(each["subject"], []).append(each)

    def evidence(self, subject: str) -> str:
        return "; ".join(each["evidence"] for each in self.answers[subject] if each["known"])

    def unknown(self, subject: str) -> str:
        return "; ".join(each["evidence"] for each in self.answers[subject] if not each["known"])


def check(millrace: Millrace, path: Path, *more: object, status: int = 0) -> Checked:
    return Checked(millrace("job", "check", path, "--json", *more, status=status).objects())


def found_by(millrace: Millrace, path: Path, *more: object) -> dict[str, dict]:
    """The findings, whatever their severities."""
    return Checked(millrace("job", "check", path, "--json", "--fail-on=never", *more).objects()).found


def test_a_good_job_gets_an_answer_to_each_question(jobs: Millrace, tmp_path: Path):
    (tmp_path / "logs").mkdir()
    options = ("--time=10", "--nodes=2", "--gpus-per-node=4", "--output=logs/%x-%j.log", "--mem=4G")
    checked = check(jobs, script(tmp_path, f"ls {tmp_path}", *options))
    assert not checked.found
    assert checked.evidence("log").startswith(f"{tmp_path}/logs is there")
    assert "main takes jobs; the job's limit is 00:10:00, the partition's no limit" in checked.evidence("partition")
    assert "any may be named" in checked.evidence("accounts")
    assert checked.evidence("gpus") == "32 of 32 GPUs of partition main are free now"
    assert "2 nodes of 1 CPUs, 4096 MiB, 4 GPUs: 4 of 4 nodes" in checked.evidence("nodes")
    assert "Slurm takes it, and would start it at 20" in checked.evidence("start")
    assert f"/{tmp_path.parts[1]} are there" in checked.evidence("mounts")
    assert "no finding" in checked.evidence("environment")
    text = jobs("job", "check", tmp_path / "job.sbatch").out
    assert "fine: gpus: 32 of 32 GPUs" in text and text.endswith("1 file: 0 errors, 0 warnings, 0 notes\n")


def test_the_log_folder(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "true", "--time=1", "--output=logs/%x/%j.log", "--job-name=first")
    found = check(jobs, path, status=3).found["JC01"]
    assert found["line"] == 3 and found["message"] == f"the log's folder {tmp_path}/logs/first is missing"
    assert found["fix"] == f"mkdir -p {tmp_path}/logs/first"
    (tmp_path / "logs/first").mkdir(parents=True)
    assert not check(jobs, path).found
    assert "makes no folders" in check(jobs, path, "--sbatch=--output=%j/log", status=3).found["JC01"]["message"]
    (tmp_path / "file").touch()
    assert "is a file" in check(jobs, path, "--sbatch=--error=file/log", status=3).found["JC01"]["message"]
    assert not check(jobs, path, "--sbatch=--error=/dev/null").found


def test_a_log_folder_that_the_user_may_not_write_to(jobs: Millrace, tmp_path: Path):
    closed = tmp_path / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    path = script(tmp_path, "true", "--time=1", f"--output={closed}/%j.log")
    command = [jobs.binary, "job", "check", path, "--json"]
    (tmp_path / "env").symlink_to("/usr/bin/env")
    jobs.env["PATH"] = str(tmp_path)  # without Slurm, whose folder another user may not enter
    if os.geteuid() == 0:  # root may write anywhere
        for folder in (tmp_path, *tmp_path.parents):
            folder.chmod(folder.stat().st_mode | 0o055) if folder != Path("/") else None
        command = [shutil.which("setpriv") or "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    done = subprocess.run(command, cwd=tmp_path, env=jobs.env, capture_output=True, text=True, timeout=60)
    found = Checked([json.loads(line) for line in done.stdout.splitlines()]).found["JC01"]
    assert f"you may not write to {closed}" in found["message"] and done.returncode == 3


def test_the_partition_and_its_limits(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    path = script(tmp_path, "true", "--time=2:00:00", "--nodes=2", "--partition=small", "--output=/dev/null")
    assert not check(jobs, path).found
    gone = check(jobs, path, "--sbatch=--partition=none", status=3).found
    assert "there is no partition none; there are main, small, spare" in gone["JC02"]["message"]
    assert "invalid partition" in gone["JC13"]["message"]
    # An environment variable wins over the script, as in sbatch.
    jobs.env["SBATCH_PARTITION"] = "elsewhere"
    assert "no partition elsewhere" in check(jobs, path, status=3).found["JC02"]["message"]
    del jobs.env["SBATCH_PARTITION"]
    try:
        slurm.run("scontrol", "update", "PartitionName=small", "MaxTime=60", "MaxNodes=1")
        found = jobs("job", "check", path, "--json", status=3).objects("lint")
        assert {each["message"] for each in found if each["rule"] == "JC03"} == {
            "the job asks for 02:00:00, and partition small allows 01:00:00",
            "the job asks for 2 nodes, and partition small allows a job 1",
        }
        either = check(jobs, path, "--sbatch=--partition=small,main")
        assert either.found["JC03"]["severity"] == "note" and "main takes jobs" in either.evidence("partition")
        slurm.run("scontrol", "update", "PartitionName=small", "MaxTime=UNLIMITED", "MaxNodes=UNLIMITED")
        slurm.run("scontrol", "update", "PartitionName=small", "State=DRAIN")
        assert "DRAIN: it takes no jobs" in check(jobs, path, status=3).found["JC02"]["message"]
        slurm.run("scontrol", "update", "PartitionName=small", "State=DOWN")
        assert check(jobs, path).found["JC02"]["severity"] == "warning"
        slurm.run("scontrol", "update", "PartitionName=small", "State=UP", "AllowAccounts=physics")
        refused = check(jobs, path, "--sbatch=--account=biology", status=3).found["JC02"]
        assert "is for the account physics, and the job asks for biology" in refused["message"]
        assert "JC02" not in found_by(jobs, path, "--sbatch=--account=physics")
    finally:
        slurm.run(
            "scontrol", "update", "PartitionName=small", "State=UP", "MaxTime=UNLIMITED", "MaxNodes=UNLIMITED",
            "AllowAccounts=ALL",
        )  # fmt: skip


def test_gpus_memory_and_cpus(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    path = script(tmp_path, "sleep 60", "--time=5", "--partition=small", "--output=/dev/null")
    kind = check(jobs, path, "--sbatch=--gpus-per-node=h200:1", status=3).found["JC05"]
    assert kind["message"] == "partition small has no h200 GPUs; it has l40s"
    many = check(jobs, path, "--sbatch=--gpus-per-node=8", status=3).found["JC05"]
    assert "0 of 2 nodes of partition small have them, 4 at most" in many["message"]
    total = check(jobs, path, "--sbatch=--gpus=9", status=3).found["JC05"]
    assert "the job asks for 9 GPUs, and partition small has 8" in total["message"]
    assert "8 of 8 GPUs" in check(jobs, path, "--sbatch=--gpus=8").evidence("gpus")
    memory = check(jobs, path, "--sbatch=--mem=200G", status=3).found["JC06"]
    assert "204800 MiB on each of 1 nodes; the nodes of partition small have 96000 at most" in memory["message"]
    cpus = check(jobs, path, "--sbatch=--cpus-per-task=17", status=3).found["JC06"]
    assert "17 CPUs on each of 1 nodes; the nodes of partition small have 16 at most" in cpus["message"]
    nodes = check(jobs, path, "--sbatch=--nodes=3", status=3).found["JC06"]
    assert "JC05" not in check(jobs, path, "--sbatch=--nodes=3", status=3).found and nodes["message"]
    running = jobs("job", "submit", path, "--sbatch=--gpus-per-node=3", "--json").object("job_submitted")["job_id"]
    until_running(slurm, running)
    assert "5 of 8 l40s GPUs" in check(jobs, path, "--sbatch=--gpus-per-node=l40s:1").evidence("gpus")


def until_running(slurm: Slurm, job: str) -> None:
    for _ in range(300):
        if slurm.job(int(job))["JobState"] == "RUNNING":
            return
        time.sleep(0.1)
    raise AssertionError(slurm.job(int(job)))


def test_room_for_checkpoints(jobs: Millrace, tmp_path: Path):
    path = script(
        tmp_path, "srun python train.py --checkpoint-dir ckpt --keep-last 3", "--time=5", "--output=/dev/null"
    )
    assert "the size of a checkpoint is not known" in check(jobs, path).unknown("checkpoints")
    found = check(jobs, path, "--checkpoint-size=400TB", status=3).found["JC07"]
    assert "4 checkpoints of 400 TB are still to come" in found["message"] and found["line"] == 4
    step = tmp_path / "ckpt/step-10/a"
    step.mkdir(parents=True)
    (step / "rank-0").write_bytes(bytes(2_000_000))
    assert "3 of 2.00 MB are kept" in check(jobs, path).evidence("checkpoints")
    (tmp_path / "plain").touch()
    closed = check(jobs, path, "--checkpoints=plain/below", "--checkpoint-size=1MB", status=3).found["JC07"]
    assert f"you may not write to {tmp_path}/plain" in closed["message"]


def test_room_for_checkpoints_by_the_plan(jobs: Millrace, tmp_path: Path):
    """Where nobody gave the size: of the parameters, and of the model that the script names."""
    options = ("--time=5", "--output=/dev/null")
    path = script(tmp_path, "srun python train.py --save-dir ckpt --keep-last 3", *options)
    assert "--parameters" in check(jobs, path).unknown("checkpoints")
    found = check(jobs, path, "--parameters=30000B", status=3).found["JC07"]
    assert found["severity"] == "error" and "4 checkpoints of 420 TB are still to come" in found["message"]
    assert "planned for 3e+04B parameters, 14 bytes each" in found["message"]
    fits = check(jobs, path, "--parameters=1M").evidence("checkpoints")
    assert "3 of 14.0 MB (planned for 0.001B parameters, 14 bytes each" in fits
    named = script(tmp_path, "srun python train.py --save-dir ckpt --model_name_or_path org/Big-20000B-it", *options)
    found = check(jobs, named).found["JC07"]
    assert found["severity"] == "warning" and "3 checkpoints of 280 TB" in found["message"]
    assert "parameters of org/Big-20000B-it" in found["message"] and found["line"] == 4
    assert "JC07" not in check(jobs, named, "--checkpoint-size=1MB").found
    # Weights that are there say more than a name.
    model = tmp_path / "tiny-7B"
    model.mkdir()
    (model / "config.json").write_text('{"torch_dtype": "bfloat16"}')
    (model / "model-00001-of-00002.safetensors").write_bytes(bytes(1_000_000))
    (model / "model-00002-of-00002.safetensors").write_bytes(bytes(1_000_000))
    local = script(tmp_path, "srun python train.py --save-dir ckpt --model tiny-7B", *options)
    assert "2 of 14.0 MB (planned for 0.001B parameters of tiny-7B" in check(jobs, local).evidence("checkpoints")


def test_room_for_checkpoints_of_groot(jobs: Millrace, tmp_path: Path):
    """About what a checkpoint takes is known before there is one: 6 GB, and 8 bytes for each trained parameter."""
    command = "python3 gr00t/experiment/launch_finetune.py --output-dir out"
    path = script(tmp_path, f"srun {command}", "--time=5", "--output=/dev/null")
    # The size is known; whether it fits depends on the machine's disk.
    found = Checked(jobs("job", "check", path, "--json", "--fail-on=never").objects())
    if "JC07" in found.found:
        assert "6 checkpoints of 14.0 GB are still to come" in found.found["JC07"]["message"]
    else:
        told = found.evidence("checkpoints")
        assert "5 of 14.0 GB (about 6.00 GB for the model of GR00T and 8.00 GB for the optimizer's state" in told
    sizes = {
        "launch_finetune.py --save-only-model": (6, "6.00 GB"),
        "launch_finetune.py --tune-llm": (6, "30.0 GB"),
        "launch_finetune.py --tune_visual --no-tune-projector --no-tune-diffusion-model": (6, "22.0 GB"),
        "gr00t_finetune.py": (9, "14.0 GB"),
        "gr00t_finetune.py --lora-rank 32": (9, "6.00 GB"),
    }
    for words, (count, size) in sizes.items():
        asked = script(tmp_path, f"srun python3 scripts/{words} --output-dir out", "--time=5", "--output=/dev/null")
        told = Checked(jobs("job", "check", asked, "--json", "--fail-on=never").objects())
        text = told.found["JC07"]["message"] if "JC07" in told.found else told.evidence("checkpoints")
        assert f"{count} checkpoints of {size} " in text or f"{count - 1} of {size} (about 6.00 GB" in text, words
    (tmp_path / "out/checkpoint-10").mkdir(parents=True)
    (tmp_path / "out/checkpoint-10/optimizer.pt").write_bytes(bytes(1_000_000))
    path = script(tmp_path, f"srun {command} --save-total-limit 3", "--time=5", "--output=/dev/null")
    assert "3 of 1.00 MB are kept" in check(jobs, path).evidence("checkpoints")


def test_mounts_here_and_on_a_node(jobs: Millrace, tmp_path: Path):
    (tmp_path / "out").mkdir()
    options = ("--time=5", "--output=/dev/null")
    path = script(tmp_path, f"DATA=/fsx-none/data\nls $DATA {tmp_path}", *options)
    found = check(jobs, path).found["JC08"]
    assert found["message"] == "/fsx-none is not there on this machine" and found["severity"] == "warning"
    probed = check(jobs, path, "--probe", status=3)
    assert "/fsx-none is not there on n" in probed.found["JC09"]["message"]
    good = check(jobs, script(tmp_path, f"ls {tmp_path}", *options), "--probe", f"--checkpoints={tmp_path}/out")
    assert not good.found and "2 of 2 paths are good on n" in good.evidence("probe")
    # In a container the paths are its own, and the mounts are the host's.
    inside = script(tmp_path, "srun --container-image=a.sqsh --container-mounts=/fsx-none:/data ls /data", *options)
    assert "/fsx-none is not there" in check(jobs, inside, status=3).found["JC08"]["message"]


def test_a_probe_that_gets_no_node_is_said(jobs: Millrace, tmp_path: Path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text("#!/bin/bash\necho 'srun: error: Requested nodes are busy' >&2; exit 1\n")
    (tools / "srun").chmod(0o755)
    jobs.env["PATH"] = f"{tools}:{jobs.env['PATH']}"
    checked = check(jobs, script(tmp_path, "true", "--time=5", "--output=/dev/null"), "--probe")
    assert checked.unknown("probe") == "srun: Requested nodes are busy"


def test_shards(jobs: Millrace, shards: Path, tmp_path: Path):
    path = script(tmp_path, 'srun python train.py "$@"', "--time=5", "--output=/dev/null")
    good = check(jobs, path, "--", "--shards", shards, "--tokenizer", path)  # any file
    assert not good.found and ", manifest " in good.evidence("data")
    data = tmp_path / "copy"
    subprocess.run(["cp", "-r", shards, data], check=True)
    (one,) = data.glob("*.tar")
    content = one.read_bytes()
    one.chmod(0o644)
    one.write_bytes(content[:1500] + b"?" + content[1501:])
    assert not check(jobs, path, "--data", data).found  # quick: sizes alone
    assert one.name in check(jobs, path, "--data", data, "--deep", status=3).found["JC10"]["message"]
    assert not check(jobs, path, "--data", shards, "--deep").found
    one.write_bytes(content[:-512])
    found = check(jobs, path, "--", "--shards", data, status=3).found["JC10"]
    assert f"{one.name} has {len(content) - 512} bytes, and its manifest says {len(content)}" in found["message"]
    one.unlink()
    assert f"{one.name} is missing" in check(jobs, path, "--data", data, status=3).found["JC10"]["message"]
    missing = check(jobs, script(tmp_path, "python t.py --data-dir /none/x", "--time=5"), status=3).found["JC10"]
    assert missing["message"].startswith("/none/x: ")


@pytest.mark.parametrize("form", ["tokens", "megatron"])
def test_token_files(jobs: Millrace, raw: Path, tokenizer: Path, tmp_path: Path, form: str):
    """`.bin` files of prepare: read by their manifest, or by themselves where the script names one."""
    data = tmp_path / "tokens"
    jobs("prepare", raw, "--tokenizer", tokenizer, "--out", data, "--format", form)
    (one,) = data.glob("*.bin")
    one.chmod(0o644)
    options = ("--time=5", "--output=/dev/null")
    path = script(tmp_path, "srun python train.py --data-path tokens", *options)
    good = check(jobs, path)
    assert not good.found and "1 shards, manifest " in good.evidence("data")
    named = script(tmp_path, f"srun python train.py --data-path tokens/{one.name}", *options)
    assert not check(jobs, named).found
    content = one.read_bytes()
    middle = len(content) - 20
    one.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    assert not check(jobs, named).found  # quick: sizes alone
    assert one.name in check(jobs, named, "--deep", status=3).found["JC10"]["message"]
    one.write_bytes(content[:-2])
    path = script(tmp_path, "srun python train.py --data-path tokens", *options)
    short = check(jobs, path, status=3).found["JC10"]["message"]
    assert f"{one.name} has {len(content) - 2} bytes, and its manifest says {len(content)}" in short
    one.write_bytes(content)
    for beside in [each for each in data.iterdir() if each.name.startswith(f"{one.name}.")]:
        beside.unlink()
    assert "is missing" in check(jobs, path, status=3).found["JC10"]["message"]
    one.unlink()
    gone = check(jobs, script(tmp_path, f"python train.py --data-path tokens/{one.name}", *options), status=3)
    assert f"{one.name}: " in gone.found["JC10"]["message"]


def test_the_ledger_knows_the_data(jobs: Millrace, shards: Path, tmp_path: Path):
    path = script(tmp_path, f"true --shards {shards}", "--time=5", "--output=/dev/null")
    job = jobs("job", "submit", path, "--json").object("job_submitted")["job_id"]
    (record,) = jobs("job", "show", job, "--json").object("run")["record"]["data"]
    assert record["url"] == str(shards) and record["kind"] == "shards" and len(record["manifest_hash"]) == 32


def test_a_robot_dataset(jobs: Millrace, tmp_path: Path):
    if not list(Path(jobs.binary).resolve().parent.glob("libmillrace_parquet_*")) and not list(
        (REPOSITORY / "python/millrace").glob("libmillrace_parquet_*")
    ):
        pytest.skip("no library to read Parquet")
    jobs("lerobot", "demo", tmp_path / "robot", "--episodes", 2)
    path = script(tmp_path, "python train.py --dataset-path robot", "--time=5", "--output=/dev/null")
    good = check(jobs, path)
    assert not good.found and "LeRobot" in good.evidence("data") and "2 episodes" in good.evidence("data")
    info = tmp_path / "robot/meta/info.json"
    info.write_text(info.read_text().replace('"total_episodes": 2', '"total_episodes": 3'))
    assert "[LR" in check(jobs, path, status=3).found["JC10"]["message"]


def test_a_bucket(jobs: Millrace, s3: S3, bucket: str, shards: Path, tmp_path: Path):
    jobs.env |= s3.env
    jobs("cp", "--recursive", shards, f"s3://{bucket}/shards")
    path = script(tmp_path, 'python train.py --data "$1"', "--time=5", "--output=/dev/null")
    assert not check(jobs, path, "--data", f"s3://{bucket}/shards").found
    assert "no such object" in check(jobs, path, "--data", f"s3://{bucket}/none", status=3).found["JC10"]["message"]
    jobs.env["AWS_SECRET_ACCESS_KEY"] = "wrong"
    refused = check(jobs, path, "--data", f"s3://{bucket}/shards", status=3).found["JC10"]["message"]
    assert "403" in refused or "denied" in refused.lower() or "signature" in refused.lower()


def test_the_hubs_login(jobs: Millrace, hub: Hub, tmp_path: Path):
    hub.tokens.add(TOKEN)
    hub.add("org/set", {"a.txt": b"x"})
    jobs.env |= hub.env
    jobs.env.pop("HF_TOKEN", None)
    path = script(
        tmp_path, "millrace cp hf://datasets/org/set/a.txt /tmp/x-$SLURM_JOB_ID", "--time=5", "--output=/dev/null"
    )
    without = check(jobs, path).found["JC11"]
    assert "no token" in without["message"] and without["severity"] == "warning"
    jobs.env["HF_TOKEN"] = TOKEN
    ran = jobs("job", "check", path, "--json")
    assert "knows the token of HF_TOKEN as tester" in Checked(ran.objects()).evidence("login")
    assert TOKEN not in ran.out + ran.err
    jobs.env["HF_TOKEN"] = "hf_WRONGWRONGWRONGWRONGWRONG"
    ran = jobs("job", "check", path, "--json", status=3)
    assert "refuses the token of HF_TOKEN (status 401)" in Checked(ran.objects()).found["JC11"]["message"]
    assert "hf_WRONG" not in ran.out + ran.err
    # A script that does not use the Hub is not asked for a login.
    quiet = check(jobs, script(tmp_path, "true", "--time=5", "--output=/dev/null"))
    assert "login" not in quiet.answers and not quiet.found


def test_a_containers_image(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "srun --container-image=/images/a.sqsh python train.py", "--time=5", "--output=/dev/null")
    assert "pyxis is not installed" in check(jobs, path, status=3).found["JC12"]["message"]
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text("#!/bin/bash\necho '  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'\n")
    (tools / "srun").chmod(0o755)
    jobs.env["PATH"] = f"{tools}:{jobs.env['PATH']}"
    assert "/images/a.sqsh is missing" in check(jobs, path, status=3).found["JC12"]["message"]
    (tmp_path / "a.sqsh").touch()
    path = script(tmp_path, "srun --container-image=a.sqsh python train.py", "--time=5", "--output=/dev/null")
    assert check(jobs, path).evidence("image") == f"{tmp_path}/a.sqsh is there"


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry that wants a token, as Docker's do: team/image:1 is there, and team/private is private."""

    protocol_version = "HTTP/1.1"
    seen: list[str]

    def answer(self, status: int, *headers: tuple[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        asked = urllib.parse.parse_qs(url.query)
        self.seen.append(f"token {asked['service'][0]} {asked['scope'][0]}")
        assert url.path == "/token" and "Authorization" not in self.headers
        token = asked["scope"][0].split(":")[1]
        self.answer(200, body=json.dumps({"token" if "private" in token else "access_token": token}).encode())

    def do_HEAD(self) -> None:
        self.seen.append(self.path)
        if self.path.startswith("/v2/odd/"):
            return self.answer(500)
        repository, tag = self.path.removeprefix("/v2/").split("/manifests/")
        assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
        if repository == "team/private" or self.headers.get("Authorization") != f"Bearer {repository}":
            realm = f'Bearer realm="http://{self.headers["Host"]}/token",service="a registry",scope="s",error="e"'
            return self.answer(401, ("WWW-Authenticate", realm))
        return self.answer(200 if tag == "1" else 404)

    def log_message(self, *_: object) -> None:
        pass


def test_an_image_in_a_registry(jobs: Millrace, tmp_path: Path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text("#!/bin/bash\necho '  --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH'\n")
    (tools / "srun").chmod(0o755)
    jobs.env |= {"PATH": f"{tools}:{jobs.env['PATH']}", "ENROOT_ALLOW_HTTP": "yes"}

    def checked(image: str, status: int = 0) -> Checked:
        line = f"srun --container-image='{image}' python train.py"
        return check(jobs, script(tmp_path, line, "--time=5", "--output=/dev/null"), status=status)

    Registry.seen = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"127.0.0.1:{server.server_address[1]}"
    try:
        assert checked(f"{here}#team/image:1").evidence("image") == f"{here}/team/image:1 is in the registry"
        assert Registry.seen == [
            "/v2/team/image/manifests/1", "token a registry repository:team/image:pull", "/v2/team/image/manifests/1",
        ]  # fmt: skip
        found = checked(f"docker://me@{here}#team/image", status=3).found["JC12"]
        assert f"{here}/team/image:latest is not in the registry" in found["message"]
        assert f"{here}/team/private:1 is private or not there" in checked(f"{here}#team/private:1").unknown("image")
        assert "answers with status 500" in checked(f"{here}#odd/image:1").unknown("image")
        assert '"Team/image" is no image' in checked(f"{here}#Team/image:1", status=3).found["JC12"]["message"]
    finally:
        server.shutdown()
        server.server_close()
    # Nobody is there; and one who never answers.
    assert "connect" in checked(f"{here}#team/image:1").unknown("image").lower()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert checked(f"127.0.0.1:{silent.getsockname()[1]}#team/image:1").unknown("image")


def test_the_environment_of_script_and_caller(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "export NCCL_IFNAME=eth0", "--time=5", "--output=/dev/null")
    assert check(jobs, path, status=3).found["EN01"]["line"] == 4
    path = script(tmp_path, "true", "--time=5", "--output=/dev/null")
    assert not check(jobs, path).found
    jobs.env["NCCL_IFNAME"] = "eth0"
    assert check(jobs, path, status=3).found["EN01"]["file"] == "environment"
    assert not check(jobs, path, "--sbatch=--export=NONE").found


def test_what_slurm_itself_refuses(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "true", "--time=5", "--output=/dev/null", "--constraint=none")
    found = check(jobs, path, status=3).found["JC13"]
    assert "Slurm refuses it: " in found["message"]
    script(tmp_path, "true  # millrace: ignore JC05 -- not about this", "--time=5", "--output=/dev/null")
    assert not check(jobs, tmp_path / "job.sbatch").found


def test_without_slurm_the_rest_is_checked(millrace: Millrace, tmp_path: Path):
    millrace.env |= {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    (tmp_path / "env").symlink_to("/usr/bin/env")
    path = script(tmp_path, "true", "--time=5", "--output=none/log")
    found = check(millrace, path, status=3).found
    assert "squeue is not on PATH" in found["JC14"]["message"] or "scontrol is not on PATH" in found["JC14"]["message"]
    assert "is missing" in found["JC01"]["message"]


@pytest.fixture
def alone(millrace: Millrace, tmp_path: Path) -> Millrace:
    """The binary on a machine without Slurm."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/env").symlink_to("/usr/bin/env")
    clean = {name: value for name, value in millrace.env.items() if not name.startswith(("SBATCH", "HF_", "NCCL"))}
    millrace.env = clean | {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    return millrace


MADE = {
    "a copy in a step": "srun cp -r /fsx/data {}/data\nsrun python train.py --data {}/data",
    "a copy of a part": "cp /fsx/a.tar {}/data/a.tar\nsrun python train.py --data {}/data",
    "a sync": "srun --ntasks=2 --ntasks-per-node=1 millrace sync s3://b/x {}/x\npython train.py --shards {}/x",
    "shards": "millrace prepare /fsx/raw --tokenizer t.json --out {}/D\nsrun python train.py --data {}/D",
    "an archive": "timeout 60 tar -xf /fsx/a.tar -C {}/d\nsrun python train.py --data-dir {}/d/train",
    "a download": "hf download me/set --local-dir={}/d\nsrun python train.py --data-path {}/d",
    "a program": "bash stage.sh {}/d\nsrun python train.py --data-path {}/d",
    "a redirection": "cat /fsx/*.jsonl > {}/all.jsonl\nsrun python train.py --train-data {}/all.jsonl",
    "names": "python preprocess.py --output-prefix {}/my\nsrun python train.py --data-path {}/my_text_document",
    "another folder": "cd {}\nsrun python train.py --data-path data",
}


@pytest.mark.parametrize("body", MADE.values(), ids=MADE.keys())
def test_data_that_the_script_itself_makes(alone: Millrace, tmp_path: Path, body: str):
    body = body.replace("{}", str(tmp_path / "local"))
    checked = check(alone, script(tmp_path, body, "--time=5", "--output=/dev/null"))
    assert "JC10" not in checked.found and "line 4 of the script" in checked.unknown("data")
    later = "\n".join(reversed(body.split("\n")))
    assert "JC10" in found_by(alone, script(tmp_path, later, "--time=5", "--output=/dev/null"))


def test_data_that_job_new_stages(alone: Millrace, tmp_path: Path):
    path = tmp_path / "job.sbatch"
    stage = f"--stage=s3://b/x={tmp_path}/local/x"
    alone("job", "new", "train", stage, "--out", path, "--", "train.py", "--shards", tmp_path / "local/x")
    checked = check(alone, path)
    assert "JC10" not in checked.found and "may make it" in checked.unknown("data")


def test_paths_of_a_container_are_those_of_its_mounts(alone: Millrace, tmp_path: Path):
    path, image = tmp_path / "job.sbatch", tmp_path / "a.sqsh"
    image.touch()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/shard.txt").touch()
    new = ("job", "new", "train", "--image", image, f"--mount={tmp_path}/src:/data", "--out", path, "--", "train.py")
    alone(*new, "--data", "/data/shard.txt", "--checkpoint-dir", "/data/out", "--valid", "/other/set")
    checked = check(alone, path)
    assert "JC10" not in checked.found
    assert f"{tmp_path}/src/shard.txt: a file" in checked.evidence("data")
    assert "/other/set: a path of the container" in checked.unknown("data")
    assert checked.unknown("checkpoints").startswith(f"{tmp_path}/src/out: ")
    alone(*new, "--data", "/data/none")
    assert f"{tmp_path}/src/none: " in found_by(alone, path)["JC10"]["message"]


def test_names_and_lists_of_data(alone: Millrace, tmp_path: Path):
    for name in ("A_text_document", "B_text_document"):
        (tmp_path / f"{name}.bin").touch()
        (tmp_path / f"{name}.idx").touch()
    for name in ("a.jsonl", "b.jsonl", "x.txt"):
        (tmp_path / name).touch()
    body = f"""srun python pretrain_gpt.py --data-path 0.3 {tmp_path}/A_text_document 0.7 {tmp_path}/B_text_document
python train.py --train-data a.jsonl,b.jsonl
python train.py --data {tmp_path}/a.jsonl::{tmp_path}/x.txt
python train.py --shards 'pipe:aws s3 cp s3://b/{{00..99}}.tar -'"""
    checked = check(alone, script(tmp_path, body, "--time=5", "--output=/dev/null"))
    assert "JC10" not in checked.found
    assert checked.evidence("data").count("the .bin and .idx of Megatron") == 2
    for name in ("a.jsonl", "b.jsonl", "x.txt"):
        assert f"{tmp_path}/{name}: a file" in checked.evidence("data")
    assert "pipe:aws" in checked.unknown("data")
    (tmp_path / "B_text_document.idx").unlink()
    (tmp_path / "b.jsonl").unlink()
    found = alone("job", "check", tmp_path / "job.sbatch", "--json", status=3).objects("lint")
    said = {each["message"].removeprefix(f"{tmp_path}/").split(":")[0] for each in found if each["rule"] == "JC10"}
    assert said == {"B_text_document", "b.jsonl"}


def test_submit_checks_first(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "true", "--time=5", "--output=none/%j.log")
    said = jobs.fails("job", "submit", path)
    assert "not submitted, because it would fail" in said and "[JC01]" in said and "--no-check" in said
    assert jobs("job", "submit", path, "--no-check", "--json").object("job_submitted")["job_id"]


def test_sarif_and_the_list_of_rules(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "true", "--time=5", "--output=none/%j.log")
    (run,) = json.loads(jobs("job", "check", path, "--sarif", status=3).out)["runs"]
    assert [each["ruleId"] for each in run["results"]] == ["JC01"]
    printed = jobs("job", "check", "--rules").out
    section = (REPOSITORY / "docs/rules.md").read_text().split("## millrace job check\n")[1].split("\n## ")[0]
    own = [rule for rule in printed.strip().split("\n\n**") if rule.startswith(("**JC", "JC"))]
    assert "\n\n**".join(own) in section
    assert "--no-check" not in jobs("job", "check", "--explain", "JC07").out
