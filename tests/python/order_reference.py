# SPDX-License-Identifier: Apache-2.0
"""docs/format/order.md once more, written from that page alone and for clearness, not speed."""

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


def cut_windows(shard_samples, window_samples):
    """Each window is the list of its samples, (shard, number)."""
    return [
        [(shard, i) for i in range(first, min(first + window_samples, samples))]
        for shard, samples in enumerate(shard_samples)
        for first in range(0, samples, window_samples)
    ]


def lane_blocks(windows, options, epoch):
    """lanes -> blocks -> samples in trained order."""
    dealt = Stream(options.seed, epoch, 1).shuffled(windows) if options.shuffle else windows
    lanes = []
    for lane in range(options.lanes):
        mine = dealt[lane :: options.lanes]
        blocks = []
        for first in range(0, len(mine), options.block_windows):
            samples = [s for window in mine[first : first + options.block_windows] for s in window]
            if options.shuffle:
                samples = Stream(options.seed, epoch, 2, lane, len(blocks)).shuffled(samples)
            blocks.append(samples)
        lanes.append(blocks)
    return lanes


def block_units(samples, options, lengths):
    """A unit is a list of segments (shard, number, begin token, end token); unpacked, of one without token numbers."""
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


def epoch_order(shard_samples, options, epoch, lengths=None):
    """The units of an epoch by position: a list of (lane, unit)."""
    windows = cut_windows(shard_samples, options.window_samples)
    lanes = [
        [unit for samples in blocks for unit in block_units(samples, options, lengths)]
        for blocks in lane_blocks(windows, options, epoch)
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
