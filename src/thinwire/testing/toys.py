"""Small tasks with known answers, for tests of methods and of everything around them.

Each is a task like any other: `load_task("thinwire.testing.toys:Quadratic")`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import nn

from thinwire.errors import InputError
from thinwire.seeds import generator_for
from thinwire.tasks import AbstractClassification, Split, Task, evaluating

__all__ = ["DropoutMoons", "Exploding", "Moons", "Poisoned", "Quadratic", "two_moons"]


@dataclass(frozen=True, kw_only=True)
class Quadratic(Task):
    """A convex quadratic whose optimum is the mean of the training samples.

    The loss of a sample x is ½·‖(θ − x)·A‖² for a fixed matrix A, so that the full gradient is
    (θ − mean)·A·Aᵀ. A batch sees another mean: gradient noise comes from the data alone. Accuracy
    is the share of θ's coordinates within 0.1 of the optimum; the evaluation loss is the excess
    over the least possible one.

    Args:
        dim: number of parameters, 1 or more.
        num_samples: of the training set, 1 or more.
        condition: largest over smallest eigenvalue of A·Aᵀ, 1 or more; the largest is 1.
        noise: standard deviation of the samples about their mean, 0 or more.

    >>> import torch
    >>> task = Quadratic(dim=3, noise=0.0)
    >>> with torch.no_grad():
    ...     _ = (model := task.model()).theta.copy_(task.optimum)
    >>> task.evaluate(model)
    (1.0, 0.0)
    """

    name: ClassVar[str] = "quadratic"
    dim: int = 10
    num_samples: int = 64
    condition: float = 10.0
    noise: float = 0.5

    def __post_init__(self) -> None:
        for key in ("dim", "num_samples", "condition"):
            if not getattr(self, key) >= 1:
                raise InputError(f"{key} = {getattr(self, key)}; allowed: 1 or more")
        if not self.noise >= 0:
            raise InputError(f"noise = {self.noise}; allowed: 0 or more")

    def train_data(self) -> Split:
        """As `Task.train_data`: float32 (n, dim) and zeros."""
        return self._train

    def test_data(self) -> Split:
        """As `Task.test_data`: the optimum as the only sample."""
        return self._test

    def model(self) -> nn.Module:
        """As `Task.model`: one parameter, `theta`."""
        return _Point(self.dim)

    def loss(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """As `Task.loss`; `y` is not used."""
        return 0.5 * ((model(x) @ self.root.to(x.device)) ** 2).sum(dim=1).mean()

    def evaluate(self, model: nn.Module) -> tuple[float, float]:
        """As `Task.evaluate`."""
        with evaluating(model):
            off = model(self.optimum.unsqueeze(0))
            near = (off.abs() <= 0.1).float().mean()
            return float(near), float(0.5 * ((off @ self.root) ** 2).sum())

    @cached_property
    def root(self) -> torch.Tensor:
        """The matrix A, (dim, dim)."""
        random = torch.randn(self.dim, self.dim, generator=generator_for(0, "quadratic root"))
        rotation = torch.linalg.qr(random.double()).Q
        exponent = -0.5 * math.log10(self.condition)
        return (rotation * torch.logspace(0, exponent, self.dim).double()).float()

    @cached_property
    def optimum(self) -> torch.Tensor:
        """The parameters of least training loss, (dim,)."""
        return self._train[0].double().mean(dim=0).float()

    @cached_property
    def _test(self) -> Split:
        return self.optimum.unsqueeze(0), torch.zeros(1, dtype=torch.int64)

    @cached_property
    def _train(self) -> Split:
        generator = generator_for(0, "quadratic samples")
        centre = torch.randn(self.dim, generator=generator)
        spread = self.noise * torch.randn(self.num_samples, self.dim, generator=generator)
        return centre + spread, torch.zeros(self.num_samples, dtype=torch.int64)


class _Point(nn.Module):
    """A point θ; gives θ − x."""

    def __init__(self, dim: int):
        super().__init__()
        self.theta = nn.Parameter(torch.randn(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.theta - x


def two_moons(num_samples: int, seed: int, noise: float = 0.1) -> Split:
    """Two interleaved half circles in the plane, two classes that no line separates.

    Args:
        num_samples: 1 or more.
        seed: of the angles and the noise.
        noise: standard deviation of both coordinates; the circles' radius is 1.

    Returns:
        float32 (n, 2) and int64 (n,), the classes in turn.
    """
    generator = generator_for(seed, "two moons")
    y = torch.arange(num_samples) % 2
    angle = math.pi * torch.rand(num_samples, generator=generator)
    upper = torch.stack([angle.cos(), angle.sin()], dim=1)
    lower = torch.tensor([1.0, 0.5]) - upper
    x = torch.where(y.unsqueeze(1) == 0, upper, lower)
    return x + noise * torch.randn(num_samples, 2, generator=generator), y


_TRAIN, _TEST = two_moons(256, seed=0), two_moons(128, seed=1)


@dataclass(frozen=True, kw_only=True)
class Moons(AbstractClassification):
    """Two moons by a small network, 354 parameters in three layers; 256 to train, 128 to test."""

    name: ClassVar[str] = "moons"

    def train_data(self) -> Split:
        """As `Task.train_data`."""
        return _TRAIN

    def test_data(self) -> Split:
        """As `Task.test_data`."""
        return _TEST

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return _moons_network(nn.Identity())


@dataclass(frozen=True, kw_only=True)
class DropoutMoons(AbstractClassification):
    """`Moons` with dropout: every forward pass in training draws from torch's global generator.

    Workers that share a process must not share its state, or they end elsewhere than on machines
    of their own.
    """

    name: ClassVar[str] = "dropout-moons"

    def train_data(self) -> Split:
        """As `Task.train_data`."""
        return _TRAIN

    def test_data(self) -> Split:
        """As `Task.test_data`."""
        return _TEST

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return _moons_network(nn.Dropout(0.2))


@dataclass(frozen=True, kw_only=True)
class Exploding(AbstractClassification):
    """`Moons` whose loss is NaN from one training step on, on every worker.

    Args:
        at: the forward pass in training, counted from 1, that gives the first NaN; the same as
            the step where a step is one forward pass.
    """

    name: ClassVar[str] = "exploding"
    at: int = 3

    def __post_init__(self) -> None:
        if self.at < 1:
            raise InputError(f"at = {self.at}; allowed: 1 or more")

    def train_data(self) -> Split:
        """As `Task.train_data`."""
        return _TRAIN

    def test_data(self) -> Split:
        """As `Task.test_data`."""
        return _TEST

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return _moons_network(_Bomb(self.at))


@dataclass(frozen=True, kw_only=True)
class Poisoned(AbstractClassification):
    """`Moons` with one training sample that is NaN: one worker's loss is NaN, the others' are not.

    The order of the samples says which worker at which step.

    Args:
        sample: index of the bad sample, 0..255.
    """

    name: ClassVar[str] = "poisoned"
    sample: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.sample < len(_TRAIN[1]):
            raise InputError(f"sample = {self.sample}; allowed: 0..{len(_TRAIN[1]) - 1}")

    def train_data(self) -> Split:
        """As `Task.train_data`."""
        return self._train

    def test_data(self) -> Split:
        """As `Task.test_data`."""
        return _TEST

    def model(self) -> nn.Module:
        """As `Task.model`."""
        return _moons_network(nn.Identity())

    @cached_property
    def _train(self) -> Split:
        x = _TRAIN[0].clone()
        x[self.sample] = math.nan
        return x, _TRAIN[1]


class _Bomb(nn.Module):
    """Passes its input on, until the given forward pass in training and NaN from then on."""

    def __init__(self, at: int):
        super().__init__()
        self.at, self.passes = at, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += self.training
        return x * math.nan if self.training and self.passes >= self.at else x


def _moons_network(middle: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 16), nn.Tanh(), middle, nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2)
    )
