// Vectors as wide as the CPU's registers, in GCC's own notation, which it compiles for any CPU.
#pragma once

#include <immintrin.h>

#include <cstdint>

#ifdef __AVX512F__
constexpr int LANES = 16, REGISTERS = 32;
#else
constexpr int LANES = 8, REGISTERS = 16;
#endif
constexpr int BYTES = 4 * LANES;

struct bfloat16 {
    uint16_t bits;  // the upper half of a float's bits
};

struct float16 {
    uint16_t bits;  // IEEE 754's binary16
};

typedef float floats __attribute__((vector_size(BYTES)));
typedef int32_t ints __attribute__((vector_size(BYTES)));
typedef uint32_t words __attribute__((vector_size(BYTES)));
typedef float any_floats __attribute__((vector_size(BYTES), aligned(4), may_alias));  // at any address
typedef uint16_t any_halves __attribute__((vector_size(BYTES / 2), aligned(2), may_alias));
typedef uint32_t any_words __attribute__((vector_size(BYTES), aligned(1), may_alias));

#ifdef __AVX512F__
constexpr ints LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
constexpr ints LANE = {0, 1, 2, 3, 4, 5, 6, 7};
#endif

inline floats load(const float* from) { return *(const any_floats*)from; }

// Zero-extends LANES halves at any address, in one instruction: GCC converts them in two parts.
inline words load_halves(const void* from) {
#ifdef __AVX512F__
    return (words)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256((const __m256i*)from));
#else
    return (words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#endif
}

inline floats load(const bfloat16* from) { return (floats)(load_halves(from) << 16); }

inline floats load(const float16* from) {
#ifdef __AVX512F__
    return (floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i*)from));
#else
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#endif
}

// Widens LANES elements, or twice as many bfloat16, the even ones and the odd ones apart, which is the fastest.
inline void widen(floats (&parts)[1], const float* from) { parts[0] = load(from); }

inline void widen(floats (&parts)[1], const float16* from) { parts[0] = load(from); }

inline void widen(floats (&parts)[2], const bfloat16* from) {
    const words pairs = *(const any_words*)from;
    parts[0] = (floats)(pairs << 16);
    parts[1] = (floats)(pairs & 0xffff0000);
}

inline float widened(float value) { return value; }

inline float widened(bfloat16 value) { return __builtin_bit_cast(float, (uint32_t)value.bits << 16); }

inline float widened(float16 value) { return _cvtsh_ss(value.bits); }

inline void store(float* to, floats values) { *(any_floats*)to = values; }

// Rounds to the nearest, ties to even, in the upper halves; a NaN stays one.
inline words rounded_to_bfloat16(floats values) {
    const words bits = (words)values, number = (words)(values == values);
    return ((bits + 0x7fff + ((bits >> 16) & 1)) & number) | (0x7fc00000 & ~number);
}

inline void store(bfloat16* to, floats values) {
    *(any_halves*)to = __builtin_convertvector(rounded_to_bfloat16(values) >> 16, any_halves);
}

// Rounds to the nearest, ties to even.
inline void store(float16* to, floats values) {
#ifdef __AVX512F__
    _mm256_storeu_si256((__m256i*)to, _mm512_maskz_cvtps_ph(0xffff, (__m512)values, _MM_FROUND_TO_NEAREST_INT));
#else
    _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph((__m256)values, _MM_FROUND_TO_NEAREST_INT));
#endif
}

// Adding a float to zeros would be an addition, since -0 + 0 is 0.
inline floats broadcast(float value) { return (floats)(words{} + __builtin_bit_cast(uint32_t, value)); }

// a * b + c, rounded once.
inline floats fused(floats a, floats b, floats c) {
#ifdef __AVX512F__
    return _mm512_fmadd_ps(a, b, c);
#else
    return _mm256_fmadd_ps(a, b, c);
#endif
}

// All lanes by an associative operation on vectors, in halves.
inline float reduce(floats values, auto operation) {
    for (int half = LANES / 2; half; half /= 2) {
        values = operation(values, __builtin_shuffle(values, LANE ^ half));
    }
    return values[0];
}

inline float sum(floats values) {
    return reduce(values, [](floats a, floats b) { return a + b; });
}

inline float largest(floats values) {
    return reduce(values, [](floats a, floats b) { return b > a ? b : a; });
}

// x * 2^power of whole powers, or 0 where `kept` is not all ones.
inline floats scale_by_power(floats x, floats power, ints kept) {
#ifdef __AVX512F__
    return _mm512_maskz_scalef_ps(_mm512_movepi32_mask((__m512i)kept), x, power);
#else
    x *= (floats)((__builtin_convertvector(power, ints) + 127) << 23);
    return (floats)((ints)x & kept);
#endif
}

inline floats nearest(floats x) {
#ifdef __AVX512F__
    return _mm512_maskz_roundscale_ps(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
}

// e to the power of x <= 0; 0 below -87. Cephes' expf: a polynomial between powers of two, to 2 ulp.
inline floats exponential(floats x) {
    const ints kept = ~(x < -87.0f);
    const floats power = nearest(x * 1.44269504f);
    const floats rest = fused(power, floats{} + 2.12194440e-4f, fused(power, floats{} - 0.693359375f, x));
    floats sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * (rest * rest) + (rest + 1.0f);
    return scale_by_power(sum, power, kept);
}

// Lane by lane a and b in turn, in groups of SIZE, each group combined with its neighbour by `operation`.
template <int SIZE, typename Vector, typename Operation>
inline Vector fold(Vector a, Vector b, const Operation& operation) {
    ints first;
    for (int lane = 0; lane < LANES; lane++) first[lane] = lane & SIZE ? LANES + lane - SIZE : lane;
    return operation(__builtin_shuffle(a, b, first), __builtin_shuffle(a, b, first + SIZE));
}

// The results of an operation over the lanes of each of LANES vectors, in the order of the vectors.
template <typename Vector, typename Operation>
inline Vector reductions(const Vector* vectors, const Operation& operation) {
    Vector pairs[LANES / 2], fours[LANES / 4], eights[LANES / 8];
    for (int i = 0; i < LANES / 2; i++) pairs[i] = fold<1>(vectors[2 * i], vectors[2 * i + 1], operation);
    for (int i = 0; i < LANES / 4; i++) fours[i] = fold<2>(pairs[2 * i], pairs[2 * i + 1], operation);
    for (int i = 0; i < LANES / 8; i++) eights[i] = fold<4>(fours[2 * i], fours[2 * i + 1], operation);
    return LANES == 8 ? eights[0] : fold<8>(eights[0], eights[LANES / 8 - 1], operation);
}

// The sums of LANES vectors, in the order of the vectors.
template <typename Vector>
inline Vector sums(const Vector* vectors) {
    return reductions(vectors, [](Vector a, Vector b) { return a + b; });
}
