# SPDX-License-Identifier: Apache-2.0
"""millrace.torch.Checkpointer: what goes in comes out, on one rank and several, and damage is never restored."""

import collections
import io
import math
import os
import pickle
import random
import signal
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy")

from checkpoint_helpers import TinyModel, bits, data_files, header_of, restored, saved, train  # noqa: E402

import millrace as mr  # noqa: E402

NUMPY_DTYPES = [
    "bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "complex64",
]  # fmt: skip
FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]
DTYPES = [name for name in [*NUMPY_DTYPES, "bfloat16", *FLOAT8] if hasattr(torch, name)]


def round_trip(root, value):
    saved(root, 1, {"x": value})
    state = {"x": None}
    assert restored(root, state) == 1
    return state["x"]


def test_plain_values_come_back_exactly(tmp_path):
    value = {
        "none": None, "bools": [True, False], "ints": [0, -1, 2**63 - 1, -(2**63), 2**63, 10**40],
        "floats": [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e22, 3.0, math.inf, -math.inf, math.nan],
        "strings": ["", "é\x00\"\\\n", "😀", "lone \ud800"], "bytes": [b"", bytes(range(256))],
        "tuple": (1, (2.0, [3]), ()), "keys": {1: "a", "1": "b", False: "?", None: 0, 2.5: 1, (1, "x"): 2, b"k": 3},
        "order": {"b": 1, "a": 2}, "dollar": {"$tensor": "no", "$": 1}, "empty": {}, "list": [],
        "ordered": collections.OrderedDict(z=1, a=[2]), "counter": collections.Counter("hello"),
        "scalars": [np.float32(0.1), np.int64(-3), np.bool_(True), np.float64(math.pi), np.complex64(1j)],
        "dtype": [torch.bfloat16, torch.int64], "size": torch.Size([2, 3]), "": {"": 1},
    }  # fmt: skip
    assert bits(round_trip(tmp_path, value)) == bits(value)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape(tmp_path, dtype):
    dtype = getattr(torch, dtype)
    width = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(256, (5 * 4 * width,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    full = (raw % 2).bool().view(5, 4) if dtype == torch.bool else raw.view(dtype).view(5, 4)
    value = {"full": full, "scalar": full[1, 1].clone(), "empty": torch.empty((0, 3), dtype=dtype), "t": full.t()}
    assert bits(round_trip(tmp_path, value)) == bits(value)


def test_arrays_come_back_exactly(tmp_path):
    value = {name: np.arange(24).reshape(4, 6).astype(name) for name in NUMPY_DTYPES}
    value |= {
        "strided": np.arange(24).reshape(4, 6)[::2, ::-1],
        "scalar": np.array(3.5),
        "empty": np.empty((2, 0), np.int8),
    }
    assert bits(round_trip(tmp_path, value)) == bits(value)


def test_random_states_come_back_exactly(tmp_path, seeded):
    def key():
        return seeded.choice(
            [
                seeded.randrange(5),
                seeded.choice("abc$.~/"),
                seeded.choice("ab") + "." + seeded.choice("ab"),
                (1, seeded.randrange(3)),
            ]
        )

    def value(depth):
        kind = seeded.randrange(12 if depth > 0 else 8)
        if kind < 8:
            return [
                lambda: None, lambda: seeded.random() < 0.5, lambda: seeded.getrandbits(seeded.randrange(1, 90)),
                lambda: seeded.choice([seeded.gauss(0, 1e9), math.inf, 2.0]),
                lambda: "".join(seeded.choices("a\"\\\u20ac\ud800\n", k=4)),
                lambda: seeded.randbytes(3), lambda: torch.randn([seeded.randrange(3) for _ in range(seeded.randrange(4))]),
                lambda: np.float16(seeded.random()) if seeded.random() < 0.5 else np.arange(seeded.randrange(4)),
            ][kind]()  # fmt: skip
        if kind < 10:
            return {key(): value(depth - 1) for _ in range(seeded.randrange(4))}
        items = [value(depth - 1) for _ in range(seeded.randrange(4))]
        return tuple(items) if kind == 10 else items

    for step in range(1, 30):
        tree = {"x": value(4), "y": value(2)}
        if seeded.random() < 0.5:
            tree["again"] = tree["x"]
        saved(tmp_path, step, tree, keep_last=1)
        state = dict.fromkeys(tree)
        assert restored(tmp_path, state) == step
        assert bits(state) == bits(tree)


def test_training_goes_on_as_if_never_stopped(tmp_path):
    def fresh(seed):
        model = TinyModel(seed)
        optim = torch.optim.AdamW(
            [{"params": [model.embed.weight], "lr": 0.1}, {"params": model.norm.parameters(), "betas": (0.8, 0.9)}],
            lr=0.05,
        )
        return model, optim, torch.optim.lr_scheduler.CosineAnnealingLR(optim, 50)

    model, optim, schedule = fresh(1)
    train(model, optim, 5)
    schedule.step()
    saved(tmp_path, 5, {"model": model, "optim": optim, "schedule": schedule})
    train(model, optim, 3, seed=9)

    other, other_optim, other_schedule = fresh(2)
    pointer = other.embed.weight.data_ptr()
    state = {"model": other, "optim": other_optim, "schedule": other_schedule}
    assert restored(tmp_path, state) == 5
    assert other.embed.weight.data_ptr() == pointer and other.head.weight is other.embed.weight
    assert other_schedule.state_dict() == schedule.state_dict()
    train(other, other_optim, 3, seed=9)
    assert bits(other.state_dict()) == bits(model.state_dict())
    assert bits(other_optim.state_dict()) == bits(optim.state_dict())

    # Once more into objects that are in use: the optimizer has state of its own by now.
    assert restored(tmp_path, state) == 5
    train(other, other_optim, 3, seed=9)
    assert bits(other.state_dict()) == bits(model.state_dict())


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 2, 5]),
        lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, 10),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o, [torch.optim.lr_scheduler.ConstantLR(o), torch.optim.lr_scheduler.StepLR(o, 2)], [3]
        ),
    ],
)
def test_schedulers(tmp_path, make):
    def fresh():
        return make(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1.0, momentum=0.9))

    def advance(schedule):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            schedule.step(0.5) if isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau) else schedule.step()

    one, two = fresh(), fresh()
    for _ in range(4):
        advance(one)
    saved(tmp_path, 1, {"optim": one.optimizer, "schedule": one})
    restored(tmp_path, {"optim": two.optimizer, "schedule": two})
    assert bits(two.state_dict()) == bits(one.state_dict())
    advance(one)
    advance(two)
    assert one.get_last_lr() == two.get_last_lr()


