from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from camshaft.core.errors import RequestError, StateError
from camshaft.core.request import Request, SamplingParams, State
from camshaft.core.schedule.waiting import WaitingQueue
from camshaft.policies.base import ADMIT, Admission, Verdict
from camshaft.policies.registry import load_policy

Make = Callable[..., Any]


def test_a_prompt_then_a_token_a_step(harness: Make) -> None:
    h = harness()
    request = h.add(10, max_tokens=3)
    plan, _ = h.step()
    assert plan.num_tokens.tolist() == [10]
    assert plan.samples.all()
    plan, _ = h.step()
    assert plan.num_tokens.tolist() == [1]
    assert plan.num_decodes == 1
    h.drain()
    assert request.state is State.FINISHED
    assert request.finish_reason == "length"
    assert len(request.output) == 3
    assert h.scheduler.kv.num_free == h.params.num_blocks


def test_chunks_share_steps_with_decodes_within_the_budget(harness: Make) -> None:
    h = harness()
    h.add(8, max_tokens=20)
    h.step()
    h.add(100, max_tokens=2)
    mixed = [h.step()[0] for _ in range(4)]
    assert [p.num_decodes for p in mixed] == [1, 1, 1, 1]
    assert [p.total_tokens for p in mixed] == [32, 32, 32, 8]
    assert mixed[-1].samples.all()


def test_whole_prompts_do_not_cost_decodes_their_turn(harness: Make) -> None:
    h = harness("continuous", max_num_batched_tokens=100, enable_chunked_prefill=False)
    h.add(8, max_tokens=20)
    h.step()
    h.add(100, max_tokens=2)
    plan, _ = h.step()
    assert plan.num_tokens.tolist() == [1, 100]


def test_long_prefill_threshold_leaves_room_for_others(harness: Make) -> None:
    h = harness(long_prefill_token_threshold=16)
    h.add(100, max_tokens=2)
    h.step()
    h.add(6, max_tokens=2)
    plan, _ = h.step()
    assert plan.num_tokens.tolist() == [16, 6]


def test_a_warm_prefix_is_not_computed_again(harness: Make) -> None:
    h = harness()
    prompt = list(range(2, 26))
    h.add(prompt, max_tokens=2)
    h.drain()
    again = h.add([*prompt, 99, 98], max_tokens=2)
    plan, _ = h.step()
    assert plan.starts.tolist() == [24]
    assert again.cached_tokens == 24


def test_a_prompt_wholly_in_the_cache_recomputes_one_token_in_a_copy(harness: Make) -> None:
    h = harness()
    prompt = list(range(2, 26))
    h.add(prompt, max_tokens=2)
    h.drain()
    h.add(prompt, max_tokens=2)
    plan, _ = h.step()
    assert plan.starts.tolist() == [23]
    assert len(plan.copies) == 1
    h.drain()


def test_a_salt_shares_nothing(harness: Make) -> None:
    h = harness()
    prompt = list(range(2, 26))
    h.add(prompt, cache_salt=b"a")
    h.drain()
    h.add(prompt, cache_salt=b"b")
    plan, _ = h.step()
    assert plan.starts.tolist() == [0]


def test_siblings_share_the_prompt_and_copy_its_last_block(harness: Make) -> None:
    h = harness(enable_prefix_caching=False)
    first = h.add(list(range(2, 12)), max_tokens=6, id="a")
    others = [h.add(list(range(2, 12)), max_tokens=6, fork_of="a") for _ in range(2)]
    h.step()
    plan, _ = h.step()
    assert plan.starts.tolist() == [10, 9, 9]
    assert len(plan.copies) == 2
    assert h.scheduler.kv.pool.num_used == 2 + 3
    h.drain()
    assert [r.output for r in others] == [first.output] * 2


def _alone(harness: Make, prompt: list[int], max_tokens: int) -> list[int]:
    h = harness()
    request = h.add(prompt, max_tokens=max_tokens)
    h.drain()
    return request.output


