"""Forms that people keep servers in besides plain commands and manifests: each becomes the same words at their places."""

from __future__ import annotations

import json

import pytest

from camshaft.core.places import Place
from camshaft.diagnostics.compat.inputs.base import Configuration, UnreadableInput
from camshaft.diagnostics.compat.inputs.read import read_text
from camshaft.diagnostics.compat.run import check_all, image_release

MANIFEST = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.8.5
    args: ["--model", "m", "--swap-space", "4"]
"""
RAY = """\
apiVersion: ray.io/v1
kind: RayService
spec:
  serveConfigV2: |
    applications:
    - args:
        llm_configs:
        - engine_kwargs:
            swap_space: 4
            max_model_len: 8192
"""
SRT = """\
model: {path: m}
backend:
  vllm_config:
    prefill: {max-model-len: 8192, dyn-tool-call-parser: x}
    decode: {max-num-seqs: 4, data-parallel-hybrid-lb: true}
"""
DYNAMO = "python3 -m dynamo.vllm --model m --is-prefill-worker --connector nixl lmcache --headless --swap-space 4\n"


def one(text: str, name: str) -> Configuration:
    (found,) = read_text(text, name)
    return found


def words(configuration: Configuration) -> list[str]:
    return [word.text for word in configuration.words]


def notebook(*cells: str, indent: int | None = 1) -> str:
    made = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps(
        {"cells": [{"cell_type": "markdown", "source": ["vllm serve x"]}, *made]}, indent=indent
    )


@pytest.mark.parametrize("name", ["deploy.sh", "main.tf"])
def test_manifest_in_a_here_document(name: str) -> None:
    text = (
        f"kubectl apply -f - <<EOF\n{MANIFEST}EOF\n" if name == "deploy.sh" else f"y = <<EOF\n{MANIFEST}EOF\n"
    )
    found = one(text, name)
    assert words(found) == ["--model", "m", "--swap-space", "4"]
    assert found.words[2].place == Place(name, 7, 28)
    assert found.source.text == text


def test_yaml_in_yaml_keeps_its_places() -> None:
    found = one(RAY, "ray.yaml")
    assert [(e.key, e.value, e.place.line) for e in found.entries] == [
        ("swap-space", 4, 9),
        ("max-model-len", 8192, 10),
    ]


def test_settings_kept_by_role() -> None:
    prefill, decode = read_text(SRT, "recipe.yaml")
    assert [e.key for e in prefill.entries] == ["max-model-len"]
    assert prefill.notes == ["not checked, as Dynamo's own: dyn-tool-call-parser"]
    (result,) = check_all([decode], targets=["0.33.0"])
    assert result.starts is None  # the launcher may add --data-parallel-size-local
    assert result.depends_on == ("what the launcher adds",)


def test_a_container_with_a_command_keeps_it_beside_its_settings() -> None:
    found = one(
        "containers:\n- image: vllm/vllm-openai:v0.8.5\n  command: [vllm, serve, m]\n"
        "  vllmConfig: {prefill: {maxModelLn: 8}, maxModelLen: 8}\n",
        "values.yaml",
    )
    assert (found.image, words(found)) == ("vllm/vllm-openai:v0.8.5", ["m"])
    assert [e.key for e in found.entries] == ["prefill", "max-model-len"]


def test_only_roles_divide_settings() -> None:
    (result,) = check_all(read_text("vllmConfig: {vllm: {maxModelLn: 8}}\n", "values.yaml"))
    assert [f.flags for f in result.findings if f.stops] == [("--vllm",)]
    assert result.notes == ()


def test_dynamo_takes_the_engines_options_and_none_of_the_server() -> None:
    found = one(DYNAMO, "run.sh")
    assert words(found) == ["--model", "m", "--swap-space", "4"]
    assert found.notes == ["not checked, as Dynamo's own: --is-prefill-worker, --connector, --headless"]
    (result,) = check_all(read_text(DYNAMO.rstrip() + " --host h\n", "run.sh"), targets=["0.33.0"])
    assert {f.flags for f in result.findings if f.stops} == {("--swap-space",), ("--host",)}


@pytest.mark.parametrize("value", ["-1", "-0.5", "1"])
def test_dynamos_options_take_their_values_along(value: str) -> None:
    text = f"python3 -m dynamo.vllm --model m --migration-limit {value} --max-num-seqs 4\n"
    (result,) = check_all(read_text(text, "run.sh"), targets=["0.33.0"])
    assert result.starts, result.findings


def test_ray_classes_hand_their_arguments_on() -> None:
    found = one(
        "from ray.serve.llm import LLMConfig\n"
        "config = LLMConfig(model_loading_config=dict(model_id='m'), engine_kwargs=dict(swap_space=4, **more))\n",
        "serve.py",
    )
    assert found.entries == []
    assert found.unread == ("**dict(swap_space=4, **more)",)
    found = one(
        "from ray.data.llm import *\nvLLMEngineProcessorConfig(engine_kwargs={'swap_space': 4})\n", "b.py"
    )
    assert [(e.key, e.value) for e in found.entries] == [("swap-space", 4)]


@pytest.mark.parametrize("indent", [1, None])
def test_notebook(indent: int | None) -> None:
    text = notebook(
        "%pip install vllm\nfrom vllm import LLM",
        "this is no Python",
        "llm = LLM(model='m',\n          swap_space=4)",
        "!nohup vllm serve m --port 1 &",
        "%%bash\nexport VLLM_USE_V1=0\nvllm serve m \\\n  --seed 1",
        indent=indent,
    )
    llm, served, scripted = read_text(text, "a.ipynb")
    assert [(e.key, e.value) for e in llm.entries] == [("model", "m"), ("swap-space", 4)]
    assert words(served) == ["m", "--port", "1"]
    assert words(scripted) == ["m", "--seed", "1"]
    assert not llm.editable
    assert not served.editable
    if indent:
        lines = text.splitlines()
        assert "swap_space" in lines[llm.entries[1].place.line - 1]
        assert "--seed" in lines[scripted.words[1].place.line - 1]


@pytest.mark.parametrize(
    ("cell", "command"),
    [
        ("!vllm serve m \\\n  --max-model-len 8192 \\\n  --seed 1", "m --max-model-len 8192 --seed 1"),
        ("if True:\n    !vllm serve m --port 1\nelse:\n    %pip list", "m --port 1"),
        ("for port in (1, 2):\n\t!!vllm serve m --port {port}", "m --port $(port)"),
        (
            "!vllm serve m --port {p['a'] - 1} --hf-overrides {\\\"a\\\":1}",
            "m --port $(p['a'] - 1) --hf-overrides {\"a\":1}",
        ),
        ("log = !vllm serve m --port 1", "m --port 1"),
        ("names, rest = !ls\n%time x = 1 + \\\n  2", None),
        ("%%time\nmodel = ('%s'\n  % 3)\n! ls", None),
    ],
)
def test_lines_of_ipython_hide_neither_a_server_nor_the_python_beside_them(
    cell: str, command: str | None
) -> None:
    found = read_text(notebook(f"{cell}\nfrom vllm import LLM\nLLM('m', seed=4)"), "a.ipynb")
    assert [(e.key, e.value) for e in found[0].entries] == [("model", "m"), ("seed", 4)]
    assert [" ".join(words(served)) for served in found[1:]] == ([command] if command else [])


def test_cells_that_are_no_python_are_named() -> None:
    (found,) = check_all(
        read_text(notebook("what? is", "", "from vllm import LLM\nLLM('m')", "%%html\n<p>"), "a.ipynb")
    )
    assert found.notes[0] == "not read, as no Python: code cells 1, 4"


def test_what_is_no_notebook_is_refused() -> None:
    with pytest.raises(UnreadableInput, match="no notebook"):
        read_text("[]", "a.ipynb")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "vllm.service",
            "[Unit]\nAfter=x\n\n[Service]\n# vllm serve old\nExecStart=/v/vllm serve m \\\n  --seed 1\n",
        ),
        ("vllm.container", "[Container]\n\nImage=vllm/vllm-openai\nExec=vllm serve m \\\n  --seed 1\n"),
    ],
)
def test_units_keep_their_text_for_fixes(name: str, text: str) -> None:
    found = one(text, name)
    assert words(found) == ["m", "--seed", "1"]
    assert found.source.text == text
    assert text[found.words[1].start : found.words[1].end] == "--seed"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_lines_of_a_quadlet_stand_in_any_order(order: tuple[int, ...]) -> None:
    lines = (
        "Image=vllm/vllm-openai:v0.10.0\n",
        "Environment=VLLM_USE_V1=1 HF_HOME=/x\n",
        "Exec=--model m \\\n  --swap-space 4\n",
    )
    text = "[Container]\n" + "".join(lines[at] for at in order) + "[Service]\nEnvironment=VLLM_PORT=1\n"
    found = one(text, "vllm.container")
    assert words(found) == ["--model", "m", "--swap-space", "4"]
    assert {name: setting.value for name, setting in found.env.items()} == {
        "VLLM_USE_V1": "1",
        "HF_HOME": "/x",
    }
    assert (str(image_release(found)), found.doubled) == ("0.10.0", None)
    assert text[found.words[2].start : found.words[2].end] == "--swap-space"


def test_a_quadlets_own_entry_point_starts_what_exec_says() -> None:
    text = "[Container]\nExec=vllm serve m\nImage=vllm/vllm-openai:v0.10.0\n"
    assert one(text, "a.container").doubled is not None
    assert one(text + "Entrypoint=/usr/bin/env\n", "a.container").doubled is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("""C=${C:-'{"a":{"b":1}}'}\nvllm serve m --compilation-config "$C" """, '{"a":{"b":1}}'),
        ("""vllm serve m --compilation-config "${C:-{"a":"it's"}}" """, None),
        ("""vllm serve m --compilation-config "${C:-${D:-3}}" """, "${C:-${D:-3}}"),
    ],
)
def test_defaults_of_variables_with_braces(text: str, expected: str | None) -> None:
    found = one(text + "--port 1\n", "a.sh")
    assert words(found)[-2:] == ["--port", "1"]
    if expected:
        assert words(found)[2] == expected


