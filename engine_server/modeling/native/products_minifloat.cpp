// Products of values with weights in floats of 8 bits (E4M3) or 4 (E2M1), which registers hold expanded to float32, and so
// exactly. Each result is one chain of additions over the inputs of a group, and one over the groups, in their order,
// whatever the number of rows and of threads, and so a row's bits depend on that row alone.

#include <immintrin.h>

#include "products_in_float.h"

namespace {

constexpr int AHEAD = 2048;  // bytes from a load to its prefetch

typedef uint8_t any_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

// Scales: floats of weights of 8 bits; of weights of 4 bits the biased exponents of powers of two, or E4M3.
enum class Scales { FLOATS, POWERS, FLOAT8 };

// Successive inputs of one output that are stored together: one code of 8 bits, or a word of eight codes.
template <int BITS>
constexpr int INPUTS = BITS == 8 ? 1 : 8;

// Bytes of one output among those of a block.
template <int BITS>
constexpr int STEP = INPUTS<BITS> * BITS / 8;

struct Weight {
    const uint8_t* codes;  // [blocks, in / INPUTS, BLOCK, STEP]
    const void* scales;    // [blocks, groups, BLOCK]
    const float* factors;  // [blocks, BLOCK], by which scales in E4M3 are multiplied; of others null
    const float* bias;     // [out], or null
    int64_t in, out, group;

    int64_t groups() const { return (in + group - 1) / group; }
};

// Input number `input` of those that are stored together, of LANES outputs.
template <int BITS>
inline floats expanded(const uint8_t* codes, int input) {
    if constexpr (BITS == 8) {  // in units of 1 / 256: the bias of float16's exponents is greater by 8
#ifdef __AVX512F__
        const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)codes));
        const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80));
        return (floats)_mm512_maskz_cvtph_ps(0xffff, halves);
#else
        const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)codes));
        return (floats)_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80)));
#endif
    } else {
        const words all = *(const any_words*)codes;
#ifdef __AVX512F__
        const floats numbers = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
        return (floats)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)(all >> (4 * input)), (__m512)numbers);
#else
        const floats numbers = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
        const floats magnitudes = _mm256_permutevar8x32_ps((__m256)numbers, (__m256i)(all >> (4 * input)));
        return (floats)((words)magnitudes | (all << (28 - 4 * input) & 0x80000000));
#endif
    }
}

// The scales of LANES outputs from `place` on, times the unit in which `expanded` returns weights; in E4M3 over 256.
template <Scales SCALES>
inline floats load_scales(const void* scales, int64_t place) {
    if constexpr (SCALES == Scales::FLOATS) {
        return load((const float*)scales + place) * 256.0f;
    } else if constexpr (SCALES == Scales::POWERS) {
        const words exponents = __builtin_convertvector(*(const any_bytes*)((const uint8_t*)scales + place), words);
        return (floats)(exponents ? exponents << 23 : words{} + (1 << 22));  // 2^-127 is denormal
    } else {
        return expanded<8>((const uint8_t*)scales + place, 0);
    }
}

// ROWS rows from `row` on times WIDTH outputs from `output` on.
template <int BITS, Scales SCALES, int ROWS, typename T>
void multiply_tile(T* out, const float* values, const Weight& weight, int64_t row, int64_t output) {
    const int64_t block = output / BLOCK, lane = output % BLOCK, groups = weight.groups();
    const uint8_t* codes = weight.codes + block * BLOCK * weight.in * BITS / 8 + lane * STEP<BITS>;
    const float* own = values + row * weight.in;
    floats results[ROWS][VECTORS] = {};
    for (int64_t g = 0; g < groups; g++) {
        floats totals[ROWS][VECTORS] = {};
        const float* stop = values + row * weight.in + std::min((g + 1) * weight.group, weight.in);
        for (; own < stop; own += INPUTS<BITS>, codes += BLOCK * STEP<BITS>) {
            __builtin_prefetch(codes + AHEAD);
            #pragma GCC unroll 8
            for (int i = 0; i < INPUTS<BITS>; i++) {
                floats weights[VECTORS];
                for (int v = 0; v < VECTORS; v++) weights[v] = expanded<BITS>(codes + v * LANES * STEP<BITS>, i);
                for (int r = 0; r < ROWS; r++) {
                    const floats value = broadcast(own[r * weight.in + i]);
                    for (int v = 0; v < VECTORS; v++) totals[r][v] = fused(weights[v], value, totals[r][v]);
                }
            }
        }
        for (int v = 0; v < VECTORS; v++) {
            const floats scales = load_scales<SCALES>(weight.scales, (block * groups + g) * BLOCK + lane + v * LANES);
            for (int r = 0; r < ROWS; r++) results[r][v] = fused(totals[r][v], scales, results[r][v]);
        }
    }
    if constexpr (SCALES == Scales::FLOAT8) {
        for (int v = 0; v < VECTORS; v++) {
            const floats factors = load(weight.factors + output + v * LANES) * 256.0f;
            for (int r = 0; r < ROWS; r++) results[r][v] *= factors;
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            store_results(out + (row + r) * weight.out, results[r][v], weight.bias, output + v * LANES, weight.out);
}

template <int BITS, Scales SCALES, typename T>
void multiply(T* out, const T* values, int64_t stride, int64_t rows, const Weight& weight) {
    const float* wide = widened(values, stride, rows, weight.in);
    const bool worth_threads = rows * weight.in * weight.out > WORTH_A_THREAD;
    for (int64_t first = 0; first < rows; first += ROWS_IN_CACHE) {
        const int64_t count = std::min<int64_t>(ROWS_IN_CACHE, rows - first);
        for_outputs_in_parallel(weight.out, BLOCK, WIDTH, worth_threads, [&](int64_t output) {
            for_row_tiles<TILE>(count, [&]<int ROWS>(int64_t row, std::integral_constant<int, ROWS>) {
                multiply_tile<BITS, SCALES, ROWS>(out, wide, weight, first + row, output);
            });
        });
    }
}

}  // namespace

// See NativeMinifloatFormat: x [rows, in], with a stride in elements, to out [rows, out], of one type: bfloat16, or float.
extern "C" void multiply_minifloat(int is_bfloat16, void* out, const void* x, int64_t x_stride, const uint8_t* codes,
                                   const void* scales, const float* bias, int64_t rows, int64_t in, int64_t outputs,
                                   int64_t group, int bits, const float* factors) {
    const Weight weight{codes, scales, factors, bias, in, outputs, group};
    auto run = [&]<typename T>(T) {
        const auto multiplied = bits == 8 ? multiply<8, Scales::FLOATS, T>
                                : factors ? multiply<4, Scales::FLOAT8, T>
                                          : multiply<4, Scales::POWERS, T>;
        multiplied((T*)out, (const T*)x, x_stride, rows, weight);
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}
