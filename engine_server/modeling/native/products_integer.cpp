// Products of values with integer weights of 4 or 8 bits. The values of each row and group of inputs are quantised to
// int8, so that the sums within a group are exact integers; groups are then added in their order. Results are thus
// bitwise independent of the number of rows and of threads, and equal at all instruction levels but for the rounding
// of fused multiply-adds.

#include <immintrin.h>

#include <vector>

#include "products.h"
#ifdef __AMX_INT8__
#include "tiles.h"
#endif

namespace {

constexpr int BLOCK = 32;                      // outputs whose weights are interleaved
constexpr int LINE = 4 * BLOCK;                // bytes: the codes of four inputs, or of two times four with 4 bits
constexpr int VECTORS = 2, WIDTH = VECTORS * LANES;  // of a tile's outputs
constexpr int TILE = REGISTERS / 4;                  // rows whose sums of a group stay in registers
constexpr int AHEAD = 2048;                    // bytes from a load to its prefetch
constexpr int64_t WORTH_QUANTISING = 1 << 14;  // elements that are worth a second thread

typedef uint8_t bytes __attribute__((vector_size(BYTES), may_alias));
typedef int32_t any_ints __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef int8_t quarter __attribute__((vector_size(LANES), aligned(1), may_alias));

struct Weight {
    const uint8_t* codes;     // [blocks, in / inputs of a line, LINE]
    const float16* scales;   // [blocks, in / group, BLOCK]
    const float16* minima;   // the same, or null for symmetric weights
    const float* bias;        // [out], or null
    int64_t in, out;
    int group, bits;  // inputs with one scale, bits of a code
    float unit;       // of scales and minima

    int64_t block_bytes() const { return in * bits / 8 * BLOCK; }
};

// The quantised values of some rows.
struct Quantised {
    std::vector<int8_t> codes;    // [rows, in]
    std::vector<float> scales;    // [rows, groups], times the weights' unit
    std::vector<float> sums;      // [rows, groups] of the dequantised values, times the weights' unit
    std::vector<int32_t> starts;  // [rows, groups]: the sums of codes times the zero point of symmetric weights

    void resize(size_t values, size_t groups) {
        codes.resize(std::max(codes.size(), values));
        const size_t count = std::max(scales.size(), groups + LANES);  // of whole vectors
        scales.resize(count);
        sums.resize(count);
        starts.resize(count);
    }
};

// Adds to each lane the products of its four codes with its four values.
template <int BITS>
inline ints dot(ints total, bytes codes, ints values) {
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)total, (__m512i)codes, (__m512i)values);
#elif defined(__AVXVNNI__)
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)total, (__m256i)codes, (__m256i)values);
#else
    // Pairs of products are added in 16 bits: of 4-bit codes, at most 2 * 15 * 128, and so without saturation.
    auto add = [&](bytes four_bits, short factor) {
#ifdef __AVX512F__
        const __m512i pairs = _mm512_maddubs_epi16((__m512i)four_bits, (__m512i)values);
        total += (ints)_mm512_madd_epi16(pairs, _mm512_set1_epi16(factor));
#else
        const __m256i pairs = _mm256_maddubs_epi16((__m256i)four_bits, (__m256i)values);
        total += (ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(factor));
#endif
    };
    if (BITS == 4) {
        add(codes, 1);
    } else {
        add(codes & 15, 1);
        add(codes >> 4, 16);
    }
    return total;
#endif
}

