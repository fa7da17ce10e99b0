"""Manifests and charts: every server of them, its variables, and the devices of its pod."""

from __future__ import annotations

import pytest

from camshaft.core.places import Place
from camshaft.diagnostics.compat.inputs.base import Configuration
from camshaft.diagnostics.compat.inputs.read import read_text
from camshaft.diagnostics.compat.run import check_all


def one(text: str, name: str) -> Configuration:
    (found,) = read_text(text, name)
    return found


def words(configuration: Configuration) -> list[str]:
    return [word.text for word in configuration.words]


MANIFEST = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.8.5
    args: ["--model", "m", "--swap-space", "4"]
"""


@pytest.mark.parametrize("name", ["deploy.sh", "main.tf"])
def test_manifest_in_a_here_document(name: str) -> None:
    text = (
        f"kubectl apply -f - <<EOF\n{MANIFEST}EOF\n" if name == "deploy.sh" else f"y = <<EOF\n{MANIFEST}EOF\n"
    )
    found = one(text, name)
    assert words(found) == ["--model", "m", "--swap-space", "4"]
    assert found.words[2].place == Place(name, 7, 28)
    assert found.source.text == text


LLM_SERVICE = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
spec:
  model: {uri: hf://m, name: m}
  template:
    containers:
    - {name: main, env: [{name: VLLM_ADDITIONAL_ARGS, value: --seed 1}]}
  worker:
    containers:
    - {name: main, args: [--seed=2]}
  prefill:
    template:
      containers:
      - {name: main, args: [--enforce-eager, --seed=3]}
      - {name: sidecar, image: busybox, args: [--other]}
    worker:
      containers:
      - {name: main, command: [bash, -c], args: [vllm serve m --seed 4]}
"""


def test_every_pod_of_a_service_is_a_server() -> None:
    found = read_text(LLM_SERVICE, "a.yaml")
    assert {item.label: words(item)[-1] for item in found} == {
        "a.yaml#template": "1",
        "a.yaml#worker": "--seed=2",
        "a.yaml#prefill/template": "--seed=3",
        "a.yaml#prefill/worker": "4",
    }


def test_servers_of_one_name_are_called_by_what_parts_them() -> None:
    worker = "{extraPodSpec: {mainContainer: {command: [python3, -m, dynamo.vllm], args: [--model, m]}}}"
    text = f"kind: DynamoGraphDeployment\nspec:\n  services:\n    Decode: {worker}\n    Prefill: {worker}\n"
    assert [item.label for item in read_text(text, "a.yaml")] == ["a.yaml#Decode", "a.yaml#Prefill"]
    pods = "---\n".join([MANIFEST.replace("- image", "- name: vllm\n    image")] * 2)
    assert [item.label for item in read_text(pods, "a.yaml")] == ["a.yaml#vllm", "a.yaml#vllm-2"]


def test_every_server_of_a_containers_shell_text_is_read() -> None:
    text = MANIFEST.replace(
        'args: ["--model", "m", "--swap-space", "4"]',
        'command: [sh, -c]\n    args: ["if x; then vllm serve m; else vllm serve n --seed 1; fi"]',
    )
    found = read_text(text, "a.yaml")
    assert [words(item) for item in found] == [["m"], ["n", "--seed", "1"]]
    assert {item.image for item in found} == {"vllm/vllm-openai:v0.8.5"}


def test_a_container_that_a_workflow_runs_is_a_server() -> None:
    run = "docker run --rm -e A=1 vllm/vllm-openai:v0.11.0 --model m --swap-space 2"
    steps = f"on: push\njobs:\n  a:\n    steps:\n    - run: {run}\n    - run: docker run ubuntu ls\n"
    (found,) = read_text(steps, "ci.yml")
    assert (words(found), found.image) == (run.split()[6:], "vllm/vllm-openai:v0.11.0")
    both = read_text(steps + "    - run: vllm serve m\n", "ci.yml")
    assert [item.label for item in both] == ["ci.yml#run", "ci.yml#run-2"]


CONFIG_MAP = "---\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {ATTENTION_BACKEND: XFORMERS}\n"


