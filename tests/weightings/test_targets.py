"""One objective whatever the network predicts: the bug "right formula, wrong target" cannot come back."""

import pytest
import torch
from torch import Tensor

import opportune as op
from opportune.weightings.base import log_conversion

SETTINGS = {"constant": {"target": "eps"}}  # without a target it follows the process, by definition


def output_from(x0_hat: Tensor, x_t: Tensor, alpha: Tensor, sigma: Tensor, target: str, sd: float = 0.5) -> Tensor:
    """What a network with this target would output so that its x0 estimate is ``x0_hat``."""
    eps_hat = (x_t - alpha * x0_hat) / sigma
    if target == "F":  # of x = x_t / alpha, the EDM scaling of the same point
        s = sigma / alpha
        skip, out = sd**2 / (s**2 + sd**2), s * sd / (s**2 + sd**2).sqrt()
        return (x0_hat - skip * x_t / alpha) / out
    if target == "velocity":  # rescaled to the flow's point (1 - t) x0 + t eps at equal SNR: same x0, same eps
        return eps_hat - x0_hat
    return {"eps": eps_hat, "x0": x0_hat, "v": alpha * eps_hat - sigma * x0_hat}[target]


@pytest.mark.parametrize("name", op.weightings())
def test_same_gradient_through_all_five_targets(name: str) -> None:
    process = op.DDPM("linear", steps=64)
    weighting = op.weighting(name, process, **SETTINGS.get(name, {}))
    if name == "learned_uncertainty":
        torch.nn.init.normal_(weighting.linear)
    u = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    log_snr = process.log_snr(u)
    alpha, sigma = torch.sigmoid(log_snr).sqrt()[:, None], torch.sigmoid(-log_snr).sqrt()[:, None]
    x0, noise = torch.randn(2, 64, 5, dtype=torch.float64)
    x_t = alpha * x0 + sigma * noise
    guess = x0 + 0.3 * torch.randn(64, 5, dtype=torch.float64)
    gradients = {}
    for target in ("x0", "eps", "v", "velocity", "F"):
        x0_hat = guess.clone().requires_grad_()
        error = output_from(x0_hat, x_t, alpha, sigma, target) - output_from(x0, x_t, alpha, sigma, target)
        weight = (weighting.log_weight(u, log_snr) + log_conversion(log_snr, target)).exp()
        (weight * error.square().mean(dim=1)).sum().backward()
        gradients[target] = x0_hat.grad
    for target, gradient in gradients.items():
        torch.testing.assert_close(gradient, gradients["x0"], rtol=1e-9, atol=0, msg=lambda m, t=target: f"{t}: {m}")


@pytest.mark.parametrize("name", op.weightings())
@pytest.mark.parametrize("make", [op.DDPM, op.VP, op.VE, op.EDM, op.Flow], ids=["ddpm", "vp", "ve", "edm", "flow"])
def test_processes_weights_agree_with_x0_space(make: type, name: str) -> None:
    """``weighting(t)`` of each process's own targets is the same W seen through the process's own arithmetic."""
    seen = []
    for prediction in make.predictions:
        process = make(prediction=prediction)
        u = torch.linspace(0.05, 0.95, 19)
        t = process.time(u)
        x0, noise = torch.randn(2, 19, 4, dtype=torch.float64)
        nudge = 0.1 * torch.randn(19, 4, dtype=torch.float64)
        alpha, sigma = (c.double()[:, None] for c in process.coefficients(t))
        x_t = alpha * x0 + sigma * noise
        target = process.target(x0, noise, t)
        moved = process.target(x0 + nudge, (x_t - alpha * (x0 + nudge)) / sigma, t)
        loss = op.weighting(name, process, **SETTINGS.get(name, {}))(t).detach().double() * (
            moved - target
        ).square().sum(dim=1)
        seen.append(loss / nudge.square().sum(dim=1))
    for other in seen[1:]:
        torch.testing.assert_close(other, seen[0], rtol=2e-3, atol=0)
