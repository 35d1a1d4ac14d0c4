"""MDLRC against an Adam and an SGD written from the papers, beside other schedulers, and across a restart."""

import json
import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.reference import mdlrc as paper
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR

import opportune as op

STARTS = [0.7, -1.3, 2.0]


class Gradients:
    """A noisy quadratic: g(x, k) = (x - 0.4) + noise of step k, the same for the reference and for torch."""

    def __init__(self, steps: int, seed: int = 0) -> None:
        self.steps = steps
        self.noise = torch.randn(steps, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()

    def __call__(self, x, k: int):
        return (x - 0.4) + self.noise[k]


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.tensor([x], dtype=torch.float64)) for x in STARTS]


def train(optimizer, gradients, *schedulers, first: int = 0, until: int | None = None) -> list[float]:
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for k in range(first, until or gradients.steps):
        for p in params:
            p.grad = gradients(p.detach(), k)
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return [float(p.detach()) for p in params]


def assert_same(made: list[float], expected: list[float]) -> None:
    assert made == pytest.approx(expected, rel=1e-11, abs=1e-13)


@given(b=st.floats(0.01, 0.999), tau=st.floats(0, 1))
def test_the_two_formulas_combine_to_a_linear_decay(b: float, tau: float) -> None:
    b_k, share = paper.decay(b, round(tau * 10_000), 10_000)
    assert share == pytest.approx(1 - b * round(tau * 10_000) / 10_000, rel=1e-9)
    assert 0 <= b_k <= b + 1e-15


def test_figures_along_a_run() -> None:
    optimizer = torch.optim.Adam(parameters(), lr=2e-4, betas=(0.9, 0.999))
    strategy = op.MDLRC(optimizer, total_steps=20)
    seen = {}
    for k in range(21):
        seen[k / 20] = (strategy.get_last_momentum()[0], strategy.get_last_lr()[0] / 2e-4)
        if k < 20:
            strategy.step()
    for tau, b, lr in [(0, 0.9, 1), (0.25, 0.871, 0.775), (0.5, 0.818, 0.55), (0.75, 0.692, 0.325), (0.9, 0.474, 0.19),
                       (1, 0, 0.1)]:  # fmt: skip
        assert seen[tau] == pytest.approx((b, lr), abs=5e-4)


KINDS = [{"foreach": False}, {"foreach": True}, {"fused": True}]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: next(iter(k.items()))[0] + str(next(iter(k.values()))))
@pytest.mark.parametrize(("make", "decay"), [(torch.optim.Adam, {"l2": 0.02}), (torch.optim.AdamW, {"decoupled": 0.3})])
def test_adam_to_the_last_digit(make, decay, kind) -> None:
    """Bias correction by the product of the momenta, weight decay by the learning rate without the correction."""
    gradients = Gradients(60)
    settings = {"lr": 0.05, "betas": (0.9, 0.99), "eps": 1e-8}
    optimizer = make(parameters(), weight_decay=next(iter(decay.values())), **settings, **kind)
    strategy = op.MDLRC(optimizer, total_steps=60)
    made = train(optimizer, gradients, strategy)
    assert_same(made, [paper.adam(x, gradients, total=60, **settings, **decay) for x in STARTS])


def test_adam_with_decoupled_decay_by_flag() -> None:
    gradients = Gradients(30)
    optimizer = torch.optim.Adam(parameters(), lr=0.05, weight_decay=0.3, decoupled_weight_decay=True)
    made = train(optimizer, gradients, op.MDLRC(optimizer, total_steps=30))
    settings = {"lr": 0.05, "betas": (0.9, 0.999), "eps": 1e-8}
    assert_same(made, [paper.adam(x, gradients, total=30, decoupled=0.3, **settings) for x in STARTS])