def test_tags_of_templates_are_unknown_and_their_first_branch_is_read() -> None:
    found = one(
        "vllm serve {{ .model | quote }} {{- if .x }} --enforce-eager{{ else }} --foo {{ if .y }}1{{ end }}{{ end }} "
        "--port={{ .p }} --seed {{ if .s }}{{ .s }}{{ else }}5{{- end }} {% if a %}--dtype {{b}}{% endif %}\n",
        "a.sh",
    )
    assert [(word.text, word.opaque) for word in found.words] == [
        ("{{ .model | quote }}", True),
        ("--enforce-eager", False),
        ("--port={{ .p }}", True),
        ("--seed", False),
        ("{{ .s }}", True),
        ("--dtype", False),
        ("{{b}}", True),
    ]


@pytest.mark.parametrize("length", [10, 999, 1000, 5000])
@pytest.mark.parametrize("closed", ["{{ end }} --port 1", ""])
def test_the_other_branch_of_a_template_is_left_out_however_long(length: int, closed: str) -> None:
    other = "{{ if .y }}1{{ end }}" + " --foo 1" * (length // 8)
    if not closed:
        other += "{{ end }}"
    found = one(f"vllm serve m {{{{ if .x }}}}--seed 1{{{{ else }}}}{other}{closed}\n", "a.sh")
    assert words(found) == ["m", "--seed", "1", *closed.split()[-2:]]


BRANCHES = """\
A=(--port 1)
N=1
if x; then
  A+=(--headless)
  N=0
elif y; then N=7
else
  A+=(--data-parallel-hybrid-lb --data-parallel-size-local 1)
fi
E=
if z; then E="--swap-space 4"; fi
C="--seed 1"
if f; then C="$C --dtype '$N'"; fi
vllm serve m "${A[@]}" --max-num-seqs $N $E $C
"""


def test_branches_of_a_script() -> None:
    found = one(BRANCHES, "a.sh")
    assert [word.text for word in found.words if word.conditional][:2] == [
        "--headless",
        "--data-parallel-hybrid-lb",
    ]
    assert [word.text for word in found.words if word.opaque] == ["$N", "'$N'"]
    (result,) = check_all([found], targets=["0.33.0"])
    stopping = {f.code: f.depends_on for f in result.findings if f.stops}
    assert stopping["FL-02"] == ()  # whichever branch is taken, this one does not start
    assert "whether --headless is given" in stopping["VLLM-PA-32"]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('A="1 $(f) 2"', [("1", False), ("$(f)", True), ("2", False)]),
        ('A="x$(f) "; A+=2', [("x$(f)", True), ("2", False)]),
        ("A=$(f)", [("$A", True)]),
        ('A="${B:-""}"', []),
        ("if x; then A=3; fi", [("3", False)]),
        ("if x; then A=3; else A=4; fi", [("$A", True)]),
        ("A=3; if x; then A=$(f); fi", [("$A", True)]),
        (
            'if x; then A="-q 3"; else A="-q 4"; fi',
            [("-q", False), ("3", False), ("-q", False), ("4", False)],
        ),
        ('A="-q 2"; if x; then A="-q 4"; fi', [("-q", False), ("4", False)]),
        ('if x; then A="-q 4"; fi; A="-p 4"', [("-p", False), ("4", False)]),
        ('if x; then A="-q 4"; elif y; then A="$A -p"; fi', [("-q", False), ("4", False), ("-p", False)]),
    ],
)
def test_what_is_known_of_a_variable(script: str, expected: list[tuple[str, bool]]) -> None:
    text = f"{script}\nvllm serve m $A --port 1\n"
    found = one(text, "a.sh").words[1:-2]
    assert [(word.text, word.opaque) for word in found] == expected
    assert all(word.text in text[word.start : word.end] for word in found)
    assert all(word.conditional for word in found if script.endswith("fi") and not word.opaque)