def test_requests_that_leave_the_queue_are_not_held() -> None:
    """From behind one that cannot start: they never come to the front."""
    queue = WaitingQueue(dynamic=False, window=16)
    for seq in range(2000):
        request = Request(f"r{seq}", np.ones(777, np.int32), SamplingParams(), 0.0, seq=seq)
        queue.push(request, lambda _: ())
        if seq:
            queue.remove(request)
    held = [each for each in gc.get_objects() if type(each) is Request and each.prompt_len == 777]
    assert len(held) < 100
    assert [request.seq for request in queue.candidates(lambda _: ())] == [0]


def test_a_sibling_stays_with_its_first_when_another_takes_the_id(harness: Make) -> None:
    h = harness(max_num_seqs=2)
    h.add(5, max_tokens=12)
    h.add(list(range(2, 12)), max_tokens=3, id="a")
    sibling = h.add(list(range(2, 12)), max_tokens=6, fork_of="a")
    h.step()
    h.add(list(range(50, 90)), max_tokens=30, id="a")  # begins when the first has ended
    h.drain()
    assert sibling.state is State.FINISHED
    assert sibling.output == _alone(harness, list(range(2, 12)), 6)


def test_eviction_frees_the_latest_and_it_comes_back_with_the_same_tokens(harness: Make) -> None:
    roomy, tight = harness(num_blocks=64), harness(num_blocks=12)
    outputs = []
    for h in (roomy, tight):
        requests = [h.add(12, max_tokens=20) for _ in range(3)]
        h.drain()
        outputs.append([r.output for r in requests])
    assert tight.scheduler.preemptions > 0
    assert roomy.scheduler.preemptions == 0
    assert outputs[0] == outputs[1]


def test_a_request_longer_than_the_cache_is_refused_and_others_go_on(harness: Make) -> None:
    h = harness(num_blocks=8)
    with pytest.raises(RequestError, match="at most 31 fit"):
        h.add(32)
    ended = h.add(28, max_tokens=100)
    h.drain()
    assert ended.finish_reason == "length"
    assert ended.prompt_len + len(ended.output) == 32


def test_an_empty_prompt_is_refused(harness: Make) -> None:
    with pytest.raises(RequestError, match="empty"):
        harness().add([])


def test_stop_ids_and_eos_end_a_sequence(harness: Make) -> None:
    h = harness()
    first = h.add(5, max_tokens=3)
    h.drain()
    stop = h.add([101] * 5, params=SamplingParams(max_tokens=9, stop_token_ids=(first.output[1],)))
    h.drain()
    assert stop.output == first.output[:2]
    assert stop.finish_reason == "stop"


def test_abort_frees_at_once_wherever_the_request_stands(harness: Make) -> None:
    h = harness(max_num_seqs=1)
    running, waiting = h.add(10, max_tokens=50), h.add(10)
    h.step()
    for request in (running, waiting):
        h.scheduler.abort(request, h.now)
        h.scheduler.abort(request, h.now)
        assert request.finish_reason == "abort"
    assert h.scheduler.kv.num_free == h.params.num_blocks
    assert not h.scheduler.has_work
    h.scheduler.check_integrity()


def test_prompt_logprobs_need_every_position_computed(harness: Make) -> None:
    h = harness()
    prompt = list(range(2, 26))
    h.add(prompt)
    h.drain()
    h.add(prompt, params=SamplingParams(max_tokens=1, prompt_logprobs=1))
    plan, _ = h.step()
    assert plan.starts.tolist() == [0]


def test_the_ledger_tells_why_a_request_waited(harness: Make) -> None:
    h = harness(max_num_seqs=1)
    h.add(10, max_tokens=3)
    h.step()
    h.add(40, max_tokens=2, id="late")
    h.drain()
    told = h.scheduler.ledger.explain("late")
    kinds = [(e["event"], e.get("tokens")) for e in told["events"]]
    assert kinds == [("waited", None), ("admitted", None), ("chunk", 32), ("chunk", 8), ("token", 1)]
    assert "slots" in told["events"][0]["why"]
    assert h.scheduler.ledger.explain("nobody") is None


