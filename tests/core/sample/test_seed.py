import numpy as np
import torch

from camshaft.core.sample.draw import draw, pick
from camshaft.core.sample.seed import as_uint64, uniforms
from camshaft.core.splitmix import GAMMA, mix


def test_a_number_depends_on_seed_and_position_alone() -> None:
    seeds = np.array([1, 2, 1, 3], dtype=np.uint64)
    positions = np.array([0, 5, 0, 9])
    numbers = uniforms(seeds, positions)
    assert numbers[0] == numbers[2]
    assert len(set(numbers)) == 3
    for i in range(4):
        assert uniforms(seeds[i : i + 1], positions[i : i + 1])[0] == numbers[i]


def test_known_stream() -> None:
    """SplitMix64 as published: state 1234567 gives these first outputs; the draw mixes the seed beforehand."""
    outputs = mix(np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * GAMMA)
    assert outputs.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_numbers_are_uniform_along_and_across_streams() -> None:
    along = uniforms(np.full(20_000, 7, dtype=np.uint64), np.arange(20_000))
    across = uniforms(np.arange(20_000, dtype=np.uint64), np.zeros(20_000, dtype=np.int64))
    for numbers in (along, across):
        assert 0 <= numbers.min() < numbers.max() < 1
        counts = np.histogram(numbers, bins=50, range=(0, 1))[0]
        assert ((counts - 400) ** 2 / 400).sum() < 49 + 5 * np.sqrt(98)
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


def test_neighbouring_seeds_do_not_share_numbers() -> None:
    positions = np.arange(500)
    one, two = (set(uniforms(np.full(500, s, dtype=np.uint64), positions)) for s in (10, 11))
    assert not one & two


def test_any_integer_is_a_seed() -> None:
    for seed in (0, -1, 2**63, 2**80 + 5, -(2**70)):
        assert 0 <= int(as_uint64(seed)) < 2**64


def test_draw_inverts_the_distribution_at_the_edges() -> None:
    weights = torch.zeros(1, 700)
    weights[0, [3, 400, 699]] = torch.tensor([1.0, 2.0, 1.0])
    numbers = torch.tensor([0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, 1 - 2**-53], dtype=torch.float64)
    got = draw(weights.repeat(7, 1), numbers)
    assert got.tolist() == [3, 3, 400, 400, 400, 699, 699]


def test_a_step_of_no_width_is_never_picked() -> None:
    cumulative = torch.tensor([[0.0, 0.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    for number in (0.0, 0.5, 1 - 2**-53):
        step, into = pick(cumulative, torch.tensor([number], dtype=torch.float64))
        assert step.tolist() == [2]
        assert 0 <= into.item() < 1
