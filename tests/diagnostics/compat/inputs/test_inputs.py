"""Readers: whatever people write their servers in becomes the same words, with the places they stand at."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from camshaft.diagnostics.compat.inputs.base import Configuration, UnreadableInput
from camshaft.diagnostics.compat.inputs.read import read_command, read_path, read_text

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: llm}
spec:
  template:
    spec:
      containers:
      - name: proxy
        image: nginx:1.27
        args: ["-g", "daemon off;"]
      - name: vllm
        image: vllm/vllm-openai:v0.10.0
        command: ["/bin/sh", "-c"]
        args:
        - >-
          vllm serve Qwen/Qwen3-8B
          --swap-space 4
          --speculative-config '{"method": "ngram"}'
        env:
        - name: VLLM_ATTENTION_BACKEND
          value: TRITON_ATTN
        - name: HF_TOKEN
          valueFrom: {secretKeyRef: {name: hf, key: token}}
"""
SCRIPT = """\
#!/bin/bash
# starts the server
set -euo pipefail
export VLLM_USE_V1=1
MODEL=${1:-Qwen/Qwen3-8B}
ARGS="--swap-space 4"
EXTRA=(
  --enable-prefix-caching   # fast
  --port 8000
)
CUDA_VISIBLE_DEVICES=0,1 exec vllm serve "$MODEL" \\
  --tensor-parallel-size 2 \\
  --max-model-len $LIMIT $ARGS "${EXTRA[@]}" > server.log 2>&1 &
"""


def words(configuration: Configuration) -> list[str]:
    return [word.text for word in configuration.words]


def one(text: str, name: str = "input.txt") -> Configuration:
    (configuration,) = read_text(text, name)
    return configuration


