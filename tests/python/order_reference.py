# SPDX-License-Identifier: Apache-2.0
"""docs/format/order.md as code, written from that page alone, for clarity and not for speed."""

import itertools
import math
from dataclasses import dataclass

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(*words):
    state = 0
    for word in words:
        state = mix(((state ^ word) + GOLDEN) & MASK)
    return state


class Stream:
    def __init__(self, *words):
        self.state = key(*words)

    def next(self):
        self.state = (self.state + GOLDEN) & MASK
        return mix(self.state)

    def below(self, n):
        while True:
            product = self.next() * n
            if product & MASK >= (1 << 64) % n:
                return product >> 64

    def shuffled(self, items):
        items = list(items)
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]
        return items


@dataclass
class Options:
    seed: int = 0
    shuffle: bool = True
    lanes: int = 1
    window_samples: int = 1
    block_windows: int = 1
    pack_seq_len: int = 0
    best_fit: bool = False
    full: bool = False


def cut_windows(shard_samples, window_samples):
    """Each window is the list of its samples, (shard, number)."""
    return [
        [(shard, i) for i in range(first, min(first + window_samples, samples))]
        for shard, samples in enumerate(shard_samples)
        for first in range(0, samples, window_samples)
    ]


def best_fit_bins(window, options, lengths):
    """A bin is a list of rows, a row a list of segments."""
    row_tokens = options.pack_seq_len

    def tokens(sample):
        return lengths[sample[0]][sample[1]]

    bins, spaces = [], []
    for shard, i in window:
        if tokens((shard, i)) > row_tokens:
            cuts = [*range(0, tokens((shard, i)), row_tokens), tokens((shard, i))]
            bins.append([[(shard, i, a, b)] for a, b in itertools.pairwise(cuts)])
            spaces.append(row_tokens - (cuts[-1] - cuts[-2]))
    whole = [sample for sample in window if 0 < tokens(sample) <= row_tokens]
    for shard, i in sorted(whole, key=lambda sample: (-tokens(sample), sample)):
        size = tokens((shard, i))
        fits = [number for number, space in enumerate(spaces) if space >= size]
        if not fits:
            bins.append([[]])
            spaces.append(row_tokens)
        number = min(fits, key=lambda number: (spaces[number], number), default=len(bins) - 1)
        bins[number][-1].append((shard, i, 0, size))
        spaces[number] -= size
    return bins


def lane_blocks(windows, options, epoch, lengths=None):
    """lanes -> blocks -> samples in trained order; by best fit, bins."""
    dealt = Stream(options.seed, epoch, 1).shuffled(windows) if options.shuffle else windows
    lanes = []
    for lane in range(options.lanes):
        mine = dealt[lane :: options.lanes]
        blocks = []
        for first in range(0, len(mine), options.block_windows):
            of_block = mine[first : first + options.block_windows]
            samples = [s for window in of_block for s in window]
            if options.best_fit:
                samples = [bin for window in of_block for bin in best_fit_bins(window, options, lengths)]
            if options.shuffle:
                samples = Stream(options.seed, epoch, 2, lane, len(blocks)).shuffled(samples)
            blocks.append(samples)
        lanes.append(blocks)
    return lanes


def block_units(samples, options, lengths):
    """A unit is a list of segments (shard, number, begin token, end token); unpacked, of one without token numbers."""
    if options.best_fit:
        return [row for rows in samples for row in rows]
    if options.pack_seq_len == 0:
        return [[sample] for sample in samples]
    tokens = [(shard, i, t) for shard, i in samples for t in range(lengths[shard][i])]
    rows = []
    for first in range(0, len(tokens), options.pack_seq_len):
        row = []
        for shard, i, t in tokens[first : first + options.pack_seq_len]:
            if row and row[-1][:2] == (shard, i) and row[-1][3] == t:
                row[-1] = (shard, i, row[-1][2], t + 1)
            else:
                row.append((shard, i, t, t + 1))
        rows.append(row)
    return rows


def permuted(number, size, seed, epoch):
    """Where a full permutation of `size` samples has this position."""
    bits = next(bits for bits in itertools.count(1) if 4**bits >= size)
    while True:
        left, right = divmod(number, 2**bits)
        for round in range(8):
            left, right = right, left ^ key(seed, epoch, 4, round, right) % 2**bits
        number = left * 2**bits + right
        if number < size:
            return number


def epoch_order(shard_samples, options, epoch, lengths=None):
    """The units of an epoch by position: a list of (lane, unit)."""
    if options.full:
        samples = [(shard, i) for shard, count in enumerate(shard_samples) for i in range(count)]
        numbers = (permuted(i, len(samples), options.seed, epoch) for i in range(len(samples)))
        return [(0, [samples[number]]) for number in numbers]
    windows = cut_windows(shard_samples, options.window_samples)
    lanes = [
        [unit for samples in blocks for unit in block_units(samples, options, lengths)]
        for blocks in lane_blocks(windows, options, epoch, lengths)
    ]
    rows = max(len(units) for units in lanes)
    return [(lane, units[row]) for row in range(rows) for lane, units in enumerate(lanes) if row < len(units)]


def rank_positions(order, begin, count, rank, world):
    by_lane = sorted(range(begin, begin + count), key=lambda position: (order[position][0], position))
    return by_lane[rank * count // world : (rank + 1) * count // world]


def fingerprint(order):
    """One number for a whole order, to compare implementations."""
    words = []
    for lane, unit in order:
        words.append(lane)
        for segment in unit:
            words.extend(segment)
    return key(*words)


def shares(weights):
    """Each dataset's part of a unit, in 2^-32. Rounds halves away from 0, unlike Python's round()."""
    ends = [math.floor(sum(weights[: i + 1]) / sum(weights) * 2**32 + 0.5) for i in range(len(weights))]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def mixture_draws(weights_of_step, batch, steps):
    """The dataset of every unit: a list for each step."""
    debts = [0] * len(weights_of_step(0))
    drawn = []
    for step in range(steps):
        share = shares(weights_of_step(step))
        units = []
        for _ in range(batch):
            debts = [debt + more for debt, more in zip(debts, share, strict=True)]
            most = max((i for i in range(len(debts)) if share[i] > 0), key=lambda i: (debts[i], -i))
            debts[most] -= 2**32
            units.append(most)
        drawn.append(units)
    return drawn
