"""The three lines: draw, correct, watch. Everything else is a training loop of your own; torch alone is needed."""

import argparse

import torch
from torch import nn

import opportune as op
from opportune.embedded import load_fashion16


class Network(nn.Sequential):
    """A few convolutions, told the time as a second channel."""

    def __init__(self):
        super().__init__(nn.Conv2d(2, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 1, 3, padding=1))

    def forward(self, x, time):
        return super().forward(torch.cat([x, (time / 1000).reshape(-1, 1, 1, 1).expand_as(x)], dim=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sampler", default="adaptive", help="any name of op.samplers()")
    options = parser.parse_args()

    torch.manual_seed(0)
    images = load_fashion16("train")[0].float() / 127.5 - 1
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    process = op.DDPM("linear", steps=1000)
    sampler = op.sampler(options.sampler, process)

    def per_example_losses(x0, t, noise=None):
        noise = torch.randn_like(x0) if noise is None else noise
        predicted = model(process.corrupt(x0, noise, t), t)
        return (predicted - noise).square().flatten(1).mean(dim=1)  # [B]: kept per example

    history = []
    for _ in range(options.steps):
        x0 = images[torch.randint(len(images), (64,))]
        draw = sampler.draw(x0)  # 1. which timesteps
        losses = per_example_losses(x0, draw.t)
        (draw.correction * losses).mean().backward()  # 2. corrected, where the method says so

        def probe(asked, x0=x0):  # for methods that measure: the same loss at timesteps of their choice
            return per_example_losses(x0, asked.t, asked.noise)

        with sampler.watch(draw, losses, probe, model=model):  # 3. learn from what the step did
            optimizer.step()
        optimizer.zero_grad()
        history.append(losses.mean().item())

    first, last = history[: len(history) // 4], history[-(len(history) // 4) :]
    print(f"loss {sum(first) / len(first):.3f} -> {sum(last) / len(last):.3f}")
    shares = sampler.probs().reshape(10, 100).sum(dim=1)
    print("drawn, clean to noise:", " ".join(f"{share:.1%}" for share in shares))


if __name__ == "__main__":
    main()