def test_variables_of_a_config_map_are_read_where_it_stands_and_named_where_not() -> None:
    taken = (
        "    envFrom:\n    - {prefix: VLLM_, configMapRef: {name: shared}}\n    - {secretRef: {name: s}}\n"
    )
    found = one(MANIFEST + taken + CONFIG_MAP, "a.yaml")
    assert found.env["VLLM_ATTENTION_BACKEND"].value == "XFORMERS"
    assert found.notes == ["variables that Secret s sets were not checked"]
    found = one(MANIFEST + taken, "a.yaml")
    assert not found.env
    assert found.notes[0] == "variables that ConfigMap shared sets were not checked"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.sh", "source /etc/x\nvllm serve m\n"),
        ("a.sh", ". .venv/bin/activate\n. /etc/x\nbash -c 'exec vllm serve m'\n"),
        ("a.service", "[Service]\nEnvironmentFile=-/etc/x\nExecStart=/bin/vllm serve m\n"),
        ("a.yaml", "services:\n  a: {image: vllm/vllm-openai, command: --model m, env_file: [/etc/x]}\n"),
    ],
)
def test_a_file_of_variables_is_named(name: str, text: str) -> None:
    assert one(text, name).notes == ["variables that /etc/x sets were not checked"]


def test_a_chart_that_chooses_the_engine_sets_its_variable() -> None:
    text = "modelSpec:\n- {modelURL: m, repository: vllm/vllm-openai, requestGPU: 2, vllmConfig: {v1: 1, maxModelLen: 64}}\n"
    found = one(text, "values.yaml")
    assert found.env["VLLM_USE_V1"].value == "1"
    assert [entry.key for entry in found.entries] == ["max-model-len"]
    assert found.gpus == 2
    application = "kind: Application\nspec:\n  helm:\n    values: |\n      servingEngineSpec:\n"
    inner = one(application + "".join(f"        {line}\n" for line in text.splitlines()), "app.yaml")
    assert [entry.key for entry in inner.entries] == ["max-model-len"]


@pytest.mark.parametrize(
    ("kind", "arguments", "gpus", "starts"),
    [
        ("Pod", "--tensor-parallel-size=2", 1, False),
        ("Pod", "--tensor-parallel-size=2, -pp=2", 2, False),
        ("Pod", "--tensor-parallel-size=2, -pp=2", 4, True),
        ("Pod", "--tensor-parallel-size=2, --distributed-executor-backend=ray", 1, True),
        ("LeaderWorkerSet", "--tensor-parallel-size=2", 1, True),
        ("Pod", "--seed=1", 0, True),
        ("Pod", "--tensor-parallel-size=2", 0, True),
    ],
)
def test_workers_need_as_many_gpus_as_the_container_has(
    kind: str, arguments: str, gpus: int, starts: bool
) -> None:
    text = (
        f"apiVersion: v1\nkind: {kind}\nspec:\n  containers:\n  - image: vllm/vllm-openai\n"
        f"    args: [--model=m, {arguments}]\n    resources: {{limits: {{nvidia.com/gpu: '{gpus}'}}}}\n"
    )
    (result,) = check_all([one(text, "a.yaml")], targets=["0.33.0"])
    assert result.starts is starts
    assert [f.code for f in result.findings if f.stops] == ([] if starts else ["IN-05"])


@pytest.mark.parametrize(("spread", "starts"), [("", False), (", raySpec: {enabled: true}", True)])
def test_a_chart_with_ray_spreads_a_server_over_pods(spread: str, starts: bool) -> None:
    entry = f"modelURL: m, requestGPU: 1, vllmConfig: {{pipelineParallelSize: 2}}{spread}"
    (result,) = check_all([one(f"modelSpec:\n- {{{entry}}}\n", "values.yaml")], targets=["0.33.0"])
    assert result.starts is starts


SERVICE = "---\nkind: Service\napiVersion: v1\nmetadata: {name: vllm}\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (MANIFEST + SERVICE, "tcp://..."),
        (SERVICE + "---\n" + MANIFEST, "tcp://..."),
        (MANIFEST + SERVICE.replace("vllm", "vllm-a"), None),
        (MANIFEST + "    env: [{name: VLLM_PORT, value: '5000'}]\n" + SERVICE, "5000"),
        (MANIFEST + SERVICE + "---\nkind: Pod\nspec: {enableServiceLinks: false}\n", None),
    ],
)
def test_a_service_named_vllm_sets_a_variable_that_no_release_takes(text: str, value: str | None) -> None:
    found = one(text, "a.yaml")
    setting = found.env.get("VLLM_PORT")
    assert (setting.value if setting else None) == value
    (result,) = check_all([found], targets=["0.8.5"])
    assert [f.code for f in result.findings if f.severity == "error"] == ["EN-06"] * (value == "tcp://...")
