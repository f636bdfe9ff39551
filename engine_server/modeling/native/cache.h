// Layout of the KV cache, in which attention multiplies K and V as they lie in memory.
//
// A head's tokens of a block are stored in groups of 16, and elements in words that are multiplied at once: two bfloat16
// for the instruction that multiplies and adds pairs, or one element of another type. A group of K is [words of a
// row][16 tokens]; one of V is [16 / PAIR tokens][dim], a word holding the same dim of PAIR tokens. A cache of 8 bits
// has a scale for each head of each token beside.
#pragma once

#include <type_traits>

#include "vectors.h"

constexpr int GROUP = 16;  // tokens

// Elements of 8 bits: multiples of a scale.
struct int8 {
    int8_t value;
};

struct float8 {
    uint8_t bits;  // e4m3fn: a sign, 4 bits of exponent with a bias of 7, 3 bits of mantissa
};

template <typename E>
constexpr bool SCALED = sizeof(E) == 1;

template <typename E>
constexpr int PAIR = std::is_same_v<E, bfloat16> ? 2 : 1;

// Bytes.
template <typename E>
constexpr int WORD = PAIR<E> * sizeof(E);

enum Storage { COMPUTED, INT8, FLOAT8 };  // COMPUTED: the type to compute in

// Calls `run` with a value of the type to compute in, and one of the cache's type.
inline void with_types(bool is_bfloat16, Storage storage, auto run) {
    auto computing = [&](auto computed) {
        if (storage == INT8) return run(computed, int8{});
        if (storage == FLOAT8) return run(computed, float8{});
        run(computed, computed);
    };
    is_bfloat16 ? computing(bfloat16{}) : computing(float{});
}

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

template <typename E>
int key_place(int token, int d) {
    return d / PAIR<E> * PAIR<E> * GROUP + token * PAIR<E> + d % PAIR<E>;
}

template <typename E>
int value_place(int token, int d, int dim) {
    return token / PAIR<E> * PAIR<E> * dim + d * PAIR<E> + token % PAIR<E>;
}

// What one is read as: by `load_words`, the elements of an e4m3fn are read as halves with the same bits.
template <typename E>
constexpr float UNIT = std::is_same_v<E, float8> ? 0x1p8f : 1;

// LANES words: pairs of bfloat16, or floats in units of UNIT.
template <typename E>
words load_words(const char* from) {
    if constexpr (!SCALED<E>) return (words)load((const float*)from);
#ifdef __AVX512F__
    const __m128i bytes = _mm_loadu_si128((const __m128i*)from);
    if constexpr (std::is_same_v<E, int8>)
        return (words)__builtin_convertvector((ints)_mm512_maskz_cvtepi8_epi32(0xffff, bytes), floats);
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    return (words)_mm512_maskz_cvtph_ps(0xffff, _mm256_and_si256(halves, _mm256_set1_epi16(int16_t(0xbfff))));
#else
    const __m128i bytes = _mm_loadl_epi64((const __m128i*)from);
    if constexpr (std::is_same_v<E, int8>) return (words)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    const __m128i halves = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
    return (words)_mm256_cvtph_ps(_mm_and_si128(halves, _mm_set1_epi16(int16_t(0xbfff))));
#endif
}