def test_script_with_variables_arrays_and_continuations() -> None:
    found = one(SCRIPT, "start.sh")
    assert words(found) == [
        "Qwen/Qwen3-8B", "--tensor-parallel-size", "2", "--max-model-len", "$LIMIT", "--swap-space", "4",
        "--enable-prefix-caching", "--port", "8000",
    ]  # fmt: skip
    assert [word.opaque for word in found.words].count(True) == 1
    assert {name: setting.value for name, setting in found.env.items()} == {
        "VLLM_USE_V1": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    swap = next(word for word in found.words if word.text == "--swap-space")
    assert (swap.place.line, swap.place.column) == (6, 7)
    assert found.env["VLLM_USE_V1"].place.line == 4


@pytest.mark.parametrize(
    ("command", "entry", "expected"),
    [
        ("vllm serve m --port 1", "serve", ["m", "--port", "1"]),
        ("python3 -m vllm.entrypoints.openai.api_server --model m", "api_server", ["--model", "m"]),
        ("python -m vllm.entrypoints.cli.main serve m", "serve", ["m"]),
        ("nohup uv run vllm serve m > log 2>&1 &", "serve", ["m"]),
        ("cd /srv && (sudo -E /opt/venv/bin/vllm serve 'a b')", "serve", ["a b"]),
        ("bash -lc 'source env.sh; vllm serve m --seed 1'", "serve", ["m", "--seed", "1"]),
        (
            "docker run --gpus all --rm -v a:b -p 80:80 vllm/vllm-openai:v0.9.0 --model m",
            None,
            ["--model", "m"],
        ),
        ("docker exec -it box vllm serve m", "serve", ["m"]),
        ("--model m --swap-space 4", None, ["--model", "m", "--swap-space", "4"]),
        ("python vllm/entrypoints/openai/api_server.py --model m", "api_server", ["--model", "m"]),
    ],
)
def test_ways_to_start_a_server(command: str, entry: str | None, expected: list[str]) -> None:
    (found,) = read_command(command)
    assert found.entry_point == entry
    assert words(found) == expected


def test_docker_run_environment_and_image() -> None:
    (found,) = read_command("docker run -e VLLM_USE_V1=0 --env=A=b -d vllm/vllm-openai:v0.9.0 --model m")
    assert {name: setting.value for name, setting in found.env.items()} == {"VLLM_USE_V1": "0", "A": "b"}
    assert found.image == "vllm/vllm-openai:v0.9.0"


def test_kubernetes_shell_text_keeps_places() -> None:
    found = one(DEPLOYMENT, "deploy.yaml")
    assert words(found) == [
        "Qwen/Qwen3-8B", "--swap-space", "4", "--speculative-config", '{"method": "ngram"}',
    ]  # fmt: skip
    assert (found.words[1].place.line, found.words[1].place.column) == (17, 11)
    assert found.env["VLLM_ATTENTION_BACKEND"].value == "TRITON_ATTN"
    assert found.env["HF_TOKEN"].value is None
    assert found.image == "vllm/vllm-openai:v0.10.0"


def test_several_documents_are_told_apart() -> None:
    pod = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: NAME\n    image: vllm/vllm-openai\n    args: ['--model=m', '--max-model-len=$(LEN)']\n    env: [{name: LEN, value: '4096'}]\n"
    found = read_text(pod.replace("NAME", "a") + "---\n" + pod.replace("NAME", "b"), "pods.yaml")
    assert [item.label for item in found] == ["pods.yaml#a", "pods.yaml#b"]
    assert words(found[1]) == ["--model=m", "--max-model-len=4096"]
    assert found[1].words[0].place.line == 16


def test_compose_file() -> None:
    found = one(
        "services:\n  llm:\n    image: vllm/vllm-openai:latest\n    environment:\n      - VLLM_USE_V1=1\n"
        "    command: >\n      --model m\n      --swap-space 4\n",
        "docker-compose.yml",
    )
    assert words(found) == ["--model", "m", "--swap-space", "4"]
    assert found.words[2].place.line == 8
    assert found.env["VLLM_USE_V1"].value == "1"


def test_helm_values_with_engine_settings() -> None:
    found = one(
        "servingEngineSpec:\n  modelSpec:\n  - name: llama\n    repository: vllm/vllm-openai\n    tag: v0.8.5\n"
        "    modelURL: m\n    vllmConfig:\n      maxModelLen: 4096\n      enablePrefixCaching: false\n"
        "      extraArgs: ['--swap-space', '4']\n",
        "values.yaml",
    )
    assert [(entry.key, entry.value) for entry in found.entries] == [
        ("max-model-len", 4096),
        ("enable-prefix-caching", False),
    ]
    assert words(found) == ["m", "--swap-space", "4"]
    assert found.entry_point == "serve"
    assert found.typed
    assert found.image == "vllm/vllm-openai:v0.8.5"


def test_helm_templates_are_unknown_not_wrong() -> None:
    found = one(
        "kind: Deployment\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args:\n    - --max-model-len\n"
        '    - "{{ .Values.maxModelLen }}"\n',
        "template.yaml",
    )
    assert [word.opaque for word in found.words] == [False, True]


def test_dockerfile() -> None:
    found = one(
        'FROM vllm/vllm-openai:v0.9.0\nENV VLLM_USE_V1=0 A=b\nENTRYPOINT ["vllm", "serve"]\nCMD ["m", \\\n  "--swap-space", "4"]\n',
        "Dockerfile",
    )
    assert words(found) == ["m", "--swap-space", "4"]
    assert found.words[1].place.line == 5
    assert found.env["VLLM_USE_V1"].value == "0"
    module = one('FROM x\nCMD ["python3", "-m", "vllm.entrypoints.openai.api_server"]\n', "Dockerfile").module
    assert module is not None
    assert module.text == "vllm.entrypoints.openai.api_server"


def test_the_last_stage_of_a_dockerfile_is_what_starts() -> None:
    build = "FROM python:3.12 AS build\nENV VLLM_USE_V1=0\nENTRYPOINT []\n"
    last = 'FROM --platform=linux/amd64 vllm/vllm-openai:v0.18.0 AS base\nENV A=b\nFROM base\nCMD ["--model", "m"]\n'
    found = one(build + last, "Dockerfile")
    assert (found.image, list(found.env)) == ("vllm/vllm-openai:v0.18.0", ["A"])
    assert words(found) == ["--model", "m"]


@pytest.mark.parametrize(
    ("before", "image"),
    [
        ("ARG TAG=v0.18.0\nFROM vllm/vllm-openai:${TAG}\n", "vllm/vllm-openai:v0.18.0"),
        ("ARG TAG\nFROM vllm/vllm-openai:${TAG:-v0.9.0}\n", "vllm/vllm-openai:v0.9.0"),
        ("ARG TAG\nFROM vllm/vllm-openai:$TAG\n", "vllm/vllm-openai:$TAG"),
    ],
)
def test_a_dockerfile_says_its_image_by_its_arguments(before: str, image: str) -> None:
    found = one(before + 'CMD ["--model", "m"]\n', "Dockerfile")
    assert (found.image, words(found)) == (image, ["--model", "m"])


def test_what_a_dockerfile_is_built_with_is_no_variable_of_its_command() -> None:
    found = one("ARG N=4\nFROM vllm/vllm-openai\nENTRYPOINT vllm serve m --seed $N\n", "Dockerfile")
    assert found.words[-1].opaque


@pytest.mark.parametrize("command", ['CMD ["vllm", "serve", "m"]\n', 'CMD ["sh", "-c", "vllm serve m"]\n'])
def test_a_dockerfile_that_gives_the_official_image_a_server_starts_it_twice(command: str) -> None:
    assert one(f"FROM vllm/vllm-openai\n{command}", "Dockerfile").doubled is not None
    assert one(f"FROM vllm/vllm-openai\nENTRYPOINT []\n{command}", "Dockerfile").doubled is None


def test_the_exec_form_of_a_dockerfile_is_json_and_expands_nothing() -> None:
    text = 'FROM vllm/vllm-openai\nCMD ["--model", "m", \\\n  # how many\n  "--seed", "$SEED"]\n'
    found = one(text, "Dockerfile")
    assert words(found) == ["--model", "m", "--seed", "$SEED"]
    assert not any(word.opaque for word in found.words)
    assert words(one('FROM x\nENTRYPOINT ["sh", "-c", "vllm serve m --seed 1"]\n', "Dockerfile")) == [
        "m",
        "--seed",
        "1",
    ]
    with pytest.raises(UnreadableInput, match="Dockerfile:2:5: CMD is no JSON list"):
        read_text("FROM vllm/vllm-openai\nCMD ['--model', 'm']\n", "Dockerfile")


@pytest.mark.parametrize(
    ("text", "column"),
    [('vllm serve "m', 12), ("vllm serve m --hf-overrides '{", 29), ("vllm serve 'it'' --seed 1", 16)],
)
def test_a_command_line_with_an_open_quote_is_refused(text: str, column: int) -> None:
    with pytest.raises(UnreadableInput, match=f"command line:1:{column}: the quote"):
        read_command(text)
    assert read_command('vllm serve "it\'s"')


def test_settings_file_keeps_order_places_and_duplicates() -> None:
    found = one("model: m\n# comment\nmax-num-seqs: 64\nmax_num_seqs: 128\nenforce-eager: yes\n", "vllm.yaml")
    assert [(entry.key, entry.value) for entry in found.entries] == [
        ("model", "m"),
        ("max-num-seqs", 64),
        ("max_num_seqs", 128),
        ("enforce-eager", True),
    ]
    assert [entry.place.line for entry in found.duplicates] == [4]


def test_command_reads_the_settings_file_it_names(tmp_path: Path) -> None:
    (tmp_path / "cfg.yaml").write_text("max-num-seqs: 8\n")
    (tmp_path / "run.sh").write_text("vllm serve m --config cfg.yaml\n")
    (found,) = read_path(tmp_path / "run.sh")
    assert [(entry.key, entry.value) for entry in found.entries] == [("max-num-seqs", 8)]
    (tmp_path / "run.sh").write_text("vllm serve m --config gone.yaml\n")
    (found,) = read_path(tmp_path / "run.sh")
    assert found.unread == ("gone.yaml",)


def test_this_engines_command_reads_its_file_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("max_num_seqs: 8\n")
    (tmp_path / "run.sh").write_text("engine serve --config own.yaml --set max_model_len=4k --port 90\n")
    (found,) = read_path(tmp_path / "run.sh")
    assert found.engine == "camshaft"
    assert [(entry.key, entry.value) for entry in found.entries] == [("max_num_seqs", 8)]
    (preset,) = read_command("engine serve --config cpu-demo")
    assert preset.unread == ()


def test_arguments_in_an_environment_variable() -> None:
    found = one(
        "kind: LLMInferenceService\nspec:\n  template:\n    containers:\n    - name: main\n      env:\n"
        "      - name: VLLM_ADDITIONAL_ARGS\n        value: --disable-log-requests --seed 1\n",
        "service.yaml",
    )
    assert words(found) == ["--disable-log-requests", "--seed", "1"]
    assert found.words[1].place.line == 8


def test_engine_arguments_of_a_serving_framework() -> None:
    found = one(
        "applications:\n- args:\n    llm_configs:\n    - model_loading_config: {model_id: m}\n"
        "      engine_kwargs:\n        max_model_len: 8192\n        enable_chunked_prefill: false\n",
        "ray.yaml",
    )
    assert [(entry.key, entry.value) for entry in found.entries] == [
        ("max-model-len", 8192),
        ("enable-chunked-prefill", False),
    ]


def test_script_that_writes_a_script() -> None:
    found = one(
        "cat > run.sh <<'EOF'\nexport VLLM_USE_V1=0\nvllm serve m --port 1\nEOF\nchmod +x run.sh\n", "a.sh"
    )
    assert words(found) == ["m", "--port", "1"]
    assert found.words[1].place.line == 3


def test_systemd_unit() -> None:
    found = one(
        "[Service]\nEnvironment=VLLM_USE_V1=0\nExecStart=/opt/vllm/bin/vllm serve m \\\n  --swap-space 4\n",
        "vllm.service",
    )
    assert words(found) == ["m", "--swap-space", "4"]
    assert found.env["VLLM_USE_V1"].value == "0"
    assert found.words[1].place.line == 4


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("", "a.yaml"),
        ("# only a comment\n", "a.yaml"),
        ("a: [1, 2", "a.yaml"),
        ("- 1\n- 2\n", "a.yaml"),
        ("apiVersion: v1\nkind: Service\n", "svc.yaml"),
        ("services:\n  db: {image: postgres}\n", "docker-compose.yml"),
        ("resources:\n- a.yaml\n- vllm.yaml\n", "kustomization.yaml"),
        ("resources: [vllm.yaml]\npatches: []\n", "kustomization.yaml"),
        ("echo hello\n", "a.sh"),
        ("vllm bench latency --model m\n", "a.sh"),
        ('FROM debian\nCMD ["bash"]\n', "Dockerfile"),
        ("docker manifest create vllm/vllm-openai:latest --amend vllm/vllm-openai:v1-arm64\n", "a.sh"),
        ("docker run --entrypoint /bin/bash -it vllm/vllm-openai:v0.18.0 -c 'pip list'\n", "a.sh"),
        ("docker run --rm ci/vllm:build bash -c 'cp -r dist /host'\n", "a.sh"),
    ],
)
def test_what_holds_no_server_is_refused(text: str, name: str) -> None:
    with pytest.raises(UnreadableInput):
        read_text(text, name)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")
    for name in ("binary.yaml", "missing.yaml", "."):
        with pytest.raises(UnreadableInput):
            read_path(tmp_path / name)
    with pytest.raises(UnreadableInput):
        read_command("ls -l")
    with pytest.raises(UnreadableInput, match="larger than 4 MiB"):
        read_path(Path("/dev/zero"))
    (found,) = read_command("vllm serve m --config /dev/zero")
    assert found.unread == ("/dev/zero",)


