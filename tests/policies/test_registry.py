from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import get_protocol_members

from camshaft.policies import registry
from camshaft.policies.base import ADMIT, Budget, Policy, PolicyError
from camshaft.policies.parts import Order
from camshaft.policies.registry import catalogue, load_policy, names, parts


@pytest.mark.parametrize("name", names())
def test_every_policy_file_builds(name: str) -> None:
    policy = load_policy(name)
    assert policy.description
    assert isinstance(policy.build(), Policy)
    assert policy.build() is not policy.build()


def test_every_part_says_what_it_does() -> None:
    expected = {
        "order": {"fcfs", "priority", "shortest_first", "longest_prefix", "fair_share", "deadline"},
        "victim": {"latest", "least_computed", "lowest_priority"},
        "chunking": {"off", "fixed", "adaptive"},
        "batching": {"continuous", "single", "static"},
    }
    for kind, entries in catalogue().items():
        assert {entry["name"] for entry in entries} == expected[kind]
        for entry in entries:
            assert entry["what"]
            assert all(parameter["what"] for parameter in entry["parameters"].values())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("contiuous", "did you mean 'continuous'"),
        ({"order": "fcsf"}, "did you mean 'fcfs'"),
        ({"order": {"name": "fair_share", "weight": 1}}, "unknown key 'weight'"),
        ({"chunking": {"name": "adaptive", "itl_target_ms": -1}}, "itl_target_ms"),
        ({"order": {"name": "fair_share", "shares": {"a": 0}}}, "shares.a: Input should be greater than 0"),
        ({"order": {"name": "fair_share", "input_weight": float("inf")}}, "input_weight: .* finite"),
        ({"chunking": {"name": "adaptive", "itl_target_ms": float("nan")}}, "itl_target_ms: .* finite"),
        ({"knobs": {"max_wait_s": float("inf")}}, "max_wait_s: .* finite"),
        ({"colour": "blue"}, "unknown key 'colour'"),
        ({"api_version": 2}, "api_version"),
        ({"order": {"aging": 1}}, "expected a part's name, or {name: adaptive"),
        ({"plugin": "absent"}, "no installed package offers"),
        ({"knobs": {"max_num_seqs": 0}}, "max_num_seqs"),
        ({"order": 5}, "order: a name is needed, or a mapping"),
        ({"order": {"name": "fcfs", 1: 2}}, "order: a name is needed, or a mapping"),
        ("x" * 5000, "no policy 'xxx"),
    ],
)
def test_mistakes_are_told(source: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_policy(source)


def test_a_file_by_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("api_version: 1\norder: deadline\n")
    assert load_policy(file).name == "mine"
    for text in ("[1, 2", "order: 2024-99-99", "order: " + "[" * 20_000, 'name: "\\ud800"'):
        file.write_text(text)
        with pytest.raises(PolicyError, match="not readable as YAML"):
            load_policy(file)
    file.write_text("victim: youngest")
    with pytest.raises(PolicyError, match=r"mine\.yaml: victim: no 'youngest'"):
        load_policy(file)
    file.write_text("- 1")
    with pytest.raises(PolicyError, match="a policy file is a mapping"):
        load_policy(file)


class Backwards(Order):
    """Last come, first served."""

    name = "backwards"

    def key(self, view: Any, step: Any) -> tuple[int, ...]:
        return (-view.seq,)


class Whole:
    name = "whole"
    dynamic = False
    accounts = False

    def __init__(self, tokens: int = 7) -> None:
        self.tokens = tokens

    def order_key(self, view: Any, step: Any) -> tuple[int, ...]:
        return ()

    victim_key = order_key

    def step_budget(self, step: Any) -> Budget:
        return Budget(tokens=self.tokens)

    def admit(self, view: Any, step: Any) -> Any:
        return ADMIT

    def on_events(self, events: Any) -> None:
        pass


def test_third_party_parts_and_policies_come_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {
        name: SimpleNamespace(load=lambda value=value: value)
        for name, value in {"backwards": Backwards, "whole": Whole}.items()
    }
    monkeypatch.setattr(registry, "plugins", lambda: offered)
    assert "backwards" not in parts("order")
    composed = load_policy({"order": "backwards"}).build()
    assert isinstance(composed, Policy)
    with pytest.raises(PolicyError, match="no subclass of Victim"):
        load_policy({"victim": "backwards"})
    whole = load_policy({"plugin": {"name": "whole", "tokens": 3}}).build()
    assert whole.step_budget(None).tokens == 3  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="cannot be made"):
        load_policy({"plugin": {"name": "whole", "size": 3}})


def test_whatever_the_protocol_asks_for_is_asked_of_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = set(get_protocol_members(Policy))
    assert {"name", "order_key", "on_events"} < wanted
    for missing in wanted:
        members = dict.fromkeys(wanted - {missing})
        made = SimpleNamespace(load=lambda members=members: lambda: SimpleNamespace(**members))
        monkeypatch.setattr(registry, "plugins", lambda made=made: {"partial": made})
        with pytest.raises(PolicyError, match=f"it lacks {missing}$"):
            load_policy({"plugin": "partial"})


class Half:
    name = "half"
    dynamic = property(lambda self: 1 // 0)


class Abstract(Order):
    name = "abstract"


class Unlicensed(Order):
    name = "unlicensed"

    def __init__(self, **parameters: Any) -> None:
        raise OSError("no licence")

    key = Backwards.key


def absent() -> Any:
    raise ImportError("no module")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"plugin": "absent"}, "plugin 'absent' cannot be made: ImportError: no module"),
        ({"order": "absent"}, "order 'absent' cannot be made: ImportError: no module"),
        ({"plugin": "half"}, "plugin 'half' cannot be made: ZeroDivisionError"),
        ({"plugin": "object"}, "is no policy .* it lacks name, dynamic, accounts, order_key"),
        ({"plugin": "objetc"}, "no installed package offers .* did you mean 'object'"),
        ({"order": "abstract"}, "order 'abstract' cannot be made: TypeError: Can't instantiate"),
        ({"order": "unlicensed"}, "order 'unlicensed' cannot be made: OSError: no licence"),
    ],
)
def test_a_package_that_cannot_be_used_is_told_and_why(
    monkeypatch: pytest.MonkeyPatch, source: Any, message: str
) -> None:
    made = {"half": Half, "object": object, "abstract": Abstract, "unlicensed": Unlicensed}
    offered = {name: SimpleNamespace(load=lambda value=value: value) for name, value in made.items()}
    monkeypatch.setattr(registry, "plugins", lambda: {**offered, "absent": SimpleNamespace(load=absent)})
    with pytest.raises(PolicyError, match=message):
        load_policy(source)
