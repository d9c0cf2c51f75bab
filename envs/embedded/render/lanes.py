"""Eight numbers as one value in compiled kernels: `Floats` (float32) and `Ints` (int32).

Arithmetic works lane by lane and takes plain numbers on either side. It becomes LLVM vector code, hence whatever
the CPU has (AVX, SSE, NEON). The compiler vectorizes long loops by itself, but runs of pixels are short: written
this way, a run of nine pixels costs two steps and not nine.

Values of these types live inside kernels only; functions that take them are `inner_kernel` or `inline_kernel`.
Before you change anything here, or update numba, read docs/how-to/maintenance.md.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import numba.core.cgutils
import numba.core.typeconv
import numba.core.typing.templates
import numba.extending
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types

LANES = 8

cgutils: Any = numba.core.cgutils  # only partly annotated, as all of these
extending: Any = numba.extending
templates: Any = numba.core.typing.templates
typeconv: Any = numba.core.typeconv

Floats = Any
Ints = Any


class LanesType(types.Type):
    """Type of a value of `LANES` elements in compiled code."""

    def __init__(self, element: Any) -> None:
        self.element = element
        super().__init__(name=f"Lanes({element})")

    @property
    def key(self) -> Any:
        return self.element

    def can_convert_from(self, typingctx: Any, other: Any) -> Any:
        return typeconv.Conversion.safe if isinstance(other, types.Number) else None


FLOATS, INTS = LanesType(types.float32), LanesType(types.int32)
_VECTORS = {FLOATS: ir.VectorType(ir.FloatType(), LANES), INTS: ir.VectorType(ir.IntType(32), LANES)}


@extending.register_model(LanesType)
class _LanesModel(extending.models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTORS[kind])


def _constant(kind: Any, values: list[float]) -> Any:
    return ir.Constant(_VECTORS[kind], values)


def _splat(context: Any, builder: Any, source: Any, target: Any, value: Any) -> Any:
    element = context.cast(builder, value, source, target.element)
    vector = builder.insert_element(ir.Constant(_VECTORS[target], ir.Undefined), element, ir.IntType(32)(0))
    return builder.shuffle_vector(vector, vector, _constant(INTS, [0] * LANES))


extending.lower_cast(types.Number, LanesType)(_splat)


def _by(emit: Callable[..., Any]) -> Callable[..., Any]:
    """What numba calls to write code, from what needs the builder and the arguments alone."""
    return lambda context, builder, sig, args: emit(builder, args)


def _register(function: Any, floats: Callable[..., Any] | None, ints: Callable[..., Any] | None) -> None:
    """Make an operator work on lanes: `floats` and `ints` take a builder and two vectors."""

    class Template(templates.AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, keywords: Any) -> Any:
            kinds = [kind for kind in args if isinstance(kind, LanesType)]
            return templates.signature(kinds[0], kinds[0], kinds[0]) if kinds and len(args) == 2 else None

    templates.infer_global(function)(Template)
    for kind, emit in ((FLOATS, floats), (INTS, ints)):
        if emit is not None:
            extending.lower_builtin(function, kind, kind)(
                _by(lambda builder, args, emit=emit: emit(builder, *args))
            )


_register(operator.add, ir.IRBuilder.fadd, ir.IRBuilder.add)
_register(operator.sub, ir.IRBuilder.fsub, ir.IRBuilder.sub)
_register(operator.mul, ir.IRBuilder.fmul, ir.IRBuilder.mul)
_register(operator.truediv, ir.IRBuilder.fdiv, None)
_register(operator.and_, None, ir.IRBuilder.and_)
_register(operator.or_, None, ir.IRBuilder.or_)
_register(operator.lshift, None, ir.IRBuilder.shl)
_register(operator.rshift, None, ir.IRBuilder.ashr)


def instruction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a function of compiled code by its types and the LLVM code it stands for."""
    return cast("Callable[..., Any]", extending.intrinsic(function))


@instruction
def counting(typing: Any, start: Any) -> Any:
    """Ints start, start + 1, ..."""
    steps = _constant(INTS, list(range(LANES)))
    return INTS(INTS), _by(lambda builder, args: builder.add(args[0], steps))


@instruction
def minimum(typing: Any, a: Any, b: Any) -> Any:
    """The smaller in every lane; `b` where `a` is NaN."""
    return _chosen(a, b, "<")