def test_names_and_tied_weights_in_files_that_safetensors_reads(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch", reason="the package safetensors is not installed")
    model = TinyModel()
    optim = torch.optim.Adam(model.parameters())
    train(model, optim, 1)
    saved(tmp_path, 1, {"model": torch.nn.DataParallel(model), "optim": optim, "extra": {"x": [torch.ones(2)]}})
    (path,) = data_files(tmp_path, 1)
    stored = safetensors.load_file(path)
    assert {name for name in stored if name.startswith("model.")} == {
        "model.embed.weight", "model.norm.weight", "model.norm.bias", "model.norm.running_mean",
        "model.norm.running_var", "model.norm.num_batches_tracked",
    }  # fmt: skip
    assert "model.head.weight" not in stored and "extra.x.0" in stored
    # DataParallel moves the model to a GPU where there is one.
    assert torch.equal(stored["model.embed.weight"], model.embed.weight.cpu())
    assert torch.equal(stored["optim.state.0.exp_avg"], optim.state_dict()["state"][0]["exp_avg"].cpu())


def test_what_was_tied_may_be_untied_and_the_other_way_round(tmp_path):
    one = torch.arange(4.0)
    saved(tmp_path, 1, {"a": one, "b": one})
    state = {"a": torch.zeros(4), "b": torch.zeros(4)}
    restored(tmp_path, state)
    assert torch.equal(state["a"], one) and torch.equal(state["b"], one)
    saved(tmp_path, 2, {"a": one, "b": one + 1})
    both = torch.zeros(4)
    for strict in (True, False):
        with pytest.raises(ValueError, match="differs: a and b are one tensor here, and two as stored"):
            restored(tmp_path, {"a": both, "b": both}, strict=strict)
    assert restored(tmp_path, {"a": both}, only="a") == 2 and torch.equal(both, one)


def test_no_memory_is_loaded_into_twice(tmp_path, monkeypatch):
    """Targets are filled by many threads at once: two of them on one memory would make the result a matter of luck."""
    opened, targets = mr._core.Checkpoint, []

    class Spy:
        def __init__(self, root, step, *rest):
            self._checkpoint = opened(root, step, *rest)

        def __getattr__(self, name):
            return getattr(self._checkpoint, name)

        def load(self, entries, threads):
            targets.append([address for *_, address in entries])
            self._checkpoint.load(entries, threads=threads)

    monkeypatch.setattr(mr._core, "Checkpoint", Spy)
    one = torch.arange(4.0)
    saved(tmp_path, 1, {"a": one, "b": one, "c": one[1:3] + 1})
    live = torch.zeros(4)
    restored(tmp_path, {"a": live, "b": live, "c": live[1:3]})  # "c" is a part of the same memory
    assert len(targets) == 1 and len(targets[0]) == len(set(targets[0])) == 2
    assert live.tolist() == [0, 2, 3, 3]


def test_the_snapshot_is_taken_when_save_returns(tmp_path):
    model = TinyModel()
    numbers = np.arange(100_000)
    history = [1, 2]
    state = {"model": model, "numbers": numbers, "history": history}
    expected = bits({"model": model.state_dict(), "numbers": numbers, "history": history})
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        save = checkpointer.save(1, state)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(math.nan)
        numbers[:] = -1
        history.append(3)
        save.wait(60)
        assert save.done and save.step == 1 and save.bytes > 800_000
        stats = checkpointer.stats()
        assert stats["saves"] == 1 and stats["last_stall_seconds"] == stats["stall_seconds"] > 0
        assert checkpointer.restore(state) == 1
    assert bits({"model": model.state_dict(), "numbers": numbers, "history": history}) == expected


def test_restore_fills_in_place_what_it_can(tmp_path):
    source = {"t": torch.arange(6.0).view(2, 3), "half": torch.ones(3), "a": np.arange(3),
              "d": {"l": [1, torch.ones(1)]},
              "n": 7, "p": (torch.ones(2), 5), "o": collections.OrderedDict(k=1)}  # fmt: skip
    saved(tmp_path, 1, source)
    view = torch.zeros(3, 2).t()
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    array, inner, items, pair = np.zeros(6, np.int64)[::2], {}, [0], torch.zeros(2)
    inner["l"] = items
    state = {
        "t": view,
        "half": parameter,
        "a": array,
        "d": inner,
        "n": 0,
        "p": (pair, 0),
        "o": collections.OrderedDict(),
    }
    restored(tmp_path, state)
    assert state["t"] is view and torch.equal(view, source["t"])
    assert state["half"] is parameter and parameter.dtype == torch.bfloat16 and parameter.sum() == 3
    assert state["a"] is array and array.tolist() == [0, 1, 2]
    assert state["d"] is inner and inner["l"] is items and items[0] == 1 and torch.equal(items[1], torch.ones(1))
    assert state["n"] == 7 and state["p"][0] is pair and pair.sum() == 2 and state["p"][1] == 5
    assert list(state["o"].items()) == [("k", 1)]


def contains_itself(container):
    container.append(container) if isinstance(container, list) else container.update(self=container)
    return container


def nested_lists(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


class Custom:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"optim": {"param_groups": [{"foo": object()}]}}, r"optim\.param_groups\[0\]\.foo: <class 'object'>"),
        ({"x": {1, 2}}, r"x: <class 'set'>"),
        ({"x": [lambda: 0]}, r"x\[0\]: <class 'function'>"),
        ({"x": collections.namedtuple("P", "a")(1)}, r"x: <class '.*P'>"),
        ({"x": torch.ones(2, dtype=torch.complex128)}, r"x: a tensor of torch\.complex128"),
        ({"x": torch.ones(2).to_sparse()}, r"x: a tensor that is not dense"),
        ({"x": torch.ones(2, device="meta")}, r"x: a tensor that is not dense"),
        ({"x": np.array(["a"])}, r"x: an array"),
        ({"x": np.ones(2).astype(">f4")}, r"x: an array"),
        ({"x": np.datetime64("2020-01-01")}, r"x: <class 'numpy.datetime64'>"),
        ({"x": {torch.float32: {frozenset(): 1}}}, r"frozenset"),
        ({"x": Custom({"model": Custom({})})}, r"x\.model: <class '.*Custom'>"),
        ({"x": io.BytesIO()}, r"x: <class '_io.BytesIO'>"),
        ({1: 2}, r"strings as keys"),
        ({"x": [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])]}, r"x\[0\]: a nested tensor"),
        (
            {"x": [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)]},
            r"x\[0\]: a nested tensor",
        ),
        ({"x": {"y": contains_itself({})}}, r"x\.y\.self: <class 'dict'> that contains itself"),
        ({"x": contains_itself([])}, r"x\[0\]: <class 'list'> that contains itself"),
        ({"x": nested_lists(5000)}, r"^x\[0\].*more than 200 levels"),
    ],
)
def test_what_cannot_be_stored_is_named(tmp_path, value, message):
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(TypeError, match=message):
            checkpointer.save(1, value)
        assert checkpointer.latest_step() is None
        checkpointer.save(1, {"x": 1}).wait(60)  # the failed call left nothing behind


