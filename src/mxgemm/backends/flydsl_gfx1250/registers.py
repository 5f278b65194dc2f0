"""Values in registers: selects, halves of 64-bit scalars, packing, and the loads and stores that
fill and drain them.

The few lines that the kernels need below FlyDSL's own vocabulary; each becomes one instruction, or
is folded away.
"""

import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import arith, llvm, scf, vector
from flydsl.expr import rocdl
from flydsl.expr.typing import T, as_ir_value

I32_BITS = 32


def pick(condition, yes, no):
    """Return `yes` where `condition` holds, else `no`; both of one FlyDSL type. Scalar where all
    three are.
    """
    return type(yes)(arith.SelectOp(*(as_ir_value(v) for v in (condition, yes, no))).result)


def at_least_zero(value):
    """Return max(value, 0) of an Int32."""
    return pick(value > fx.Int32(0), value, fx.Int32(0))


def at_most(value, limit: int):
    """Return min(value, limit) of an Int32."""
    return pick(value < fx.Int32(limit), value, fx.Int32(limit))


def low_word(value):
    """Return bits 31:0 of an Int64."""
    return fx.Int32(arith.TruncIOp(T.i32, as_ir_value(value)).result)


def high_word(value):
    """Return bits 63:32 of an Int64."""
    return low_word(value >> fx.Int64(I32_BITS))


def words(*values):
    """Return a vector of Int32 values or ints, as descriptors and intrinsics take it."""
    return vector.from_elements(
        T.vec(len(values), T.i32), [as_ir_value(fx.Int32(v)) for v in values]
    )


def address(pointer):
    """Return a kernel argument's global address as Int64."""
    return fx.Int64(fx.ptrtoint(pointer))


def wave_index():
    """Return the wave's number in its workgroup, a scalar (TTMP8)."""
    return fx.Int32(rocdl.wave_id())


def _pointer(address_value, element, space, alignment: int):
    pointer_type = fx.PointerType.get(
        elem_ty=element.ir_type, address_space=space, alignment=alignment
    )
    return fx.inttoptr(pointer_type, address_value)


def lds_load(byte_address, element, count: int):
    """Return `count` elements from an LDS byte address that is aligned to all of them."""
    pointer = _pointer(byte_address, element, fx.AddressSpace.Shared, count * element.width // 8)
    return fx.generic_load(pointer, dtype=element, count=count)


def lds_store(byte_address, value, element, count: int):
    """Store `count` elements to an LDS byte address that is aligned to all of them."""
    pointer = _pointer(byte_address, element, fx.AddressSpace.Shared, count * element.width // 8)
    fx.generic_store(pointer, value)


def global_load(byte_address, element, count: int = 1):
    """Return `count` elements from a global address that is aligned to one of them."""
    pointer = _pointer(byte_address, element, fx.AddressSpace.Global, element.width // 8)
    return fx.generic_load(pointer, dtype=element, count=count)


def global_store(byte_address, value, element):
    """Store one element or a vector to a global address that is aligned to one element."""
    pointer = _pointer(byte_address, element, fx.AddressSpace.Global, element.width // 8)
    fx.generic_store(pointer, value)


def widen(value):
    """Return a 16-bit float as FP32, by an instruction of its own.

    The fence keeps the compiler from moving later arithmetic to 16 bits or into mixed instructions.
    """
    return _fence(value.to(fx.Float32))


def narrow(value, element):
    """Return an FP32 value rounded once to `element`, by an instruction of its own."""
    return _fence(value).to(element)


def _fence(value):
    return fx.Float32(
        llvm.call_intrinsic(T.f32, "llvm.arithmetic.fence", [as_ir_value(value)], [], [])
    )


def computed_here(values) -> None:
    """Have vectors computed by here: the compiler moves what makes a value to where it is used,
    across loops too, and would keep the operands in registers until then.
    """
    for value in values:
        llvm.call_intrinsic(None, "llvm.fake.use", [as_ir_value(value)], [], [])


def counted_loop(count, state, body):
    """Run `state = body(index, state)` for index 0 .. count - 1 as a loop of the device and return
    the last state.

    Args:
        count: trips, Int32 or int.
        state: list of FlyDSL values that the loop carries.
        body: takes the index as Int32 and such a list, returns the next.
    """
    bounds = [as_ir_value(fx.Int32(v)) for v in (0, count, 1)]
    loop = scf.ForOp(*bounds, [as_ir_value(v) for v in state])
    with ir.InsertionPoint(loop.body):
        carried = [type(v)(x) for v, x in zip(state, loop.inner_iter_args, strict=True)]
        result = body(fx.Int32(loop.induction_variable), carried)
        scf.YieldOp([as_ir_value(v) for v in result])
    return [type(v)(x) for v, x in zip(state, loop.results, strict=True)]


def when(condition, state, body):
    """Return `body(state)` where the scalar `condition` holds, else `state`, as a branch."""
    branch = scf.IfOp(as_ir_value(condition), [as_ir_value(v).type for v in state], has_else=True)
    for block, values in ((branch.then_block, body), (branch.else_block, list)):
        with ir.InsertionPoint(block):
            scf.YieldOp([as_ir_value(v) for v in values(state)])
    return [type(v)(x) for v, x in zip(state, branch.results, strict=True)]


class Parking:
    """Scalars that are needed once an output tile, in the lanes of one vector register: there are
    106 scalar registers, and a K loop fills most of them.
    """

    def __init__(self) -> None:
        self._register, self._used = fx.Int32(fx.thread_idx.x), 0

    def put(self, value):
        """Keep an Int32 or Int64, and return the function that fetches it; 32 words in all."""
        if value.width != 2 * I32_BITS:
            lane = self._put_word(value)
            return lambda: self._word(lane)
        low, high = self._put_word(low_word(value)), self._put_word(high_word(value))
        return lambda: (
            fx.Int64(fx.Uint32(self._word(low))) | fx.Int64(self._word(high)) << fx.Int64(I32_BITS)
        )

    def _put_word(self, value) -> int:
        lane, self._used = self._used, self._used + 1
        operands = [as_ir_value(v) for v in (value, fx.Int32(lane), self._register)]
        self._register = fx.Int32(
            llvm.call_intrinsic(T.i32, "llvm.amdgcn.writelane", operands, [], [])
        )
        return lane

    def _word(self, lane: int):
        return fx.Int32(
            rocdl.readlane(T.i32, as_ir_value(self._register), as_ir_value(fx.Int32(lane)))
        )
