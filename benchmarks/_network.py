"""The network of the analytic benchmark: a residual MLP whose training step is cheap on one CPU thread.

At this size a good part of a step is the bookkeeping of small operations, so forward and backward are one autograd
node each over one flat parameter: the optimizer, the moving average and a probe's gradient then handle one tensor.
The gradient is checked against autograd's in the tests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

FREQUENCIES = 16


class ResidualMLP(nn.Module):
    """``x [B, D], time [B] -> [B, D]``: three blocks ``h + B silu(A silu(h))`` between two linear layers.

    Args:
        dimension: D.
        width: of the hidden layers.
        blocks: residual blocks.
        time_scale: multiplies ``time`` so that it spans about 1,000, what the sinusoids that encode it are made for.
        seed: of the initial weights.
    """

    def __init__(
        self, dimension: int, *, width: int = 128, blocks: int = 3, time_scale: float = 1.0, seed: int = 0
    ) -> None:
        super().__init__()
        inputs = dimension + 2 * FREQUENCIES
        self.shapes = [(inputs, width), *[(width, width)] * (2 * blocks), (width, dimension)]
        self.sizes = [size for rows, columns in self.shapes for size in (rows * columns, columns)]
        random = torch.Generator().manual_seed(seed)
        parts = []
        for rows, columns in self.shapes:
            bound = rows**-0.5
            parts += [torch.empty(n).uniform_(-bound, bound, generator=random) for n in (rows * columns, columns)]
        self.flat = nn.Parameter(torch.cat(parts))
        self.register_buffer("frequencies", time_scale * torch.logspace(0, -4, FREQUENCIES))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        phase = time.to(x.dtype)[:, None] * self.frequencies
        out: Tensor = _Pass.apply(self.flat, torch.cat([x, phase.sin(), phase.cos()], dim=1), self)
        return out

    def layers(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """``(weights [in, out] each, biases [out] each)`` as views of ``flat``."""
        parts = flat.split(self.sizes)
        weights = [part.view(shape) for part, shape in zip(parts[::2], self.shapes, strict=True)]
        return weights, list(parts[1::2])


class _Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, inputs: Tensor, network: ResidualMLP) -> Tensor:
        weights, biases = network.layers(flat)
        h = torch.addmm(biases[0], inputs, weights[0])
        kept = [inputs]
        for layer in range(1, len(weights) - 1, 2):
            active = silu(h)
            middle = torch.addmm(biases[layer], active, weights[layer])
            raised = silu(middle)
            kept += [h, active, middle, raised]
            h = torch.addmm(h, raised, weights[layer + 1]).add_(biases[layer + 1])
        active = silu(h)
        ctx.save_for_backward(flat, *kept, h, active)
        ctx.network = network
        return torch.addmm(biases[-1], active, weights[-1])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        flat, inputs, *kept = ctx.saved_tensors
        weights, _ = ctx.network.layers(flat)
        result = torch.empty_like(flat)
        weight_slopes, bias_slopes = ctx.network.layers(result)

        def through(layer: int, grad: Tensor) -> Tensor:
            """Through one linear layer and the silu under it; writes the layer's slopes."""
            h, active = kept[2 * layer - 2], kept[2 * layer - 1]
            torch.mm(active.t(), grad, out=weight_slopes[layer])
            torch.sum(grad, 0, out=bias_slopes[layer])
            below: Tensor = torch.ops.aten.silu_backward(torch.mm(grad, weights[layer].t()), h)
            return below

        grad = through(len(weights) - 1, grad)
        for layer in range(len(weights) - 2, 0, -2):
            grad = through(layer - 1, through(layer, grad)).add_(grad)
        torch.mm(inputs.t(), grad, out=weight_slopes[0])
        torch.sum(grad, 0, out=bias_slopes[0])
        return result, None, None