def test_objects_of_any_class(tmp_path):
    saved(tmp_path, 1, {"x": Custom({"grows": torch.ones(7), "n": (1, 2)})})
    other = Custom({"grows": torch.ones(2)})
    restored(tmp_path, {"x": other})
    assert bits(other.state) == bits({"grows": torch.ones(7), "n": (1, 2)})


def test_names_must_fit(tmp_path):
    saved(tmp_path, 1, {"model": TinyModel(), "optim": 1})
    bigger = torch.nn.ModuleDict({"embed": torch.nn.Embedding(11, 6), "new": torch.nn.Linear(2, 2)})
    with pytest.raises(ValueError) as error:
        restored(tmp_path, {"model": bigger, "loader": 3})
    for line in ("missing: loader", "missing: model.new.weight", "unexpected: model.norm.bias", "unexpected: optim"):
        assert line in str(error.value)
    state = {"model": bigger, "loader": 3}
    assert restored(tmp_path, state, strict=False) == 1
    assert torch.equal(bigger["embed"].weight, TinyModel().embed.weight) and state["loader"] == 3
    with pytest.raises(
        ValueError, match=r"differs: model\.embed\.weight has shape \[11, 6\] as stored and \[12, 6\] here"
    ):
        restored(tmp_path, {"model": torch.nn.ModuleDict({"embed": torch.nn.Embedding(12, 6)})}, strict=False)
    with pytest.raises(ValueError, match="another kind"):
        restored(tmp_path, {"model": bigger, "optim": TinyModel()}, strict=False)
    saved(tmp_path, 2, {"d": {"a": 1}})
    with pytest.raises(ValueError, match=r"missing: d\.model"):
        restored(tmp_path, {"d": {"model": TinyModel()}})