// Rounds groups to scale * code, with codes from -127 to 127: LANES of them from `first` on, in the order of the rows.
// A NaN or an infinity makes a group's scale NaN or infinite, and with it the results.
template <int GROUP, typename T>
void quantise_groups(Quantised& to, const T* values, int64_t stride, int64_t first, int64_t end, const Weight& weight) {
    constexpr float ROUNDING = 12582912;  // 1.5 * 2^23: the sum's lowest bits are the integer
    const int count = std::min<int64_t>(LANES, end - first);
    const T* starts[LANES];
    ints most[LANES] = {};
    const int64_t groups = weight.in / GROUP;
    int64_t group = first % groups;
    const T* next = values + first / groups * stride + group * GROUP;
    for (int lane = 0; lane < count; lane++) {
        starts[lane] = next;
        next += GROUP;
        if (++group == groups) group = 0, next += stride - weight.in;
        for (int i = 0; i < GROUP; i += LANES) {
            const ints magnitude = (ints)load(starts[lane] + i) & 0x7fffffff;  // ordered as floats are, NaN above them
            most[lane] = magnitude > most[lane] ? magnitude : most[lane];
        }
    }
    const floats largest = (floats)reductions(most, [](ints a, ints b) { return a > b ? a : b; });
    const floats inverses = (floats)((ints)(127 / largest) & (largest > 1e-30f));
    ints totals[LANES] = {};
    for (int lane = 0; lane < count; lane++)
        for (int i = 0; i < GROUP; i += LANES) {
            const ints rounded = (ints)(load(starts[lane] + i) * inverses[lane] + ROUNDING) - 0x4b400000;
            *(quarter*)(to.codes.data() + (first + lane) * GROUP + i) = __builtin_convertvector(rounded, quarter);
            totals[lane] += rounded;
        }
    const ints total = sums(totals);
    const floats scales = largest * (weight.unit / 127);
    store(to.scales.data() + first, scales);
    store(to.sums.data() + first, scales * __builtin_convertvector(total, floats));
    *(any_ints*)(to.starts.data() + first) = total * -(1 << (weight.bits - 1));
}

template <int GROUP, typename T>
void quantise(Quantised& to, const T* values, int64_t stride, int64_t rows, const Weight& weight) {
    const int64_t end = rows * (weight.in / GROUP);
    to.resize(rows * weight.in, end);
    const int64_t parts = (end + LANES - 1) / LANES;
    for_range_in_parallel(parts, rows * weight.in > WORTH_QUANTISING, [&](int64_t part) {
        quantise_groups<GROUP>(to, values, stride, part * LANES, end, weight);
    });
}

// Adds the products of a line of codes with four values of each row.
template <int BITS, int ROWS>
inline void add_products(ints (&totals)[ROWS][VECTORS], const bytes (&line)[VECTORS], const int8_t* values,
                         int64_t stride) {
    for (int r = 0; r < ROWS; r++) {
        int32_t four;
        std::memcpy(&four, values + r * stride, sizeof four);
        for (int v = 0; v < VECTORS; v++) totals[r][v] = dot<BITS>(totals[r][v], line[v], ints{} + four);
    }
}

// The sums of products of one group of ROWS rows, with its codes and values; `starts` are those of the sums, or null.
template <int BITS, int GROUP, int ROWS>
inline void multiply_group(ints (&totals)[ROWS][VECTORS], const uint8_t* codes, const int8_t* values, int64_t stride,
                           const int32_t* starts, int64_t groups) {
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) totals[r][v] = starts ? ints{} + starts[r * groups] : ints{};
    #pragma GCC unroll 4
    for (int i = 0; i < GROUP; i += 32 / BITS, codes += LINE, values += 32 / BITS) {
        bytes line[VECTORS], later[VECTORS];  // the latter in the high halves of the bytes
        for (int v = 0; v < VECTORS; v++) {
            line[v] = *(const bytes*)(codes + v * BYTES);
            __builtin_prefetch(codes + v * BYTES + AHEAD);
            if (BITS == 4) later[v] = line[v] >> 4, line[v] &= 15;
        }
        add_products<BITS>(totals, line, values, stride);
        if (BITS == 4) add_products<BITS>(totals, later, values + 4, stride);
    }
}

