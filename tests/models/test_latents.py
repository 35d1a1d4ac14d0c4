import pickle

import pytest
import torch

from opportune.models import LatentSpace


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory):
    """A tiny random autoencoder on disk, with a shift as newer ones have."""
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    model = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"),
        block_out_channels=(8, 8),
        norm_num_groups=4,
        latent_channels=4,
        scaling_factor=0.5,
        shift_factor=0.25,
    )
    path = tmp_path_factory.mktemp("autoencoder")
    model.save_pretrained(path)
    return path


def test_encode_is_the_shifted_scaled_mean_and_decode_undoes_the_scaling(folder) -> None:
    space = LatentSpace.load(folder)
    images = torch.rand(2, 3, 16, 16) * 2 - 1
    with torch.no_grad():
        distribution = space.inner.encode(images).latent_dist
        torch.testing.assert_close(space.encode(images), (distribution.mode() - 0.25) * 0.5)
        expected = space.inner.decode(distribution.mode()).sample
    torch.testing.assert_close(space.decode(space.encode(images)), expected, rtol=1e-4, atol=1e-5)
    assert (space.channels, space.downsampling) == (4, 2)


def test_a_draw_uses_the_noise_given_and_has_the_encoders_spread(folder) -> None:
    space = LatentSpace.load(folder)
    images = torch.rand(1, 3, 8, 8) * 2 - 1
    moments = space.moments(images)
    assert moments.shape == (1, 8, 4, 4)
    noise = torch.randn(4000, 4, 4, 4)
    draws = space.from_moments(moments.expand(4000, -1, -1, -1), noise=noise)
    mean, log_variance = moments.chunk(2, dim=1)
    torch.testing.assert_close(draws.mean(0), ((mean - 0.25) * 0.5)[0], atol=0.06, rtol=0)
    torch.testing.assert_close(draws.std(0), 0.5 * (0.5 * log_variance).exp()[0], atol=0, rtol=0.1)
    assert torch.equal(space.encode(images, noise=noise[:1]), draws[:1])


def test_the_autoencoder_is_frozen_and_stays_in_evaluation_mode(folder) -> None:
    space = LatentSpace.load(folder).train()
    assert not space.training
    assert not space.inner.training
    assert not any(parameter.requires_grad for parameter in space.parameters())
    assert not space.encode(torch.zeros(1, 3, 8, 8)).requires_grad


def test_indivisible_images_are_refused(folder) -> None:
    with pytest.raises(ValueError, match=r"images have shape \[1, 3, 9, 8\].*multiples of 2"):
        LatentSpace.load(folder).encode(torch.zeros(1, 3, 9, 8))


class _Canary:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickled_weights_are_never_opened(folder, tmp_path) -> None:
    """A folder whose only weights are a hostile .bin: refused, and the canary stays unwritten."""
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    canary = tmp_path / "executed"
    (tmp_path / "diffusion_pytorch_model.bin").write_bytes(pickle.dumps(_Canary(str(canary))))
    with pytest.raises(ValueError, match=r"cannot be loaded: .*safetensors"):
        LatentSpace.load(tmp_path)
    assert not canary.exists()
