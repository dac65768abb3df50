"""Primitives that work on each number by itself."""

from __future__ import annotations

ELEMENTWISE = frozenset(
    """
    abs acos acosh add add_any and asin asinh at_most atan atan2 atanh bessel_i0e bessel_i1e
    bitcast_convert_type cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos cosh
    digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac
    imag integer_pow is_finite kept le le_to lgamma log log1p log2 logistic lt lt_to max min mul
    mulhi name ne neg nextafter not one_minus_square optimization_barrier or polygamma polynomial
    population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt select_n
    shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient
    sub tan tanh xor zeta
    """.split()
)
"""Names of JAX primitives; their operands are scalars, or of the shape of the result."""