def test_the_product_matters() -> None:
    """The same steps with b_k^n, which torch would use, land somewhere else: the correction is not idle."""
    gradients = Gradients(8)
    optimizer = torch.optim.Adam(parameters(), lr=0.05)
    made = train(optimizer, gradients, op.MDLRC(optimizer, total_steps=8))
    naive = torch.optim.Adam(parameters(), lr=0.05)
    for k in range(8):
        b_k, share = paper.decay(0.9, k, 8)
        naive.param_groups[0].update(lr=0.05 * share, betas=(b_k, 0.999))
        train(naive, gradients, first=k, until=k + 1)
    off = [abs(a - float(p.detach())) for a, p in zip(made, naive.param_groups[0]["params"], strict=True)]
    assert min(off) > 1e-3


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: next(iter(k.items()))[0] + str(next(iter(k.values()))))
@pytest.mark.parametrize("over", [0, 5])
def test_sgd_is_the_averaged_form(kind, over: int) -> None:
    """Dampening 0 starts as the average divided by 1 - b; also beyond the end, where the momentum is 0."""
    gradients = Gradients(40 + over)
    optimizer = torch.optim.SGD(parameters(), lr=0.01, momentum=0.9, weight_decay=0.02, **kind)
    strategy = op.MDLRC(optimizer, total_steps=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = train(optimizer, gradients, strategy)
    assert_same(made, [paper.averaged_sgd(x, gradients, lr=0.1, b=0.9, total=40, l2=0.02) for x in STARTS])


def test_sgd_dampened_keeps_the_newest_gradients_share() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=0.01, momentum=0.9, dampening=0.9)
    strategy = op.MDLRC(optimizer, total_steps=10)
    shares = []
    optimizer.register_step_pre_hook(
        lambda o, *_: shares.append(o.param_groups[0]["lr"] * (1 - o.param_groups[0]["dampening"]))
    )
    train(optimizer, Gradients(10), strategy)
    assert shares == pytest.approx([0.01 * 0.1] * 10)


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW])
def test_equal_decay_is_the_learning_rate_alone(make) -> None:
    gradients = Gradients(40)
    optimizer = make(parameters(), lr=0.05, weight_decay=0.0)
    strategy = op.EqualDecay(optimizer, total_steps=40)
    made = train(optimizer, gradients, strategy)
    settings = {"lr": 0.05, "betas": (0.9, 0.999), "eps": 1e-8}
    assert_same(made, [paper.adam(x, gradients, total=40, decay_momentum=False, **settings) for x in STARTS])
    by_hand = make(parameters(), lr=0.05, weight_decay=0.0)
    assert_same(train(by_hand, gradients, LambdaLR(by_hand, lambda k: 1 - 0.9 * k / 40)), made)


def test_equal_decay_has_mdlrcs_learning_rate() -> None:
    for make in (torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.8)):
        pair = [strategy(make(parameters(), lr=0.05), total_steps=7) for strategy in (op.MDLRC, op.EqualDecay)]
        for _ in range(7):
            assert pair[0].get_last_lr() == pair[1].get_last_lr()
            for strategy in pair:
                strategy.step()


SCHEDULERS = {
    "linear": lambda o: LinearLR(o, start_factor=0.1, total_iters=12),
    "cosine": lambda o: CosineAnnealingLR(o, T_max=40, eta_min=1e-3),
    "lambda": lambda o: LambdaLR(o, lambda k: 1 / (1 + k)),
    "constant": lambda o: ConstantLR(o, factor=0.5, total_iters=20),
}


@pytest.mark.parametrize("order", ["scheduler first", "strategy first", "made first"])
@pytest.mark.parametrize("name", sorted(SCHEDULERS))
@pytest.mark.parametrize("strategy_class", [op.MDLRC, op.EqualDecay])
def test_composes_with_a_scheduler_in_any_order(strategy_class, name: str, order: str) -> None:
    gradients = Gradients(40)
    plain = torch.optim.SGD(parameters(), lr=0.05)
    rates = []
    alone = SCHEDULERS[name](plain)
    for _ in range(40):
        rates.append(plain.param_groups[0]["lr"] / 0.05)
        plain.step()
        alone.step()
    optimizer = torch.optim.AdamW(parameters(), lr=0.05, weight_decay=0.1)
    if order == "made first":
        strategy = strategy_class(optimizer, total_steps=40)
        scheduler = SCHEDULERS[name](optimizer)
    else:
        scheduler = SCHEDULERS[name](optimizer)
        strategy = strategy_class(optimizer, total_steps=40)
    pair = (scheduler, strategy) if order == "scheduler first" else (strategy, scheduler)
    made = train(optimizer, gradients, *pair)
    settings = {"lr": 0.05, "betas": (0.9, 0.999), "eps": 1e-8, "decoupled": 0.1, "lr_factors": rates}
    moving = strategy_class is op.MDLRC
    assert_same(made, [paper.adam(x, gradients, total=40, decay_momentum=moving, **settings) for x in STARTS])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(plain.param_groups[0]["lr"])


