// Layout of the KV cache, in which attention multiplies K and V as they lie in memory.
//
// A head's tokens of a block are stored in groups of 16, and elements in words of 32 bits: one float, or two bfloat16
// that one instruction multiplies and adds. T is the type to compute in. A group of K is [words of a row][16 tokens];
// one of V is [16 / PAIR tokens][dim], a word holding the same dim of PAIR tokens. A cache of 8 bits has the same order
// of elements, and a scale for each head of each token.
#pragma once

#include "vectors.h"

constexpr int GROUP = 16;  // tokens

template <typename T>
constexpr int PAIR = sizeof(float) / sizeof(T);

enum Storage { COMPUTED, INT8, FLOAT8 };  // COMPUTED: T itself

// Addresses elements of one layer's K, or V.
struct Pages {
    char* data;
    float* scales;  // of a cache of 8 bits
    int kv_heads, dim, block_size, item_size;

    // Index of a token's scale.
    int64_t token(int64_t block, int head, int offset) const {
        return (block * kv_heads + head) * block_size + offset;
    }

    // The group that has the token of that index.
    char* group(int64_t token) const { return data + token / GROUP * GROUP * dim * item_size; }
};

template <typename T>
int key_place(int token, int d) {
    return d / PAIR<T> * PAIR<T> * GROUP + token * PAIR<T> + d % PAIR<T>;
}

template <typename T>
int value_place(int token, int d, int dim) {
    return token / PAIR<T> * PAIR<T> * dim + d * PAIR<T> + token % PAIR<T>;
}

// LANES elements of 8 bits, each sign-extended.
inline ints load_bytes(const char* from) {
#ifdef __AVX512F__
    return (ints)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)from));
#else
    return (ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#endif
}

inline floats unpack_int8(const char* from) { return __builtin_convertvector(load_bytes(from), floats); }

// e4m3fn: a sign, 4 bits of exponent with a bias of 7, 3 bits of mantissa. Its NaN never occurs without a NaN as scale.
inline floats unpack_float8(const char* from) {
    const ints bits = load_bytes(from), magnitude = bits & 0x7f;
    const ints normal = (magnitude << 20) + ((127 - 7) << 23);
    const floats subnormal = __builtin_convertvector(magnitude, floats) * 0x1p-9f;
    return (floats)((magnitude < 8 ? (ints)subnormal : normal) | (bits & ~0x7fffffff));
}

// Stores numbers that T can represent.
inline void store_exactly(float* to, floats values) { store(to, values); }

inline void store_exactly(bfloat16* to, floats values) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(values));
#else
    *(any_halves*)to = __builtin_convertvector((words)values >> 16, any_halves);
#endif
}
