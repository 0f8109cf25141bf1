# SPDX-License-Identifier: Apache-2.0
"""Pretrains a small Llama-style language model on Millrace shards, and survives being killed at any moment.

    millrace prepare corpus/*.txt --tokenizer tokenizer.json --out shards
    python examples/pretrain_lm.py --tokenizer tokenizer.json --shards shards/*.tar --valid 1 --out run
    torchrun --nproc-per-node 2 examples/pretrain_lm.py ...        # the same on several ranks (NCCL on GPUs, else gloo)
    torchrun --nproc-per-node 2 examples/pretrain_lm.py ... --fsdp # for models that one GPU does not hold (FSDP2)

Run the same command again to continue from the newest checkpoint, also on another number of ranks. On SIGTERM or SIGUSR1 it saves, waits until the
checkpoint is durable, and exits with status 75: run me again. With a fixed number of threads and ranks, the losses
after a resume are those of a run that was never stopped, to the last bit.
"""

import argparse
import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import millrace as mr


class RMSNorm(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of x [batch, heads, seq, head_dim]; cos and sin [batch, 1, seq, head_dim / 2]."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).type_as(x)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, seq, dim = x.shape
        shape = (batch, seq, self.heads, dim // self.heads)
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        attended = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, attn_mask=mask)
        return self.o_proj(attended.transpose(1, 2).reshape(batch, seq, dim))


class MLP(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(dim), RMSNorm(dim)
        self.self_attn, self.mlp = Attention(dim, heads), MLP(dim, hidden_size(dim))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    """ids and positions [batch, seq] int64 -> the mean loss over the labels that are not -100.

    Its tensors have the names that transformers gives a Llama's, so that `millrace ckpt export` writes what it loads.
    """

    def __init__(self, vocabulary: int, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        embed = nn.Embedding(vocabulary, dim)
        blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.model = nn.ModuleDict({"embed_tokens": embed, "layers": blocks, "norm": RMSNorm(dim)})
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)
        self.lm_head.weight = embed.weight
        self.head_dim = dim // heads
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = (2 * layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, ids: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
        rates = 10000.0 ** -(torch.arange(0, self.head_dim, 2, device=ids.device) / self.head_dim)
        angles = (positions[:, None, :, None] * rates).float()
        cos, sin = angles.cos(), angles.sin()
        # Packed rows hold several documents; a token sees those before it in its own document.
        document = (positions == 0).cumsum(dim=1)
        mask = (document[:, :, None] == document[:, None, :]).tril()[:, None]
        x = self.model["embed_tokens"](ids)
        for block in self.model["layers"]:  # type: ignore[union-attr]
            x = block(x, cos, sin, mask)
        logits = self.lm_head(self.model["norm"](x))[:, :-1].float()
        # A document's last token is followed by the next document, which cannot be predicted.
        targets = labels[:, 1:].masked_fill(positions[:, 1:] == 0, -100)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def hidden_size(dim: int) -> int:
    return 64 * math.ceil(8 * dim / 3 / 64)


def write_model_files(folder: Path, args: argparse.Namespace, vocabulary: int) -> None:
    """What transformers wants beside the weights: `millrace ckpt export ... --like FOLDER` copies it."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
        "hidden_size": args.dim, "intermediate_size": hidden_size(args.dim), "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads, "num_key_value_heads": args.heads, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": args.seq_len,
        "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": None,
        "eos_token_id": None, "torch_dtype": "float32",
    }  # fmt: skip
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": args.seq_len}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2) + "\n")
    (folder / "tokenizer.json").write_bytes(Path(args.tokenizer).read_bytes())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", nargs="+", required=True, help="training shards")
    parser.add_argument(
        "--valid", nargs="+", required=True, help="validation shards, or how many of the last --shards to hold out"
    )
    parser.add_argument("--tokenizer", required=True, help="the tokenizer.json of the shards")
    parser.add_argument("--out", required=True, help="folder or URL for checkpoints")
    parser.add_argument(
        "--tier",
        action="append",
        default=[],
        metavar="URL",
        help="a place nearer than --out, which gets each checkpoint first; the nearest first, may be repeated; "
        "variables such as $TMPDIR are those of the node",
    )
    parser.add_argument("--cache", metavar="DIR", help="folder on a disk of the node for what is read of remote shards")
    parser.add_argument("--cache-bytes", default="0", metavar="SIZE", help="its limit (0: half of the disk)")
    parser.add_argument(
        "--model-files",
        type=Path,
        metavar="DIR",
        help="folder that gets config.json and the tokenizer, for `millrace ckpt export ... --like DIR`",
    )
    parser.add_argument(
        "--log-file",
        type=Path,
        help="file that gets one JSON line a step, before the step is saved: a save's stall is in the next line",
    )
    parser.add_argument("--record", help="folder of the run's record, which `millrace runs` reads")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints, each with a validation")
    parser.add_argument("--keep-last", type=int, default=2, help="checkpoints that stay")
    parser.add_argument("--batch-size", type=int, default=8, help="rows on each rank")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=20, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads of torch; another number gives other last bits"
    )
    parser.add_argument(
        "--fsdp",
        action="store_true",
        help="share parameters and optimizer out over the ranks (FSDP2), else each has all",
    )
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where autocast finds it safe")
    args = parser.parse_args()
    args.tier, args.cache = [os.path.expandvars(url) for url in args.tier], os.path.expandvars(args.cache or "") or None
    if len(args.valid) == 1 and args.valid[0].isdigit():
        held_out = int(args.valid[0])
        if not 0 < held_out < len(args.shards):
            parser.error(f"--valid {held_out} of {len(args.shards)} shards")
        args.shards, args.valid = args.shards[:-held_out], args.shards[-held_out:]
    return args


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


class Trainer:
    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        torch.manual_seed(args.seed)  # the same first weights on all ranks
        vocabulary = mr.Tokenizer.from_file(args.tokenizer).id_limit
        if args.model_files is not None and self.rank == 0:
            write_model_files(args.model_files, args, vocabulary)
        self.model: nn.Module = self.shared_out(Transformer(vocabulary, args.dim, args.layers, args.heads).to(device))
        torch.manual_seed(args.seed + self.rank)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
        self.loader = self.open_loader(args.shards, shuffle=True, seed=args.seed)
        tiers = [mr.torch.Tier(url) for url in args.tier]
        self.checkpointer = mr.torch.Checkpointer(args.out, keep_last=args.keep_last, tiers=tiers)
        self.record: mr.Run | None = None
        if args.record is not None:
            self.record = mr.Run(
                args.record, config=vars(args), loader=self.loader, checkpointer=self.checkpointer, rank=self.rank
            )
        self.told_to_stop = False  # set by a signal, on this rank only

    def shared_out(self, model: Transformer) -> nn.Module:
        if self.args.fsdp:
            for block in model.model["layers"]:  # type: ignore[union-attr]
                fully_shard(block)
            return fully_shard(model)
        return nn.parallel.DistributedDataParallel(model) if self.world > 1 else model

    def open_loader(self, shards: list[str], **options: Any) -> mr.torch.Loader:
        args = self.args
        if args.cache is not None:
            options |= {"cache": args.cache, "cache_bytes": args.cache_bytes}
        return mr.torch.Loader(
            shards, batch_size=args.batch_size, seq_len=args.seq_len, collate="pack", device=self.device, **options
        )

    def state(self) -> dict[str, Any]:
        rng: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self.device)
        return {"model": self.model, "optim": self.optim, "loader": self.loader, "rng": mr.torch.PerRank(rng)}

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

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.args.bf16):
            return self.model(batch["input_ids"], batch["position_ids"], batch["labels"])

    def train_step(self, step: int, batch: dict[str, Tensor]) -> tuple[float, bool]:
        """The loss, averaged over ranks, and whether any rank was told to stop: the same answer on all ranks."""
        for group in self.optim.param_groups:
            group["lr"] = learning_rate(self.args, step)
        loss = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optim.step()
        self.optim.zero_grad(set_to_none=True)
        shared = torch.tensor([loss.item(), float(self.told_to_stop)], dtype=torch.float64, device=self.device)
        if self.world > 1:
            dist.all_reduce(shared)
        return shared[0].item() / self.world, shared[1].item() > 0

    @torch.no_grad()
    def validate(self, batches: int = 8) -> float | None:
        """The loss of the first batches of the validation shards; None when they do not fill one batch."""
        losses: list[Tensor] = []
        with self.open_loader(self.args.valid, shuffle=False, epochs=1) as loader:
            while len(losses) < batches and (batch := next(loader, None)) is not None:
                losses.append(self.loss(batch))
        if not losses:
            return None
        mean = torch.stack(losses).mean()
        if self.world > 1:
            dist.all_reduce(mean)
        return mean.item() / self.world

    def log(self, line: dict[str, Any]) -> None:
        if self.rank == 0 and self.args.log_file is not None:
            with self.args.log_file.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def run(self) -> int:
        """Trains to the last step. Returns the exit status."""
        args = self.args
        first = step = self.resume()
        stop = False
        waited = stalled = stall = 0.0
        line: dict[str, Any] = {}
        begin = time.perf_counter()
        save: mr.torch.Save | None = None
        while step < args.steps and not stop:
            start = time.perf_counter()
            batch = next(self.loader)
            data_wait = time.perf_counter() - start
            loss, stop = self.train_step(step, batch)
            step += 1
            seconds = time.perf_counter() - start
            tokens = batch["input_ids"].numel() * self.world
            line = {"step": step, "loss": loss, "loss_hex": loss.hex(), "tokens_per_s": tokens / seconds,
                    "data_wait_s": data_wait, "save_stall_s": stall}  # fmt: skip
            saving = step % args.save_every == 0 or step == args.steps or stop
            if saving:
                line["valid_loss"] = None if stop else self.validate()
            # Before the save begins: a checkpoint is committed in the background, and a run that is killed right
            # then goes on behind this step and does not write its line again.
            self.log(line)
            if self.record is not None:
                self.record.log(step, loss=loss, lr=learning_rate(args, step - 1), tokens_per_s=line["tokens_per_s"])
            stall = 0.0
            if saving:
                save = self.checkpointer.save(step, self.state())
                stall = self.checkpointer.stats()["last_stall_seconds"]
            waited, stalled = waited + data_wait, stalled + stall
        if save is not None:
            save.wait()
        if self.record is not None:
            self.record.close("completed" if step == args.steps else "requeue")
        if self.rank == 0 and step == first:
            print(f"nothing to do: step {step} of {args.steps} is in {args.out}")
        elif self.rank == 0:
            total = time.perf_counter() - begin
            print(f"steps {first + 1} to {step} in {total:.1f} s")
            print(f"last loss {line.get('loss')}, validation loss {line.get('valid_loss')}")
            print(f"waited {waited:.3f} s for data and {stalled:.3f} s for checkpoints, which are in {args.out}")
        return mr.EXIT_REQUEUE if step < args.steps else 0

    def close(self) -> None:
        self.checkpointer.close()
        self.loader.close()


def main() -> int:
    args = arguments()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.cuda.set_device(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
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
