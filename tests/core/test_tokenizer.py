import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.core.errors import ModelError, RequestError
from camshaft.core.tokenizer import Tokenizer, eos_token_ids

TEXTS = [
    "Hello, world!",
    "héllo wörld — naïve café",
    "日本語のテキスト、中文，한국어",
    "emoji 😀 👩‍👩‍👧 🇨🇭 and ZWJ",
    "  leading,   inner \t tabs\n\n\n and trailing  ",
    "Room 12345 costs $6.50; x=-7e10",
    "<|im_start|>user\nhi<|im_end|>\n",
    "\u200b\u0000\ufeff control",
    "",
]


@pytest.fixture(scope="module")
def demo(demo_model: Path) -> Tokenizer:
    return Tokenizer(demo_model)


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(demo: Tokenizer, text: str) -> None:
    ids = demo.encode(text)
    assert demo.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= i < demo.vocab_size for i in ids)


# The published vocabulary lacks the tokens of some control characters and unassigned planes.
@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    text=st.text(
        st.characters(codec="utf-8", max_codepoint=0x1FFFF, exclude_categories=["Cn", "Cc"]), max_size=60
    )
)
def test_any_text_round_trips(demo: Tokenizer, text: str) -> None:
    assert demo.decode(demo.encode(text), skip_special_tokens=False) == text


def test_a_long_text_lets_other_threads_go_on(demo: Tokenizer) -> None:
    begun, turns = threading.Event(), 0

    def work() -> None:
        begun.set()
        demo.encode("a;" * 100_000)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    while thread.is_alive():
        time.sleep(0.001)
        turns += 1
    assert turns > 20


def test_same_ids_as_transformers(demo: Tokenizer, demo_model: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(demo_model)
    assert [demo.encode(text) for text in TEXTS] == [reference(text).input_ids for text in TEXTS]
    assert demo.vocab_size == len(reference)
    assert demo.special_tokens >= set(reference.all_special_tokens)
    for i in range(40):  # both skip exactly these
        assert demo.decode([i]) == reference.decode([i], skip_special_tokens=True)
        assert (demo.decode([i]) == "") == (demo.backend.id_to_token(i) in demo.special_tokens)


def test_known_ids_of_the_published_tokenizer(demo: Tokenizer) -> None:
    """What SmolLM2's own tokenizer gives: ChatML specials first, every digit by itself."""
    assert demo.encode("<|im_start|><|im_end|>") == [1, 2]
    assert demo.eos_token_ids == (2,)
    assert demo.backend.encode(" the year 2024").tokens == ["Ġthe", "Ġyear", "Ġ", "2", "0", "2", "4"]


def test_chat_is_what_transformers_renders(demo: Tokenizer, demo_model: Path) -> None:
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(demo_model)
    for messages in (
        [{"role": "user", "content": "Hi 😀"}],
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "Bye"},
        ],
    ):
        text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert demo.render_chat(messages) == text
        assert demo.encode_chat(messages) == reference(text, add_special_tokens=False).input_ids
        without = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        assert demo.render_chat(messages, add_generation_prompt=False) == without


def test_a_template_that_is_no_text(demo_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((demo_model / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match=r"chat_template\.jinja: cannot be read"):
        Tokenizer(tmp_path).encode_chat([{"role": "user", "content": "x"}])


def test_template_errors_are_the_clients(demo: Tokenizer) -> None:
    hello = [{"role": "user", "content": "x"}]
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        demo.render_chat(hello, chat_template="{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"
    with pytest.raises(RequestError, match="refuses this conversation"):
        demo.render_chat([{"role": "user"}])
    with pytest.raises(RequestError, match="refuses this conversation"):
        demo.render_chat(hello, chat_template="{% for %}")
    for code in ("{{ range(10 ** 9) }}", "{{ 1 / 0 }}"):
        with pytest.raises(RequestError, match="refuses this conversation"):
            demo.render_chat(hello, chat_template=code)
    assert (
        demo.render_chat(hello, chat_template="{{ eos_token }}{{ k }}", template_kwargs={"k": 3})
        == "<|im_end|>3"
    )


def _copy(tiny: Path, target: Path, **tokenizer_config: object) -> Path:
    for file in tiny.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    file = target / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **tokenizer_config}))
    return target


def test_a_model_without_template_says_so(tiny_llama: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer(_copy(tiny_llama, tmp_path, chat_template=None))
    assert tokenizer.chat_template is None
    with pytest.raises(RequestError, match=r"has no chat template.*/v1/completions"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


def test_named_templates_and_template_files(tiny_llama: Path, tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder = _copy(tiny_llama, tmp_path, chat_template=several)
    assert Tokenizer(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("J")
    assert Tokenizer(folder).chat_template == "J"


def test_eos_ids_come_from_every_file(tiny_llama: Path, tmp_path: Path) -> None:
    folder = _copy(tiny_llama, tmp_path, eos_token={"content": "<|im_end|>"})
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 257]}')
    assert eos_token_ids(folder) == Tokenizer(folder).eos_token_ids == (7, 257, 259)
    (folder / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id 'x'"):
        eos_token_ids(folder)


def test_broken_tokenizers_are_named(tiny_llama: Path, tmp_path: Path) -> None:
    folder = _copy(tiny_llama, tmp_path)
    (folder / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="holds no tokenizer"):
        Tokenizer(folder)