#ifdef __AMX_INT8__
// The same of TILE_ROWS rows, by tiles: 0 and 1 of sums, 2 of values, 3 and 4 of codes.
template <int BITS, int GROUP>
inline void multiply_group(ints (&totals)[TILE_ROWS][VECTORS], const uint8_t* codes, const int8_t* values, int64_t stride,
                           const int32_t* starts, int64_t groups) {
    bytes lines[GROUP / 4][VECTORS];
    for (int i = 0; i < GROUP / 4; i += 2, codes += LINE)
        for (int v = 0; v < VECTORS; v++) {
            const bytes both = *(const bytes*)(codes + v * BYTES);
            lines[i][v] = both & 15, lines[i + 1][v] = both >> 4;
        }
    _tile_zero(0);
    _tile_zero(1);
    LOAD_TILE(2, values, stride);
    LOAD_TILE(3, lines[0], LINE);
    LOAD_TILE(4, lines[0] + 1, LINE);
    _tile_dpbsud(0, 2, 3);
    _tile_dpbsud(1, 2, 4);
    _tile_stored(0, totals[0], sizeof totals[0]);
    _tile_stored(1, totals[0] + 1, sizeof totals[0]);
    for (int r = 0; starts && r < TILE_ROWS; r++)
        for (int v = 0; v < VECTORS; v++) totals[r][v] += starts[r * groups];
}
#endif

// ROWS rows from `row` on times WIDTH outputs from `output` on. Values have scales for GROUP inputs, weights for as many,
// or for several groups, whose sums are then SHARED.
template <int BITS, int GROUP, bool SHARED, bool MINIMA, int ROWS>
void multiply_tile(int type, void* out, const Quantised& values, const Weight& weight, int64_t row, int64_t output) {
    const int64_t block = output / BLOCK, lane = output % BLOCK, groups = weight.in / GROUP;
    const uint8_t* codes = weight.codes + block * weight.block_bytes() + lane * 4;
    int64_t table = block * (weight.in / weight.group) * BLOCK + lane;
    const int8_t* own = values.codes.data() + row * weight.in;
    int64_t place = row * groups;
    floats results[ROWS][VECTORS] = {};
    for (int64_t input = 0; input < weight.in; input += weight.group, table += BLOCK) {
        floats products[ROWS][VECTORS] = {};
        float sums[ROWS] = {};
        for (const int64_t end = place + (SHARED ? weight.group / GROUP : 1); place < end; place++) {
            ints totals[ROWS][VECTORS];
            multiply_group<BITS, GROUP>(totals, codes, own, weight.in, MINIMA ? nullptr : &values.starts[place], groups);
            codes += GROUP * BITS / 8 * BLOCK, own += GROUP;
            for (int r = 0; r < ROWS; r++) {
                const float scale = values.scales[place + r * groups];
                for (int v = 0; v < VECTORS; v++) {
                    const floats total = __builtin_convertvector(totals[r][v], floats);
                    if (SHARED)
                        products[r][v] = fused(total, broadcast(scale), products[r][v]);
                    else
                        results[r][v] = fused(total, load(weight.scales + table + v * LANES) * scale, results[r][v]);
                }
                if (MINIMA) sums[r] += values.sums[place + r * groups];
            }
        }
        for (int v = 0; v < VECTORS; v++)
            for (int r = 0; r < ROWS; r++) {
                if (SHARED) results[r][v] = fused(products[r][v], load(weight.scales + table + v * LANES), results[r][v]);
                if (MINIMA) results[r][v] = fused(load(weight.minima + table + v * LANES), broadcast(sums[r]), results[r][v]);
            }
    }
    with_type(type, [&]<typename T>(T) {
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < VECTORS; v++)
                store_results((T*)out + (row + r) * weight.out, results[r][v], weight.bias, output + v * LANES, weight.out);
    });
}

#ifdef __AMX_INT8__
// Multiplies the first rows, as many as fill tiles, and returns their number.
template <int BITS, int GROUP, bool SHARED, bool MINIMA>
int64_t multiply_by_tiles(int type, void* out, const Quantised& values, int64_t rows, const Weight& weight, int64_t output) {
    if (rows < TILE_ROWS) return 0;
    const TileShape sums{TILE_ROWS, TILE_BYTES}, of_values{TILE_ROWS, GROUP}, of_codes{GROUP / 4, TILE_BYTES};
    const Tiles tiles({sums, sums, of_values, of_codes, of_codes});
    int64_t row = 0;
    for (; row + TILE_ROWS <= rows; row += TILE_ROWS)
        multiply_tile<BITS, GROUP, SHARED, MINIMA, TILE_ROWS>(type, out, values, weight, row, output);
    return row;
}
#endif

