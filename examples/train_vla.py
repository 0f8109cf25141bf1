# SPDX-License-Identifier: Apache-2.0
"""Trains a small vision-language-action policy on a robot dataset, and survives being killed at any moment.

    millrace lerobot demo arm
    python examples/train_vla.py --dataset arm --tokenizer tokenizer.json --out run
    python examples/train_vla.py --dataset arm --tokenizer tokenizer.json --out run --compare
    torchrun --nproc-per-node 2 examples/train_vla.py ... --fsdp

The policy sees every camera, the robot's state and the task as text, and gives the next actions. Run the same command
again to continue from the newest checkpoint. On SIGTERM or SIGUSR1 it saves, waits until the checkpoint is durable, and
exits with status 75: run me again. With a fixed number of threads and ranks, the losses after a resume are those of a run
that was never stopped, to the last bit.

--compare trains nothing for long: it times the same steps fed as guides do it (CSV files, a DataLoader with workers, a
video opened for each frame; needs `pip install av`) and fed by Millrace.
"""

import argparse
import contextlib
import csv
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import millrace as mr

Batch = dict[str, Any]


class Sight(nn.Module):
    """uint8 pictures [batch, 3, height, width] -> 16 tokens [batch, 16, dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        widths = [3, dim // 8, dim // 4, dim // 2, dim]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(4, after), nn.GELU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, pictures: Tensor) -> Tensor:
        small = F.interpolate(pictures.float() / 255 - 0.5, (64, 64), mode="bilinear", antialias=False)
        return self.layers(small).flatten(2).transpose(1, 2)


class Policy(nn.Module):
    """Pictures of each camera, states [batch, S], ids of the task [batch, words] -> actions [batch, chunk, A]."""

    def __init__(self, words: int, cameras: list[str], state: int, action: int, args: argparse.Namespace) -> None:
        super().__init__()
        dim = args.dim
        self.cameras, self.recomputes = cameras, args.gradient_checkpointing
        self.sight = Sight(dim)
        self.camera = nn.Parameter(torch.randn(len(cameras), 1, dim) * 0.02)
        self.place = nn.Parameter(torch.randn(16, dim) * 0.02)
        self.word = nn.Embedding(words, dim)
        self.state = nn.Linear(state, dim)
        self.wanted = nn.Parameter(torch.randn(args.chunk, dim) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, args.heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(args.layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.action = nn.Linear(dim, action)

    def forward(self, pictures: list[Tensor], states: Tensor, ids: Tensor) -> Tensor:
        seen = [self.sight(each) + self.place + self.camera[i] for i, each in enumerate(pictures)]
        wanted = self.wanted.expand(len(states), -1, -1)
        x = torch.cat([*seen, self.state(states)[:, None], self.word(ids), wanted.to(seen[0].dtype)], dim=1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes and self.training else block(x)
        return self.action(self.norm(x[:, -wanted.shape[1] :]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, help="folder or URL of a LeRobot dataset")
    parser.add_argument("--tokenizer", required=True, help="tokenizer.json for the tasks")
    parser.add_argument("--out", required=True, help="folder or URL for checkpoints")
    parser.add_argument("--log-file", type=Path, help="file that gets one JSON line a step")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--save-every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--keep-last", type=int, default=2, help="checkpoints that stay")
    parser.add_argument("--batch-size", type=int, default=16, help="frames on each rank, of each accumulated batch")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step")
    parser.add_argument("--chunk", type=int, default=16, help="actions that the policy gives")
    parser.add_argument("--words", type=int, default=32, help="ids of a task that are read")
    parser.add_argument("--dim", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch; others give other last bits")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where autocast finds it safe")
    parser.add_argument("--compile", action="store_true", help="torch.compile the policy")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="recompute blocks, for less memory")
    parser.add_argument("--cudnn-benchmark", action="store_true", help="let cuDNN try out its algorithms; not exact")
    parser.add_argument("--fsdp", action="store_true", help="share parameters and optimizer out over the ranks (FSDP2)")
    parser.add_argument(
        "--compare", action="store_true", help="time the same steps fed as guides do it, and by Millrace"
    )
    parser.add_argument("--workers", type=int, default=2, help="DataLoader workers of the guide's way, in --compare")
    return parser.parse_args()


class Norm:
    """Mean and deviation of a feature over the dataset's frames."""

    def __init__(self, values: np.ndarray, device: torch.device) -> None:
        deviation = values.std(0)
        self.mean = torch.as_tensor(values.mean(0), dtype=torch.float32, device=device)
        self.deviation = torch.as_tensor(np.where(deviation < 1e-6, 1, deviation), dtype=torch.float32, device=device)

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.deviation