def test_composes_with_a_scheduler_that_moves_the_momentum() -> None:
    """OneCycleLR sets beta_1 itself; each step decays what it has set."""
    optimizer = torch.optim.Adam(parameters(), lr=0.05)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=30)
    strategy = op.MDLRC(optimizer, total_steps=30)
    used, own = [], []
    optimizer.register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["betas"][0]))
    for k in range(29):
        own.append(optimizer.param_groups[0]["betas"][0])
        train(optimizer, Gradients(30), scheduler, strategy, first=k, until=k + 1)
    assert used == pytest.approx([paper.decay(b, k, 30)[0] for k, b in enumerate(own)])
    assert max(own) - min(own) > 0.05


@pytest.mark.parametrize("make", [torch.optim.Adam, lambda p, **s: torch.optim.SGD(p, momentum=0.9, **s)])
def test_between_steps_the_optimizer_is_its_own(make) -> None:
    optimizer = make(parameters(), lr=0.05, weight_decay=0.1)
    before = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    strategy = op.MDLRC(optimizer, total_steps=10)
    train(optimizer, Gradients(6), strategy)
    after = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    assert after == before
    strategy.detach()
    seen = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
    train(optimizer, Gradients(1))
    assert seen == [0.05], "detached, it changes nothing"


def test_a_step_that_raises_leaves_nothing_behind() -> None:
    optimizer = torch.optim.Adam(parameters(), lr=0.05)
    strategy = op.EqualDecay(optimizer, total_steps=10)
    train(optimizer, Gradients(5), strategy)

    def broken() -> float:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step(broken)
    used = []
    optimizer.register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["lr"]))
    train(optimizer, Gradients(6), strategy, first=5)
    assert used == pytest.approx([0.05 * (1 - 0.9 * 0.5)]), "the factor must not be applied twice"
    assert optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)])
def test_a_restart_is_exact(make) -> None:
    gradients = Gradients(40)
    straight = make(parameters(), lr=0.05)
    expected = train(straight, gradients, op.MDLRC(straight, total_steps=40))
    first = make(parameters(), lr=0.05)
    strategy = op.MDLRC(first, total_steps=40)
    train(first, gradients, strategy, until=17)
    saved = json.loads(json.dumps(strategy.state_dict()))
    again = parameters()
    for p, q in zip(again, first.param_groups[0]["params"], strict=True):
        p.data.copy_(q.data)
    second = make(again, lr=0.05)
    resumed = op.MDLRC(second, total_steps=40)
    resumed.load_state_dict(saved)  # before the optimizer's own state: the order does not matter
    second.load_state_dict(first.state_dict())
    assert train(second, gradients, resumed, first=17) == expected


def test_attached_to_an_optimizer_that_has_trained() -> None:
    """Steps from before count with the momentum they had: b^n."""
    gradients = Gradients(30)
    optimizer = torch.optim.Adam(parameters(), lr=0.05)
    train(optimizer, gradients, until=3)
    strategy = op.MDLRC(optimizer, total_steps=27)
    train(optimizer, gradients, strategy, first=3, until=5)
    b_1 = paper.decay(0.9, 1, 27)[0]
    assert strategy.state_dict()["averages"] == [[5, pytest.approx(0.9**4 * b_1)]]


def test_several_groups_each_with_its_own_momentum() -> None:
    gradients = Gradients(25)
    one, two, three = parameters()
    groups = [{"params": [one]}, {"params": [two], "betas": (0.5, 0.999), "lr": 0.01}]
    optimizer = torch.optim.Adam(groups, lr=0.05)
    strategy = op.MDLRC(optimizer, total_steps=25)
    optimizer.add_param_group({"params": [three], "betas": (0.8, 0.999)})
    made = train(optimizer, gradients, strategy)
    for x, lr, b, got in zip(STARTS, (0.05, 0.01, 0.05), (0.9, 0.5, 0.8), made, strict=True):
        expected = paper.adam(x, gradients, lr=lr, betas=(b, 0.999), eps=1e-8, total=25)
        assert got == pytest.approx(expected, rel=1e-11)