def test_arrays_of_every_branch_are_read() -> None:
    script = "A=(--seed 1)\nif x; then A=(-q 3); elif y; then A=(-q 4); fi\n"
    found = one(script + 'vllm serve m "${A[@]}"\n', "a.sh")
    assert words(found) == ["m", "-q", "3", "-q", "4"]
    found = one(script + 'A=(-q 5)\nvllm serve m "${A[@]}"\n', "a.sh")
    assert words(found) == ["m", "-q", "5"]
    script = 'N=8\nif x; then A=(-q 3 -p "$N"); else A=(-q "$N"); fi\nB=(-r 1 "${A[@]}")\n'
    found = one(script + 'vllm serve m "${B[@]}"\n', "a.sh")
    assert words(found) == ["m", "-r", "1", "-q", "3", "-p", "8", "-q", "8"]


@pytest.mark.parametrize(
    ("script", "twice"),
    [
        ("if x; then A=(--seed 1); else A=(--seed 2); fi", 0),
        ("if x; then A=(--seed 1); fi; if y; then A+=(--seed 2); fi", 0),
        ("A=(--seed 1); if x; then A+=(--seed 2); fi", 1),
        ("if x; then A=(--seed 1); fi; A+=(--seed 2)", 1),
        ("A=(--seed 1 --seed 2)", 1),
    ],
)
def test_options_of_two_branches_are_not_given_twice(script: str, twice: int) -> None:
    (result,) = check_all([one(f'{script}\nvllm serve m "${{A[@]}}"\n', "a.sh")], targets=["0.33.0"])
    assert [finding.code for finding in result.findings].count("FL-15") == twice


