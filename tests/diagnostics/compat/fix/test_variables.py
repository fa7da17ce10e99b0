"""Fixes of environment variables: what nothing reads is cut out of the text that sets it."""

from __future__ import annotations

import msgspec
import pytest

from camshaft.diagnostics.compat.checks.findings import Edit, Finding
from camshaft.diagnostics.compat.fix.plan import plan
from camshaft.diagnostics.compat.inputs.read import read_command, read_text
from camshaft.diagnostics.compat.run import check_all

GONE = "VLLM_ATTENTION_BACKEND"


def fixed(text: str, name: str, target: str = "0.33.0") -> str:
    configurations = read_text(text, name) if name else read_command(text)
    for configuration in configurations:
        (result,) = check_all([configuration], targets=[target])
        made = plan(configuration, result)
        label = configuration.source.name
        return made.texts.get(label, (text, text))[1]
    raise AssertionError("no configuration")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{GONE}=XFORMERS vllm serve m", "vllm serve m"),
        (f"A=1 {GONE}='X Y' vllm serve m", "A=1 vllm serve m"),
        (f"env {GONE}=X vllm serve m", "env vllm serve m"),
        (f"export {GONE}=X && vllm serve m", "vllm serve m"),
        (f"cd x; export {GONE}=X; vllm serve m", "cd x; vllm serve m"),
        (f"export A=1 {GONE}=X B=2\nvllm serve m", "export A=1 B=2\nvllm serve m"),
        (f"set -e\nexport {GONE}=X\nvllm serve m\n", "set -e\nvllm serve m\n"),
        (
            f"docker run -e {GONE}=X -e A=1 vllm/vllm-openai --model m",
            "docker run -e A=1 vllm/vllm-openai --model m",
        ),
        (f"docker run --env={GONE}=X vllm/vllm-openai --model m", "docker run vllm/vllm-openai --model m"),
        (
            f"docker run \\\n  -e {GONE}=X \\\n  vllm/vllm-openai --model m",
            "docker run \\\n  vllm/vllm-openai --model m",
        ),
    ],
)
def test_in_shell_text(before: str, after: str) -> None:
    assert fixed(before, "start.sh") == after


MANIFEST = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: main
    image: vllm/vllm-openai:v0.9.0
    env:
    # how to attend
    - name: VLLM_ATTENTION_BACKEND
      value: XFORMERS
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef: {name: hf, key: token}
    args: ["--model", "m"]
