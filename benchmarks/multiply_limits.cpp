// The most multiply-adds of one thread: loops over operands in registers, or over one operand that is read from memory.
// Each returns the number of multiply-adds.

#include <cstdint>

#include "vectors.h"

namespace {

constexpr int SUMS = 12;  // chains, which hide the latency of an operation

typedef uint8_t bytes __attribute__((vector_size(BYTES)));
typedef int16_t shorts __attribute__((vector_size(BYTES)));

// Hides from the compiler that a vector does not change.
template <typename Vector>
inline void touch(Vector& vector) {
    asm volatile("" : "+x"(vector));
}

struct Floats {
    using Vector = floats;
    static constexpr int PRODUCTS = LANES;
    static floats add(floats sum, floats a, floats b) { return fused(a, b, sum); }
};

// Codes of 4 bits times values of 8: four products for each lane.
struct FourBits {
    using Vector = ints;
    static constexpr int PRODUCTS = 4 * LANES;
    static ints add(ints sum, ints codes, ints values) {
#if defined(__AVX512VNNI__)
        return (ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, (__m512i)values);
#elif defined(__AVXVNNI__)
        return (ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)codes, (__m256i)values);
#elif defined(__AVX512F__)  // in 16 bits, as sums of a group are
        return (ints)((shorts)sum + (shorts)_mm512_maddubs_epi16((__m512i)codes, (__m512i)values));
#else
        return (ints)((shorts)sum + (shorts)_mm256_maddubs_epi16((__m256i)codes, (__m256i)values));
#endif
    }
};

// Codes of 8 bits: by the same instruction, or widened to 16 bits.
struct EightBits {
    using Vector = ints;
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    static constexpr int PRODUCTS = FourBits::PRODUCTS;
    static ints add(ints sum, ints codes, ints values) { return FourBits::add(sum, codes, values); }
#else
    static constexpr int PRODUCTS = 2 * LANES;
    static ints add(ints sum, ints codes, ints values) {
#ifdef __AVX512F__
        return sum + (ints)_mm512_madd_epi16((__m512i)codes, (__m512i)values);
#else
        return sum + (ints)_mm256_madd_epi16((__m256i)codes, (__m256i)values);
#endif
    }
#endif
};

template <typename Kind>
int64_t multiply(char* memory, int64_t size, int64_t passes) {
    using Vector = typename Kind::Vector;
    Vector sums[SUMS] = {}, own = {}, value = {};
    touch(own);
    const int64_t step = SUMS * sizeof(Vector), steps = size / step;
    for (int64_t pass = 0; pass < passes; pass++)
        for (int64_t i = 0; i < steps; i++)
            #pragma GCC unroll 12
            for (int s = 0; s < SUMS; s++) {
                touch(value);
                sums[s] = Kind::add(sums[s], memory ? *(const Vector*)(memory + i * step + s * sizeof(Vector)) : own, value);
                touch(sums[s]);
            }
    return passes * steps * SUMS * Kind::PRODUCTS;
}

}  // namespace

// kind: 0 floats, 1 codes of 4 bits, 2 of 8 bits. memory: `size` bytes, aligned to vectors, or null for registers alone.
extern "C" int64_t multiply_limit(int kind, char* memory, int64_t size, int64_t passes) {
    if (kind == 0) return multiply<Floats>(memory, size, passes);
    return kind == 1 ? multiply<FourBits>(memory, size, passes) : multiply<EightBits>(memory, size, passes);
}
