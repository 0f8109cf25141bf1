# SPDX-License-Identifier: Apache-2.0
"""Shows the results of `millrace bench` on a page."""

from __future__ import annotations

from millrace._report_page import Object, Page, escaped, quantity, table


def add_bench(page: Page, objects: list[Object]) -> None:
    results = [each for each in objects if each["type"] == "bench_storage"]
    if not results:
        return
    mounts = list(dict.fromkeys(each["mount"] for each in results))
    for unit, title in (
        ("B/s", "Throughput"),
        ("reads/s", "Random reads"),
        ("writes/s", "Random writes"),
        ("files/s", "Metadata"),
    ):
        tests = list(dict.fromkeys(each["test"] for each in results if each["unit"] == unit))
        if not tests:
            continue
        by_place = {(each["mount"], each["test"]): each for each in results}
        scale, shown = (1e9, "GB/s") if unit == "B/s" else (1, unit)
        series = {
            mount: [
                tuple(by_place[mount, test][key] / scale if (mount, test) in by_place else 0.0 for key in _SPREAD)
                for test in tests
            ]
            for mount in mounts
        }
        page.section(f"{title}: median of the rounds, with least and most", page.bars(tests, series, shown))  # type: ignore[arg-type]
    timed = [each for each in results if each["p99_s"] > 0]
    series = {name: [(each[key] * 1e3,) * 3 for each in timed] for name, key in (("p50", "p50_s"), ("p99", "p99_s"))}
    names = [each["test"] + (f", {each['mount']}" if len(mounts) > 1 else "") for each in timed]
    page.section("Latency of single requests", page.bars(names, series, "ms"))  # type: ignore[arg-type]
    rows = [
        (
            *(each[key] for key in ("mount", "test", "nodes", "ranks")),
            quantity(each["request_bytes"], "bytes") if each["request_bytes"] else "",
            *(quantity(each[key], each["unit"]) for key in _SPREAD),
            f"{each['slowest_share']:.0%}",
            f"{each['start_spread_s'] * 1e3:.1f} ms",
            "" if each["cached"] is None else f"{each['cached']:.0%}",
            "its own" if each["own_data"] else "",
        )
        for each in results
    ]
    head = ("file system", "test", "nodes", "ranks", "request", "median", "least", "most", "slowest rank")
    page.section("All numbers", table((*head, "starts within", "in the page cache", "read"), rows, range(2, 11)))
    meanings = [each for each in objects if each["type"] == "bench_meaning"]
    if meanings:
        rows = [tuple(each[key] for key in ("mount", "what", "value", "formula")) for each in meanings]
        page.section("What it means", table(("file system", "what", "value", "how it was found"), rows, [2]))


_SPREAD = ("median", "least", "most")


def share_text(share: float) -> str:
    return f"{100 * share:.2f} %" if share < 0.1 else f"{100 * share:.1f} %"


def verdict(fine: bool, text: str) -> str:
    return f"<div class='verdict {'fine' if fine else 'warning'}'><b>{escaped(text)}</b></div>"


_LITTLE = 0.05  # the share of time from which the doctor reports


def add_bench_loader(page: Page, found: Object) -> None:
    parts = []
    if found["wait_share"] is not None:
        text = (
            f"Training at {quantity(found['train_tokens_per_s'], 'tokens/s')} would wait "
            f"{share_text(found['wait_share'])} of its time for data."
        )
        parts.append(verdict(found["wait_share"] < _LITTLE, text))
    rows = [
        ("as fast as it goes", quantity(found["tokens_per_s"], "tokens/s")),
        ("measured", f"{found['batches']:,} batches, {found['tokens']:,} tokens in {found['seconds']:.1f} s"),
        ("first batch after", f"{found['first_batch_s']:.3f} s"),
        ("read from storage", quantity(found["read_bytes"] / found["seconds"], "B/s")),
        ("threads", f"{found['threads']}"),
        ("the limit", found["limit"]),
    ]
    page.section("Loader", *parts, table(("", ""), rows))
    stages = ("read", "decode", "collate")
    seconds = {"seconds": [(found[f"{each}_s"],) * 3 for each in stages]}
    note = f"<p class=about>Summed over {found['threads']} threads in {found['seconds']:.1f} s.</p>"
    page.section("Where its threads were", page.bars(stages, seconds, "seconds"), note)  # type: ignore[arg-type]
    if found["train_tokens_per_s"]:
        names = ("the loader", "the training")
        rates = {"tokens/s": [(found[each],) * 3 for each in ("tokens_per_s", "train_tokens_per_s")]}
        page.section("Tokens a second", page.bars(names, rates, "tokens/s"))  # type: ignore[arg-type]


def add_bench_checkpoint(page: Page, found: Object) -> None:
    text = (
        f"Training that saves every {found['interval_s']:,.0f} s would stand {share_text(found['stop_share'])} of its "
        f"time for checkpoints. The best interval is {found['best_interval_s']:,.0f} s, with a failure every "
        f"{found['mtbf_s']:,.0f} s (Daly 2006)."
    )
    size = found["bytes"]
    rows = [
        ("the state of this rank", f"{quantity(size, 'bytes')} in {found['tensors']:,} tensors"),
        ("the first save stops training", f"{found['first_stop_s']:.3f} s"),
        ("the others stop training", f"{found['stop_s']:.3f} s (one memcpy takes {found['copy_s']:.3f} s)"),
        *(
            (f"durable in {tier['folder']}", f"{tier['durable_s']:.2f} s, {quantity(size / tier['durable_s'], 'B/s')}")
            for tier in found["tiers"]
        ),
        ("processor time of one save", f"{found['cpu_s']:.2f} s"),
        ("a load takes", f"{found['load_s']:.2f} s, {quantity(size / found['load_s'], 'B/s')}"),
    ]
    page.section("Checkpoints", verdict(found["stop_share"] < _LITTLE, text), table(("", ""), rows))
    times = {
        "first save stops": found["first_stop_s"],
        "others stop": found["stop_s"],
        "one memcpy": found["copy_s"],
        **{f"durable in {tier['folder']}": tier["durable_s"] for tier in found["tiers"]},
        "load": found["load_s"],
    }
    bars = {"seconds": [(value,) * 3 for value in times.values()]}
    page.section("Times", page.bars(list(times), bars, "seconds"))  # type: ignore[arg-type]


def add_bench_tokenizer(page: Page, results: list[Object]) -> None:
    names = [f"{each['threads']} thread{'s' if each['threads'] > 1 else ''}" for each in results]
    rates = {"MB/s": [(each["bytes_per_s"] / 1e6,) * 3 for each in results]}
    page.section("Text a second", page.bars(names, rates, "MB/s"))  # type: ignore[arg-type]
    rows = [
        (
            each["threads"],
            quantity(each["bytes_per_s"], "B/s"),
            quantity(each["tokens_per_s"], "tokens/s"),
            f"{each['bytes'] / max(1, each['tokens']):.2f}",
            f"{each['seconds']:.1f} s",
        )
        for each in results
    ]
    page.section("Tokenizer", table(("threads", "text", "tokens", "bytes a token", "measured"), rows, range(5)))


def add_data_benches(page: Page, objects: list[Object]) -> None:
    for each in objects:
        if each["type"] == "bench_loader":
            add_bench_loader(page, each)
        elif each["type"] == "bench_checkpoint":
            add_bench_checkpoint(page, each)
    if tokenizers := [each for each in objects if each["type"] == "bench_tokenizer"]:
        add_bench_tokenizer(page, tokenizers)
