// AVX-512's intrinsics that the kernels use, and VNNI's, for CPUs with AVX2 alone: included before the kernels' sources, in
// place of GCC's. Vectors of 64 bytes are GCC's own, which it halves. EMULATED_VNNI and EMULATED_BF16 add these, and
// EMULATED_AVX2_VNNI is VNNI with vectors of 32 bytes, without AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated {

template <typename Element, int BYTES>
using Vector __attribute__((vector_size(BYTES))) = Element;

using Floats = Vector<float, 64>;
using Ints = Vector<int32_t, 64>;
using Words = Vector<uint32_t, 64>;

template <typename To, typename From>
inline To as(From from) {
    To to;
    static_assert(sizeof to == sizeof from);
    std::memcpy(&to, &from, sizeof to);
    return to;
}

// The same of each half.
template <typename To, typename Half, typename From>
inline To by_halves(From from, auto operation) {
    char result[sizeof(To)];
    for (int half = 0; half < 2; half++) {
        Half own;
        std::memcpy(&own, (const char*)&from + half * sizeof own, sizeof own);
        const auto part = operation(own);
        std::memcpy(result + half * sizeof part, &part, sizeof part);
    }
    To to;
    std::memcpy(&to, result, sizeof to);
    return to;
}

template <typename Half>
inline __m512i of_two(__m512i a, __m512i b, Half operation) {
    __m256i halves[2], others[2];
    std::memcpy(halves, &a, sizeof a);
    std::memcpy(others, &b, sizeof b);
    for (int half = 0; half < 2; half++) halves[half] = operation(halves[half], others[half]);
    std::memcpy(&a, halves, sizeof a);
    return a;
}

inline __m512i madd(__m512i a, __m512i b) {
    return of_two(a, b, [](__m256i x, __m256i y) { return _mm256_madd_epi16(x, y); });
}

inline __m512i maddubs(__m512i a, __m512i b) {
    return of_two(a, b, [](__m256i x, __m256i y) { return _mm256_maddubs_epi16(x, y); });
}

// VPDPBUSD: unsigned bytes times signed ones, four products for each sum.
template <typename Register>
inline Register dpbusd(Register sums, Register a, Register b) {
    constexpr int BYTES = sizeof(Register);
    uint8_t left[BYTES];
    int8_t right[BYTES];
    int32_t results[BYTES / 4];
    std::memcpy(left, &a, BYTES);
    std::memcpy(right, &b, BYTES);
    std::memcpy(results, &sums, BYTES);
    for (int byte = 0; byte < BYTES; byte++) results[byte / 4] += left[byte] * right[byte];
    std::memcpy(&sums, results, BYTES);
    return sums;
}

inline Floats fmadd(Floats a, Floats b, Floats c) {
    for (int lane = 0; lane < 16; lane++) c[lane] = __builtin_fmaf(a[lane], b[lane], c[lane]);
    return c;
}

// VDPBF16PS: the odd products first, then the even ones.
inline Floats dpbf16(Floats sum, Words a, Words b) {
    sum = fmadd((Floats)(a & 0xffff0000), (Floats)(b & 0xffff0000), sum);
    return fmadd((Floats)(a << 16), (Floats)(b << 16), sum);
}

inline __m256i rounded_to_bf16(Floats values) {
    const Words bits = (Words)values, number = (Words)(values == values);
    const Words rounded = ((bits + 0x7fff + ((bits >> 16) & 1)) & number) | (0x7fc00000 & ~number);
    return as<__m256i>(__builtin_convertvector(rounded >> 16, Vector<uint16_t, 32>));
}

inline __m512i widen_halves(__m256i from) {
    return as<__m512i>(__builtin_convertvector(as<Vector<uint16_t, 32>>(from), Words));
}

inline __m512i widen_bytes(__m128i from) {
    return as<__m512i>(__builtin_convertvector(as<Vector<int8_t, 16>>(from), Ints));
}

inline __m512 widen_float16(__m256i from) {
    return by_halves<__m512, __m128i>(from, [](__m128i half) { return _mm256_cvtph_ps(half); });
}

inline __m256i round_to_float16(__m512 from) {
    return by_halves<__m256i, __m256>(from, [](__m256 half) { return _mm256_cvtps_ph(half, _MM_FROUND_TO_NEAREST_INT); });
}

inline __m512 nearest(__m512 from) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return by_halves<__m512, __m256>(from, [](__m256 half) { return _mm256_round_ps(half, mode); });
}

inline uint16_t sign_mask(__m512i from) {
    const Ints signs = as<Ints>(from);
    uint16_t mask = 0;
    for (int lane = 0; lane < 16; lane++) mask |= (signs[lane] < 0) << lane;
    return mask;
}

inline __m512 scale(uint16_t mask, __m512 values, __m512 powers) {
    Floats results = as<Floats>(values);
    for (int lane = 0; lane < 16; lane++)
        results[lane] = mask >> lane & 1 ? __builtin_ldexpf(results[lane], int(as<Floats>(powers)[lane])) : 0;
    return as<__m512>(results);
}

inline __m512 permute(__m512i places, __m512 from) {
    return as<__m512>(__builtin_shuffle(as<Floats>(from), as<Ints>(places) & 15));
}

}  // namespace emulated

#ifdef EMULATED_AVX2_VNNI
#define __AVXVNNI__ 1
#define _mm256_dpbusd_avx_epi32(sums, a, b) emulated::dpbusd(sums, a, b)
#else
#define __AVX512F__ 1
#undef _mm512_maskz_cvtps_ph
#undef _mm512_maskz_roundscale_ps
#undef _mm512_maskz_scalef_ps
#define _mm512_madd_epi16(a, b) emulated::madd(a, b)
#define _mm512_maddubs_epi16(a, b) emulated::maddubs(a, b)
#define _mm512_fmadd_ps(a, b, c) emulated::fmadd(a, b, c)
#define _mm512_maskz_cvtepu16_epi32(mask, from) emulated::widen_halves(from)
#define _mm512_maskz_cvtepi8_epi32(mask, from) emulated::widen_bytes(from)
#define _mm512_maskz_cvtph_ps(mask, from) emulated::widen_float16(from)
#define _mm512_maskz_cvtps_ph(mask, from, mode) emulated::round_to_float16(from)
#define _mm512_maskz_roundscale_ps(mask, from, mode) emulated::nearest(from)
#define _mm512_movepi32_mask(from) emulated::sign_mask(from)
#define _mm512_maskz_scalef_ps(mask, values, powers) emulated::scale(mask, values, powers)
#define _mm512_maskz_permutexvar_ps(mask, places, from) emulated::permute(places, from)
#ifdef EMULATED_VNNI
#define __AVX512VNNI__ 1
#define _mm512_dpbusd_epi32(sums, a, b) emulated::dpbusd(sums, a, b)
#endif
#ifdef EMULATED_BF16
#define __AVX512BF16__ 1
#define _mm512_dpbf16_ps(sum, a, b) \
    emulated::as<__m512>(emulated::dpbf16(emulated::as<emulated::Floats>(sum), emulated::as<emulated::Words>(a), emulated::as<emulated::Words>(b)))
#define _mm512_cvtneps_pbh(values) emulated::rounded_to_bf16(emulated::as<emulated::Floats>(values))
#endif
#endif
