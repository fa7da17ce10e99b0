"""`engine explain`: prose from a server's ledger."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import CliRunner

from camshaft.cli.explain import explain, story

LIFE: dict[str, Any] = {
    "id": "cmpl-a-0",
    "state": "finished",
    "finish_reason": "length",
    "prompt_tokens": 300,
    "cached_tokens": 16,
    "output_tokens": 4,
    "priority": 2,
    "tenant": "blue",
    "preemptions": 1,
    "queued_ms": 12.5,
    "first_token_ms": 80.0,
    "finished_ms": 200.0,
    "complete": True,
    "events": [
        {"event": "waited", "at_ms": 0.0, "until_ms": 12.5, "step": 4, "steps": 2, "why": "no free row"},
        {"event": "admitted", "at_ms": 12.5, "step": 6},
        {
            "event": "chunk",
            "at_ms": 12.5,
            "step": 6,
            "start": 16,
            "tokens": 284,
            "batch_tokens": 290,
            "step_ms": 67.0,
            "drew": True,
            "cut_to": "the step's budget of 290 tokens",
        },
        *(
            {
                "event": "token",
                "at_ms": 80.0 + 10 * i,
                "step": 7 + i,
                "start": 300 + i,
                "tokens": 1,
                "batch_tokens": 3,
                "step_ms": 10.0 + i,
            }
            for i in range(3)
        ),
        {"event": "evicted", "at_ms": 110.0, "step": 10, "why": "too few free blocks"},
    ],
}


def test_story_tells_waits_chunks_tokens_and_evictions() -> None:
    text = "\n".join(story("cmpl-a-0", LIFE))
    for part in (
        "cmpl-a-0: finished (length)",
        "prompt of 300 tokens (16 from the prefix cache), 4 tokens out, priority 2, tenant blue, 1 eviction",
        "waited 12.5 ms, first token after 80.0 ms, ended after 200.0 ms",
        "waited 12.5 ms (2 steps): no free row",
        "prompt tokens 16 to 299 (cut to the step's budget of 290 tokens), in a step of 290 tokens that took 67.0 ms, and gave a token",
        "3 tokens, one a step up to step 9: 11.0 ms a step, 12.0 the slowest",
        "evicted, its blocks given to others: too few free blocks",
    ):
        assert part in text


def test_one_token_is_told_as_one() -> None:
    chunk = {**LIFE["events"][2], "start": 0, "tokens": 1, "batch_tokens": 1, "cut_to": None}
    text = "\n".join(story("x", {**LIFE, "prompt_tokens": 1, "events": [chunk]}))
    assert "prompt of 1 token (" in text
    assert "prompt token 0, in a step of 1 token that took" in text


def test_a_wait_in_which_no_step_was_made() -> None:
    waited = {**LIFE["events"][0], "steps": 0, "why": "the policy deferred it"}
    text = "\n".join(story("x", {**LIFE, "events": [waited]}))
    assert "waited 12.5 ms: the policy deferred it" in text


def test_a_refusal_says_why() -> None:
    refused = {**LIFE, "finish_reason": "rejected", "why": "too long for this server", "queued_ms": None}
    text = "\n".join(story("cmpl-a-0", refused))
    assert "finished (rejected: too long for this server)" in text
    assert "never started" in text


def test_every_token_has_a_line_if_wanted() -> None:
    lines = list(story("cmpl-a-0", LIFE, every_token=True))
    assert sum("token, in a step of 3 tokens" in line for line in lines) == 3


def test_tokens_with_a_gap_are_two_runs() -> None:
    events = [event for event in LIFE["events"] if event.get("step") != 8]
    text = "\n".join(story("x", {**LIFE, "events": events}))
    assert text.count("token, in a step of 3 tokens that took") == 2


# What somebody else's server may say.
OTHERS: dict[str, Any] = {
    f"/debug/explain/other{number}": body
    for number, body in enumerate(([], None, {}, {"sequences": []}, {"sequences": {"a": {"state": "x"}}}))
}


FAULT = {"status": 400, "message": "n must be at least 1", "param": "n", "at_unix_s": 1e9}
KEY = "schlüssel"


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path == "/debug/explain/cmpl%2Fa"
        body: Any = {"id": "a", "sequences": {"cmpl-a-0": LIFE}}
        if self.path in OTHERS:
            body = OTHERS[self.path]
        elif self.path == "/debug/explain/refused":
            body = {"id": "refused", "sequences": {}, "fault": FAULT}
        elif not known or self.headers.get("Authorization") != f"Bearer {KEY}".encode().decode("latin-1"):
            body = {"error": {"message": "no request is remembered"}}
        self.send_response(404 if isinstance(body, dict) and "error" in body else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_command(url: str) -> None:
    run = CliRunner().invoke
    asked = run(explain, ["cmpl/a", "--url", url, "--api-key", KEY])
    assert asked.exit_code == 0
    assert "cmpl-a-0: finished" in asked.output
    bare = run(explain, ["cmpl/a", "--url", url.removeprefix("http://"), "--api-key", KEY])
    assert bare.output == asked.output
    machine = run(explain, ["cmpl/a", "--url", url, "--format", "json"], env={"CAMSHAFT_API_KEY": KEY})
    assert json.loads(machine.output)["sequences"]["cmpl-a-0"]["queued_ms"] == 12.5
    unknown = run(explain, ["other", "--url", url])
    assert unknown.exit_code == 1
    assert "no request is remembered" in unknown.output
    nowhere = run(explain, ["x", "--url", "http://127.0.0.1:1"])
    assert nowhere.exit_code == 1
    assert "is the server running there?" in nowhere.output


def test_an_id_of_bytes_that_are_no_text(url: str) -> None:
    told = CliRunner().invoke(
        explain, ["\udcfc", "--url", url]
    )  # as a terminal of another encoding hands it over
    assert told.exit_code == 1
    assert "no request is remembered" in told.output


def test_a_request_that_got_an_error(url: str) -> None:
    told = CliRunner().invoke(explain, ["refused", "--url", url])
    assert told.exit_code == 0
    assert re.fullmatch(
        r"refused: answered with an error at 2001-09-\d\d .*: 400: n must be at least 1\n", told.output
    )


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_what_is_no_answer_of_this_server(url: str, number: int) -> None:
    told = CliRunner().invoke(explain, [f"other{number}", "--url", url])
    assert told.exit_code == 1
    assert "not an answer of this server" in told.output


@pytest.mark.parametrize("given", ["", "ftp://127.0.0.1", "http://", "http:///v1"])
def test_an_address_of_no_server_is_refused(given: str) -> None:
    told = CliRunner().invoke(explain, ["x", "--url", given])
    assert told.exit_code == 2
    assert f"--url {given}: a server's address is needed" in told.output
