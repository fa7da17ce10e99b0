"""Evidence of another server than the configuration's."""

from __future__ import annotations

import pytest

from camshaft.core.errors import EvidenceError
from camshaft.diagnostics.diagnose import read_subject
from camshaft.diagnostics.evidence import Evidence, Setting, read_log_lines, require_same_model

LOG = [
    "INFO 11-03 09:12:01 [api_server.py:1412] vLLM API server version 0.18.0",
    "INFO 11-03 09:12:01 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-32B', 'tensor_parallel_size': 2, "
    "'max_num_seqs': 128, 'port': 9000}",
]


def _page(name: str) -> Evidence:
    return Evidence(settings=[Setting(name="model_name", value=name, source="p")])


@pytest.mark.parametrize(
    ("model", "evidence"),
    [
        ("Qwen/Qwen3-8B", read_log_lines(LOG, "server.log")),
        ("Qwen/Qwen3-32B-FP8", read_log_lines(LOG, "server.log")),
        ("Qwen/Qwen3-8B", _page("qwen3-32b")),
    ],
)
def test_another_models_evidence_is_refused_with_both_names(model: str, evidence: Evidence) -> None:
    with pytest.raises(EvidenceError, match=rf"(?i)qwen3-32b and the configuration names {model}"):
        read_subject(f"vllm serve {model}", evidence)


@pytest.mark.parametrize(
    ("command", "evidence"),
    [
        ("vllm serve /models/qwen3-32b", read_log_lines(LOG, "server.log")),
        ("vllm serve Qwen/Qwen3-32B", _page("prod")),
        ("vllm serve Qwen/Qwen3-32B-FP8 --served-model-name qwen3-32b", _page("qwen3-32b")),
    ],
)
def test_an_alias_or_a_folder_of_the_model_is_no_other_model(command: str, evidence: Evidence) -> None:
    assert read_subject(command, evidence).differs == ()


def test_the_servers_options_are_taken_and_said() -> None:
    evidence = read_log_lines(LOG, "server.log")
    subject = read_subject("vllm serve Qwen/Qwen3-32B --max-num-seqs 64 -tp 1 --port 80", evidence)
    assert (subject.given["max_num_seqs"], subject.given["tensor_parallel_size"]) == (128, 2)
    assert subject.differs == (
        "server.log is of a server with tensor_parallel_size 2 and max_num_seqs 128, where the configuration says 1 and "
        "64: the server's are taken",
    )


def test_what_is_asked_for_on_the_command_line_stands_and_is_said() -> None:
    evidence = read_log_lines(LOG, "server.log")
    subject = read_subject(
        "vllm serve Qwen/Qwen3-32B -tp 2", evidence, version="0.33.0", overrides=["max_num_seqs=64"]
    )
    assert subject.given["max_num_seqs"] == 64
    assert subject.differs == (
        "server.log is of a server with max_num_seqs 128: what was seen is not of max_num_seqs 64, as --set has it",
        "what was seen is of 0.18.0 and 0.33.0 is named: judged as 0.33.0",
    )


def test_a_served_name_that_is_a_number_is_a_name() -> None:
    require_same_model("Qwen/Qwen3-8B", 7, _page("7"))
    with pytest.raises(EvidenceError, match="qwen3-32b"):
        require_same_model("Qwen/Qwen3-8B", 7, _page("qwen3-32b"))
