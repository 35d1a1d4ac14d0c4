"""Adds save and resume: what decides the next draw is in the sampler's state_dict, as tensors and numbers only.

Trains once without a break and once with one in the middle; both end with the same weights, to the bit.
"""

import argparse
import tempfile

import torch
from torch import nn

import opportune as op
from opportune.embedded import load_fashion16


class Run:
    """Model, optimizer and sampler, made afresh; data and noise depend on the step alone."""

    def __init__(self):
        torch.manual_seed(0)
        self.images = load_fashion16("train")[0].float() / 127.5 - 1
        self.model = Network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        process = op.DDPM("linear", steps=1000)
        self.objective = op.objective(self.model, process, weighting="min_snr")
        self.sampler = op.sampler("adaptive", process, weighting="min_snr", warmup_steps=20)
        self.step = 0

    def train(self, steps):
        while self.step < steps:
            stream = torch.Generator().manual_seed(self.step)
            x0 = self.images[torch.randint(len(self.images), (64,), generator=stream)]
            draw = self.sampler.draw(x0)
            losses = self.objective.losses(x0, draw, torch.randn(x0.shape, generator=stream))
            self.objective.weighted(losses, draw).mean().backward()
            with self.sampler.watch(draw, losses, self.objective.probe(x0), model=self.model):
                self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1

    def save(self, path):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "sampler")}
        torch.save({"step": self.step, **parts}, path)

    def load(self, path):
        saved = torch.load(path, weights_only=True)
        self.step = saved.pop("step")
        for name, state in saved.items():
            getattr(self, name).load_state_dict(state)


class Network(nn.Sequential):
    """A few convolutions, told the time as a second channel."""

    def __init__(self):
        super().__init__(nn.Conv2d(2, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 1, 3, padding=1))

    def forward(self, x, time):
        return super().forward(torch.cat([x, (time / 1000).reshape(-1, 1, 1, 1).expand_as(x)], dim=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    steps = parser.parse_args().steps
    whole, before, after = Run(), Run(), Run()
    whole.train(steps)
    before.train(steps // 2)
    with tempfile.TemporaryDirectory() as folder:
        before.save(f"{folder}/checkpoint.pt")
        after.load(f"{folder}/checkpoint.pt")
    after.train(steps)
    for title, run in {"uninterrupted": whole, "resumed": after}.items():
        weights = sum(p.double().abs().sum() for p in run.model.parameters()).item()
        print(f"{title}: next draws {run.sampler.draw(6).t.tolist()}, weights {weights:.12f}")


if __name__ == "__main__":
    main()