def test_a_variable_with_an_unknown_part_is_exported_unknown() -> None:
    found = one('A="x$(f)"\nexport A\nA+=y\nexport B="${C:-""}"\nvllm serve m\n', "a.sh")
    assert {name: setting.value for name, setting in found.env.items()} == {"A": None, "B": ""}


@pytest.mark.parametrize(
    "text",
    [
        "name: x\nmodel: {path: m}\nbackend: {type: vllm}\nresources: {gpus: 8}\n",
        "replicaCount: 1\nimage: {repository: a, tag: b}\nservice: {port: 80}\n",
        "title: Panel\nid: 3\nuid: abc\n",
        "kind: CustomResourceDefinition\nspec:\n  vllmConfig:\n    type: object\n    properties: {}\n",
        "notes:\n- Update vllm serve flags, --foo among them\n- Use `vllm serve m --port 1` for it\nfrom: a\nto: b\n",
        "a: |\n  Run it with vllm serve and its options --port\nb: {c: 1}\n",
    ],
)
def test_other_programs_files_are_refused(text: str) -> None:
    with pytest.raises(UnreadableInput):
        read_text(text, "values.yaml")


def test_a_template_that_is_no_yaml_says_what_to_check() -> None:
    with pytest.raises(UnreadableInput, match=r"helm template .* check-flags -"):
        read_text("a:\n  {{- range .x }}\n  - {{ . }}\n  {{- end }}\n", "deployment.yaml")