def test_a_group_without_gradients_does_not_count() -> None:
    """Its optimizer state does not move, so its product must not either."""
    gradients = Gradients(20)
    one, two, _ = parameters()
    optimizer = torch.optim.Adam([{"params": [one]}, {"params": [two]}], lr=0.05)
    strategy = op.MDLRC(optimizer, total_steps=20)
    for k in range(6):
        one.grad = gradients(one.detach(), k)
        optimizer.step()
        strategy.step()
    assert strategy.state_dict()["averages"][1] == [0, 1.0]
    assert strategy.state_dict()["averages"][0][0] == 6


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_that_skips(fused: bool) -> None:
    """Neither optimizer state nor product moves, also not for a fused one, which is called and skips itself."""
    optimizer = torch.optim.Adam(parameters(), lr=0.05, fused=fused)
    strategy = op.MDLRC(optimizer, total_steps=20)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for k in range(6):
        for p in optimizer.param_groups[0]["params"]:
            p.grad = torch.full_like(p, math.inf if k in (2, 3) else 0.5)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        strategy.step()
    steps, product = strategy.state_dict()["averages"][0]
    state = optimizer.state[optimizer.param_groups[0]["params"][0]]
    assert steps == int(state["step"]) == 4
    assert product == pytest.approx(math.prod(paper.decay(0.9, k, 20)[0] for k in (0, 1, 4, 5)))


def test_through_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    gradients = Gradients(20)
    accelerator = accelerate.Accelerator(cpu=True)
    optimizer = accelerator.prepare(torch.optim.AdamW(parameters(), lr=0.05))
    made = train(optimizer, gradients, op.MDLRC(optimizer, total_steps=20))
    plain = torch.optim.AdamW(parameters(), lr=0.05)
    assert made == train(plain, gradients, op.MDLRC(plain, total_steps=20))


def test_a_longer_run_stays_at_the_end_and_says_so_once() -> None:
    optimizer = torch.optim.Adam(parameters(), lr=0.05)
    strategy = op.MDLRC(optimizer, total_steps=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(optimizer, Gradients(3), strategy)
    with pytest.warns(UserWarning, match="total_steps=3") as caught:
        train(optimizer, Gradients(9), strategy, first=3)
    assert len(caught) == 1
    assert strategy.get_last_momentum() == [0.0]
    assert strategy.get_last_lr() == pytest.approx([0.005])
    assert all(bool(torch.isfinite(p).all()) for p in optimizer.param_groups[0]["params"])


def test_bad_input() -> None:
    adam = torch.optim.Adam(parameters())
    for bad in (0, -1, 2.5, True, None):
        with pytest.raises(ValueError, match="total_steps="):
            op.MDLRC(adam, total_steps=bad)
    with pytest.raises(ValueError, match=r"RMSprop is not supported; give torch's Adam, AdamW or SGD"):
        op.MDLRC(torch.optim.RMSprop(parameters()), total_steps=5)
    with pytest.raises(ValueError, match=r"NAdam is not supported"):
        op.EqualDecay(torch.optim.NAdam(parameters()), total_steps=5)
    with pytest.raises(ValueError, match=r"momentum=0 in parameter group 0 of SGD"):
        op.MDLRC(torch.optim.SGD(parameters(), lr=0.1), total_steps=5)
    with pytest.raises(ValueError, match=r"betas\[0\]=0 in parameter group 0"):
        op.EqualDecay(torch.optim.Adam(parameters(), betas=(0.0, 0.9)), total_steps=5)
    nesterov = torch.optim.SGD(parameters(), lr=0.1, momentum=0.9, nesterov=True)
    with pytest.raises(ValueError, match="nesterov=True"):
        op.MDLRC(nesterov, total_steps=5)
    with pytest.raises(ValueError, match=r"total_steps=5 but the saved run has 9"):
        op.MDLRC(adam, total_steps=5).load_state_dict(op.MDLRC(adam, total_steps=9).state_dict())