def test_only_some_entries_strictly(tmp_path):
    model = torch.nn.Linear(3, 2)
    saved = {"model": model, "optim": torch.optim.AdamW(model.parameters()), "step": 7}
    with mr.torch.Checkpointer(tmp_path) as ckpt:  # a pathlib.Path
        ckpt.save(1, saved).wait()
        with pytest.raises(ValueError, match="unexpected: optim"):
            ckpt.restore({"model": torch.nn.Linear(3, 2)})
        for only in ("model", ["model"]):
            other = torch.nn.Linear(3, 2)
            assert ckpt.restore({"model": other}, only=only) == 1
            assert torch.equal(other.weight, model.weight)
        live = {"model": torch.nn.Linear(3, 2), "step": 1}
        ckpt.restore(live, only=("step",))
        assert live["step"] == 7 and not torch.equal(live["model"].weight, model.weight)
        with pytest.raises(ValueError, match=r"missing: model\.0\.weight"):
            ckpt.restore({"model": torch.nn.Sequential(torch.nn.Linear(3, 2))}, only="model")
        with pytest.raises(ValueError, match="has no 'modle'; it has model"):
            ckpt.restore({"model": other}, only="modle")
        with pytest.raises(ValueError, match="missing: other"):
            ckpt.restore({"other": other}, only="other")


