# SPDX-License-Identifier: Apache-2.0
"""millrace job submit, ls, show, wait, cancel and requeue on a real Slurm, and on answers that a script gives."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Millrace
from slurm_fixture import Slurm

pytestmark = pytest.mark.timeout(600)  # many processes: minutes on a busy machine

SECRETS = ("hf_PLANTEDabcdefgh", "plantedvalue12345", "planted-password", "AKIAPLANTED012345678")


@pytest.fixture
def jobs(millrace: Millrace, slurm: Slurm, tmp_path: Path) -> Millrace:
    """The binary with the real Slurm of the tests and a ledger of this test alone."""
    clean = {name: value for name, value in millrace.env.items() if not name.startswith("SBATCH")}
    millrace.env = clean | slurm.env | {"MILLRACE_LEDGER": str(tmp_path / "ledger")}
    return millrace


def script(folder: Path, body: str, *options: str, name: str = "job.sbatch") -> Path:
    path = folder / name
    path.write_text("\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in options), body, ""]))
    return path


def submit(millrace: Millrace, path: Path, *more: object) -> dict:
    """Without the checks of tests/e2e/test_job_check.py: many of these jobs are meant to fail."""
    return millrace("job", "submit", path, "--json", "--no-check", *more).object("job_submitted")


def every_byte(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def test_a_plain_script_from_submission_to_its_end(jobs: Millrace, tmp_path: Path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    path = script(tmp_path, 'echo "arguments: $*"', "--job-name=first", "--time=5", "--output=%x-%j.log")
    subprocess.run([*git, "add", path.name], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    made = jobs("job", "submit", path, "--watch", "--json", "--", "--lr", "3e-4")
    job = made.object("job_submitted")
    ended = made.object("job")
    assert ended["state"] == "COMPLETED" and ended["exit"] == "0:0" and ended["run"] == job["run"]
    assert (tmp_path / f"first-{job['job_id']}.log").read_text() == "arguments: --lr 3e-4\n"

    shown = jobs("job", "show", "first", "--json").object("run")
    record = shown["record"]
    assert record["arguments"] == ["--lr", "3e-4"]
    assert record["asked"]["time"] == "5" and record["output"].endswith("/%x-%j.log")
    assert record["script_bytes"] == path.stat().st_size and len(record["script_hash"]) == 32
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert record["git"] == {"commit": commit, "dirty": False}
    assert jobs("job", "show", job["job_id"], "--script").out == path.read_text()
    text = jobs("job", "show", job["job_id"]).out
    assert f"commit      {commit}\n" in text and "state       COMPLETED\n" in text

    with path.open("a") as file:
        file.write("exit 3\n")
    failed = submit(jobs, path)
    assert "ended FAILED, exit status 3" in jobs("job", "wait", failed["job_id"], status=1).err
    assert jobs("job", "show", failed["job_id"], "--json").object("run")["record"]["git"]["dirty"] is True
    listed = {each["job_id"]: each for each in jobs("job", "ls", "--json").objects("job")}
    assert listed[job["job_id"]]["state"] == "COMPLETED"
    assert (listed[failed["job_id"]]["state"], listed[failed["job_id"]]["exit"]) == ("FAILED", "3:0")


def test_a_job_gets_what_flags_say_of_storages(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "env", "--time=5", "--output=%x-%j.log", name="storages.sbatch")
    flags = ["--endpoint-url", "http://127.0.0.1:1", "--timeout", 7, "--no-sign-request"]
    job = submit(jobs, path, "--watch", *flags)
    seen = (tmp_path / f"storages.sbatch-{job['job_id']}.log").read_text().splitlines()
    assert {"AWS_ENDPOINT_URL_S3=http://127.0.0.1:1", "MILLRACE_TIMEOUT=7", "MILLRACE_S3_ANONYMOUS=1"} <= set(seen)
    record = jobs("job", "show", job["job_id"], "--json").object("run")["record"]
    assert record["environment"]["MILLRACE_TIMEOUT"] == "7"


def test_no_secret_is_kept_or_printed(jobs: Millrace, tmp_path: Path):
    body = (
        f"export HF_TOKEN={SECRETS[0]}\nexport API_KEY='{SECRETS[1]}'\ngit clone https://me:{SECRETS[2]}@host/x || true"
    )
    path = script(tmp_path, body, "--output=/dev/null", f"--comment={SECRETS[3]}")
    jobs.env |= {
        "WANDB_API_KEY": SECRETS[1],
        "NCCL_TOKEN": SECRETS[1],
        "SBATCH_EXPORT": f"ALL,HF_TOKEN={SECRETS[0]}",
        "NCCL_DEBUG": "WARN",
        "NCCL_NET": SECRETS[0],
        "UNRELATED": "stays-out",
    }
    more = (f"--sbatch=--export=ALL,PASSWORD={SECRETS[2]}", "--", "--token", SECRETS[1], f"--api-key={SECRETS[1]}")
    said = jobs("job", "submit", path, "--dry-run", *more)
    checked = [jobs("job", "check", path, "--fail-on=never", *form, *more) for form in ([], ["--json"], ["--sarif"])]
    job = submit(jobs, path, *more)
    outputs = [said.out, said.err, json.dumps(job), *(text for ran in checked for text in (ran.out, ran.err))]
    for verb in (["wait", job["job_id"]], ["ls"], ["show", job["job_id"]], ["show", job["job_id"], "--script"]):
        for form in ([], ["--json"]):
            ran = jobs("job", *verb, *form)
            outputs += [ran.out, ran.err]
    kept = every_byte(tmp_path / "ledger")
    for secret in SECRETS:
        assert secret not in kept
        assert all(secret not in output for output in outputs), secret
    assert "<removed>" in kept and '"NCCL_DEBUG": "WARN"' in kept and "stays-out" not in kept
    assert "secrets; the ledger omits them" in said.err


def test_a_dry_run_writes_nothing(jobs: Millrace, tmp_path: Path):
    before = jobs("job", "ls", "--json").out
    ran = jobs("job", "submit", script(tmp_path, "true"), "--sbatch=--partition=small", "--dry-run")
    assert ran.out.startswith("would run: sbatch --parsable --partition=small ")
    assert not (tmp_path / "ledger").exists()
    assert jobs("job", "ls", "--json").out == before


def test_what_cannot_be_submitted_is_said(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "true")
    before = jobs("job", "ls", "--json").out
    assert "invalid partition specified: none" in jobs.fails("job", "submit", path, "--sbatch=--partition=none")
    assert "No such file" in jobs.fails("job", "submit", tmp_path / "missing")
    (tmp_path / "plain").write_text("echo\n")
    assert "begin it with #!/bin/bash" in jobs.fails("job", "submit", tmp_path / "plain")
    assert "'1' is not ok:ID" in jobs.fails("job", "submit", path, "--after", "1", status=2)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    said = jobs.fails("job", "submit", path, env={"MILLRACE_LEDGER": str(blocked)})
    assert str(blocked) in said
    assert jobs("job", "ls", "--json").out == before  # it was not queued either
    assert "neither the number of a job nor the name" in jobs.fails("job", "show", "nothing")
    assert "no job 999999" in jobs.fails("job", "cancel", 999999)


def test_a_job_waits_for_another_and_goes_with_it(jobs: Millrace, tmp_path: Path):
    first = submit(jobs, script(tmp_path, "exit 1", "--output=/dev/null"), "--sbatch=--begin=now+60")
    then = submit(jobs, script(tmp_path, "true", "--output=/dev/null", name="b"), "--after", f"ok:{first['job_id']}")
    assert then["command"][2:4] == [f"--dependency=afterok:{first['job_id']}", "--kill-on-invalid-dep=yes"]
    waiting = {each["job_id"]: each for each in jobs("job", "ls", "--json").objects("job")}
    assert waiting[first["job_id"]]["reason"] == "BeginTime"
    assert waiting[then["job_id"]]["reason"] == "Dependency"
    assert waiting[then["job_id"]]["dependency"].startswith(f"afterok:{first['job_id']}")
    jobs("job", "cancel", first["job_id"])
    said = jobs("job", "wait", first["job_id"], then["job_id"], status=1).err
    assert f"job {then['job_id']} (b) ended CANCELLED" in said
    assert "no job to cancel" in jobs("job", "cancel", first["job_id"]).err


def test_elements_of_an_array(jobs: Millrace, tmp_path: Path):
    body = '[ "$SLURM_ARRAY_TASK_ID" -ne 2 ] || exit 7; [ "$SLURM_ARRAY_TASK_ID" -ne 3 ] || sleep 60'
    job = submit(jobs, script(tmp_path, body, "--array=1-4%3", "--output=/dev/null"))
    number = job["job_id"]
    assert "ended FAILED, exit status 7" in jobs("job", "wait", f"{number}_2", status=1).err
    jobs("job", "wait", f"{number}_1", f"{number}_4")
    between = jobs("job", "show", number, "--json").object("run")
    assert between["tasks"] == {"COMPLETED": 2, "FAILED": 1, "RUNNING": 1} and between["state"] == "RUNNING"
    assert not [event for event in between["events"] if event["kind"] == "end"]  # an element's end is not the array's
    jobs("job", "cancel", f"{number}_3")
    jobs("job", "wait", number, status=1)
    shown = jobs("job", "show", number)
    assert "state       1 CANCELLED, 2 COMPLETED, 1 FAILED\n" in shown.out
    assert f"{number}_2" in shown.out.split("failed")[1].splitlines()[0]
    (end,) = [e for e in jobs("job", "show", number, "--json").object("run")["events"] if e["kind"] == "end"]
    assert end["facts"]["tasks"] == "CANCELLED:1,COMPLETED:2,FAILED:1"


def test_a_requeued_job_runs_again(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    runs = tmp_path / "runs"
    job = submit(jobs, script(tmp_path, "echo >>runs; [ -e again ] || exit 1", "--output=/dev/null"))
    jobs("job", "wait", job["job_id"], status=1)
    (tmp_path / "again").touch()
    assert "BeginTime" in jobs("job", "requeue", job["job_id"]).out
    time.sleep(2)  # Slurm refuses what was signed in the second of the former end
    slurm.run("scontrol", "update", f"JobId={job['job_id']}", "StartTime=now")
    deadline = time.monotonic() + 60
    while runs.read_text() == "\n" and time.monotonic() < deadline:  # squeue may tell of the former end until then
        time.sleep(0.1)
    jobs("job", "wait", job["job_id"])
    events = [event["kind"] for event in jobs("job", "show", job["job_id"], "--json").object("run")["events"]]
    assert events == ["end", "requeue", "end"]


def test_ctrl_c_leaves_the_job_alone(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    job = submit(jobs, script(tmp_path, "sleep 60", "--output=/dev/null"))
    process = jobs.start("job", "wait", job["job_id"])
    assert process.stderr
    assert f"job {job['job_id']} " in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
    assert slurm.job(int(job["job_id"]))["JobState"] in ("PENDING", "RUNNING")


# --- answers of a script in place of Slurm's commands, which also counts the calls


def tool(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f'#!/bin/bash\necho {name} >>"{folder}/calls"\n{body}\n')
    path.chmod(0o755)


@pytest.fixture
def tools(millrace: Millrace, tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    folder.mkdir()
    tool(folder, "squeue", "true")
    tool(folder, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    millrace.env |= {"PATH": f"{folder}:{os.environ['PATH']}", "MILLRACE_LEDGER": str(tmp_path / "ledger"), "TZ": "UTC"}
    return folder


@functools.cache
def user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def record(folder: Path, number: int, submitted: int) -> None:
    """A run as docs/format/ledger.md describes it."""
    moment = time.gmtime(submitted)
    month = folder / time.strftime("%Y-%m", moment)
    month.mkdir(parents=True, exist_ok=True)
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', moment)}-{number}-{number:016x}"
    run = {"format": "millrace-run", "version": 1, "name": f"run{number}", "job_id": str(number), "user": user(),
           "submitted": submitted, "script": "/w/a.sbatch", "arguments": [], "asked": {"nodes": "1"}}  # fmt: skip
    (month / f"{name}.run.json").write_text(json.dumps(run))


def test_an_end_that_slurm_forgot_is_known(millrace: Millrace, tools: Path, tmp_path: Path):
    submitted = int(time.time()) - 600
    record(tmp_path / "ledger", 12, submitted)
    record(tmp_path / "ledger", 13, submitted + 1)
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(submitted))
    line = f"12|gpu|TIMEOUT|TimeLimit|2|64|{began}|{began}|{began}|1:00|1:00|{user()}|n[1-2]|(null)|run12"
    tool(tools, "squeue", f"[[ $* == *exit_code* ]] && printf '%-64s%-16s\\n' 12 15 || echo '{line}'")
    first = {each["job_id"]: each for each in millrace("job", "ls", "--json").objects("job")}
    assert (first["12"]["state"], first["12"]["source"], first["12"]["exit"]) == ("TIMEOUT", "squeue", "0:15")
    assert (first["13"]["state"], first["13"]["source"]) == (None, "none")
    tool(tools, "squeue", "true")
    later = {each["job_id"]: each for each in millrace("job", "ls", "--json").objects("job")}
    assert later["12"] == first["12"] | {"source": "ledger", "failed_tasks": []}
    assert "Slurm has forgotten it" in millrace("job", "ls").out
    assert "forgotten how job 13 ended" in millrace.fails("job", "wait", 13)
    assert "millrace job show 12 --script" in millrace.fails("job", "requeue", 12)

    tool(tools, "sacct", f"echo '13|gpu|OUT_OF_MEMORY|None|1|8|{began}|{began}|{began}|30|60|{user()}|n3|0:125|run13'")
    known = {each["job_id"]: each for each in millrace("job", "ls", "--json").objects("job")}
    assert (known["13"]["state"], known["13"]["source"]) == ("OUT_OF_MEMORY", "sacct")
    (tools / "calls").unlink()
    millrace("job", "ls")
    assert (tools / "calls").read_text().split() == ["squeue"]  # all ends are known now


def test_thousands_of_jobs_cost_one_call(millrace: Millrace, tools: Path, tmp_path: Path):
    submitted = int(time.time()) - 100_000
    for i in range(2000):
        record(tmp_path / "ledger", 1000 + i, submitted + i)
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(submitted))
    lines = (f"{1000 + i}|gpu|RUNNING|None|2|64|{began}|{began}|NONE|1:00|1:00:00|{user() if i < 1000 else 'x'}|n[1-2]|(null)|j{i}"
             for i in range(10_000))  # fmt: skip
    (tools / "answer").write_text("\n".join(lines) + "\n")
    tool(tools, "squeue", f"cat {tools}/answer")
    begin = time.monotonic()
    rows = millrace("job", "ls", "--json").out.splitlines()
    print(f"millrace job ls: {time.monotonic() - begin:.3f} s")
    assert len(rows) == 2000
    assert (tools / "calls").read_text().split() == ["squeue"]


def test_a_controller_that_does_not_answer_is_said(millrace: Millrace, tools: Path, tmp_path: Path):
    record(tmp_path / "ledger", 12, int(time.time()))
    tool(
        tools,
        "squeue",
        "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
    )
    ran = millrace("job", "ls", status=1)
    assert "Unable to contact slurm controller" in ran.err and " run12 " in ran.out
    # Takes eight seconds: the limit is what is tested.
    tool(tools, "squeue", "sleep 60")
    begin = time.monotonic()
    ran = millrace("job", "ls", status=1)
    assert time.monotonic() - begin < 10
    assert "did not answer within 8 s" in ran.err and " run12 " in ran.out
    assert "sacct" not in (tools / "calls").read_text()


def test_without_slurm_it_is_said(millrace: Millrace, tmp_path: Path):
    millrace.env |= {"PATH": str(tmp_path), "MILLRACE_LEDGER": str(tmp_path / "ledger")}
    (tmp_path / "env").symlink_to("/usr/bin/env")
    assert "squeue is not on PATH" in millrace("job", "ls", status=1).err


# --- logs


def test_logs_of_a_job_are_followed_to_its_end(jobs: Millrace, tmp_path: Path):
    path = script(tmp_path, "echo one; while [ ! -e go ]; do sleep 0.1; done; echo two", "--output=%x-%3j-%t.log")
    job = submit(jobs, path, "--sbatch=--job-name=my job")
    process = jobs.start("job", "logs", job["job_id"], "-f")
    assert process.stdout and process.stderr
    assert process.stdout.readline() == "one\n"
    (tmp_path / "go").touch()
    out, err = process.communicate(timeout=60)
    assert out == "two\n" and process.returncode == 0
    assert f"job {job['job_id']} ended: COMPLETED" in err
    assert jobs("job", "logs", job["job_id"]).out == "one\ntwo\n"


def test_logs_of_all_elements_and_ranks(jobs: Millrace, tmp_path: Path):
    body = 'echo "batch $SLURM_ARRAY_TASK_ID"\nsrun --ntasks=2 --output=rank-%A-%a-%t.log bash -c \'echo "rank $SLURM_PROCID"\''
    path = script(tmp_path, body, "--array=1-2", "--ntasks=2", "--error=%A_%a.err")
    job = submit(jobs, path)["job_id"]
    followed = jobs("job", "logs", job, "-f").out.splitlines()
    expected = [f"[{job}_{task}] batch {task}" for task in (1, 2)]
    expected += [f"[{job}_{t} srun rank-{job}-{t}-{r}.log] rank {r}" for t in (1, 2) for r in (0, 1)]
    assert sorted(followed) == sorted(expected)
    one = jobs("job", "logs", f"{job}_2", "--json").objects("log_line")
    assert sorted(each["line"] for each in one) == ["batch 2", "rank 0", "rank 1"]
    assert {Path(each["file"]).name for each in one} == {
        f"slurm-{job}_2.out",
        f"rank-{job}-2-0.log",
        f"rank-{job}-2-1.log",
    }


def test_logs_go_on_across_a_requeue(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    body = 'echo "start ${SLURM_RESTART_COUNT:-0}"; [ -e second ] || { touch second; sleep 60; }'
    job = submit(jobs, script(tmp_path, body, "--requeue"))["job_id"]  # Slurm empties the log
    process = jobs.start("job", "logs", job, "-f")
    assert process.stdout
    assert process.stdout.readline() == "start 0\n"
    slurm.run("scontrol", "requeue", job)
    time.sleep(2)  # Slurm refuses what was signed in the second of the former end
    slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    out, err = process.communicate(timeout=60)
    assert out.splitlines()[-1] == "start 1" and "begins again" in err


def test_a_log_that_is_not_there_is_named_with_the_reason(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    waiting = submit(jobs, script(tmp_path, "true"), "--sbatch=--begin=now+60")["job_id"]
    ran = jobs("job", "logs", waiting, status=1)
    assert f"no file {tmp_path}/slurm-{waiting}.out yet: the job waits (BeginTime)" in ran.err
    jobs("job", "cancel", waiting)
    lost = submit(jobs, script(tmp_path, "true", "--output=none/%j.out"))["job_id"]
    jobs("job", "wait", lost, status=1)
    assert f"there is no folder {tmp_path}/none" in jobs("job", "logs", lost, status=1).err
    assert "no job 999999" in jobs.fails("job", "logs", 999999)
    # A job that was not submitted by us is found by what Slurm says of it.
    foreign = slurm.submit(f"--output={tmp_path}/%x.log", script(tmp_path, "echo foreign", name="f"), cwd=tmp_path)
    slurm.wait(foreign)
    assert jobs("job", "logs", foreign).out == "foreign\n"


def test_ctrl_c_ends_the_following_and_not_the_job(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    job = submit(jobs, script(tmp_path, "echo here; sleep 60"))["job_id"]
    process = jobs.start("job", "logs", job, "-f")
    assert process.stdout
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130
    assert slurm.job(int(job))["JobState"] == "RUNNING"


# --- why


def explained(millrace: Millrace, job: object) -> dict:
    return millrace("job", "why", job, "--json").object("job_why")


def reason_of(slurm: Slurm, job: object, *reasons: str) -> None:
    until = time.monotonic() + 30
    while slurm.job(int(str(job)))["Reason"] not in reasons:
        assert time.monotonic() < until, slurm.job(int(str(job)))
        time.sleep(0.2)


def test_why_jobs_wait(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    path = script(tmp_path, "sleep 60", "--output=/dev/null", "--time=10", "--partition=small")
    begin = submit(jobs, path, "--sbatch=--begin=now+120")["job_id"]
    reason_of(slurm, begin, "BeginTime")
    assert any(line.startswith("it may begin at ") for line in explained(jobs, begin)["evidence"])
    jobs("job", "cancel", begin)
    holder = submit(jobs, path, "--sbatch=--nodes=2", "--sbatch=--exclusive")["job_id"]
    until = time.monotonic() + 30
    while slurm.job(int(holder))["JobState"] != "RUNNING":
        assert time.monotonic() < until
        time.sleep(0.1)
    assert explained(jobs, holder)["outlook"] == "runs"
    blocked = submit(jobs, path, "--sbatch=--gpus-per-node=4")["job_id"]
    behind = submit(jobs, path)["job_id"]
    reason_of(slurm, blocked, "Resources")
    why = explained(jobs, blocked)
    assert why["outlook"] == "waits"
    assert any("4 GPUs" in line for line in why["evidence"])
    assert any(f"n5 fits when job {holder} has ended: in 0:" in line for line in why["evidence"])
    reason_of(slurm, behind, "Priority", "Resources")
    why = explained(jobs, behind)
    assert why["reason"] == "Resources" or f"{blocked} (" in " ".join(why["evidence"])
    held = submit(jobs, path, "--sbatch=--hold")["job_id"]
    assert "scontrol release " + held in jobs("job", "why", held).out
    after = submit(jobs, path, "--after", f"ok:{holder}")["job_id"]
    reason_of(slurm, after, "Dependency")
    assert any(f"job {holder} (job.sbatch) is RUNNING" in line for line in explained(jobs, after)["evidence"])
    slurm.run("scontrol", "update", f"JobId={blocked}", "ReqNodeList=n5", "TimeLimit=20")
    array = submit(jobs, path, "--sbatch=--array=1-3%1", "--sbatch=--hold")["job_id"]
    assert explained(jobs, array)["reason"] == "JobHeldUser"


def test_why_jobs_ended(jobs: Millrace, slurm: Slurm, tmp_path: Path):
    done = submit(jobs, script(tmp_path, "true"))["job_id"]
    failed = submit(jobs, script(tmp_path, "echo fine\necho 'ValueError: token hf_PLANTEDabcdefgh'\nexit 3", name="b"))[
        "job_id"
    ]
    lost = submit(jobs, script(tmp_path, "true", "--output=none/%j.out", name="c"))["job_id"]
    missing = submit(jobs, script(tmp_path, "no_such_program", name="d"))["job_id"]
    for job in (done, failed, lost, missing):
        slurm.wait(int(job))
    assert explained(jobs, done)["outlook"] == "done"
    assert "the first error in its log: ValueError: token <removed>" in explained(jobs, failed)["evidence"]
    assert "could not open the log file" in explained(jobs, lost)["meaning"]
    assert "was not found" in explained(jobs, missing)["meaning"]
    assert any("no_such_program: command not found" in line for line in explained(jobs, missing)["evidence"])
    jobs("job", "ls")
    assert "no job 999999" in jobs.fails("job", "why", 999999)


def test_submit_names_the_file_of_the_log(jobs: Millrace, tmp_path: Path):
    script = tmp_path / "named.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --job-name=named\n#SBATCH --output=%x-%j.log\ntrue\n")
    said = jobs("job", "submit", script, "--no-check").out
    job_id = said.split()[1]
    assert said.splitlines()[0].endswith(f"/named-{job_id}.log"), said
