"""Activations and their derivatives in FP32, a value a lane, from what the vector unit has.

Formulas are those of `mxgemm.epilogue`; NaN in gives NaN out. Phi, the normal distribution, comes
from the complementary error function as t exp(-x^2) exp(P(t)) with t = 1 / (1 + x/2), to a relative
error of 1.2e-7 (Press et al., Numerical Recipes, "Incomplete gamma function and error function").
"""

import math
import struct

import flydsl.expr as fx
from flydsl.expr import rocdl
from flydsl.expr.typing import T, as_ir_value

from mxgemm.backends.flydsl_gfx1250.registers import pick
from mxgemm.epilogue import GELU_TANH_CUBIC, GELU_TANH_SCALE, Activation

LOG2_E = 1.4426950216293335
"""log2(e) rounded to FP32, and what is left of it."""
LOG2_E_REST = 1.9259629911266175e-08
ERFC_FIT = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)
"""Coefficients of P, ascending."""
MAGNITUDE, SIGN = 0x7FFFFFFF, -0x80000000
"""Bits of an FP32 number."""
GELU_FLAT, GELU_TANH_FLAT = 30.0, 9.0
"""Beyond these arguments both gates are 0 or 1 to FP32; powers and exponentials stay finite within.
"""


def _exp(value, rest=None):
    """Return exp(value + rest), |rest| at most a rounding of value; subnormal results may flush.

    One V_EXP_F32. The argument's rounding, which an exponential amplifies by the argument's size,
    is carried along.
    """
    scaled = value * fx.Float32(LOG2_E)
    error = fx.fma(value, fx.Float32(LOG2_E), -scaled)
    error = fx.fma(value, fx.Float32(LOG2_E_REST), error)
    if rest is not None:
        error = fx.fma(rest, fx.Float32(LOG2_E), error)
    power = fx.Float32(rocdl.exp2(T.f32, as_ir_value(scaled)))
    return fx.fma(power, error * fx.Float32(math.log(2)), power)


def _reciprocal(value):
    """Return 1 / value of a finite value that is not 0: V_RCP_F32 and one Newton step."""
    guess = fx.Float32(rocdl.rcp(T.f32, as_ir_value(value)))
    return fx.fma(fx.fma(-value, guess, fx.Float32(1.0)), guess, guess)


def _bounded(z, limit: float):
    """Return z within -limit .. limit, keeping its sign; NaN gives limit or -limit.

    On the bits, which order like magnitudes and which no compiler narrows to a 16-bit select.
    """
    bits, edge = z.bitcast(fx.Int32), struct.unpack("<i", struct.pack("<f", limit))[0]
    beyond = (bits & fx.Int32(MAGNITUDE)) > fx.Int32(edge)
    return pick(beyond, (bits & fx.Int32(SIGN)) | fx.Int32(edge), bits).bitcast(fx.Float32)


def _bell(z):
    """Return exp(-z^2 / 2)."""
    square = z * z
    rest = fx.fma(z, z, -square)
    return _exp(square * fx.Float32(-0.5), rest * fx.Float32(-0.5))


def _normal_distribution(z):
    """Return Phi(z) of a bounded z."""
    magnitude = (z.bitcast(fx.Int32) & fx.Int32(MAGNITUDE)).bitcast(fx.Float32)
    x = magnitude * fx.Float32(math.sqrt(0.5))
    t = _reciprocal(fx.fma(x, fx.Float32(0.5), fx.Float32(1.0)))
    fit = fx.Float32(ERFC_FIT[-1])
    for coefficient in ERFC_FIT[-2::-1]:
        fit = fx.fma(fit, t, fx.Float32(coefficient))
    tail = t * fx.Float32(0.5) * _exp(fit) * _bell(z)
    return pick(z < fx.Float32(0.0), tail, fx.Float32(1.0) - tail)


def _tanh_gate(z, bounded):
    """Return (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), u the argument of gelu_tanh; 0 for small z."""
    cubic = fx.fma(bounded * bounded, fx.Float32(GELU_TANH_CUBIC), fx.Float32(1.0)) * bounded
    gate = _reciprocal(fx.Float32(1.0) + _exp(cubic * fx.Float32(-2 * GELU_TANH_SCALE)))
    return pick(z > fx.Float32(-GELU_TANH_FLAT), gate, fx.Float32(0.0))


def activate(z, activation: Activation):
    """Return act(z)."""
    match activation:
        case Activation.NONE:
            return z
        case Activation.RELU:
            return pick(z < fx.Float32(0.0), fx.Float32(0.0), z)
        case Activation.GELU:
            return z * _normal_distribution(_bounded(z, GELU_FLAT))
        case Activation.GELU_TANH:
            return z * _tanh_gate(z, _bounded(z, GELU_TANH_FLAT))


def derivative(z, activation: Activation):
    """Return act'(z); relu's is 0 at 0."""
    match activation:
        case Activation.NONE:
            return fx.Float32(1.0)
        case Activation.RELU:
            is_nan = z != z
            slope = pick(z > fx.Float32(0.0), fx.Float32(1.0), fx.Float32(0.0))
            return pick(is_nan, z, slope)
        case Activation.GELU:
            bounded = _bounded(z, GELU_FLAT)
            density = _bell(bounded) * fx.Float32(1 / math.sqrt(2 * math.pi))
            return fx.fma(z, density, _normal_distribution(bounded))
        case Activation.GELU_TANH:
            bounded = _bounded(z, GELU_TANH_FLAT)
            gate = _tanh_gate(z, bounded)
            cubic = fx.Float32(6 * GELU_TANH_SCALE * GELU_TANH_CUBIC)
            slope = fx.fma(bounded * bounded, cubic, fx.Float32(2 * GELU_TANH_SCALE))
            change = gate * (fx.Float32(1.0) - gate) * slope
            # z - z is 0, and NaN where z has no derivative.
            return fx.fma(bounded, change, gate) + (z - z)
