"""Adds Lightning: nothing in its loop is edited; the sampler rides on the optimizer and in the checkpoint.

Trains two epochs without a break, and again with a break after the first: both end with the same weights.
"""

import argparse
import logging
import tempfile
import warnings

import lightning
import torch
from diffusers import DDPMScheduler, UNet2DModel
from torch.utils.data import DataLoader

import opportune as op
from opportune.embedded import load_fashion16


class Diffusion(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (16,)}
        shape = {"sample_size": 16, "in_channels": 1, "out_channels": 1}
        self.unet = UNet2DModel(**shape, **blocks, layers_per_block=1, norm_num_groups=8)
        process = op.DDPM.from_diffusers(DDPMScheduler())
        self.objective = op.objective(lambda x, time: self.unet(x, time).sample, process)
        # In a tuple, so that a sampler with a network of its own is not taken for a part of the model.
        self.samplers = (op.sampler("adaptive", process, warmup_steps=10),)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.unet.parameters(), lr=1e-3)
        self.attachment = op.attach(self.samplers[0], optimizer, model=self.unet)
        return optimizer

    def training_step(self, x0, index):
        draw = self.samplers[0].draw(x0)
        stream = torch.Generator().manual_seed(self.global_step)  # noise that a restart does not change
        losses = self.objective.losses(x0, draw, torch.randn(x0.shape, generator=stream).to(x0))
        self.attachment.observe(draw, losses, self.objective.probe(x0))
        return self.objective.weighted(losses, draw).mean()

    def on_save_checkpoint(self, checkpoint):
        checkpoint["sampler"] = self.samplers[0].state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.samplers[0].load_state_dict(checkpoint["sampler"])


def run(loader, epochs, checkpoint=None):
    lightning.seed_everything(0, verbose=False)
    module = Diffusion()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", enable_checkpointing=False, **quiet)
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer, module


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50, help="of each of the two epochs")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")

    images = load_fashion16("train")[0].float() / 127.5 - 1
    loader = DataLoader(images[: options.steps * 16], batch_size=16)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/one_epoch.ckpt"
        run(loader, 1)[0].save_checkpoint(path)
        for title, (_, module) in {"uninterrupted": run(loader, 2), "resumed": run(loader, 2, path)}.items():
            sampler, weights = module.samplers[0], sum(p.double().abs().sum() for p in module.unet.parameters())
            print(f"{title}: steps watched {sampler.steps_watched}, next draws {sampler.draw(6).t.tolist()}", end=", ")
            print(f"weights {weights.item():.12f}")


if __name__ == "__main__":
    main()