"""


def test_in_a_manifest() -> None:
    gone = "    - name: VLLM_ATTENTION_BACKEND\n      value: XFORMERS\n"
    assert fixed(MANIFEST, "pod.yaml") == MANIFEST.replace(gone, "")


def test_an_item_written_in_one_line() -> None:
    text = MANIFEST.replace(
        "- name: VLLM_ATTENTION_BACKEND\n      value: XFORMERS",
        "- {name: VLLM_ATTENTION_BACKEND, value: XFORMERS}",
    )
    assert fixed(text, "pod.yaml") == text.replace(
        "    - {name: VLLM_ATTENTION_BACKEND, value: XFORMERS}\n", ""
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("      VLLM_ATTENTION_BACKEND: XFORMERS # old\n      A: '1'\n", "      A: '1'\n"),
        ("      - VLLM_ATTENTION_BACKEND=XFORMERS\n      - A=1\n", "      - A=1\n"),
        ("      {VLLM_ATTENTION_BACKEND: X, A: '1'}\n", "      {A: '1'}\n"),
        ("      {A: '1', VLLM_ATTENTION_BACKEND: X}\n", "      {A: '1'}\n"),
    ],
)
def test_in_a_compose_file(before: str, after: str) -> None:
    head = (
        "services:\n  vllm:\n    image: vllm/vllm-openai:v0.9.0\n    command: --model m\n    environment:\n"
    )
    assert fixed(head + before, "docker-compose.yml") == head + after


@pytest.mark.parametrize("behind", ["", "    ports: ['80:80']\n", "  # the other\n  db:\n    image: x\n"])
@pytest.mark.parametrize("item", ["      {}: X\n", "      - {}=X\n", "    - {}=X\n"])
def test_a_key_that_is_left_with_nothing_goes_too(item: str, behind: str) -> None:
    head = "services:\n  vllm:\n    image: vllm/vllm-openai:v0.9.0\n    command: --model m\n"
    key, gone = "    environment: # of the server\n      # read at its start\n\n", item.format(GONE)
    assert fixed(head + key + gone + behind, "docker-compose.yml") == head + behind
    other = item.format("A").replace(": X", ": '1'")
    assert fixed(head + key + gone + other + behind, "docker-compose.yml") == head + key + other + behind
    assert fixed(head + key + other + gone + behind, "docker-compose.yml") == head + key + other + behind


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"ENV {GONE}=X\n", ""),
        (f"ENV {GONE} X\n", ""),
        (f"ENV A=1 {GONE}=Y B=2\n", "ENV A=1 B=2\n"),
    ],
)
def test_in_a_dockerfile(before: str, after: str) -> None:
    head, tail = "FROM vllm/vllm-openai:v0.9.0\n", 'CMD ["--model", "m"]\n'
    assert fixed(head + before + tail, "Dockerfile") == head + after + tail


@pytest.mark.parametrize(
    "text",
    [
        f"export {GONE}=X\necho ${GONE}\nvllm serve m\n",
        f"{GONE}=X vllm serve m --attention-backend ${GONE}\n",
    ],
)
def test_a_variable_that_the_text_uses_itself_stays(text: str) -> None:
    assert fixed(text, "start.sh") == text


def test_a_variable_and_an_option_are_cut_together() -> None:
    text = f"{GONE}=X vllm serve m --swap-space 4 --port 80"
    assert fixed(text, "start.sh") == "vllm serve m --port 80"


def test_what_the_release_reads_stays() -> None:
    text = f"{GONE}=FLASH_ATTN vllm serve m"
    assert fixed(text, "start.sh", "0.12.0") == text


def test_a_key_of_a_chart() -> None:
    text = (
        "servingEngineSpec:\n  modelSpec:\n  - name: llama\n    modelURL: m\n    repository: vllm/vllm-openai\n"
        "    vllmConfig:\n      swapSpace: 4 # GiB\n      maxModelLen: 4096\n"
        f"    env:\n    - {{name: {GONE}, value: X}}\n    - {{name: A, value: '1'}}\n"
    )
    assert fixed(text, "values.yaml") == text.replace("      swapSpace: 4 # GiB\n", "").replace(
        f"    - {{name: {GONE}, value: X}}\n", ""
    )


def test_a_key_of_a_chart_that_needs_more_than_a_cut_is_left_to_a_person() -> None:
    text = "modelSpec:\n- name: a\n  modelURL: m\n  repository: vllm/vllm-openai\n  vllmConfig: {kvCacheDtype: auto}\n"
    (configuration,) = read_text(text, "values.yaml")
    (result,) = check_all([configuration], targets=["0.33.0"])
    edit = Edit("rename", "--kv-cache-dtype", "--other")
    finding = Finding("X", "error", "replaced", "m", configuration.start_place, edits=(edit,))
    made = plan(configuration, msgspec.structs.replace(result, findings=(finding,)))
    assert not made.texts
    assert "by hand" in made.refused[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{GONE}=FLASHINFER vllm serve m", "vllm serve m --attention-backend FLASHINFER"),
        (
            f"{GONE}=FLASHINFER \\\nVLLM_ALL2ALL_BACKEND=deepep_low_latency \\\n  vllm serve m \\\n  --port 1 \\\n"
            "  --swap-space 4\n",
            "  vllm serve m \\\n  --port 1 \\\n  --attention-backend FLASHINFER \\\n"
            "  --all2all-backend deepep_low_latency\n",
        ),
        (
            f"{GONE}=FLASHINFER VLLM_ALL2ALL_BACKEND=deepep_low_latency \\\n  vllm serve m",
            "  vllm serve m \\\n  --attention-backend FLASHINFER \\\n  --all2all-backend deepep_low_latency",
        ),
        (
            f"export {GONE}=FLASHINFER VLLM_USE_TRTLLM_ATTENTION=1\nvllm serve m\n",
            "vllm serve m --attention-backend FLASHINFER --attention-config.use_trtllm_attention true\n",
        ),
        (
            "VLLM_USE_TRTLLM_ATTENTION=0 vllm serve m",
            "vllm serve m --attention-config.use_trtllm_attention false",
        ),
        # A value that is written by the option already, and one that the release knows no more.
        (f"{GONE}=FLASHINFER vllm serve m --attention-backend X", "vllm serve m --attention-backend X"),
        (f"{GONE}=XFORMERS vllm serve m", "vllm serve m"),
        # What a person has to translate stays.
        ("VLLM_MXFP4_USE_MARLIN=1 vllm serve m", "VLLM_MXFP4_USE_MARLIN=1 vllm serve m"),
    ],
)
def test_what_a_variable_asked_for_is_kept_by_its_option(before: str, after: str) -> None:
    assert fixed(before, "start.sh") == after


def test_arguments_of_a_manifest_take_the_option() -> None:
    text = (
        "services:\n  vllm:\n    image: vllm/vllm-openai:v0.9.0\n    command: [--model, m]\n    environment:\n"
        f"      {GONE}: FLASHINFER\n      A: '1'\n"
    )
    after = fixed(text, "compose.yaml")
    assert GONE not in after
    assert "command: [--model, m, '--attention-backend=FLASHINFER']" in after