class Trainer:
    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.frames = open_frames(args)
        numbers = mr.lerobot.Dataset(args.dataset, cameras=[]).batch(range(len(self.frames)))
        self.norms = {name: Norm(numbers[name], device) for name in ("observation.state", "action")}
        tokenizer = mr.Tokenizer.from_file(args.tokenizer)
        self.ids = {task: self.ids_of(tokenizer, task) for task in self.frames.frames.tasks}
        torch.manual_seed(args.seed)  # the same first weights on all ranks
        state, action = (numbers[name].shape[1] for name in ("observation.state", "action"))
        policy: nn.Module = Policy(tokenizer.id_limit, self.frames.frames.cameras, state, action, args).to(device)
        if args.fsdp:
            for block in policy.blocks:  # type: ignore[union-attr]
                dist.fsdp.fully_shard(block)  # type: ignore[attr-defined]
            dist.fsdp.fully_shard(policy)  # type: ignore[attr-defined]
        elif self.world > 1:
            policy = nn.parallel.DistributedDataParallel(policy)
        self.policy = policy
        self.forward: Callable[..., Tensor] = torch.compile(policy) if args.compile else policy
        torch.manual_seed(args.seed + self.rank)
        self.optim = torch.optim.AdamW(policy.parameters(), lr=args.lr, weight_decay=0.01)
        self.loader = mr.torch.lerobot.Loader(self.frames, batch_size=args.batch_size, seed=args.seed, device=device)
        self.checkpointer = mr.torch.Checkpointer(args.out, keep_last=args.keep_last)
        self.told_to_stop = False  # set by a signal, on this rank only

    def ids_of(self, tokenizer: mr.Tokenizer, task: str) -> Tensor:
        ids = [int(number) for number in tokenizer.encode(task)][: self.args.words]
        return torch.tensor(ids + [0] * (self.args.words - len(ids)))

    def state(self) -> dict[str, Any]:
        rng: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        return {"policy": self.policy, "optim": self.optim, "loader": self.loader, "rng": mr.torch.PerRank(rng)}

    def resume(self) -> int:
        """The step from which to continue; 0 at the first start."""
        state: dict[str, Any] = self.state()
        step = self.checkpointer.restore(state)
        rng = state["rng"].value
        random.setstate(rng["python"])
        torch.set_rng_state(rng["torch"])
        if "cuda" in rng:
            torch.cuda.set_rng_state(rng["cuda"], self.device)
        return step or 0

    def loss(self, batch: Batch) -> Tensor:
        """The mean distance of the actions that lie inside of their episodes."""
        pictures = [batch[camera].to(self.device) for camera in self.frames.frames.cameras]
        states = self.norms["observation.state"](batch["observation.state"].to(self.device))
        actions = self.norms["action"](batch["action"].to(self.device))
        ids = torch.stack([self.ids[task] for task in batch["task"]]).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.bf16):
            given = self.forward(pictures, states, ids)
        real = ~batch["action_is_pad"].to(self.device)
        return ((given.float() - actions).abs().mean(-1) * real).sum() / real.sum().clamp(min=1)

    def train_step(self, take: Callable[[], Batch]) -> tuple[float, bool, float]:
        """The loss, averaged over ranks, whether any rank was told to stop, and the seconds waited for data."""
        waited, total = 0.0, 0.0
        for number in range(self.args.accumulate):
            start = time.perf_counter()
            batch = take()
            waited += time.perf_counter() - start
            last = number + 1 == self.args.accumulate
            quiet = contextlib.nullcontext()
            if not last and isinstance(self.policy, nn.parallel.DistributedDataParallel):
                quiet = self.policy.no_sync()  # type: ignore[assignment]
            if self.args.fsdp:
                self.policy.set_requires_gradient_sync(last)  # type: ignore[operator]
            with quiet:
                loss = self.loss(batch) / self.args.accumulate
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.optim.step()
        self.optim.zero_grad(set_to_none=True)
        shared = torch.tensor([total, float(self.told_to_stop)], dtype=torch.float64, device=self.device)
        if self.world > 1:
            dist.all_reduce(shared)
        return shared[0].item() / self.world, shared[1].item() > 0, waited

    def log(self, line: dict[str, Any]) -> None:
        if self.rank == 0 and self.args.log_file is not None:
            with self.args.log_file.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def run(self) -> int:
        """Trains to the last step. Returns the exit status."""
        args = self.args
        first = step = self.resume()
        stop, waited, loss = False, 0.0, float("nan")
        begin = time.perf_counter()
        save: mr.torch.Save | None = None
        while step < args.steps and not stop:
            loss, stop, wait = self.train_step(lambda: next(self.loader))
            step, waited = step + 1, waited + wait
            # Before the save: a run that is killed once the checkpoint is committed does not do this step again.
            self.log({"step": step, "loss": loss, "loss_hex": loss.hex(), "data_wait_s": wait})
            if step % args.save_every == 0 or step == args.steps or stop:
                save = self.checkpointer.save(step, self.state())
        if save is not None:
            save.wait()
        if self.rank == 0 and step == first:
            print(f"nothing to do: step {step} of {args.steps} is in {args.out}")
        elif self.rank == 0:
            parameters = sum(each.numel() for each in self.policy.parameters())
            print(f"steps {first + 1} to {step} in {time.perf_counter() - begin:.1f} s, {parameters:,} parameters")
            print(f"last loss {loss:.4f}; waited {waited:.3f} s for data; checkpoints are in {args.out}")
        return mr.EXIT_REQUEUE if step < args.steps else 0

    def close(self) -> None:
        self.checkpointer.close()
        self.loader.close()


