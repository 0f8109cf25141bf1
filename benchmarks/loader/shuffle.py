# SPDX-License-Identifier: Apache-2.0
"""How well the loader's order shuffles, beside a permutation of all samples.

    python benchmarks/loader/shuffle.py --documents 1000000

The samples of a sorted dataset (by time, class or source) are numbered from 0 to 1 in the order in which they lie. Of an
epoch of shuffled batches, by `loader.provenance`:

  spread     the standard deviation of the mean number of k batches that follow each other, to that of a true permutation;
             1 is as good as it can be, sqrt(k) times more is no shuffle at all between batches
  pairs      pairs of samples that share a batch in this epoch and in the next one, to those of a true permutation

Needs the packages numpy and xxhash.
"""

import argparse
import pathlib
import sys
import tempfile

import numpy as np
from documents import make_shards

STRETCHES = (1, 4, 16, 64, 256)


def two_epochs(shards: str, batch: int) -> np.ndarray:
    """Numbers of the samples, [2, batches, batch]."""
    import millrace as mr

    options = {"batch_size": batch, "seq_len": 20, "collate": "pad", "seed": 1, "rank": 0, "world_size": 1}
    with mr.Loader(shards, epochs=2, **options) as loader:
        steps = [[part for (part,) in loader.provenance(step)[0]] for step in range(len(loader))]
    shard_numbers = {name: i for i, name in enumerate(sorted({part.shard for step in steps for part in step}))}
    most = max(part.sample for step in steps for part in step) + 1
    numbers = np.array([[shard_numbers[part.shard] * most + part.sample for part in step] for step in steps])
    return numbers.reshape(2, -1, batch)


def spread(order: np.ndarray, stretch: int) -> float:
    whole = order[: len(order) // stretch * stretch]
    return float(whole.reshape(-1, stretch * order.shape[1]).mean(axis=1).std())


def shared_pairs(first: np.ndarray, second: np.ndarray) -> int:
    batch_of = np.full(max(first.max(), second.max()) + 1, -1)
    batch_of[second.ravel()] = np.repeat(np.arange(len(second)), second.shape[1])
    pairs = 0
    for batch in batch_of[first]:
        counts = np.unique(batch[batch >= 0], return_counts=True)[1]
        pairs += int((counts * (counts - 1) // 2).sum())
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=float, default=1e6)
    parser.add_argument("--batch", type=int, default=256)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        shards = make_shards(pathlib.Path(temporary), int(args.documents))
        epochs = two_epochs(shards, args.batch)
    random = np.random.default_rng(1)
    true = [random.permutation(epochs[0].size).reshape(epochs[0].shape) for _ in range(2)]
    print("| batches | spread of their mean, to a permutation's |\n|---|---|")
    for stretch in STRETCHES:
        if stretch * 4 <= len(true[0]):
            print(f"| {stretch} | {spread(epochs[0], stretch) / spread(true[0], stretch):.2f} |")
    pairs, expected = shared_pairs(*epochs), shared_pairs(*true)
    print(f"\n{pairs} pairs share a batch in both epochs, {expected} of a permutation's")
    return 0


if __name__ == "__main__":
    sys.exit(main())