def test_a_settings_file_that_a_command_names_keeps_its_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"model: m\r\nseed: 1\r\n")
    (tmp_path / "run.sh").write_bytes(b"vllm serve --config a.yaml\n")
    (found,) = read_path(tmp_path / "run.sh")
    assert found.entries[0].source.text == "model: m\r\nseed: 1\r\n"


def test_a_text_that_expands_without_end_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(UnreadableInput):
        read_text("\n".join(lines), "bomb.yaml")


@pytest.mark.parametrize(
    ("command", "whose"),
    [
        ("python3 -m sglang.launch_server --model-path m --tp 2", "SGLang's server"),
        ("vllm bench serve --model m --endpoint-type vllm", "vLLM's benchmark, a client"),
        ("vllm run-batch -i in.jsonl -o out.jsonl --model m", "a command of vLLM other than `vllm serve`"),
        ("trtllm-serve m --tp_size 2", "TensorRT-LLM's server"),
    ],
)
def test_what_other_programs_are_told(command: str, whose: str) -> None:
    with pytest.raises(
        UnreadableInput, match=re.escape(f"the command line runs {whose}: nothing here knows its options")
    ):
        read_command(command)


@pytest.mark.parametrize("comment", ["# later: vllm bench serve", "ls  # unlike sglang.launch_server"])
def test_what_a_comment_names_is_not_run(comment: str) -> None:
    with pytest.raises(UnreadableInput, match="starts no server this checker knows"):
        read_command(f"echo hello\n{comment}")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vllm serve <model> --port <PORT> -tp 2", ["<model>", "--port", "<PORT>", "-tp", "2"]),
        ("vllm serve m --host=http://<ip>:80", ["m", "--host=http://<ip>:80"]),
        ("vllm serve m <in.txt >out.txt --port 1", ["m", "--port", "1"]),
        ("vllm serve m --port 1 ...", ["m", "--port", "1", "..."]),
        ('B="vllm serve m --chat-template \'$T\'"; eval "$B"', ["m", "--chat-template", "$T"]),
        ("sh -c \"vllm serve m --chat-template '$T'\"", ["m", "--chat-template", "$T"]),
        ("vllm serve m --chat-template '{x}'", ["m", "--chat-template", "{x}"]),
    ],
)
def test_placeholders_are_words_nobody_can_know(command: str, words: list[str]) -> None:
    (configuration,) = read_command(command)
    assert [word.text for word in configuration.words] == words
    assert all(word.opaque == bool(re.search(r"[<$]|[.]{3}", word.text)) for word in configuration.words)
