# SPDX-License-Identifier: Apache-2.0
"""A restore beside torch's own load_state_dict: extra states that grow, lazy modules, dtypes that are too narrow."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
np = pytest.importorskip("numpy")

from checkpoint_helpers import bits, restored, saved  # noqa: E402

import millrace as mr  # noqa: E402


class Scaled(torch.nn.Module):
    """A module with an extra state, as those of fp8 training have: a history that grows."""

    def __init__(self, extra):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.extra = extra

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


@pytest.mark.parametrize(
    ("stored", "here"),
    [
        (torch.arange(5.0), torch.zeros(1)),
        (torch.arange(2.0), torch.zeros(7)),
        ({"amax_history": torch.ones(16, 3), "scale": torch.ones(3), "n": 3}, {"amax_history": torch.zeros(1, 3)}),
        (torch.ones(3, dtype=torch.bfloat16), torch.zeros(3)),
        (torch.ones(2), None),
        (torch.frombuffer(bytearray(b"pickled"), dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)),
        ([1, torch.ones(2)], {}),
    ],
)
def test_an_extra_state_comes_back_as_load_state_dict_gives_it(tmp_path, stored, here):
    saved(tmp_path, 1, {"model": torch.nn.Sequential(Scaled(stored))})
    ours, theirs = (torch.nn.Sequential(Scaled(copy.deepcopy(here))) for _ in range(2))
    before = ours[0].extra
    assert restored(tmp_path, {"model": ours}) == 1
    theirs.load_state_dict(copy.deepcopy(torch.nn.Sequential(Scaled(stored)).state_dict()))
    assert bits(ours[0].extra) == bits(theirs[0].extra)
    assert bits(before) == bits(here), "what the module had is not written into"


def test_a_lazy_module_becomes_what_was_saved(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    saved(tmp_path, 1, {"model": model})
    lazy = torch.nn.Sequential(torch.nn.LazyLinear(2))
    assert restored(tmp_path, {"model": lazy}) == 1
    assert bits(lazy[0].weight.detach()) == bits(model[0].weight.detach())


CASES = [
    # stored, target, how many do not fit
    (torch.tensor([1, 2, 300, -129]), torch.zeros(4, dtype=torch.int8), 2),
    (torch.tensor([1, 2**40]), torch.zeros(2, dtype=torch.int32), 1),
    (torch.tensor([-1, 5]), torch.zeros(2, dtype=torch.uint8), 1),
    (torch.tensor([0, 1, 2]), torch.zeros(3, dtype=torch.bool), 1),
    (torch.tensor([1.0, 1.5]), torch.zeros(2, dtype=torch.int64), 1),
    (torch.tensor([1.0, 1e6, float("inf")]), torch.zeros(3, dtype=torch.float16), 1),
    (torch.tensor([1.0, 1e6, 460, -470, float("nan")]), torch.zeros(5, dtype=torch.float8_e4m3fn), 2),
    (torch.tensor([1.0, 1e300], dtype=torch.float64), torch.zeros(2), 1),
    (torch.tensor([1.0, 1 / 3]), torch.zeros(2, dtype=torch.bfloat16), 0),
    (torch.tensor([1, 100]), torch.zeros(2, dtype=torch.int8), 0),
    (torch.tensor([1, 2**40]), torch.zeros(2), 0),
    (torch.tensor([1, 2], dtype=torch.int8), torch.zeros(2, dtype=torch.int64), 0),
    (np.array([1, 300]), np.zeros(2, np.int8), 1),
    (np.array([1, 300], np.uint32), np.zeros(2, np.uint16), 0),
]


@pytest.mark.parametrize(("stored", "target", "count"), CASES, ids=range(len(CASES)))
def test_values_that_do_not_fit_are_said_once(tmp_path, stored, target, count):
    saved(tmp_path, 1, {"a": {"x": stored, "y": stored.copy() if isinstance(stored, np.ndarray) else stored.clone()}})
    second = target.copy() if isinstance(target, np.ndarray) else target.clone()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert restored(tmp_path, {"a": {"x": target, "y": second}}) == 1
    said = [str(warning.message) for warning in caught if "narrower dtype" in str(warning.message)]
    assert len(said) == (count > 0)
    if count > 0:
        assert f"a.x ({count} of" in said[0] and "a.y" in said[0]
    expected = stored.astype(target.dtype) if isinstance(target, np.ndarray) else stored.to(target.dtype)
    assert bits(target) == bits(expected)


def test_the_reader_of_dcp_says_it_too(tmp_path):
    dcp = pytest.importorskip("torch.distributed.checkpoint", reason="this PyTorch has no torch.distributed")
    saved(tmp_path, 1, {"x": torch.tensor([1, 300]), "y": torch.tensor([1.5])})
    target = {"x": torch.zeros(2, dtype=torch.int8), "y": torch.zeros(1, dtype=torch.bfloat16)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dcp.load(target, storage_reader=mr.torch.dcp.StorageReader(tmp_path))
    said = [str(warning.message) for warning in caught if "narrower dtype" in str(warning.message)]
    assert len(said) == 1 and "x (1 of I64" in said[0] and "y" not in said[0].split("x (")[1]
    assert target["x"].tolist() == [1, 44]


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_stager_names_the_path_of_a_nested_tensor(layout):
    pytest.importorskip("torch.distributed.checkpoint", reason="this PyTorch has no torch.distributed")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(TypeError, match=r"^model\.x\[1\]: a nested tensor cannot be stored"):
        mr.torch.dcp.Stager().stage({"model": {"x": [torch.ones(1), nested]}})
