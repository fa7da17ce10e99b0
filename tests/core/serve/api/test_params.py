"""From the fields of a request to sampling parameters."""

from __future__ import annotations

import pytest

from camshaft.core.errors import RequestError
from camshaft.core.serve.api.params import SamplingDefaults, wanted
from camshaft.core.serve.api.service import ModelLimits
from camshaft.core.serve.api.wire import ChatRequest, CompletionRequest, Message


@pytest.mark.parametrize(
    ("most", "completion", "expected"),
    [(512, True, 16), (5, True, 5), (512, False, 99), (7, False, 7), (None, False, 99)],
)
def test_the_model_s_own_length_never_lengthens(most: int | None, completion: bool, expected: int) -> None:
    """A completion that asks for no length gets OpenAI's 16 tokens; a chat, what there is room for."""
    defaults = SamplingDefaults(max_tokens=most)
    message = [Message("user", "x")]
    body = CompletionRequest(prompt="x") if completion else ChatRequest(messages=message)
    limits = ModelLimits(max_model_len=100, vocab_size=10, max_prompt_chars=None)
    assert wanted(body, 1, (), limits, defaults).params.max_tokens == expected


def test_min_tokens_beyond_the_operator_s_limit_is_told_of_that() -> None:
    body = CompletionRequest(prompt="x", max_tokens=90, min_tokens=60)
    limits = ModelLimits(max_model_len=100, vocab_size=10, max_prompt_chars=None)
    with pytest.raises(RequestError, match="min_tokens is 60; this answer may have 50 tokens at most"):
        wanted(body, 1, (), limits, SamplingDefaults(most_tokens=50))
