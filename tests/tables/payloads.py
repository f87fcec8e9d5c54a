"""Payload bytes that depend on a label alone.

The Mersenne Twister with a string seed gives the same bytes on every Python from 3.9 on, so a payload
is named by its label and size and never stored with the tests.
"""
import random

_STEP = 1 << 20

KIB, MIB = 1 << 10, 1 << 20
# Lance's default placement: up to 64 KiB Inline, up to 4 MiB Packed, Dedicated above; both bounds belong to the smaller kind.
INLINE_MAX, PACKED_MAX = 64 * KIB, 4 * MIB
EDGE_SIZES = [0, 1, 100, 4095, 4096, 4097, INLINE_MAX - 1, INLINE_MAX, INLINE_MAX + 1, 300_000, PACKED_MAX, PACKED_MAX + 1]


def payload(label: str, size: int) -> bytes:
    """Return `size` bytes that depend on `label` alone; a longer payload starts with the shorter one's whole steps."""
    source, parts = random.Random(label), []
    while size > 0:
        step = min(size, _STEP)
        parts.append(source.randbytes(step))
        size -= step
    return b''.join(parts)


def payloads(label: str, sizes) -> list:
    """Return one payload per size, labelled `label/0`, `label/1`, …; None stays None."""
    return [None if size is None else payload(f'{label}/{i}', size) for i, size in enumerate(sizes)]