template <int BITS, int GROUP, bool SHARED, bool MINIMA>
void multiply(int type, void* out, const void* values, int64_t stride, int64_t rows, const Weight& weight) {
    thread_local Quantised scratch;
    with_type(type, [&]<typename T>(T) { quantise<GROUP>(scratch, (const T*)values, stride, rows, weight); });
    const Quantised& quantised = scratch;  // the calling thread's, in all threads
    const bool worth_threads = rows * weight.in * weight.out > WORTH_A_THREAD;
    for_outputs_in_parallel(weight.out, BLOCK, WIDTH, worth_threads, [&](int64_t output) {
        int64_t done = 0;  // rows
#ifdef __AMX_INT8__
        if constexpr (BITS == 4 && GROUP == 32)
            done = multiply_by_tiles<BITS, GROUP, SHARED, MINIMA>(type, out, quantised, rows, weight, output);
#endif
        for_row_tiles<TILE>(rows - done, [&]<int ROWS>(int64_t row, std::integral_constant<int, ROWS>) {
            multiply_tile<BITS, GROUP, SHARED, MINIMA, ROWS>(type, out, quantised, weight, done + row, output);
        });
    });
}

template <typename T>
void gather(T* out, const int64_t* rows, int64_t count, const Weight& weight) {
    for_range_in_parallel(count, count * weight.in > WORTH_A_THREAD, [&](int64_t place) {
        const int64_t block = rows[place] / BLOCK, lane = rows[place] % BLOCK;
        const uint8_t* codes = weight.codes + block * weight.block_bytes() + lane * 4;
        for (int64_t first = 0; first < weight.in; first += LANES) {
            const int64_t scale = (block * (weight.in / weight.group) + first / weight.group) * BLOCK + lane;
            floats own;
            for (int64_t i = first; i < first + LANES; i++)
                own[i - first] = weight.bits == 8 ? codes[i / 4 * LINE + i % 4]
                                                  : codes[i / 8 * LINE + i % 4] >> (i & 4) & 15;
            const float unit = widened(weight.scales[scale]) * weight.unit;
            const float minimum = weight.minima ? widened(weight.minima[scale]) * weight.unit
                                                : -unit * (1 << (weight.bits - 1));
            store(out + place * weight.in + first, own * unit + minimum);
        }
    });
}

}  // namespace

// See NativeIntegerFormat: x [rows, in], with a stride in elements, to out [rows, out], of one type.
extern "C" void multiply_integer(int type, void* out, const void* x, int64_t x_stride, const uint8_t* codes,
                                 const float16* scales, const float16* minima, const float* bias, int64_t rows,
                                 int64_t in, int64_t outputs, int group, int bits, float unit) {
    const Weight weight{codes, scales, minima, bias, in, outputs, group, bits, unit};
    const auto choose = [&]<bool MINIMA>(std::bool_constant<MINIMA>) {
        if (bits == 8) return multiply<8, 16, true, MINIMA>;
        if (group % 32) return multiply<4, 16, true, MINIMA>;
        return group == 32 ? multiply<4, 32, false, MINIMA> : multiply<4, 32, true, MINIMA>;
    };
    const auto kernel = minima ? choose(std::true_type{}) : choose(std::false_type{});
    kernel(type, out, x, x_stride, rows, weight);
}

// Dequantises rows of the weight: out [count, in].
extern "C" void gather_integer(int type, void* out, const int64_t* rows, const uint8_t* codes, const float16* scales,
                               const float16* minima, int64_t count, int64_t in, int group, int bits, float unit) {
    const Weight weight{codes, scales, minima, nullptr, in, 0, group, bits, unit};
    with_type(type, [&]<typename T>(T) { gather((T*)out, rows, count, weight); });
}
