"""How many tokens: the distributions of prompt and output lengths."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

MAX_TOKENS = 100_000_000


class Spread(BaseModel):
    """Mean and standard deviation, in tokens, of the lengths themselves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float = Field(gt=0, le=MAX_TOKENS)
    std: float = Field(ge=0, le=MAX_TOKENS)


def _spread(value: Any) -> Any:
    if isinstance(value, list | tuple):
        if len(value) != 2:
            raise ValueError("two numbers are needed: [mean, std]")
        return {"mean": value[0], "std": value[1]}
    return value


class Empirical(BaseModel):
    """Lengths seen somewhere, drawn with replacement by weight."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    values: tuple[Annotated[int, Field(ge=1, le=MAX_TOKENS)], ...] = Field(min_length=1)
    weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None

    @model_validator(mode="after")
    def _aligned(self) -> Empirical:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.values)} values and {len(self.weights)} weights: one each is needed")
        if self.weights is not None and not sum(self.weights) > 0:
            raise ValueError("the weights sum to 0")
        return self


def _empirical(value: Any) -> Any:
    return {"values": value} if isinstance(value, list | tuple) else value


class Length(BaseModel):
    """Exactly one distribution, cut to [min, max]. A bare number is `fixed`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fixed: int | None = Field(None, ge=1, le=MAX_TOKENS)
    uniform: tuple[int, int] | None = None  # both ends included
    normal: Annotated[Spread, BeforeValidator(_spread)] | None = None
    lognormal: Annotated[Spread, BeforeValidator(_spread)] | None = None
    empirical: Annotated[Empirical, BeforeValidator(_empirical)] | None = None
    min: int = Field(1, ge=1, le=MAX_TOKENS)
    max: int | None = Field(None, ge=1, le=MAX_TOKENS)

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: Any) -> Any:
        if isinstance(value, bool | str):
            raise ValueError("a number or a distribution is needed")
        return {"fixed": value} if isinstance(value, int) else value

    @model_validator(mode="after")
    def _one(self) -> Length:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"exactly one of {', '.join(KINDS)} is needed, not {' and '.join(given) or 'none'}"
            )
        if self.uniform is not None and not 1 <= self.uniform[0] <= self.uniform[1] <= MAX_TOKENS:
            raise ValueError(
                f"uniform: [low, high] with 1 <= low <= high is needed, not {list(self.uniform)}"
            )
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max} is less than min {self.min}")
        return self

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """int64 [count] lengths, each at least 1."""
        drawn = self._raw(rng, count)
        return np.clip(np.rint(drawn), self.min, self.max or MAX_TOKENS).astype(np.int64)

    def _raw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        if self.fixed is not None:
            return np.full(count, self.fixed)
        if self.uniform is not None:
            return rng.integers(self.uniform[0], self.uniform[1], size=count, endpoint=True)
        if self.normal is not None:
            return rng.normal(self.normal.mean, self.normal.std, size=count)
        if self.lognormal is not None:
            mu, sigma = lognormal_parameters(self.lognormal.mean, self.lognormal.std)
            return rng.lognormal(mu, sigma, size=count)
        assert self.empirical is not None  # _one
        weights = self.empirical.weights
        share = None if weights is None else np.asarray(weights) / np.sum(weights)
        return rng.choice(np.asarray(self.empirical.values), size=count, p=share)


KINDS = ("fixed", "uniform", "normal", "lognormal", "empirical")


def lognormal_parameters(mean: float, std: float) -> tuple[float, float]:
    """mu and sigma of the underlying normal such that the lognormal itself has this mean and std."""
    variance = math.log1p((std / mean) ** 2)
    return math.log(mean) - variance / 2, math.sqrt(variance)
