"""The array work of ``kernels`` and ``classes``, compiled by numba: the same arrays, some times faster.

Never imported at the top of another module: numba takes half a second to import and the first use of a
function on a machine takes seconds to compile (then it is read from the user's cache folder). ``load`` in
``kernels`` brings it in for blocks that are large enough to pay.

A search for changes compares 64 bytes at a time into a bit mask (one vector comparison in LLVM's own
terms, so it is AVX-512, AVX2 or NEON as the machine has it) and then visits the set bits only.

All of it is one file, longer than others: numba's cache forgets a function when the function's own file changes, so a
helper elsewhere could change unnoticed.

Invariant: for every input each function gives what its namesake in numpy gives. Indices are unsigned,
since numba otherwise looks for negative ones at each access.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from astraflow.weights.kernels import Gaps, Positions, Words

_VECTOR_BITS = 512
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_TILE = np.uint64(512)  # vectors: 32 KiB of words, which all classes go over before the next
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compiled(function: _Function) -> _Function:
    """Compile without the GIL held, so that blocks go in parallel; keep the result in the user's cache folder."""
    before = numba.config.CACHE_DIR
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "astraflow" / "numba"
        folder.mkdir(parents=True, exist_ok=True)
        numba.config.CACHE_DIR = before or str(folder)
        made: _Function = numba.njit(nogil=True, cache=True)(function)
    except (OSError, RuntimeError):  # no home, or no folder to write to: each process compiles for itself
        made = numba.njit(nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = before
    return made


def _lanes(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    """Load the 64 bytes of ``array`` from element ``at`` as one vector."""
    bits = kind.dtype.bitwidth
    pointer = builder.gep(context.make_array(kind)(context, builder, array).data, [at])
    vector = ir.VectorType(ir.IntType(bits), _VECTOR_BITS // bits)
    loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()))
    loaded.align = bits // 8
    return loaded


def _as_mask(builder: Any, lanes: Any, count: int) -> Any:
    mask = builder.bitcast(lanes, ir.IntType(count))
    return mask if count == 64 else builder.zext(mask, ir.IntType(64))


@intrinsic  # type: ignore[untyped-decorator]
def _differing(_typing: Any, base: Any, new: Any, at: Any) -> Any:
    """Bit i is set if word ``at`` + i differs, for the words in 64 bytes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        first, second = (_lanes(context, builder, signature.args[i], values[i], values[2]) for i in range(2))
        return _as_mask(builder, builder.icmp_unsigned("!=", first, second), _VECTOR_BITS // base.dtype.bitwidth)

    return types.uint64(base, new, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _in_range(_typing: Any, words: Any, at: Any, low: Any, width: Any) -> Any:
    """Bit i is set if word ``at`` + i without its sign is in [low, low + width), for the words in 64 bytes."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        bits = words.dtype.bitwidth
        count = _VECTOR_BITS // bits
        vector = ir.VectorType(ir.IntType(bits), count)

        def spread(value: Any) -> Any:
            one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
            lanes = ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count)
            return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)

        plain = ir.Constant(vector, [(1 << (bits - 1)) - 1] * count)
        magnitude = builder.and_(_lanes(context, builder, signature.args[0], values[0], values[1]), plain)
        low_lanes, width_lanes = (spread(builder.trunc(value, ir.IntType(bits))) for value in values[2:])
        inside = builder.icmp_unsigned("<", builder.sub(magnitude, low_lanes), width_lanes)
        return _as_mask(builder, inside, count)

    return types.uint64(words, types.uint64, types.uint64, types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _lowest(_typing: Any, mask: Any) -> Any:
    """The index of the lowest set bit of a mask that is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _ones(_typing: Any, mask: Any) -> Any:
    """The number of set bits."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.ctpop(values[0])

    return types.uint64(types.uint64), generate


@_compiled
def _step(old: Any, new: Any, bits: Any) -> Any:
    """Zigzag of the step from ``old`` to ``new`` in the order of values; words of ``bits`` bits in u64."""
    ones = (_ONE << bits) - _ONE
    top = _ONE << (bits - _ONE)
    first = old ^ ones if old & top else old | top
    second = new ^ ones if new & top else new | top
    step = (second - first) & ones
    return ((step << _ONE) ^ (ones if step & top else _ZERO)) & ones


@_compiled
def find_changes(base: Words, new: Words, gaps: Gaps, steps: Words) -> Any:
    """Fill ``gaps`` and ``steps`` (room for all words) and return how many changes there are."""
    bits = np.uint64(8 * base.itemsize)
    lanes = np.uint64(64 // base.itemsize)
    size = np.uint64(base.size)
    count = after = at = _ZERO
    while at + lanes <= size:
        mask = _differing(base, new, at)
        while mask:
            place = at + _lowest(mask)
            mask &= mask - _ONE
            gaps[count] = place - after
            steps[count] = _step(np.uint64(base[place]), np.uint64(new[place]), bits)
            after = place + _ONE
            count += _ONE
        at += lanes
    while at < size:
        if base[at] != new[at]:
            gaps[count] = at - after
            steps[count] = _step(np.uint64(base[at]), np.uint64(new[at]), bits)
            after = at + _ONE
            count += _ONE
        at += _ONE
    return count


@_compiled
def positions_of(gaps: Gaps, positions: Positions) -> None:
    """Fill ``positions`` [C] from ``gaps`` [C]."""
    at = _ZERO
    for index in range(np.uint64(gaps.size)):
        at += np.uint64(gaps[index])
        positions[index] = at
        at += _ONE


@_compiled
def apply_steps(words: Words, positions: Positions, steps: Words) -> None:
    """Step the words at ``positions`` in place; the caller has seen to it that all lie inside."""
    bits = np.uint64(8 * words.itemsize)
    ones = (_ONE << bits) - _ONE
    top = _ONE << (bits - _ONE)
    for index in range(np.uint64(positions.size)):
        place = np.uint64(positions[index])
        old = np.uint64(words[place])
        step = np.uint64(steps[index])
        order = old ^ ones if old & top else old | top
        order = (order + ((step >> _ONE) ^ (ones if step & _ONE else _ZERO))) & ones
        words[place] = order ^ top if order & top else order ^ ones


@_compiled
def first_with(words: Words, mask: Any) -> Any:
    """The index of the first word with all bits of ``mask`` set, or the number of words."""
    size = np.uint64(words.size)
    start = _ZERO
    while start < size:
        stop = min(start + np.uint64(4096), size)
        found = False
        for at in range(start, stop):
            found |= (np.uint64(words[at]) & mask) == mask
        if found:
            while (np.uint64(words[start]) & mask) != mask:
                start += _ONE
            return start
        start = stop
    return size


@_compiled
def count_by_key(base: Words, new: Words, shift: Any, counts: Any) -> None:
    """Add to ``counts`` [256] how many words change, by the key of the word before."""
    lanes = np.uint64(64 // base.itemsize)
    plain = (_ONE << np.uint64(8 * base.itemsize - 1)) - _ONE
    size = np.uint64(base.size)
    at = _ZERO
    while at + lanes <= size:
        mask = _differing(base, new, at)
        while mask:
            counts[(np.uint64(base[at + _lowest(mask)]) & plain) >> shift] += 1
            mask &= mask - _ONE
        at += lanes
    while at < size:
        if base[at] != new[at]:
            counts[(np.uint64(base[at]) & plain) >> shift] += 1
        at += _ONE


@_compiled
def split_changes(base: Words, new: Words, classes: Any, gaps: Gaps, steps: Words) -> None:
    """Fill ``gaps`` and ``steps`` [C], class k's from ``firsts[k]``, in tiles so that the words are read once."""
    lows, widths, firsts = classes
    bits = np.uint64(8 * base.itemsize)
    lanes = np.uint64(64 // base.itemsize)
    plain = (_ONE << (bits - _ONE)) - _ONE
    size = np.uint64(base.size)
    whole = size - size % lanes
    filled = firsts.copy()
    since = np.zeros(lows.size, np.uint64)
    differing = np.empty(_TILE, np.uint64)
    for tile in range(_ZERO, whole, _TILE * lanes):
        vectors = min(_TILE, (whole - tile) // lanes)
        for vector in range(vectors):
            differing[vector] = _differing(base, new, tile + vector * lanes)
        for index in range(np.uint64(lows.size)):
            low, width, unchanged, out = lows[index], widths[index], since[index], filled[index]
            for vector in range(vectors):
                members = _in_range(base, tile + vector * lanes, low, width)
                hits = members & differing[vector]
                while hits:
                    bit = hits & (~hits + _ONE)
                    place = tile + vector * lanes + _lowest(hits)
                    gaps[out] = unchanged + _ones(members & (bit - _ONE))
                    steps[out] = _step(np.uint64(base[place]), np.uint64(new[place]), bits)
                    out += _ONE
                    unchanged = _ZERO
                    members &= ~(bit | (bit - _ONE))
                    hits &= hits - _ONE
                unchanged += _ones(members)
            since[index], filled[index] = unchanged, out
    for at in range(whole, size):
        magnitude = np.uint64(base[at]) & plain
        of = np.searchsorted(lows, magnitude, side="right") - 1
        if base[at] == new[at]:
            since[of] += _ONE
        else:
            gaps[filled[of]] = since[of]
            steps[filled[of]] = _step(np.uint64(base[at]), np.uint64(new[at]), bits)
            since[of] = _ZERO
            filled[of] += _ONE


@_compiled
def places_of(base: Words, classes: Any, gaps: Gaps, positions: Positions) -> None:
    """Fill ``positions`` [C] by counting each class's gaps along ``base``; what does not fit stays as it is."""
    lows, widths, firsts = classes
    lanes = np.uint64(64 // base.itemsize)
    plain = (_ONE << np.uint64(8 * base.itemsize - 1)) - _ONE
    size = np.uint64(base.size)
    whole = size - size % lanes
    done = firsts.copy()
    left = np.zeros(lows.size, np.uint64)  # words of the class to pass before its next change
    for index in range(np.uint64(lows.size)):
        left[index] = gaps[firsts[index]]
    for tile in range(_ZERO, whole, _TILE * lanes):
        vectors = min(_TILE, (whole - tile) // lanes)
        for index in range(np.uint64(lows.size)):
            low, width, last = lows[index], widths[index], firsts[index + _ONE]
            wait, out = left[index], done[index]
            for vector in range(vectors):
                if out == last:
                    break
                members = _in_range(base, tile + vector * lanes, low, width)
                count = _ones(members)
                while count > wait:
                    for _ in range(wait):
                        members &= members - _ONE
                    positions[out] = tile + vector * lanes + _lowest(members)
                    members &= members - _ONE
                    count -= wait + _ONE
                    out += _ONE
                    wait = np.uint64(gaps[out]) if out < last else size
                wait -= count
            left[index], done[index] = wait, out
    for at in range(whole, size):
        magnitude = np.uint64(base[at]) & plain
        of = np.searchsorted(lows, magnitude, side="right") - 1
        out = done[of]
        if out < firsts[of + 1]:
            if left[of]:
                left[of] -= _ONE
            else:
                positions[out] = at
                done[of] = out + _ONE
                left[of] = np.uint64(gaps[out + _ONE]) if out + _ONE < firsts[of + 1] else size
