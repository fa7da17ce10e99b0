"""Text to tokens and back, through the `tokenizers` library; transformers is imported only for chat templates.

Incremental detokenising of a stream belongs to the server; this object is stateless and thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ModelError, RequestError
from .json_files import read_json_if_present

if TYPE_CHECKING:
    import tokenizers

_MAX_TEMPLATE_BYTES = 1 << 20


class Tokenizer:
    """The tokenizer of a model folder."""

    def __init__(self, folder: str | Path) -> None:
        """Loads it. Raises ModelError naming the file that is missing or unusable."""
        self.folder = Path(folder)
        self.backend = _load_backend(self.folder)
        self._settings = read_json_if_present(self.folder / "tokenizer_config.json")
        self.eos_token_ids = eos_token_ids(self.folder, self.backend.token_to_id)
        added = self.backend.get_added_tokens_decoder()
        self.special_tokens = frozenset(token.content for token in added.values() if token.special)
        self.vocab_size = self.backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids; `add_special_tokens` adds what the model wants around a plain prompt (such as bos)."""
        # A batch is encoded without the interpreter's lock, a single text with it: other threads go on.
        return self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are no whole character become U+FFFD. Unknown ids are left out."""
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)

    @property
    def chat_template(self) -> str | None:
        """The model's own template: `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`."""
        return self._chat_template

    @cached_property
    def _chat_template(self) -> str | None:
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            try:
                return file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ModelError(f"{file}: cannot be read: {error}") from error
        held = read_json_if_present(self.folder / "chat_template.json").get("chat_template")
        held = held or self._settings.get("chat_template")
        if isinstance(held, list):  # several, by name
            named = {entry.get("name"): entry.get("template") for entry in held if isinstance(entry, dict)}
            held = named.get("default")
        return held if isinstance(held, str) else None

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation, special tokens written out.

        Raises RequestError: the model has no template, or the template refuses the conversation.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        template = chat_template or self.chat_template
        if template is None:
            raise RequestError(
                f"{self.folder.name} has no chat template, so it cannot take a conversation; "
                f"use /v1/completions, or give the server a chat template",
                param="messages",
            )
        if len(template) > _MAX_TEMPLATE_BYTES:
            raise RequestError("the chat template is too long", param="chat_template")
        if tools and "tools" not in template:
            raise RequestError(f"the chat template of {self.folder.name} knows no tools", param="tools")
        try:
            rendered, _ = render_jinja_template(
                conversations=[[dict(message) for message in messages]],
                chat_template=template,
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **{**self._special_tokens, **(template_kwargs or {})},
            )
        except RecursionError:
            raise
        except Exception as error:  # a template is code
            reason = str(error).strip() or type(error).__name__
            raise RequestError(
                f"the chat template refuses this conversation: {reason}", "messages"
            ) from error
        return rendered[0]

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation; options as in `render_chat`. The template writes its own bos."""
        return self.encode(self.render_chat(messages, **options), add_special_tokens=False)

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        names = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
        found = {name: _content(self._settings.get(name)) for name in names}
        return {name: token for name, token in found.items() if token is not None}


def eos_token_ids(folder: str | Path, id_of: Callable[[str], int | None] | None = None) -> tuple[int, ...]:
    """Every id that ends a generation: of `generation_config.json`, `config.json` and the tokenizer's own eos.

    `id_of` finds a token's id; without it `tokenizer.json` is read. Raises ModelError for an unusable file.
    """
    where = Path(folder)
    ids: list[int] = []
    for file in ("generation_config.json", "config.json"):
        config = read_json_if_present(where / file)
        text = config.get("text_config")
        held = config.get("eos_token_id", text.get("eos_token_id") if isinstance(text, dict) else None)
        for value in held if isinstance(held, list) else [held]:
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ModelError(f"{where / file}: eos_token_id {value!r} is not a token id")
            ids.append(value)
    token = _content(read_json_if_present(where / "tokenizer_config.json").get("eos_token"))
    if token is not None:
        own = id_of(token) if id_of else _id_in_file(where / "tokenizer.json", token)
        ids += [own] if own is not None else []
    return tuple(dict.fromkeys(ids))


def _id_in_file(file: Path, token: str) -> int | None:
    """A special token's id from the added tokens of a `tokenizer.json`."""
    added = read_json_if_present(file).get("added_tokens") or []
    return next((entry["id"] for entry in added if entry.get("content") == token), None)


def _content(token: object) -> str | None:
    """A special token is a string, or an object with its content."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) and token else None


def _load_backend(folder: Path) -> tokenizers.Tokenizer:
    import tokenizers

    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{file}: not a usable tokenizer: {error}") from error
    if not any((folder / name).is_file() for name in ("tokenizer.model", "vocab.json", "vocab.txt")):
        raise ModelError(f"{folder}: holds no tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder).backend_tokenizer
    except Exception as error:  # conversion of an old tokenizer fails in many ways
        raise ModelError(f"{folder}: its tokenizer cannot be converted: {error}") from error
