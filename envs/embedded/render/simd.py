"""Filtering of packed texels with vector instructions, four pixels at a time.

Written as LLVM vector code like `lanes`, but in 16-bit lanes: one per channel and texel.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

from envs.embedded.render.lanes import address, instruction

GROUP = 4
"""Pixels worked on at once."""

_WORD, _LONG = ir.IntType(32), ir.IntType(64)


def _vector(bits: int, count: int) -> Any:
    return ir.VectorType(ir.IntType(bits), count)


@instruction
def filter_group(typing: Any, line: Any, row: Any, column: Any, texels: Any, target: Any) -> Any:
    """Write the packed bilinear colors of a group of pixels, from `column` on, to row `target` of `line`.

    Of `line` (int32, contiguous), three rows from `row` on hold the index of the left one of two neighboring
    texels in the row above and in the row below a pixel, and weights: the share of the right texels in the lower
    and of the lower row in the upper 16 bits, of 256.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        upper, lower, weights = (
            address(context, builder, sig, args, (builder.add(args[1], args[1].type(k)), args[2]))
            for k in range(3)
        )
        data = context.make_array(sig.args[3])(context, builder, value=args[3]).data
        shares = _load(builder, weights, 16, 2 * GROUP)
        above, below = (_texel_pairs(builder, data, indices) for indices in (upper, lower))
        share = _chosen(builder, shares, [k // 8 * 2 + 1 for k in range(8 * GROUP)])
        column = _mixed(builder, above, below, share)
        left, right = (
            _chosen(builder, column, [k // 4 * 8 + k % 4 + side for k in range(4 * GROUP)]) for side in (0, 4)
        )
        color = _mixed(builder, left, right, _chosen(builder, shares, [k // 4 * 2 for k in range(4 * GROUP)]))
        return _stored(context, builder, color, address(context, builder, sig, args, (args[4], args[2])))

    return types.void(line, types.intp, types.intp, texels, types.intp), emit


@instruction
def mix_group(typing: Any, line: Any, row: Any, other: Any, shares: Any, column: Any) -> Any:
    """Blend the packed colors in row `other` of `line` into those in `row`, row `shares` saying how much of 256,
    in the pixels of a group, from `column` on."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        color, other, shares = (address(context, builder, sig, args, (args[k], args[4])) for k in (1, 2, 3))
        first, second = (
            builder.zext(_load(builder, place, 8, 4 * GROUP), _vector(16, 4 * GROUP)) for place in (color, other)
        )
        share = _chosen(builder, _load(builder, shares, 16, 2 * GROUP), [k // 4 * 2 for k in range(4 * GROUP)])
        return _stored(context, builder, _mixed(builder, first, second, share), color)

    return types.void(line, *[types.intp] * 4), emit


def _texel_pairs(builder: Any, texels: Any, indices: Any) -> Any:
    """Red, green, blue and alpha of the indexed texels and their right neighbors, in 16 bits each."""
    pairs = ir.Constant(_vector(64, GROUP), ir.Undefined)
    for k in range(GROUP):
        index = builder.sext(builder.load(builder.gep(indices, [_WORD(k)])), _LONG)
        place = builder.bitcast(builder.gep(texels, [index]), _LONG.as_pointer())
        pairs = builder.insert_element(pairs, builder.load(place, align=4), _WORD(k))
    return builder.zext(builder.bitcast(pairs, _vector(8, 8 * GROUP)), _vector(16, 8 * GROUP))


def _mixed(builder: Any, a: Any, b: Any, share: Any) -> Any:
    """(a * (256 - share) + b * share + 128) >> 8; the sum fits 16 bits, and what overflows on the way cancels."""
    eight, half = (ir.Constant(a.type, [n] * a.type.count) for n in (8, 128))
    total = builder.add(builder.shl(a, eight), builder.mul(builder.sub(b, a), share))
    return builder.lshr(builder.add(total, half), eight)


def _chosen(builder: Any, value: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(value, value, ir.Constant(_vector(32, len(lanes)), lanes))


def _load(builder: Any, place: Any, bits: int, count: int) -> Any:
    return builder.load(builder.bitcast(place, _vector(bits, count).as_pointer()), align=4)


def _stored(context: Any, builder: Any, color: Any, place: Any) -> Any:
    packed = builder.trunc(color, _vector(8, 4 * GROUP))
    builder.store(packed, builder.bitcast(place, packed.type.as_pointer()), align=4)
    return context.get_dummy_value()
