# SPDX-License-Identifier: Apache-2.0
"""Fine-tunes a small language model on conversations, learns the answers only, and survives being killed.

    python examples/finetune_chat.py --chats chats/*.jsonl --valid valid.jsonl --tokenizer tokenizer.json --out run
    torchrun --nproc-per-node 2 examples/finetune_chat.py ...    # the same on several ranks

A line of the files is {"messages": [{"role": ..., "content": ...}, ...]}; docs/chat.md says what else. The first start
renders them once into shards below --out. Whole conversations are packed into rows; a conversation sees no other one
of its row. Run the same command again to continue from the newest checkpoint: on other numbers of ranks, too. The
validation counts each conversation once, on any number of ranks.
"""

import argparse
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


def rendered(files: list[str], tokenizer: mr.Tokenizer, args: argparse.Namespace, name: str) -> Path:
    """Shards of these conversations, made by the first rank of the first start."""
    folder, done = args.out / name, args.out / f"{name}.done"
    if not done.exists() and int(os.environ.get("RANK", "0")) == 0:
        template = mr.chat.NamedChatTemplate(args.template)
        mr.chat.write_chat_shards(files, template, tokenizer, folder)
        done.touch()
    if dist.is_initialized():
        dist.barrier()
    return folder


def batches_of(shards: Path, args: argparse.Namespace, training: bool) -> mr.torch.Loader:
    options = {"collate": "best_fit", "seq_len": args.seq_len, "carry_documents": True}
    if training:
        return mr.torch.Loader(shards, global_batch_size=args.batch_size, seed=1, **options)
    return mr.torch.Loader(shards, batch_size=args.batch_size, shuffle=False, epochs=1, fill_last="pad", **options)


def validate(net: nn.Module, shards: Path, args: argparse.Namespace) -> float:
    """The mean loss of a learned token."""
    sums = torch.zeros(2, dtype=torch.float64)
    net.eval()
    with batches_of(shards, args, training=False) as batches, torch.no_grad():
        for batch in batches:
            sums += torch.tensor([loss_of(net, batch, "sum").double(), (batch["labels"][:, 1:] != -100).sum()])
    net.train()
    if dist.is_initialized():
        dist.all_reduce(sums)
    return float(sums[0] / sums[1].clamp(min=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", nargs="+", required=True, help="JSON lines to train on")
    parser.add_argument("--valid", nargs="+", required=True, help="JSON lines to measure the loss with")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--template", default="chatml", help="chatml, llama-3 or llama-2")
    parser.add_argument("--out", type=Path, required=True, help="shards and checkpoints")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16, help="rows of all ranks")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=100)
    args = parser.parse_args()

    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = mr.Tokenizer.from_file(args.tokenizer)
    train, valid = (
        rendered(files, tokenizer, args, name) for files, name in ((args.chats, "train"), (args.valid, "valid"))
    )
    torch.manual_seed(1)
    net = Model(tokenizer.vocab_size, args.seq_len)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    is_first = not dist.is_initialized() or dist.get_rank() == 0
    with batches_of(train, args, training=True) as batches, mr.torch.Checkpointer(args.out / "ckpt") as checkpoints:
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
                held_out = validate(net, valid, args)
                if is_first:
                    print(f"step {step} loss {loss.item():.4f} validation {held_out:.4f}", flush=True)
        if is_first:
            print(batches.report())
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
