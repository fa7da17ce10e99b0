import numpy as np
import pytest
import torch

from camshaft.core.request import SamplingParams
from camshaft.core.sample.logprobs import token_logprobs
from camshaft.core.sample.sampler import Sampler

NONE = np.empty(0, dtype=np.int32)


@pytest.fixture
def logits() -> torch.Tensor:
    return torch.randn(4, 300, generator=torch.Generator().manual_seed(0)) * 3


def test_values_are_log_softmax_and_rank_counts_from_one(logits: torch.Tensor) -> None:
    expected = logits.double().log_softmax(-1)
    tokens = torch.tensor([5, int(logits[1].argmax()), 299, int(logits[3].argmin())])
    for row, (found, count) in enumerate(
        zip(token_logprobs(logits, tokens, [3, 0, 5, 20]), [3, 0, 5, 20], strict=True)
    ):
        best = torch.topk(logits[row], count).indices.tolist()
        assert found.token_ids == [int(tokens[row]), *best]
        wanted = [float(expected[row, i]) for i in found.token_ids]
        assert found.logprobs == pytest.approx(wanted, abs=1e-5)
        assert found.rank == int((logits[row] > logits[row, tokens[row]]).sum()) + 1
    assert token_logprobs(logits, tokens, 0)[1].rank == 1
    assert token_logprobs(logits, tokens, 0)[3].rank == 300


def test_they_describe_the_models_logits_not_the_edited_ones(logits: torch.Tensor) -> None:
    sampler = Sampler(300)
    least = int(logits[0].argmin())
    sampler.add(0, SamplingParams(temperature=0.0, logit_bias={least: 1000.0}, logprobs=2), NONE, NONE)
    sampler.add(1, SamplingParams(temperature=0.3, top_k=2, logprobs=0), NONE, NONE)
    sampler.add(2, SamplingParams(temperature=0.0), NONE, NONE)
    tokens, found = sampler.sample(logits[:3].clone(), [0, 1, 2])
    assert set(found) == {0, 1}
    assert found[0].token_ids[0] == least == int(tokens[0])
    assert found[0].rank == 300
    wanted = logits.double().log_softmax(-1)
    assert found[0].logprobs[0] == pytest.approx(float(wanted[0, least]), abs=1e-4)
    assert found[1].token_ids == [int(tokens[1])]
    assert found[1].logprobs == pytest.approx([float(wanted[1, tokens[1]])], abs=1e-5)


def test_more_alternatives_than_the_vocabulary(logits: torch.Tensor) -> None:
    assert len(token_logprobs(logits, torch.zeros(4, dtype=torch.int32), 1000)[0].token_ids) == 301


def test_equal_alternatives_come_by_index() -> None:
    flat = torch.zeros(1, 50)
    assert token_logprobs(flat, torch.tensor([7]), 50)[0].token_ids[1:] == list(range(50))