def open_frames(args: argparse.Namespace) -> mr.torch.lerobot.Dataset:
    rate = mr.lerobot.Dataset(args.dataset, cameras=[]).fps
    windows = {"action": [i / rate for i in range(args.chunk)]}
    return mr.torch.lerobot.Dataset(args.dataset, delta_timestamps=windows, return_uint8=True)


# ---- --compare


class GuideFrames(torch.utils.data.Dataset[Batch]):
    """Episodes as CSV files that are parsed at start-up, and a video that is opened for each frame."""

    def __init__(self, folder: Path, videos: dict[str, list[Path]], chunk: int) -> None:
        self.videos, self.chunk = videos, chunk
        self.episodes: list[dict[str, np.ndarray]] = []
        self.tasks = [(path.with_suffix(".txt")).read_text() for path in sorted(folder.glob("*.csv"))]
        for path in sorted(folder.glob("*.csv")):
            with path.open() as file:
                rows = list(csv.reader(file))
            values = np.array([[float(value) for value in row] for row in rows[1:]], np.float32)
            names = np.array([name.rsplit("/", 1)[0] for name in rows[0]])
            self.episodes.append({name: values[:, names == name] for name in ("observation.state", "action")})
        self.places = [(i, k) for i, episode in enumerate(self.episodes) for k in range(len(episode["action"]))]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> Batch:
        import av

        episode, row = self.places[number]
        values = self.episodes[episode]
        last = len(values["action"]) - 1
        rows = np.arange(row, row + self.chunk)
        item: Batch = {"observation.state": values["observation.state"][row], "task": self.tasks[episode],
                       "action": values["action"][np.minimum(rows, last)], "action_is_pad": rows > last}  # fmt: skip
        for camera, paths in self.videos.items():
            with av.open(str(paths[episode])) as file:
                for k, frame in enumerate(file.decode(video=0)):
                    if k == row:
                        item[camera] = frame.to_ndarray(format="rgb24").transpose(2, 0, 1).copy()
                        break
        return item