@pytest.mark.parametrize(
    ("image", "release"),
    [
        ("vllm/vllm-openai:v0.8.5", "0.8.5"),
        ("registry/aibrix/vllm-openai:v0.10.0-cu128-nixl", "0.10.0"),
        ("registry/vllm-cpu:0.9.2", "0.9.2"),
        ("registry/llm-d/llm-d-cuda:v0.8.0", None),
        ("kserve/huggingfaceserver:v0.15.0-gpu", None),
        ("registry/ai-dynamo/vllm-runtime:0.7.0", None),
        ("lmcache/vllm-openai:v0.7.0", None),
        ("registry:5000/lmcache/vllm-openai-nightly:v0.7.0", None),
        ("registry/notlmcache/vllm-openai:v0.7.0", "0.7.0"),
    ],
)
def test_only_images_of_vllm_tell_its_release(image: str, release: str | None) -> None:
    text = f"services:\n  v:\n    image: ${{IMAGE:-{image}}}\n    command: vllm serve m --port 1\n"
    found = one(text, "compose.yaml")
    assert found.image == image
    told = image_release(found)
    assert (str(told) if told else None) == release


def test_compose_hands_a_shell_its_text_unescaped() -> None:
    found = one(
        "services:\n  v:\n    image: x\n    environment:\n      TP: ${TP:-2}\n      MODEL: ${MODEL}\n    entrypoint:\n"
        '      bash -c "vllm serve $${MODEL} \\\n      --tensor-parallel-size $${TP} \\\n      --seed ${SEED:-}"\n',
        "compose.yaml",
    )
    assert [(word.text, word.opaque) for word in found.words] == [
        ("${MODEL}", True),
        ("--tensor-parallel-size", False),
        ("2", False),
        ("--seed", False),
        ("${SEED:-}", True),
    ]


def test_a_command_executed_in_an_image_is_no_list_of_arguments() -> None:
    found = one(
        'RUN="apptainer exec /images/vllm.sif"\n$RUN vllm serve m --port 1 &\n$RUN python3 client.py\n',
        "job.sbatch",
    )
    assert words(found) == ["m", "--port", "1"]


@pytest.mark.parametrize("given", ["-e VLLM_USE_V1=0", "--env VLLM_USE_V1=0", "--env=VLLM_USE_V1=0"])
@pytest.mark.parametrize("command", ["--model m", "vllm serve m"])
def test_a_containers_variables_stand_at_their_words(given: str, command: str) -> None:
    text = f"docker run --rm {given} -p 1:1 vllm/vllm-openai {command}\n"
    setting = one(text, "a.sh").env["VLLM_USE_V1"]
    assert setting.value == "0"
    assert setting.place.column == 1 + text.index(given.split()[-1])
    assert text[setting.start : setting.end] == given


def test_what_is_printed_or_looked_for_is_not_run() -> None:
    found = one(
        'CMD="vllm serve m --port 1"\npkill -f "vllm serve m" || true\necho "Running: $CMD"\nexec $CMD\n',
        "a.sh",
    )
    assert words(found) == ["m", "--port", "1"]
    assert words(one('echo "vllm serve m --port 2" > run.sh\n', "b.sh")) == ["m", "--port", "2"]


@pytest.mark.parametrize("name", ["serve.py", "serve"])
def test_a_script_that_names_its_interpreter_is_python(name: str) -> None:
    text = (
        "#!/usr/bin/env python3\nimport subprocess\nsubprocess.Popen(['vllm', 'serve', 'm', '--port', '1'])\n"
    )
    assert words(one(text, name)) == ["m", "--port", "1"]


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


def test_servers_of_a_script_are_told_apart_by_their_lines() -> None:
    found = read_text("M=m\nvllm serve $M --port 1 &\nvllm serve $M\nvllm serve n --port 2\n", "a.sh")
    assert [item.label for item in found] == ["a.sh:2", "a.sh:3", "a.sh:4"]


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
