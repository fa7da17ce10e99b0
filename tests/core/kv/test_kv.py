from __future__ import annotations

import numpy as np
import pytest

from camshaft.core.errors import IntegrityError
from camshaft.core.kv.cache import KVCache
from camshaft.core.kv.pool import BlockPool
from camshaft.core.kv.prefix import PrefixIndex, extend_chain
from camshaft.core.request import Request, SamplingParams


def make_request(tokens: list[int], salt: bytes = b"") -> Request:
    return Request(
        id="r",
        prompt=np.array(tokens, dtype=np.int32),
        params=SamplingParams(),
        arrival_s=0.0,
        cache_salt=salt,
    )


def make_cache(num_blocks: int = 8, block_size: int = 4) -> KVCache:
    return KVCache(
        num_blocks=num_blocks, block_size=block_size, max_rows=4, max_tokens=64, prefix_caching=True
    )


def test_blocks_worth_keeping_are_reused_last() -> None:
    pool = BlockPool(4)
    a, b, c, d = pool.take(4)
    pool.release([a], kept={a})
    pool.release([b])
    pool.release([c], kept={c})
    pool.release([d])
    assert pool.take(4) == [d, b, a, c]


def test_a_shared_block_is_free_only_when_the_last_holder_lets_go() -> None:
    pool = BlockPool(2)
    (block,) = pool.take(1)
    pool.share([block])
    pool.release([block])
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2
    with pytest.raises(IntegrityError, match="nobody holds"):
        pool.release([block])


def test_a_free_block_is_shared_only_where_its_content_was_kept() -> None:
    pool = BlockPool(3)
    a, b = pool.take(2)
    pool.release([a], kept={a})
    pool.release([b])
    assert pool.count_free([a, b]) == 2
    pool.share([a])
    assert pool.count_free([a, b]) == 1
    with pytest.raises(IntegrityError, match=f"block {b} shared"):
        pool.share([b])
    pool.check({a: 1})


def test_a_block_that_is_nowhere_or_twice_free_is_noticed() -> None:
    lost, twice = BlockPool(2), BlockPool(2)
    lost.take(1)
    with pytest.raises(IntegrityError, match="block 0: 1 references, 0 holders"):
        lost.check({})
    lost._refs[0] = 0
    with pytest.raises(IntegrityError, match="do not add up"):
        lost.check({})
    twice._empty.append(0)
    with pytest.raises(IntegrityError, match="do not add up"):
        twice.check({})


def test_more_than_is_free_is_refused_whole() -> None:
    pool = BlockPool(2)
    with pytest.raises(IntegrityError, match="3 blocks wanted, 2 free"):
        pool.take(3)
    assert pool.num_free == 2


def test_the_chain_depends_on_everything_before_and_on_the_salt() -> None:
    def chain(tokens: list[int], salt: bytes = b"") -> list[bytes]:
        hashes: list[bytes] = []
        extend_chain(hashes, np.array(tokens, dtype=np.int32), 2, len(tokens) // 2, salt)
        return hashes

    assert chain([1, 2, 3, 4])[0] == chain([1, 2, 9, 9])[0]
    assert chain([1, 2, 3, 4])[1] != chain([9, 9, 3, 4])[1]
    assert chain([1, 2], b"x") != chain([1, 2], b"y")
    grown = chain([1, 2, 3, 4])[:1]
    extend_chain(grown, np.array([1, 2, 3, 4], dtype=np.int32), 2, 2, b"")
    assert grown == chain([1, 2, 3, 4])


def test_a_hash_collision_is_a_miss() -> None:
    index = PrefixIndex()
    tokens = np.array([1, 2, 3, 4], dtype=np.int32)
    index.insert([b"same"], [7], np.array([9, 9, 9, 9], dtype=np.int32).tobytes())
    assert index.lookup([b"same"], tokens, 4) == []
    index.insert([b"before"], [5], tokens.tobytes())
    assert index.lookup([b"before", b"same", b"before"], np.tile(tokens, 3), 4) == [5]


def test_a_prefix_survives_its_request_until_the_block_is_taken() -> None:
    cache = make_cache(num_blocks=3)
    tokens = np.arange(8, dtype=np.int32)
    first = make_request(tokens.tolist())
    cache.begin(0, cache.match(first, tokens))
    cache.grow(0, 8)
    cache.commit(0, first, tokens)
    cache.end(0)
    again = make_request([*range(8), 99])
    assert cache.match(again, again.prompt).tokens == 8
    cache.grow(1, 12)
    assert cache.match(again, again.prompt).tokens == 0
    cache.end(1)
    assert cache.num_free == 3


def test_a_whole_hit_leaves_one_token_and_copies_the_block_it_writes() -> None:
    cache = make_cache()
    tokens = np.arange(8, dtype=np.int32)
    request = make_request(tokens.tolist())
    cache.grow(0, 8)
    cache.commit(0, request, tokens)
    match = cache.match(make_request(tokens.tolist()), tokens)
    assert match.tokens == 7
    assert cache.cost(match, 8) == 1
    cache.tables.take_changes()
    cache.begin(1, match)
    changes = cache.tables.take_changes()
    source, target = changes.copies[0].tolist()
    assert source == cache.tables.blocks(0)[1]
    assert cache.tables.blocks(1) == [cache.tables.blocks(0)[0], target]
    cache.check_integrity(np.array([0, 1]), np.array([8, 7]))


def test_a_copy_of_a_copy_names_what_was_there_before() -> None:
    """A device reads all sources before it writes any target."""
    cache = make_cache()
    tokens = np.arange(8, dtype=np.int32)
    cache.grow(0, 8)
    cache.commit(0, make_request(tokens.tolist()), tokens)
    cache.begin(1, cache.match(make_request(tokens.tolist()), tokens))
    cache.begin(2, cache.fork(1, 7))
    shared, first, second = (cache.tables.blocks(row)[1] for row in (0, 1, 2))
    assert cache.tables.take_changes().copies.tolist() == [[shared, first], [shared, second]]


def test_changes_leave_once_and_in_order() -> None:
    cache = make_cache()
    cache.grow(2, 9)
    cache.grow_each(np.array([0, 1], dtype=np.int32))
    changes = cache.tables.take_changes()
    assert changes.rows.tolist() == [2, 2, 2, 0, 1]
    assert changes.indices.tolist() == [0, 1, 2, 0, 0]
    assert len(cache.tables.take_changes().rows) == 0


def test_integrity_names_what_is_broken() -> None:
    cache = make_cache()
    cache.grow(0, 8)
    rows = np.array([0])
    with pytest.raises(IntegrityError, match="row 0: 9 tokens in 2 blocks"):
        cache.check_integrity(rows, np.array([9]))
    with pytest.raises(IntegrityError, match="do not run"):
        cache.check_integrity(np.array([], dtype=int), np.array([8]))
    cache.pool.release(cache.tables.blocks(0)[:1])
    with pytest.raises(IntegrityError, match="0 references, 1 holders"):
        cache.check_integrity(rows, np.array([8]))


def test_waste_is_the_empty_share_of_the_slots() -> None:
    cache = make_cache()
    cache.grow(0, 5)
    assert cache.waste(np.array([0]), np.array([5])) == pytest.approx(3 / 8)
    assert cache.waste(np.array([], dtype=int), np.array([5])) == 0.0