def write_guide_files(args: argparse.Namespace, folder: Path) -> dict[str, list[Path]]:
    """The dataset as CSV files, an episode each, and its videos, an episode each."""
    root = folder / "v21"
    if (Path(args.dataset) / "meta/episodes.jsonl").exists():
        root = Path(args.dataset)
    else:
        mr.lerobot.convert(args.dataset, root, to="2.1")
    frames = mr.lerobot.Dataset(root, cameras=[])
    for i, episode in enumerate(frames.episodes):
        rows = frames.batch(range(frames.first_frames[i], frames.first_frames[i + 1]))
        named = {name: rows[name] for name in ("observation.state", "action")}
        with (folder / f"episode_{episode:06}.csv").open("w") as file:
            out = csv.writer(file)
            out.writerow(f"{name}/{j}" for name, values in named.items() for j in range(values.shape[1]))
            out.writerows(np.concatenate(list(named.values()), axis=1).tolist())
        (folder / f"episode_{episode:06}.txt").write_text(rows["task"][0])
    cameras = mr.lerobot.Dataset(root).cameras
    return {camera: sorted(root.glob(f"videos/*/{camera}/*.mp4")) for camera in cameras}


def forever(loader: torch.utils.data.DataLoader[Batch]) -> Generator[Batch]:
    while True:
        yield from loader


def measure(args: argparse.Namespace, guide: tuple[Path, dict[str, list[Path]]] | None, answers: Any) -> None:
    """Times some steps in a process of its own, so that memory is that of one way alone."""
    torch.set_num_threads(args.threads)
    trainer = Trainer(args, torch.device("cpu"))
    start = time.perf_counter()
    if guide is None:
        frames = open_frames(args)
        startup = time.perf_counter() - start
        loader = mr.torch.lerobot.Loader(frames, batch_size=args.batch_size, seed=args.seed)
        take: Callable[[], Batch] = lambda: next(loader)  # noqa: E731
        closing = loader.close
    else:
        dataset = GuideFrames(*guide, args.chunk)
        startup = time.perf_counter() - start
        batches = forever(
            torch.utils.data.DataLoader(
                dataset,
                batch_size=args.batch_size,
                shuffle=True,
                drop_last=True,
                num_workers=args.workers,
            )
        )
        take = lambda: next(batches)  # noqa: E731
        closing = batches.close
    trainer.train_step(take)
    start, waited = time.perf_counter(), 0.0
    processor = processor_seconds()
    for _ in range(args.steps):
        waited += trainer.train_step(take)[2]
    step = (time.perf_counter() - start) / args.steps
    closing()  # ends workers, whose time and memory then count
    trainer.close()
    processor = (processor_seconds() - processor) / args.steps
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + children * args.workers
    epoch = len(trainer.frames) / (args.batch_size * args.accumulate) * step
    answers.put([startup, step, waited / args.steps, processor, epoch, memory / 1024])


def processor_seconds() -> float:
    """Of this process and of its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def compare(args: argparse.Namespace) -> int:
    rows = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        videos = write_guide_files(args, folder)
        args.out = str(folder / "run")
        context = multiprocessing.get_context("spawn")
        for way, guide in (("before", (folder, videos)), ("after", None)):
            answers = context.Queue()
            process = context.Process(target=measure, args=(args, guide, answers))
            process.start()
            while True:
                try:
                    rows[way] = answers.get(timeout=1)
                    break
                except Exception:
                    if not process.is_alive():
                        print(f"the run '{way}' ended without a result", file=sys.stderr)
                        return 1
            process.join()
    names = [
        "start of the dataset, s",
        "a step, s",
        "wait for data a step, s",
        "processor time a step, s",
        "an epoch, s",
        "memory, MiB",
    ]
    print(f"{'':26}{'before':>10}{'after':>10}")
    for name, before, after in zip(names, rows["before"], rows["after"], strict=True):
        print(f"{name:26}{before:10.3f}{after:10.3f}")
    return 0


def main() -> int:
    args = arguments()
    if args.compare:
        return compare(args)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    torch.use_deterministic_algorithms(not args.cudnn_benchmark, warn_only=True)
    torch.set_num_threads(args.threads)
    if "RANK" in os.environ or args.fsdp:
        if "RANK" not in os.environ:
            os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("nccl" if cuda else "gloo")
    trainer = Trainer(args, device)

    def stop(*_: object) -> None:
        trainer.told_to_stop = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGUSR1, stop)
    try:
        return trainer.run()
    finally:
        trainer.close()
        if dist.is_initialized():
            dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