@instruction
def maximum(typing: Any, a: Any, b: Any) -> Any:
    """The larger in every lane; `b` where `a` is NaN."""
    return _chosen(a, b, ">")


def _chosen(a: Any, b: Any, comparison: str) -> Any:
    kind = a if isinstance(a, LanesType) else b

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        compare = builder.fcmp_ordered if kind == FLOATS else builder.icmp_signed
        return builder.select(compare(comparison, *args), *args)

    return kind(kind, kind), emit


@instruction
def where_equal(typing: Any, a: Any, b: Any, chosen: Any, other: Any) -> Any:
    """`chosen` in the lanes where Ints `a` and `b` are equal, `other` elsewhere."""
    emit = _by(lambda builder, args: builder.select(builder.icmp_signed("==", *args[:2]), *args[2:]))
    return INTS(INTS, INTS, INTS, INTS), emit


@instruction
def where_greater(typing: Any, a: Any, b: Any, chosen: Any, other: Any) -> Any:
    """`chosen` in the lanes where Floats `a` are greater than `b`, `other` elsewhere; one of the two is lanes."""
    kind = chosen if isinstance(chosen, LanesType) else other
    emit = _by(lambda builder, args: builder.select(builder.fcmp_ordered(">", *args[:2]), *args[2:]))
    return kind(FLOATS, FLOATS, kind, kind), emit


@instruction
def floor(typing: Any, value: Any) -> Any:
    """Floats rounded down."""
    name = f"llvm.floor.v{LANES}f32"
    return FLOATS(FLOATS), _by(lambda builder, args: _call(builder, name, args[0], args[0].type))


@instruction
def truncated(typing: Any, value: Any) -> Any:
    """Floats to Ints; the values must fit."""
    return INTS(FLOATS), _by(lambda builder, args: builder.fptosi(args[0], _VECTORS[INTS]))


@instruction
def converted(typing: Any, value: Any) -> Any:
    """Ints to Floats."""
    return FLOATS(INTS), _by(lambda builder, args: builder.sitofp(args[0], _VECTORS[FLOATS]))


@instruction
def bit_pattern(typing: Any, value: Any) -> Any:
    """The bits of Floats as Ints."""
    return INTS(FLOATS), _by(lambda builder, args: builder.bitcast(args[0], _VECTORS[INTS]))


@instruction
def lowest(typing: Any, value: Any) -> Any:
    """Smallest of the Ints."""
    return types.int32(INTS), _reduction(f"llvm.vector.reduce.smin.v{LANES}i32")


@instruction
def highest(typing: Any, value: Any) -> Any:
    """Largest of the Ints."""
    return types.int32(INTS), _reduction(f"llvm.vector.reduce.smax.v{LANES}i32")


def _reduction(name: str) -> Callable[..., Any]:
    return _by(lambda builder, args: _call(builder, name, args[0], ir.IntType(32)))


def _call(builder: Any, name: str, value: Any, result: Any) -> Any:
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [value.type]), name)
    return builder.call(function, [value])


@instruction
def load(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """`array[row, column : column + LANES]` (float32 or int32, contiguous), which must lie within it."""
    kind = FLOATS if array.dtype == types.float32 else INTS

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig, args, (args[1], args[2]))
        return builder.load(builder.bitcast(place, _VECTORS[kind].as_pointer()), align=4)

    return kind(array, types.intp, types.intp), emit


@instruction
def store(typing: Any, array: Any, row: Any, column: Any, value: Any) -> Any:
    """Write to `array[row, column : column + LANES]` (float32 or int32, contiguous), which must lie within it."""
    kind = FLOATS if array.dtype == types.float32 else INTS

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        place = address(context, builder, sig, args, (args[1], args[2]))
        builder.store(args[3], builder.bitcast(place, _VECTORS[kind].as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, kind), emit


def address(context: Any, builder: Any, sig: Any, args: Any, place: tuple[Any, Any]) -> Any:
    """Pointer to the element at `place`, row and column, of a contiguous array that is the first argument."""
    array = context.make_array(sig.args[0])(context, builder, value=args[0])
    width = builder.extract_value(array.shape, 1)
    return builder.gep(array.data, [builder.add(builder.mul(place[0], width), place[1])])