def test_only_some_names_strictly(tmp_path):
    def net(seed):
        torch.manual_seed(seed)
        return torch.nn.ModuleDict({"embed": torch.nn.Linear(2, 3), "layers": torch.nn.Sequential(
            torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)), "head": torch.nn.Linear(3, 2)})  # fmt: skip

    saved = {
        "model": net(1),
        "ema": {"a.x": torch.ones(2), "b": torch.ones(3)},
        "optim": torch.optim.SGD([torch.ones(1)]),
    }
    del saved["model"]["head"]
    with mr.torch.Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, saved).wait()
        before, live = net(2).state_dict(), net(2)
        assert ckpt.restore({"model": live}, only=["model.embed", "model.layers.*.bias"]) == 1
        expected = saved["model"].state_dict()
        for name, tensor in live.state_dict().items():
            is_asked = name.startswith("embed.") or name.endswith("layers.0.bias") or name.endswith("layers.1.bias")
            assert torch.equal(tensor, (expected if is_asked else before)[name]), name
        other = {"ema": {"a.x": torch.zeros(2), "b": torch.zeros(3), "mine": torch.zeros(1), "note": 5}}
        assert ckpt.restore(other, only="ema.a*") == 1
        assert other["ema"]["a.x"].sum() == 2 and other["ema"]["b"].sum() == 0 and other["ema"]["note"] == 5
        assert ckpt.restore(other, only=("ema.b", "ema.a.x")) == 1 and other["ema"]["b"].sum() == 3
        for only, reason in (
            ("model.head", r"missing: model\.head\.weight"),
            ("ema.mine", r"missing: ema\.mine"),
            ("model.layer.*", r"no name in 'model' fits 'model\.layer\.\*'"),
            ([], "names nothing"),
            ("optim.state", "names are chosen in modules and dicts; 'optim' is restored whole"),
        ):
            with pytest.raises(ValueError, match=reason):
                ckpt.restore({"model": live, "ema": other["ema"], "optim": saved["optim"]}, only=only)
        torch.nn.init.zeros_(live["embed"].weight)
        assert ckpt.restore({"model": live}, only=("model.embed.bias", "model"), strict=False) == 1
        assert torch.equal(live["embed"].weight, saved["model"]["embed"].weight)


