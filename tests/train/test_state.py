"""Any state comes back bit for bit."""

import json
import math
import struct
from collections import OrderedDict
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opportune.train.errors import CheckpointError
from opportune.train.state import DTYPES, MAX_DEPTH, decode, encode


def round_trip(state: Any) -> Any:
    structure, tensors = encode(state)
    text = json.dumps(structure, allow_nan=False)
    return decode(json.loads(text), safetensors.torch.load(safetensors.torch.save(tensors)))


def bits(value: Any) -> Any:
    """A value in which equal means equal in type, order and every bit."""
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return ("tensor", value.dtype, tuple(value.shape), raw)
    if isinstance(value, dict):
        return ("dict", [(bits(k), bits(v)) for k, v in value.items()])
    if isinstance(value, list | tuple):
        return (type(value), [bits(v) for v in value])
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    return (type(value), value)


@st.composite
def any_tensor(draw: Any) -> torch.Tensor:
    dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    size = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))  # any bits: NaN payloads, subnormals, -0.0
    if dtype == torch.bool:
        raw = bytes(b & 1 for b in raw)
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    tensor = flat.view(shape)
    return tensor.permute(draw(st.permutations(range(tensor.ndim)))) if tensor.ndim else tensor


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(codec=None, exclude_categories=()))
)
states = st.recursive(
    scalars | any_tensor(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5) | st.integers() | st.none(), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(states)
def test_any_state_comes_back_bit_for_bit(state: Any) -> None:
    assert bits(round_trip(state)) == bits(state)


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
def test_every_dtype_and_layout(dtype: torch.dtype) -> None:
    base = torch.arange(24).to(dtype)
    state = {
        "zero_dim": base[3],
        "empty": base[:0].view(0, 3),
        "transposed": base.view(4, 6).t(),
        "slice": base[1:20:3],
        "expanded": base[:1].expand(5),
        "offset": base[7:9],
    }
    assert bits(round_trip(state)) == bits(state)


def test_memory_order_of_channels_last_comes_back() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = round_trip([image])[0]
    assert back.stride() == image.stride()
    assert torch.equal(back, image)


def test_tied_weights_are_stored_once_and_stay_tied() -> None:
    weight, other = torch.randn(4, 4), torch.randn(4, 4)
    state = {"a": weight, "b": weight.detach(), "c": other, "t": weight.t(), "row": weight[1]}
    _, tensors = encode(state)
    assert len(tensors) == 4  # a and b are one
    back = round_trip(state)
    assert back["a"].data_ptr() == back["b"].data_ptr()
    assert bits(back) == bits(state)
    back["t"].zero_()
    assert torch.equal(back["a"], weight)  # different views do not share memory


def test_tied_channels_last_weights_stay_tied() -> None:
    weight = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    back = round_trip([weight, weight])
    assert back[0].data_ptr() == back[1].data_ptr()


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**64) - 1, 2**128, math.inf, -math.inf, math.nan, -0.0, 5e-324, 1.0, True, 1, "\ud800", ""]
)
def test_numbers_and_strings_that_json_alone_would_bend(value: Any) -> None:
    assert bits(round_trip(value)) == bits(value)


def test_tensor_names_are_the_models_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    _, tensors = encode(model.state_dict())
    assert set(tensors) == set(model.state_dict())


def test_names_that_clash_or_are_reserved() -> None:
    a, b, c = torch.tensor([1]), torch.tensor([2]), torch.tensor([3])
    state = {"a.b": a, "a": {"b": b}, "__metadata__": c, 1: b + 8, "1": c + 8, "ü": a, "ö": b}
    assert bits(round_trip(state)) == bits(state)


def test_subclasses_become_their_plain_type() -> None:
    back = round_trip(OrderedDict(size=torch.Size([2, 3]), p=torch.nn.Parameter(torch.ones(2))))
    assert type(back) is dict
    assert type(back["size"]) is tuple
    assert type(back["p"]) is torch.Tensor and not back["p"].requires_grad


def test_conjugated_views_are_stored_by_value() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64)
    back = round_trip({"z": z, "conj": z.conj(), "negated": z.conj().imag})
    assert torch.equal(back["negated"], torch.tensor([-2.0, 1.0]))
    assert torch.equal(back["conj"], z.conj().resolve_conj())
    assert torch.equal(back["z"], z)
    assert torch.equal(round_trip(z.conj()), z.conj().resolve_conj())  # alone, not as a second view of z
    assert torch.equal(round_trip(z.conj().imag), torch.tensor([-2.0, 1.0]))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (torch.float32, "dtype"),
        (torch.eye(3).to_sparse(), "to_dense"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
        (1 << 10_000, "10001 bits"),
        ({(1, 2): 3}, "key"),
    ],
)
def test_what_cannot_be_saved_is_refused_by_name(bad: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match=r"ema\.shadow") as caught:
        encode({"ema": {"shadow": bad}})
    assert reason in str(caught.value)


def test_circular_and_too_deep_states_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="circular"):
        encode(loop)
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert round_trip(deep) == deep
    with pytest.raises(CheckpointError, match=str(MAX_DEPTH)):
        encode([deep])


@pytest.mark.parametrize(
    "structure",
    [
        {"tensor": "other"},
        {"tensor": 3},
        {"tensor": ["w", [0]]},
        {"tensor": ["w", [0, 0]]},
        {"tensor": ["w", [1, 2]]},
        {"tensor": ["w", [True, False]]},
        {"tensor": ["w", "ab"]},
        {"tensor": ["w", [0, 1], 2]},
        [{"tensor": "w"}, {"tuple": {}}],
        [{"tensor": "w"}, {"dict": [[1]]}],
        [{"tensor": "w"}, {"dict": [[[1], 2]]}],
        [{"tensor": "w"}, {"dict": [[1, 2], [True, 3]]}],
        [{"tensor": "w"}, {"float": "zz" * 8}],
        [{"tensor": "w"}, {"float": "00"}],
        [{"tensor": "w"}, {"object": "os.system"}],
        [{"tensor": "w"}, {}],
        [{"tensor": "w"}, {"tuple": [], "dict": []}],
        [],  # w is left over
    ],
)
def test_a_structure_we_would_not_write_is_refused(structure: Any) -> None:
    with pytest.raises(CheckpointError):
        decode(structure, {"w": torch.zeros(2, 2)})


def _stepped(optimizer: torch.optim.Optimizer, model: torch.nn.Module, steps: int) -> None:
    for i in range(steps):
        optimizer.zero_grad()
        inputs = torch.linspace(-1, 1, 12).view(4, 3) + i
        model(inputs).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.8, 0.99), fused=True),
        lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2)),
        lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True),
        lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True),
        lambda p: torch.optim.Adafactor(p, lr=1e-2),
    ],
    ids=["adam", "adamw-fused", "adamw-tensor-lr", "sgd", "rmsprop", "adafactor"],
)
def test_an_optimizer_goes_on_bit_for_bit(make: Any) -> None:
    model, twin = (torch.nn.Linear(3, 2) for _ in range(2))
    optimizer = make(model.parameters())
    _stepped(optimizer, model, 3)
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    back = round_trip(saved)
    assert bits(back) == bits({"model": dict(saved["model"]), "optimizer": saved["optimizer"]})
    twin.load_state_dict(back["model"])
    resumed = make(twin.parameters())
    resumed.load_state_dict(back["optimizer"])
    _stepped(optimizer, model, 3)
    _stepped(resumed, twin, 3)
    assert bits(dict(twin.state_dict())) == bits(dict(model.state_dict()))
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())
