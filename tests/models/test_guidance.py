import pytest
import torch

from opportune.models import build_model, drop_labels, guided


def test_labels_are_dropped_exactly_where_the_uniform_is_below_the_probability() -> None:
    labels = torch.tensor([3, 1, 4, 1, 5])
    uniforms = torch.tensor([0.0, 0.1, 0.0999, 0.5, 0.9999])
    assert drop_labels(labels, 0.1, uniforms, null_label=10).tolist() == [10, 1, 10, 1, 5]
    assert labels.tolist() == [3, 1, 4, 1, 5]
    assert drop_labels(labels, 0.0, uniforms, null_label=10).tolist() == labels.tolist()
    assert drop_labels(labels, 1.0, uniforms, null_label=10).tolist() == [10] * 5


def test_dropping_draws_nothing() -> None:
    before = torch.get_rng_state()
    drop_labels(torch.arange(8), 0.5, torch.linspace(0, 0.9, 8), null_label=8)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_impossible_probabilities_are_refused(probability: float) -> None:
    with pytest.raises(ValueError, match="probability="):
        drop_labels(torch.zeros(2, dtype=torch.int64), probability, torch.rand(2), null_label=1)


def test_one_uniform_for_all_is_refused() -> None:
    with pytest.raises(ValueError, match=r"uniforms have shape \[1\]"):
        drop_labels(torch.zeros(2, dtype=torch.int64), 0.1, torch.rand(1), null_label=1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = build_model("uvit", image_size=8, channels=1, classes=3, condition_channels=1, width=32, depth=3, heads=2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model.eval()


def test_guidance_is_the_line_through_both_predictions(model) -> None:
    x, time = torch.randn(3, 1, 8, 8), torch.tensor([1.0, 300.0, 900.0])
    labels, condition = torch.tensor([0, 1, 2]), torch.randn(3, 1, 4, 4)
    with_label, without = model(x, time, labels, condition), model(x, time, None, condition)
    for scale in (0.0, 0.5, 4.0):
        expected = (1 - scale) * without + scale * with_label
        torch.testing.assert_close(guided(model, scale)(x, time, labels, condition), expected, rtol=1e-4, atol=1e-5)


def test_guidance_evaluates_both_in_one_batch(model) -> None:
    batches = []
    model.register_forward_pre_hook(lambda module, args: batches.append(len(args[0])))
    guided(model, 2.0)(torch.randn(3, 1, 8, 8), torch.zeros(3), torch.tensor([0, 1, 2]), torch.randn(3, 1, 8, 8))
    assert batches == [6]


def test_scale_one_costs_nothing_more(model) -> None:
    assert guided(model, 1.0) is model


def test_guidance_needs_classes_labels_and_a_scale(model) -> None:
    with pytest.raises(ValueError, match="scale=-1"):
        guided(model, -1.0)
    with pytest.raises(ValueError, match="needs labels"):
        guided(model, 2.0)(torch.randn(1, 1, 8, 8), torch.zeros(1), None, torch.randn(1, 1, 8, 8))
    plain = build_model("uvit", image_size=8, channels=1, width=32, depth=3, heads=2)
    with pytest.raises(ValueError, match="null class"):
        guided(plain, 2.0)