def test_an_optimizer_by_the_names_of_its_parameters(tmp_path):
    def parts(order, groups=1, seed=1, rates=(0.1, 0.1)):
        model = TinyModel(seed)
        named = dict(model.named_parameters())
        parameters = [named[name] for name in (sorted(named) if order == "sorted" else named)]
        cut = len(parameters) // groups
        split = [{"params": parameters[at * cut : (at + 1) * cut if at + 1 < groups else None], "lr": rates[at]}
                 for at in range(groups)]  # fmt: skip
        optim = torch.optim.AdamW(split)
        return model, optim, mr.torch.NamedOptimizer(optim, model)

    model, optim, named = parts("as they are")
    train(model, optim, 2)
    with mr.torch.Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, {"model": torch.nn.parallel.DataParallel(model), "optim": named}).wait()
        names = header_of(data_files(tmp_path, 1)[0])[0].keys()
        assert {f"optim.state.{name}.exp_avg" for name, _ in model.named_parameters()} <= names
        for order, groups in (("as they are", 1), ("sorted", 1), ("sorted", 2)):
            other, other_optim, other_named = parts(order, groups, seed=9)
            assert ckpt.restore({"model": other, "optim": other_named}) == 1
            train(other, other_optim, 2)
            again, again_optim, again_named = parts("as they are", seed=8)
            assert ckpt.restore({"model": again, "optim": again_named}) == 1
            train(again, again_optim, 2)
            assert bits(other.state_dict()) == bits(again.state_dict())
        # torch's own names of parameters in groups are no option of a group.
        model = TinyModel(1)
        halves = [dict(list(model.named_parameters())[at::2]) for at in range(2)]
        optim = torch.optim.AdamW([{"params": list(half.items())} for half in halves])
        train(model, optim, 1)
        ckpt.save(2, {"optim": mr.torch.NamedOptimizer(optim, model)}).wait()
        other = torch.optim.AdamW(model.named_parameters())
        assert ckpt.restore({"optim": mr.torch.NamedOptimizer(other, model)}) == 2
        assert other.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()]
        ckpt.save(3, {"optim": parts("as they are", 2, rates=(0.1, 0.2))[2]}).wait()
        with pytest.raises(ValueError, match="stored as groups with other options"):
            ckpt.restore({"optim": parts("sorted", 1)[2]})
        fewer = mr.torch.NamedOptimizer(torch.optim.AdamW([next(model.parameters())]), model)
        with pytest.raises(ValueError, match="the optimizer lacks"):
            ckpt.restore({"optim": fewer})
    with pytest.raises(ValueError, match=r"not of the module: number 0 of 1, of shape \[3\]"):
        mr.torch.NamedOptimizer(torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))]), model)


def test_a_state_larger_than_its_memory(tmp_path, caplog):
    state = {"x": torch.arange(3 << 20), "y": torch.ones(5)}
    with mr.torch.Checkpointer(tmp_path / "root", tiers=[tmp_path / "near"], memory_bytes=4 << 20) as ckpt:
        save = ckpt.save(1, state)
        state["x"].zero_()
        save.wait()
    for folder in ("root", "near"):
        live = {"x": torch.zeros(3 << 20, dtype=torch.int64), "y": torch.zeros(5)}
        assert restored(tmp_path / folder, live) == 1
        assert torch.equal(live["x"], torch.arange(3 << 20)) and live["y"].sum() == 5
    assert "training stands still until it is written" in caplog.text


