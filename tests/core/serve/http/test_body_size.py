"""What a body may cost before anybody has looked at it: counted while it comes, whatever pieces it comes in."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_support import Running

from camshaft.core.serve.http import body
from camshaft.core.serve.http.body import JsonSize
from camshaft.core.serve.http.faults import HttpFault

_TEXT = st.text(st.sampled_from('\\",:[]{}né\x00'), max_size=8)
_JSON = st.recursive(
    st.one_of(st.integers(), st.booleans(), _TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_TEXT, inner, max_size=4)),
    max_leaves=20,
)


def parts(value: Any) -> tuple[int, int]:
    """(values beside the first of their list or object, lists and objects and keys)."""
    if not isinstance(value, (list, dict)):
        return 0, 0
    inner = [parts(each) for each in (value.values() if isinstance(value, dict) else value)]
    keys = len(value) if isinstance(value, dict) else 0
    return max(0, len(value) - 1) + sum(v for v, _ in inner), 1 + keys + sum(m for _, m in inner)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(value=_JSON, cuts=st.lists(st.integers(0, 200), max_size=12), escaped=st.booleans())
def test_parts_are_counted_outside_of_texts_only(value: Any, cuts: list[int], escaped: bool) -> None:
    data = json.dumps(value, ensure_ascii=escaped).encode()
    ends = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    size = JsonSize()
    for start, end in pairwise(ends):
        size.feed(data[start:end])
    assert (size.values, size.members) == parts(value)


@pytest.mark.parametrize("unit", [b"[],", b'{"a":0},', b'{"":{"":""}},'])
def test_too_many_members(unit: bytes) -> None:
    size = JsonSize()
    size.feed(unit * (body.MAX_MEMBERS // 8))
    with pytest.raises(HttpFault, match="members") as caught:
        size.feed(unit * body.MAX_MEMBERS)
    assert caught.value.status == 413


def test_too_many_values_are_413_before_all_has_come(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "MAX_VALUES", 1000)
    for path, field in (("/v1/completions", "prompt"), ("/detokenize", "tokens")):
        refused = server.post(path, {field: [1] * 2000})
        assert refused.status_code == 413
        assert "1000 values" in refused.json()["error"]["message"]
        assert server.post(path, {field: [1] * 100}).status_code == 200
    commas = {"prompt": "x", "max_tokens": 1, "user": ",[{:" * 5000}
    assert server.post("/v1/completions", commas).status_code == 200


def test_many_prompts_of_many_ids(server: Running) -> None:
    """More than is handled on the event loop."""
    ids = [1 + index % 200 for index in range(200)]
    body = {
        "prompt": [ids[start:] for start in range(60)],
        "max_tokens": 1,
        "echo": True,
        "return_token_ids": True,
    }
    choices = server.post("/v1/completions", body).json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == body["prompt"]
    mixed = server.post("/v1/completions", {"prompt": [*ids * 60, "x"]})
    assert (mixed.status_code, mixed.json()["error"]["param"]) == (400, "prompt")
