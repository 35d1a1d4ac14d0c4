"""A nested training state <-> JSON structure + named tensors, bit for bit, without pickle.

The structure is plain JSON for everything JSON can hold exactly; the rest is an object whose one key says
what it is::

    {"tensor": "state.0.exp_avg"}       a tensor, stored in the safetensors file under this name
    {"tensor": [name, [0, 2, 3, 1]]}    the same, stored in this order of dimensions (channels-last memory)
    {"tuple": [...]}                    a tuple
    {"dict": [[key, value], ...]}       a dict, in its order, with keys of any scalar type
    {"float": "7ff0000000000000"}       inf or NaN, as the 16 hex digits of its IEEE 754 bits

Tensor names are the dotted path of keys, so other tools open ``model.safetensors`` as the model's own state
dict.
"""

from __future__ import annotations

import math
import struct
from typing import Any, TypeAlias

import torch
from torch import Tensor

from opportune.train.errors import CheckpointError

State: TypeAlias = Any
"""None, bool, int, float, str, Tensor, or a list, tuple or dict of these (dict keys: scalars). ``Any``
because dict is invariant: a precise recursive type would refuse every ``dict[str, Tensor]`` a caller has."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

MAX_DEPTH = 64
MAX_INT_BITS = 8192
DTYPES = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2}
    | {
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    }
    | {torch.bool, torch.complex64}
)


def encode(state: State) -> tuple[Json, dict[str, Tensor]]:
    """Split ``state`` into its structure and its tensors (on the CPU, each in memory of its own).

    Two entries that are the same memory (tied weights) are stored once and come back as one tensor.
    Subclasses come back as their plain type: an OrderedDict as a dict, a ``torch.Size`` as a tuple, a
    Parameter as a tensor.
    """
    encoder = _Encoder()
    return encoder.node(state, ()), encoder.tensors


def decode(structure: Json, tensors: dict[str, Tensor]) -> State:
    """Put the state back together. A tensor left over is an error: the file is not the one described."""
    decoder = _Decoder(tensors)
    state = decoder.node(structure, 0)
    unused = sorted(set(tensors) - decoder.used)
    if unused:
        raise CheckpointError(
            f"tensor {unused[0]!r} is in the file but not in the manifest ({len(unused)} such tensors)"
        )
    return state


class _Encoder:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._names: dict[tuple[object, ...], str] = {}
        self._storages: set[int] = set()

    def node(self, value: State, path: tuple[str, ...]) -> Json:
        if len(path) > MAX_DEPTH:
            raise CheckpointError(
                f"state is nested deeper than {MAX_DEPTH} levels at {_dotted(path[:5])}...; is it circular?"
            )
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, int):
            if value.bit_length() > MAX_INT_BITS:
                raise CheckpointError(
                    f"cannot save {_dotted(path)}: an int of {value.bit_length()} bits; "
                    f"at most {MAX_INT_BITS} are allowed"
                )
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}
        if isinstance(value, Tensor):
            return {"tensor": self._tensor(value, path)}
        if isinstance(value, dict):
            return {"dict": [[self._key(k, path), self.node(v, (*path, str(k)))] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            items = [self.node(v, (*path, str(i))) for i, v in enumerate(value)]
            return items if isinstance(value, list) else {"tuple": items}
        raise CheckpointError(
            f"cannot save {_dotted(path)}: it is a {type(value).__module__}.{type(value).__qualname__}; "
            "a state holds tensors, numbers, strings, bools, None, lists, tuples and dicts "
            "(turn a numpy array into a tensor, an object into its state_dict())"
        )

    def _key(self, key: object, path: tuple[str, ...]) -> Json:
        if key is not None and not isinstance(key, str | int | float):
            raise CheckpointError(
                f"cannot save the dict at {_dotted(path)}: key {key!r} is a {type(key).__name__}; use str or int keys"
            )
        return self.node(key, path)

    def _tensor(self, tensor: Tensor, path: tuple[str, ...]) -> Json:
        _check_tensor(tensor, path)
        tensor = tensor.detach()
        same = (
            tensor.device,
            tensor.data_ptr(),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            tensor.is_conj(),
            tensor.is_neg(),
        )
        order = _dense_order(tensor)
        name = self._names.get(same)
        if name is None:
            name = self._new_name(path)
            self._names[same] = name
            self.tensors[name] = self._own_memory(tensor.permute(order) if order else tensor)
        return [name, list(order)] if order else name

    def _own_memory(self, tensor: Tensor) -> Tensor:
        """safetensors refuses tensors that share memory: a second view of the same storage is copied."""
        tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in self._storages:
            tensor = tensor.clone()
        self._storages.add(tensor.untyped_storage().data_ptr())
        return tensor

    def _new_name(self, path: tuple[str, ...]) -> str:
        # "a.b" -> {"a": {"b"}} and {"a.b"} would clash, and safetensors keeps "__metadata__" for itself
        plain = ".".join(path).encode("ascii", "replace").decode() or "tensor"
        name, n = plain, 1
        while name in self.tensors or name == "__metadata__":
            n += 1
            name = f"{plain}#{n}"
        return name


class _Decoder:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.used: set[str] = set()
        self._views: dict[tuple[str, ...], Tensor] = {}

    def node(self, value: Json, depth: int) -> State:
        if depth > MAX_DEPTH:
            raise CheckpointError(f"the manifest's structure is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            return [self.node(v, depth + 1) for v in value]
        if not isinstance(value, dict):
            return value
        if len(value) != 1:
            raise CheckpointError(
                f"the manifest's structure has an object with keys {sorted(value)[:5]}; one key is expected"
            )
        ((kind, body),) = value.items()
        if kind == "tensor":
            return self._tensor(body)
        if kind == "tuple" and isinstance(body, list):
            return tuple(self.node(v, depth + 1) for v in body)
        if kind == "dict" and isinstance(body, list):
            return self._dict(body, depth)
        if kind == "float" and isinstance(body, str) and len(body) == 16:
            return _float(body)
        raise CheckpointError(f"the manifest's structure has an object of unknown kind {kind[:40]!r}")

    def _dict(self, pairs: list[Json], depth: int) -> dict[Any, State]:
        out: dict[Any, State] = {}
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 2:
                raise CheckpointError("the manifest's structure has a dict entry that is not a [key, value] pair")
            key = self.node(pair[0], depth + 1)
            if key is not None and not isinstance(key, str | int | float):
                raise CheckpointError(f"the manifest's structure has a dict key of type {type(key).__name__}")
            if key in out:
                raise CheckpointError(f"the manifest's structure has the dict key {str(key)[:40]!r} twice")
            out[key] = self.node(pair[1], depth + 1)
        return out

    def _tensor(self, body: Json) -> Tensor:
        name, order = body if isinstance(body, list) and len(body) == 2 else (body, None)
        if not isinstance(name, str) or name not in self.tensors:
            raise CheckpointError(f"tensor {str(name)[:80]!r} is in the manifest but not in the file")
        self.used.add(name)
        tensor = self.tensors[name]
        if order is None:
            return tensor
        if (
            not isinstance(order, list)
            or any(type(d) is not int for d in order)
            or set(order) != set(range(tensor.ndim))
        ):
            raise CheckpointError(f"tensor {name[:80]!r} has {tensor.ndim} dimensions but the order {str(order)[:80]}")
        inverse = [order.index(d) for d in range(tensor.ndim)]
        # one object per tied weight, as without an order
        return self._views.setdefault((name, str(order)), tensor.permute(inverse))


def _check_tensor(tensor: Tensor, path: tuple[str, ...]) -> None:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        raise CheckpointError(
            f"cannot save {_dotted(path)}: a {type(tensor).__name__}, {tensor.layout}, {tensor.device}; only "
            "dense tensors are saved (full_tensor() gathers a sharded one, to_dense() fills a sparse one)"
        )
    if tensor.dtype not in DTYPES:
        raise CheckpointError(
            f"cannot save {_dotted(path)}: safetensors has no type for {tensor.dtype}; "
            f"convert it to one of {', '.join(sorted(str(d) for d in DTYPES))}"
        )


def _dense_order(tensor: Tensor) -> tuple[int, ...] | None:
    """The order of dimensions in which a dense tensor is contiguous; None when it already is, or has gaps.

    Kept so that channels-last tensors come back channels-last: another memory order picks other kernels,
    whose last bit may differ.
    """
    if tensor.is_contiguous():
        return None
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.ndim), key=lambda d: -strides[d]))
    return order if tensor.permute(order).is_contiguous() else None


def _float(digits: str) -> float:
    try:
        (value,) = struct.unpack(">d", bytes.fromhex(digits))
    except (ValueError, struct.error):
        raise CheckpointError(f"the manifest's structure has a float with the bits {digits!r}") from None
    return float(value)


def _dotted(path: tuple[str, ...]) -> str:
    return repr(".".join(path)) if path else "the state"
