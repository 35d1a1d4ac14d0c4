"""Optimizers under momentum decay, one number at a time, from the papers (Kingma & Ba, 2015; Xu et al., 2024)."""

import math


def decay(b: float, k: int, total: int) -> tuple[float, float]:
    """(b_k, lr_k / lr) with k of ``total`` steps done."""
    tau = min(k / total, 1.0)
    b_k = b * (1 - tau) / ((1 - b) + b * (1 - tau))
    return b_k, (1 - b) / (1 - b_k)


def adam(x, gradients, *, lr, betas, eps, total, l2=0.0, decoupled=0.0, lr_factors=None, decay_momentum=True):
    """Final x after one Adam step per gradient ``g(x, k)``; the first moment is divided by 1 - b_1 b_2 ... b_n."""
    b, b2 = betas
    m = v = 0.0
    product = 1.0
    for k in range(gradients.steps):
        b_k, share = decay(b, k, total)
        rate = lr * share * (lr_factors[k] if lr_factors else 1.0)
        beta = b_k if decay_momentum else b
        g = gradients(x, k) + l2 * x
        x = x - rate * decoupled * x
        m = beta * m + (1 - beta) * g
        v = b2 * v + (1 - b2) * g * g
        product *= beta
        m_hat, v_hat = m / (1 - product), v / (1 - b2 ** (k + 1))
        x = x - rate * m_hat / (math.sqrt(v_hat) + eps)
    return x


def averaged_sgd(x, gradients, *, lr, b, total, l2=0.0):
    """SGD whose momentum is an average, m = b_k m + (1 - b_k) g; the first gradient enters with weight 1 - b."""
    m = 0.0
    for k in range(gradients.steps):
        b_k, share = decay(b, k, total)
        g = gradients(x, k) + l2 * x
        m = b_k * m + (1 - b_k) * g
        x = x - lr * share * m
    return x
