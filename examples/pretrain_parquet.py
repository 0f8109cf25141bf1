# SPDX-License-Identifier: Apache-2.0
"""Pre-trains a small language model on a text column of Parquet files, evaluates it, and survives being killed.

    python examples/pretrain_parquet.py --train 'corpus/*.parquet' --valid valid.parquet --column text \\
        --tokenizer tokenizer.json --out run
    torchrun --nproc-per-node 2 examples/pretrain_parquet.py ...    # the same on several ranks
    python examples/pretrain_parquet.py ... --evaluate              # only measures the newest checkpoint

The first start tokenises the column once, into shards below --out; a large corpus is prepared by an array job instead
(`millrace prepare`, docs/prepare.md). Rows of the model are packed: documents are cut where a row is full, and a token
sees its own document only. Run the same command again to continue from the newest checkpoint: on other numbers of
ranks, too. The evaluation counts each token of --valid once, on any number of ranks.
"""

import argparse
import glob
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import millrace as mr


class Model(nn.Module):
    """A decoder of two layers; put your own here."""

    def __init__(self, vocabulary: int, seq_len: int, dim: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, dim), nn.Embedding(seq_len, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(dim, vocabulary, bias=False)

    def forward(self, ids: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        order = torch.arange(ids.shape[1], device=ids.device)
        sees = (order[None, :] <= order[:, None]) & (documents[:, :, None] == documents[:, None, :])
        hidden = self.tokens(ids) + self.places(positions)
        return self.out(self.layers(hidden, mask=~sees.repeat_interleave(4, dim=0)))


def loss_of(net: nn.Module, batch: dict[str, Tensor], reduction: str = "mean") -> Tensor:
    scores = net(batch["input_ids"], batch["position_ids"], batch["document_ids"])
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction=reduction)


def tokenised(files: str, args: argparse.Namespace, name: str) -> Path:
    """Shards of these tables, made by the first rank. One that was killed here is continued by the next start."""
    folder = args.out / name
    if int(os.environ.get("RANK", "0")) == 0:
        tables = sorted(glob.glob(files)) or [files]
        mr.prepare(
            tables, tokenizer=args.tokenizer, out=folder, text_field=args.column, text=False, shard_bytes=64 << 20
        )
        mr.finish(folder)
    if dist.is_initialized():
        dist.barrier()
    return folder


def batches_of(shards: Path, args: argparse.Namespace, training: bool) -> mr.torch.Loader:
    options = {"collate": "pack", "seq_len": args.seq_len, "carry_documents": True}
    if training:
        return mr.torch.Loader(shards, global_batch_size=args.batch_size, seed=1, on_bad="quarantine", **options)
    return mr.torch.Loader(shards, batch_size=args.batch_size, shuffle=False, epochs=1, fill_last="pad", **options)


def evaluate(net: nn.Module, shards: Path, args: argparse.Namespace) -> tuple[float, int]:
    """The mean loss of a token, and how many there are."""
    sums = torch.zeros(2, dtype=torch.float64)
    net.eval()
    with batches_of(shards, args, training=False) as batches, torch.no_grad():
        for batch in batches:
            sums += torch.tensor([loss_of(net, batch, "sum").double(), (batch["labels"][:, 1:] != -100).sum()])
    net.train()
    if dist.is_initialized():
        dist.all_reduce(sums)
    return float(sums[0] / sums[1].clamp(min=1)), int(sums[1])


def train(net: nn.Module, shards: Path, valid: Path, args: argparse.Namespace, is_first: bool) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    with batches_of(shards, args, training=True) as batches, mr.torch.Checkpointer(args.out / "ckpt") as checkpoints:
        state = {"model": net, "optimizer": optimizer, "loader": batches}
        done = checkpoints.restore(state) or 0
        trained = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
        for step in range(done + 1, args.steps + 1):
            loss = loss_of(trained, next(batches))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % args.save_every == 0 or step == args.steps:
                checkpoints.save(step, state)
                held_out, _ = evaluate(net, valid, args)
                if is_first:
                    print(f"step {step} loss {loss.item():.4f} validation {held_out:.4f}", flush=True)
        if is_first:
            print(batches.report())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="Parquet files to train on; a pattern")
    parser.add_argument("--valid", required=True, help="Parquet files to measure the loss with")
    parser.add_argument("--column", default="text", help="the column with the text")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="shards and checkpoints")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16, help="rows of all ranks")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=100)
    parser.add_argument("--evaluate", action="store_true", help="do not train")
    args = parser.parse_args()

    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    args.out.mkdir(parents=True, exist_ok=True)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    valid = tokenised(args.valid, args, "valid")
    torch.manual_seed(1)
    net = Model(mr.Tokenizer.from_file(args.tokenizer).vocab_size, args.seq_len)
    if args.evaluate:
        with mr.torch.Checkpointer(args.out / "ckpt") as checkpoints:
            step = checkpoints.restore({"model": net}, only=("model",))
        if step is None:
            raise SystemExit(f"{args.out}/ckpt: no checkpoint; train first")
        loss, tokens = evaluate(net, valid, args)
        if is_first:
            print(f"step {step} validation {loss:.4f} tokens {tokens}")
    else:
        train(net, tokenised(args.train, args, "train"), valid, args, is_first)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
