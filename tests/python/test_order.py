# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/format/order.md and the numbers in order_test.cpp are what the reference computes."""

import re
from pathlib import Path

from order_reference import (
    Options,
    Stream,
    epoch_order,
    fingerprint,
    lane_blocks,
    mix,
    mixture_draws,
    permuted,
    rank_positions,
)

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/format/order.md").read_text()
SHARDS = [5, 3, 6]
LENGTHS = [[3, 9, 2, 4, 1], [6, 2, 5], [7, 1, 8, 3, 2, 4]]


def example(**changes):
    return Options(**({"seed": 7, "lanes": 3, "window_samples": 2, "block_windows": 2} | changes))


def samples(units):
    return " ".join(f"{shard}:{number}" for _, [(shard, number)] in units)


def test_random_numbers():
    stream = Stream(7, 0, 1)
    drawn = " ".join(f"{stream.next():016x}" for _ in range(3))
    assert f"`mix(1)` = `{mix(1):016x}`" in DOC
    assert f"begins with `{drawn}`" in DOC
    stream = Stream(7, 0, 1)
    assert " ".join(str(stream.below(10)) for _ in range(10)) in DOC
    assert "into " + " ".join(map(str, Stream(7, 0, 1).shuffled(range(10)))) in DOC


def test_lanes_and_rows():
    windows = Stream(7, 0, 1).shuffled("abcdefgh")
    assert f"into {' '.join(windows)} and deals" in DOC
    shard_windows = [[(0, 0), (0, 1)], [(0, 2), (0, 3)], [(0, 4)], [(1, 0), (1, 1)], [(1, 2)]]
    shard_windows += [[(2, 0), (2, 1)], [(2, 2), (2, 3)], [(2, 4), (2, 5)]]
    for lane, blocks in enumerate(lane_blocks(shard_windows, example(), 0)):
        names = [windows[lane::3][at : at + 2] for at in range(0, len(windows[lane::3]), 2)]
        line = f"lane {lane}:  {' | '.join(' '.join(block) for block in names)}"
        trained = " | ".join(" ".join(f"{shard}:{number}" for shard, number in block) for block in blocks)
        assert f"{line:<16}    trained order  {trained}\n" in DOC

    order = epoch_order(SHARDS, example(), 0)
    rows = {
        label: re.search(rf"^    {label}  +(.*)$", DOC, re.M)[1].split() for label in ("position", "lane", "sample")
    }
    assert rows["position"] == [str(position) for position in range(14)]
    assert rows["lane"] == [str(lane) for lane, _ in order]
    assert " ".join(rows["sample"]) == samples(order)
    assert f"by position: {samples(epoch_order(SHARDS, example(), 1))}." in DOC


def test_two_then_three_ranks():
    order = epoch_order(SHARDS, example(), 0)
    for step, world in [(0, 2), (1, 2), (2, 3), (3, 3)]:
        begin, count = 4 * step, min(4, len(order) - 4 * step)
        ranks = [rank_positions(order, begin, count, rank, world) for rank in range(world)]
        positions = " | ".join(" ".join(map(str, rank)) or "-" for rank in ranks)
        read = " | ".join(samples([order[position] for position in rank]) or "-" for rank in ranks)
        assert re.search(
            rf"step {step}, {world} ranks +positions {re.escape(positions)} +samples {re.escape(read)}\n", DOC
        )


def test_packed():
    for position, (lane, row) in enumerate(epoch_order(SHARDS, example(pack_seq_len=8), 0, LENGTHS)):
        segments = " ".join(f"{shard}:{number}[{begin},{end})" for shard, number, begin, end in row)
        assert f"    {position:<8}  {lane:<4}  {segments}\n" in DOC


def test_best_fit():
    order = epoch_order(SHARDS, example(pack_seq_len=8, best_fit=True, window_samples=3), 0, LENGTHS)
    for position, (lane, row) in enumerate(order):
        segments = " ".join(f"{shard}:{number}[{begin},{end})" for shard, number, begin, end in row)
        assert f"    {position:<8}  {lane:<4}  {segments}\n" in DOC.partition("### Best fit")[2]
    whole = [row for _, row in order for _, _, begin, _ in row if begin == 0]
    assert len(whole) == sum(length > 0 for shard in LENGTHS for length in shard)


def test_full():
    order = epoch_order(SHARDS, example(full=True), 0)
    assert f"    {samples(order)}\n" in DOC and f"    {samples(epoch_order(SHARDS, example(full=True), 1))}\n" in DOC
    source = (ROOT / "src/millrace/order/permutation_test.cpp").read_text()
    assert f"ElementsAre({', '.join(str(permuted(i, 14, 7, 0)) for i in range(14))})" in source
    for i in range(3):
        number = f"{permuted(i, 10**8, 7, 0):,}".replace(",", "'")
        assert f"large.at({i}), {number})" in source
    for size in (1, 2, 3, 4, 5, 16, 17, 300):
        assert sorted(permuted(i, size, 1, 2) for i in range(size)) == list(range(size))


def test_fingerprints_in_the_cpp_test():
    source = (ROOT / "src/millrace/order/order_test.cpp").read_text()
    number = r"\s*(0x[0-9A-F]+|\d+)U?\s*"
    option = r"\.{}\s*=" + number + ","
    fields = [option.format(name) for name in ("lanes", "window_samples", "block_windows")]
    case = rf"{{{number},{number},\s*{{\.seed ={number},\s*\.shuffle = (true|false),\s*" + r"\s*".join(fields)
    case += rf"\s*\.pack_seq_len ={number}}},{number},{number},{number},{number}}}"
    cases = re.findall(case, source)
    assert len(cases) == 8
    for shards, most, seed, shuffle, lanes, window, block, pack, epoch, most_tokens, units, expected in cases:
        numbers = (seed, lanes, window, block, pack)
        seed, lanes, window, block, pack = (int(text, 0) for text in numbers)
        sizes = [1 + mix(shard) % int(most) for shard in range(int(shards))]
        lengths = None
        if int(most_tokens):
            lengths = [[mix(1000 * s + i) % int(most_tokens) for i in range(size)] for s, size in enumerate(sizes)]
        options = Options(seed, shuffle == "true", lanes, window, block, pack)
        order = epoch_order(sizes, options, int(epoch, 0), lengths)
        assert (len(order), fingerprint(order)) == (int(units), int(expected, 0))


def test_mixture():
    [drawn] = mixture_draws(lambda _: [3, 1], 8, 1)
    assert drawn == [0, 0, 1, 0] * 2
    assert "The draws go 0 0 1 0 and repeat." in DOC
    weights = [0.1, 0.7, 1e-3, 0, 2.5]
    number = 0
    for units in mixture_draws(lambda step: weights if step < 40 else [1] * 5, 37, 100):
        for source in range(5):
            number = (number * 1_000_003 + units.count(source)) % 2**64
    assert f"{number}ULL" in (ROOT / "src/millrace/order/mixture_test.cpp").read_text()
