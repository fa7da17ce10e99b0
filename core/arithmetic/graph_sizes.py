"""Which batch sizes are captured as graphs: by this engine, and by vLLM at a release."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import ConfigError
from ..releases import vllm_release

LARGEST = 512  # no larger batch is captured where nobody says so


def capture_sizes(
    max_num_seqs: int,
    *,
    eager: bool = False,
    sizes: Sequence[int] | None = None,
    limit: int | None = None,
) -> tuple[int, ...]:
    """Batch sizes that this engine captures, ascending: every one up to 8, every 8 up to 256, every 16 up to 512,
    and `max_num_seqs` itself if that is no more than 512.

    `sizes` replaces them; `limit` (vLLM's max_cudagraph_capture_size) replaces 512, 0 captures nothing. No size
    is above `max_num_seqs`, but the smallest of `sizes` that holds it. Raises ConfigError for a size below 1.
    """
    if eager or limit == 0:
        return ()
    if sizes is not None:
        if any(size < 1 for size in sizes):
            raise ConfigError(f"cudagraph_capture_sizes: {list(sizes)}; a batch has 1 sequence or more")
        wanted = sorted(size for size in set(sizes) if limit is None or size <= limit)
        whole = next((size for size in wanted if size >= max_num_seqs), max_num_seqs)
        return tuple(size for size in wanted if size <= whole)
    top = min(max_num_seqs, LARGEST if limit is None else limit)
    return _up_to(top, [*range(1, 9), *range(16, 257, 8), *range(272, top, 16), top])


def vllm_capture_sizes(
    version: str,
    max_num_seqs: int,
    max_num_batched_tokens: int | None = None,
    *,
    sizes: Sequence[int] | None = None,
    limit: int | None = None,
) -> tuple[int, ...]:
    """Batch sizes, in tokens, that vLLM captures at a release, ascending; never more than a step's tokens.

    1, 2, 4 and every 8; from 256 on every 16 since 0.11.1. They end at the smallest that holds `max_num_seqs` before
    0.8.0, at 512 before 0.10.0, then at twice `max_num_seqs` or 512. `limit` replaces that end, `sizes` all of it.
    A step of `max_num_batched_tokens` is captured too since 0.20.2, one of `max_num_seqs` since 0.31.0, if no
    larger. (config.py of 0.6.6, 0.8.0, 0.9.2 and 0.10.0, config/__init__.py of 0.11.0, config/vllm.py of 0.11.1,
    0.20.2, 0.30.0 and 0.31.0.) Raises ConfigError for a version that is not numbers and dots.
    """
    release = vllm_release(version)
    most = max_num_batched_tokens
    if sizes:
        return _up_to(most, sizes)
    if limit is not None:
        top = limit
    elif release < (0, 8):
        top = next(size for size in (1, 2, 4, -(-max_num_seqs // 8) * 8) if size >= max_num_seqs)
    else:
        top = LARGEST if release < (0, 10) else min(2 * max_num_seqs, LARGEST)
    top = top if most is None else min(top, most)
    wide = [*range(8, 256, 8), *range(256, top + 1, 16)] if release >= (0, 11, 1) else range(8, top + 1, 8)
    odd = [most] if most and release >= (0, 20, 2) else []
    odd += [max_num_seqs] if limit is None and release >= (0, 31) else []
    return _up_to(top, [1, 2, 4, *wide, *odd])


def _up_to(top: int | None, sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({size for size in sizes if top is None or size <= top}))
