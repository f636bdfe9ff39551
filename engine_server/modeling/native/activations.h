// Activation functions of vectors, in float: lambdas, whose types of their own make each a loop without calls.
#pragma once

#include "vectors.h"

// Lane by lane a where `mask` is all ones, and b where it is 0.
inline floats select(ints mask, floats a, floats b) { return (floats)((mask & (ints)a) | (~mask & (ints)b)); }

inline floats magnitude(floats x) { return (floats)((words)x & 0x7fffffff); }

// 1 / (1 + e^-x)
inline floats sigmoid(floats x) {
    const floats small = exponential(-magnitude(x));  // of values <= 0, which can't overflow
    return (x < 0 ? small : floats{} + 1) / (1 + small);
}

inline constexpr auto relu = [](floats x) -> floats { return select(x < 0, floats{}, x); };

inline constexpr auto silu = [](floats x) -> floats { return x * sigmoid(x); };

// Hendrycks and Gimpel, arXiv 1606.08415, as are the other GELUs.
inline constexpr auto gelu_quick = [](floats x) -> floats { return x * sigmoid(1.702f * x); };

// The approximation by tanh, since (1 + tanh y) / 2 = sigmoid(2 y).
inline constexpr auto gelu_tanh = [](floats x) -> floats {
    constexpr float TWICE_SQRT_2_BY_PI = 1.5957691216f;
    return x * sigmoid(TWICE_SQRT_2_BY_PI * (x + 0.044715f * x * x * x));
};

// x (1 + erf(x / sqrt 2)) / 2. The complementary error function of Press et al., Numerical Recipes in C, 6.2: a
// polynomial in 1 / (1 + |x| / 2), to 1.2e-7 of itself everywhere.
inline constexpr auto gelu = [](floats x) -> floats {
    constexpr float SQRT_HALF = 0.70710678f;
    const floats size = SQRT_HALF * magnitude(x), t = 1 / (1 + 0.5f * size);
    floats sum = t * 0.17087277f - 0.82215223f;
    sum = sum * t + 1.48851587f;
    sum = sum * t - 1.13520398f;
    sum = sum * t + 0.27886807f;
    sum = sum * t - 0.18628806f;
    sum = sum * t + 0.09678418f;
    sum = sum * t + 0.37409196f;
    sum = sum * t + 1.00002368f;
    sum = sum * t - 1.26551223f;
    const floats tail = t * exponential(sum - size * size);  // of a value <= 0 up to rounding
    return 0.5f * x * select(x < 0, tail, 2 - tail);
};

// Cephes' tanhf: a polynomial near 0, to keep small values exact.
inline constexpr auto tangent = [](floats x) -> floats {
    const floats size = magnitude(x), square = x * x, small = exponential(-2 * size);
    const floats far = (1 - small) / (1 + small);
    floats sum = -5.70498872745e-3f * square + 2.06390887954e-2f;
    sum = sum * square - 5.37397155531e-2f;
    sum = sum * square + 1.33314422036e-1f;
    sum = sum * square - 3.33332819422e-1f;
    return select(size < 0.625f, sum * square * x + x, select(x < 0, -far, far));
};

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|). The logarithm is Cephes' logf: a polynomial around 1, after halving.
inline constexpr auto softplus = [](floats x) -> floats {
    const floats small = exponential(-magnitude(x));
    const ints halved = small > 0.41421356f;
    const floats far = select(halved, small * 0.5f - 0.5f, small), square = far * far;
    floats sum = far * 7.0376836292e-2f - 1.1514610310e-1f;
    sum = sum * far + 1.1676998740e-1f;
    sum = sum * far - 1.2420140846e-1f;
    sum = sum * far + 1.4249322787e-1f;
    sum = sum * far - 1.6668057665e-1f;
    sum = sum * far + 2.0000714765e-1f;
    sum = sum * far - 2.4999993993e-1f;
    sum = sum * far + 3.3333331174e-1f;
    const floats log = far + (sum * far * square - 0.5f * square);
    return select(x < 0, floats{}, x) + (log + select(halved, floats{} + 0.69314718f, floats{}));
};
