"""A request in flight, fed while whoever reads it is busy: writing to a slow client, or encoding in a thread."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.core.errors import EngineDead
from camshaft.core.messages import Output
from camshaft.core.serve.text.detokenize import ByteDetokenizer
from camshaft.core.serve.text.generation import Generation, Sequence, TextRules

TABLE = [bytes([byte]) for byte in range(256)]


def generation_of(num_sequences: int) -> Generation:
    sequences = [
        Sequence(index, f"r-{index}", [1], TextRules(), ByteDetokenizer(TABLE))
        for index in range(num_sequences)
    ]
    return Generation("r", sequences)


@given(st.data())
def test_nothing_is_lost_on_a_reader_that_is_busy(data: st.DataObject) -> None:
    """Whenever tokens come and whenever they are read, each of them and each end is told once."""
    texts = data.draw(st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3))
    script = [(index, text, place) for index, text in enumerate(texts) for place in range(len(text))]
    order = data.draw(st.permutations([index for index, _, _ in script]))
    pauses = data.draw(st.lists(st.integers(0, 3), min_size=len(order), max_size=len(order)))

    async def main() -> None:
        generation, told = generation_of(len(texts)), [""] * len(texts)
        places, ends = [0] * len(texts), list[int]()

        async def feed() -> None:
            for index, pause in zip(order, pauses, strict=True):
                places[index] += 1
                last = places[index] == len(texts[index])
                token = ord(texts[index][places[index] - 1])
                generation.sequences[index].feed(Output(0, [token], "length" if last else None))
                generation.wake()
                for _ in range(pause):
                    await asyncio.sleep(0)

        feeding = asyncio.ensure_future(feed())
        async for deltas in generation.deltas():
            for delta in deltas:
                told[delta.index] += delta.text
                ends += [delta.index] if delta.finish_reason else []
            for _ in range(2):
                await asyncio.sleep(0)
        await feeding
        assert told == texts
        assert sorted(ends) == list(range(len(texts)))

    asyncio.run(main())


def test_an_error_that_comes_while_the_reader_is_busy_is_raised() -> None:
    async def main() -> None:
        generation = generation_of(1)
        generation.sequences[0].feed(Output(0, [97]))
        generation.wake()
        async for _ in generation.deltas():
            generation.fail(EngineDead("gone"))

    with pytest.raises(EngineDead):
        asyncio.run(main())