def test_a_restore_of_nothing_says_so(tmp_path, recwarn):
    model = torch.nn.Linear(3, 2)
    with mr.torch.Checkpointer(str(tmp_path)) as ckpt:
        ckpt.save(1, {"model": model, "step": 7}).wait()
        ckpt.restore({"model": torch.nn.Linear(3, 2), "step": 1}, strict=False)
        ckpt.restore({"step": 1}, strict=False)
        assert not recwarn.list
        with pytest.warns(RuntimeWarning, match="nothing of 'modle' is restored from step 1: it has model, step"):
            ckpt.restore({"modle": model}, strict=False)
        wrapped = torch.nn.Sequential(torch.nn.Linear(3, 2))  # its names have a "0." in front
        with pytest.warns(RuntimeWarning, match="of 'model' no name fits"):
            ckpt.restore({"model": wrapped, "step": 1}, strict=False)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_never_hangs(tmp_path):
    checkpointer = mr.torch.Checkpointer(tmp_path, rank=0, world_size=1, commit_timeout=30)
    checkpointer._saver = mr._core.Saver(str(tmp_path), attempt="r0000-0", world_size=2, commit_timeout=2)
    save = checkpointer.save(1, {"x": torch.ones(3)})  # waits for a rank that never comes
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        answers = []
        for call in (save.wait, lambda: save.wait(5), checkpointer.close):
            try:
                call()
            except NotImplementedError as error:
                answers.append("process that forked" in str(error))
        os._exit(0 if answers == [True] * 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(TimeoutError):
        checkpointer.close()


def test_memory_for_the_snapshot_can_be_reserved(tmp_path):
    state = {"x": torch.ones(3_000_000), "n": 1}
    for reserve in (13_000_000, state):
        with mr.torch.Checkpointer(tmp_path / str(type(reserve)), reserve=reserve) as checkpointer:
            checkpointer.save(1, state).wait(60)
            live = {"x": None, "n": 0}
            assert checkpointer.restore(live) == 1 and torch.equal(live["x"], state["x"])
    with pytest.raises(MemoryError):
        mr.torch.Checkpointer(tmp_path, reserve=1 << 60)


def test_retention(tmp_path):
    with mr.torch.Checkpointer(tmp_path, keep_last=2, keep_every=4) as checkpointer:
        for step in range(1, 8):
            save = checkpointer.save(step, {"x": torch.ones(3), "step": step})
        save.wait(60)
        save.wait_removals()
        assert checkpointer.steps() == [4, 6, 7]
        state = {"x": None, "step": 0}
        assert checkpointer.restore(state, step=4) == 4 and state["step"] == 4


def test_the_best_stay_and_each_tier_has_its_own_rules(tmp_path):
    near = tmp_path / "near"
    tier = mr.torch.Tier(near, keep_last=1, keep_best=0)
    with mr.torch.Checkpointer(
        tmp_path / "far", keep_last=1, keep_best=2, monitor="reward", mode="max", tiers=[tier]
    ) as checkpointer:
        for step, reward in enumerate([1.0, 5.0, float("nan"), 4.0, torch.tensor(3.0)], 1):
            checkpointer.save(step, {"x": torch.ones(3)}, metrics={"reward": reward, "loss": -reward}).wait(60)
    steps = {step["step"]: step["metrics"] for step in mr._core.list_steps(str(tmp_path / "far"))}
    assert steps == {2: {"reward": 5, "loss": -5}, 4: {"reward": 4, "loss": -4}, 5: {"reward": 3, "loss": -3}}
    assert [step["step"] for step in mr._core.list_steps(str(near))] == [5]
    with mr.torch.Checkpointer(tmp_path / "far", keep_days=1, quota_bytes=1) as checkpointer:
        checkpointer.save(6, {"x": torch.ones(3)}).wait_removals()
        assert checkpointer.steps() == [6]
    with pytest.raises(ValueError, match="metric"):
        mr.torch.Checkpointer(tmp_path, keep_best=1)
    with pytest.raises(ValueError, match="mode"):
        mr.torch.Checkpointer(tmp_path, mode="least")


def test_steps_ascend_and_errors_are_not_lost(tmp_path):
    with mr.torch.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(5, {"x": 1}).wait(60)
        with pytest.raises(ValueError, match="5"):
            checkpointer.save(5, {"x": 1})
    # A rank that never comes: the test does not wait for the save, so close() must report it.
    alone = mr.torch.Checkpointer(tmp_path / "b")
    alone._saver = mr._core.Saver(
        str(tmp_path / "b"), attempt="r0000-00000000", rank=0, world_size=2, commit_timeout=0.2
    )
    alone.save(1, {"x": 1})
    with pytest.raises(TimeoutError):
        alone.close()
    assert alone.latest_step() is None


def test_several_ranks_need_torch_distributed(tmp_path):
    with pytest.raises(ValueError, match="init_process_group"):
        mr.torch.Checkpointer(tmp_path, rank=0, world_size=2)


def test_pickle_carries_the_arguments(tmp_path):
    with mr.torch.Checkpointer(tmp_path, keep_last=1) as checkpointer:
        checkpointer.save(1, {"x": 1}).wait(60)
        with pickle.loads(pickle.dumps(checkpointer)) as copy:
            copy.save(2, {"x": 2}).wait_removals()
            assert copy.steps() == [2]


def test_random_number_generators(tmp_path):
    def state():
        values = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}
        return {"rng": mr.torch.PerRank(values)}

    saved(tmp_path, 1, state())
    expected = torch.rand(3).tolist(), random.random(), np.random.rand()
    after = state()
    restored(tmp_path, after)
    value = after["rng"].value
    torch.set_rng_state(value["torch"])
    random.setstate(value["python"])
    np.random.set_state(value["numpy"])
    assert (torch.rand(3).tolist(), random.random(), np.random.rand()) == expected


# Two ranks. One pair of processes does it all: starting torch takes longer than the work.