def test_the_ledger_tells_of_the_time_in_which_nobody_could_run(harness: Make) -> None:
    policy: Any = load_policy("continuous-chunked").build()
    policy.admit = lambda view, step: ADMIT if step.now_s >= 0.5 else Admission(Verdict.DEFER)
    h = harness(policy)
    for number in range(2):
        h.add(10, max_tokens=2, id=f"r{number}")
        for _ in range(200):
            assert h.scheduler.schedule(h.now) is None
            h.now += 0.001
    h.drain()
    first, second = (h.scheduler.ledger.explain(f"r{number}")["events"][0] for number in range(2))
    assert (first["event"], first["at_ms"], first["steps"]) == ("waited", 0.0, 0)
    assert "the policy deferred it" in first["why"]
    assert first["until_ms"] >= 400
    assert (second["event"], second["at_ms"], second["steps"]) == ("waited", 0.0, 0)
    assert len(h.scheduler.ledger.steps) < 10


def test_the_ledger_counts_the_tokens_of_a_running_request(harness: Make) -> None:
    h = harness()
    request = h.add(10, max_tokens=9, id="a")
    told = [h.scheduler.ledger.explain("a")["output_tokens"]]
    for _ in range(4):
        h.scheduler.schedule(h.now)  # drawn, and not yet told
        told.append(h.scheduler.ledger.explain("a")["output_tokens"])
    assert told == [0, 1, 2, 3, 4]
    assert len(request.output) < 4


@pytest.mark.parametrize(
    ("chunking", "limit", "cut_to"),
    [
        ("fixed", {}, "the step's budget of 32 tokens"),
        ({"name": "fixed", "prompt_share": 0.25}, {}, "8 tokens a prompt"),
        ("fixed", {"long_prefill_token_threshold": 5}, "5 tokens a prompt"),
        ({"name": "adaptive", "min_prompt_tokens": 3}, {}, "the policy's 12 tokens for prompts"),
    ],
)
def test_the_ledger_names_what_a_chunk_was_cut_to(
    harness: Make, chunking: Any, limit: dict[str, int], cut_to: str
) -> None:
    h = harness({"chunking": chunking}, **limit)
    h.add(1, max_tokens=50)
    h.step()
    h.add(40, id="long")
    h.drain()
    chunks = [e for e in h.scheduler.ledger.explain("long")["events"] if e["event"] == "chunk"]
    assert {chunk["cut_to"] for chunk in chunks[:-1]} == {cut_to}
    assert chunks[-1]["cut_to"] is None


def test_a_wait_begins_no_earlier_than_the_request(harness: Make) -> None:
    """It may come while a step is under way, and is told whose tokens went first."""
    h = harness({"chunking": {"name": "adaptive", "min_prompt_tokens": 3}})
    h.add(1, max_tokens=9)
    h.step()
    h.now += 0.01
    plan = h.scheduler.schedule(h.now)
    h.add(40)
    h.now += 0.01
    h.add(4, id="late")
    h.scheduler.update(h.device.run(plan), h.now + 0.01)
    h.scheduler.ledger.steps[-1].duration_ms = 20.0
    h.drain()
    first, second, *_ = h.scheduler.ledger.explain("late")["events"]
    assert (first["at_ms"], first["until_ms"], first["why"]) == (
        0.0,
        10.0,
        "a step was under way when it arrived",
    )
    assert "the tokens that the policy gives prompts in a step were spent" in second["why"]


def test_illegal_transitions_name_both_states() -> None:
    request = Request(id="x", prompt=np.ones(1, np.int32), params=SamplingParams(), arrival_s=0)
    request.to(State.FINISHED)
    with pytest.raises(StateError, match="FINISHED cannot become RUNNING"):
        request.to(State.RUNNING)


def test_prompts_that_hold_each_others_blocks_make_way(harness: Make) -> None:
    h = harness(num_blocks=10, reserve_full_prompt=False, max_num_batched_tokens=16)
    requests = [h.add(36, max_tokens=2), h.add(36, max_tokens=2)]
    h.drain()
    assert all(r.finish_reason == "length" for r in requests)


def test_padding_counts_ended_members(harness: Make) -> None:
    h = harness("static", max_num_batched_tokens=200, enable_chunked_prefill=False)
    h.add(4, max_tokens=2)
    h.add(10, max_tokens=6)
    h.now += 1.0
    plan, _ = h.step()
    assert plan.padding == 2 * 10 - 14
    late = h.add(5, max_tokens=2)
    h.step()
    plan, _ = h.step()
    assert plan.num_tokens.tolist() == [1]
    assert plan.padding == 1
    assert late.state is State.WAITING
    h.drain()
    assert late.state is State.FINISHED
