// Products of values with integer weights of 4 or 8 bits. The values of each row and group of inputs are quantised to
// int8, so that the sums within a group are exact integers; groups are then added in their order. Results are thus
// bitwise independent of the number of rows and of threads, and equal at all instruction levels but for the rounding
// of fused multiply-adds.
//
// Few rows read the codes as they are stored. For more, a thread unpacks the codes of some outputs once, into its first
// cache, and multiplies them by tiles of rows, which the second one holds.

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
constexpr int TILE = 6;                        // rows whose sums stay in registers, with their results if there are 32
constexpr int AHEAD = 2048;                    // bytes from a load to its prefetch
constexpr int64_t VALUES_IN_CACHE = 1 << 18;   // bytes of rows that are multiplied by all weights: half of an L2 cache
constexpr int64_t WORTH_QUANTISING = 1 << 14;  // elements that are worth a second thread

// Rows for which codes are unpacked again for each tile, since writing them to memory takes longer.
#ifdef __AMX_INT8__
constexpr int64_t FEW = TILE_ROWS - 1;
#else
constexpr int64_t FEW = REGISTERS == 32 ? 64 : 16;
#endif

// Rows of such a tile.
template <int BITS>
constexpr int STORED_TILE = REGISTERS == 16 ? 4 : BITS == 4 ? 8 : 6;

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool VNNI = true;
#else
constexpr bool VNNI = false;
#endif

typedef uint8_t bytes __attribute__((vector_size(BYTES)));
typedef int16_t halves __attribute__((vector_size(BYTES)));
typedef uint16_t unsigned_halves __attribute__((vector_size(BYTES), may_alias));
typedef int32_t any_ints __attribute__((vector_size(BYTES), aligned(4), may_alias));

// The values' codes as they are multiplied. Without VNNI, codes of weights with 8 bits and these are widened.
template <int BITS>
using Code = std::conditional_t<BITS == 8 && !VNNI, int16_t, int8_t>;

// Inputs that one instruction multiplies in each lane: a step.
template <int BITS>
constexpr int INPUTS = 4 / sizeof(Code<BITS>);

// Steps of a line. The first has the low halves of its bytes, or the even bytes, the second one the others.
template <int BITS>
constexpr int PARTS = BITS == 8 && VNNI ? 1 : 2;

// The sums of a group. Without VNNI, pairs of products with codes of 4 bits are added in 16 bits, also those of all steps.
template <int BITS>
using Sums = std::conditional_t<BITS == 4 && !VNNI, halves, ints>;

constexpr int LARGEST_PAIR = 2 * 15 * 127;

struct Weight {
    const uint8_t* codes;     // [blocks, in / inputs of a line, LINE]
    const float16* scales;   // [blocks, in / group, BLOCK]
    const float16* minima;   // the same, or null for symmetric weights
    const float* bias;        // [out], or null
    int64_t in, out;
    int group, bits;  // inputs with one scale, bits of a code
    float unit;       // of scales and minima

    int64_t groups() const { return in / group; }
    int64_t block_bytes() const { return in * bits / 8 * BLOCK; }
};

// The quantised values of some rows.
struct Quantised {
    std::vector<int8_t> codes;    // Code[rows, in]
    std::vector<float> scales;    // [rows, groups], times the weights' unit
    std::vector<float> sums;      // [rows, groups] of the dequantised values, times the weights' unit
    std::vector<int32_t> starts;  // [rows, groups]: the sums of codes times the zero point of symmetric weights

    void resize(size_t bytes, size_t groups) {
        codes.resize(std::max(codes.size(), bytes));
        groups = std::max(scales.size(), groups);
        scales.resize(groups);
        sums.resize(groups);
        starts.resize(groups);
    }
};

// Stores the codes of a group. Widened ones have the even inputs of each line before the odd ones.
template <int BITS, int COUNT>
inline void store_codes(Code<BITS>* to, const ints (&values)[COUNT]) {
    typedef Code<BITS> own __attribute__((vector_size(LANES * sizeof(Code<BITS>)), aligned(1), may_alias));
#ifndef __AVX512F__
    if constexpr (sizeof(Code<BITS>) == 1 && COUNT == 4) {  // in fewer instructions than GCC's
        const __m256i pairs[] = {_mm256_packs_epi32((__m256i)values[0], (__m256i)values[1]),
                                 _mm256_packs_epi32((__m256i)values[2], (__m256i)values[3])};
        const ints packed = (ints)_mm256_packs_epi16(pairs[0], pairs[1]);
        *(any_ints*)to = __builtin_shuffle(packed, ints{0, 4, 1, 5, 2, 6, 3, 7});
        return;
    }
#endif
    for (int i = 0; i < COUNT; i++) {
        ints ordered = values[i];
        if (sizeof(Code<BITS>) == 2) ordered = __builtin_shuffle(ordered, LANE ^ ((LANE ^ LANE >> 1) & 1) * 3);
        *(own*)(to + i * LANES) = __builtin_convertvector(ordered, own);
    }
}

// Rounds a group to scale * code, with codes from -127 to 127. A NaN or an infinity makes the scale NaN or infinite, and
// with it the results.
template <int BITS, int GROUP, typename T>
inline void quantise_group(Quantised& to, const T* values, int64_t group, float unit) {
    constexpr float ROUNDING = 12582912;  // 1.5 * 2^23: the sum's lowest bits are the integer
    constexpr int COUNT = GROUP / LANES;
    floats own[COUNT];
    ints most = {};
    for (int i = 0; i < COUNT; i++) {
        own[i] = load(values + i * LANES);
        const ints magnitude = (ints)own[i] & 0x7fffffff;  // ordered as floats are, NaN above them
        most = magnitude > most ? magnitude : most;
    }
    for (int half = LANES / 2; half; half /= 2) {
        const ints other = __builtin_shuffle(most, LANE ^ half);
        most = most > other ? most : other;
    }
    const float largest = ((floats)most)[0], inverse = largest > 1e-30f ? 127 / largest : 0;
    ints codes[COUNT], total = {};
    for (int i = 0; i < COUNT; i++) {
        codes[i] = (ints)(own[i] * inverse + ROUNDING) - 0x4b400000;
        total += codes[i];
    }
    store_codes<BITS>((Code<BITS>*)to.codes.data() + group * GROUP, codes);
    for (int half = LANES / 2; half; half /= 2) total += __builtin_shuffle(total, LANE ^ half);
    const float scale = largest * (unit / 127);
    to.scales[group] = scale;
    to.sums[group] = scale * float(total[0]);
    to.starts[group] = total[0] * -(1 << (BITS - 1));
}

template <int BITS, int GROUP, typename T>
void quantise(Quantised& to, const T* values, int64_t stride, int64_t rows, const Weight& weight) {
    const int64_t groups = weight.in / GROUP;
    to.resize(rows * weight.in * sizeof(Code<BITS>), rows * groups);
    const bool worth_threads = rows * weight.in > WORTH_QUANTISING;
    for_parts_in_parallel(rows * groups, worth_threads, [&](int64_t group, int64_t end) {
        for (int64_t row = group / groups; group < end; row++) {
            const T* own = values + row * stride;
            for (const int64_t last = std::min((row + 1) * groups, end); group < last; group++)
                quantise_group<BITS, GROUP>(to, own + (group - row * groups) * GROUP, group, weight.unit);
        }
    });
}

// The codes, scales and minima of WIDTH outputs as they are stored.
template <int BITS>
struct Stored {
    const uint8_t* codes;
    const float16 *scale_table, *minimum_table;

    Stored(const Weight& weight, int64_t output) {
        const int64_t block = output / BLOCK, lane = output % BLOCK, table = block * weight.groups() * BLOCK + lane;
        codes = weight.codes + block * weight.block_bytes() + lane * 4;
        scale_table = weight.scales + table;
        minimum_table = weight.minima ? weight.minima + table : nullptr;
    }

    // The codes of step `step` of the inputs, of vector v of the outputs.
    bytes line(int64_t step, int v) const {
        const uint8_t* from = codes + step / PARTS<BITS> * LINE + v * BYTES;
        const bytes both = *(const bytes*)from;
        if (step % PARTS<BITS> == 0) __builtin_prefetch(from + AHEAD);
        if (BITS == 4) return (step % 2 ? (bytes)((unsigned_halves)both >> 4) : both) & 15;
        if (VNNI) return both;
        return (bytes)(step % 2 ? (unsigned_halves)both >> 8 : (unsigned_halves)both & 255);
    }

    floats scale(int64_t group, int v) const { return load(scale_table + group * BLOCK + v * LANES); }

    floats minimum(int64_t group, int v) const { return load(minimum_table + group * BLOCK + v * LANES); }
};

// The same, unpacked to memory of the calling thread.
template <int BITS>
struct Unpacked {
    const bytes* codes;                           // [steps, VECTORS]
    const floats *scale_table, *minimum_table;  // [groups, VECTORS]

    Unpacked(const Weight& weight, int64_t output) {
        thread_local std::vector<bytes> memory;
        const int64_t steps = weight.in / INPUTS<BITS>, groups = weight.groups();
        memory.resize(std::max<size_t>(memory.size(), (steps + 2 * groups) * VECTORS));
        const Stored<BITS> stored(weight, output);
        bytes* to = memory.data();
        codes = to;
        for (int64_t step = 0; step < steps; step += PARTS<BITS>)
            for (int part = 0; part < PARTS<BITS>; part++)
                for (int v = 0; v < VECTORS; v++) *to++ = stored.line(step + part, v);
        scale_table = (const floats*)to;
        for (int64_t group = 0; group < groups; group++)
            for (int v = 0; v < VECTORS; v++) *to++ = (bytes)stored.scale(group, v);
        minimum_table = (const floats*)to;
        for (int64_t group = 0; weight.minima && group < groups; group++)
            for (int v = 0; v < VECTORS; v++) *to++ = (bytes)stored.minimum(group, v);
    }

    bytes line(int64_t step, int v) const { return codes[step * VECTORS + v]; }

    floats scale(int64_t group, int v) const { return scale_table[group * VECTORS + v]; }

    floats minimum(int64_t group, int v) const { return minimum_table[group * VECTORS + v]; }
};

// Pairs of 16 bits, multiplied and added.
inline ints add_pairs(halves a, halves b) {
#ifdef __AVX512F__
    return (ints)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return (ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
}

// Adds to each lane the products of a step's codes and values.
template <int BITS>
inline Sums<BITS> add_products(Sums<BITS> sums, bytes codes, ints values) {
#if defined(__AVX512VNNI__)
    return (ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, (__m512i)values);
#elif defined(__AVXVNNI__)
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)codes, (__m256i)values);
#else
    if constexpr (BITS == 8) return sums + add_pairs((halves)codes, (halves)values);
#ifdef __AVX512F__
    else return sums + (halves)_mm512_maddubs_epi16((__m512i)codes, (__m512i)values);
#else
    else return sums + (halves)_mm256_maddubs_epi16((__m256i)codes, (__m256i)values);
#endif
#endif
}

inline ints total_of(ints sums) { return sums; }

inline ints total_of(halves sums) { return add_pairs(sums, halves{} + 1); }

// The sums of products of one group of ROWS rows, whose codes begin at step `first`.
template <int BITS, int GROUP, int ROWS, typename Codes>
    requires(ROWS <= std::max(TILE, STORED_TILE<BITS>))
inline void multiply_group(ints (&totals)[ROWS][VECTORS], const Codes& codes, int64_t first, const Code<BITS>* values,
                           int64_t stride) {
    constexpr int STEPS = GROUP / INPUTS<BITS>;
    static_assert(BITS == 8 || VNNI || STEPS * LARGEST_PAIR <= INT16_MAX);
    Sums<BITS> sums[ROWS][VECTORS];
    const auto add = [&](int step) __attribute__((always_inline)) {
        bytes line[VECTORS];
        for (int v = 0; v < VECTORS; v++) line[v] = codes.line(first + step, v);
        for (int r = 0; r < ROWS; r++) {
            int32_t own;
            std::memcpy(&own, values + r * stride + step * INPUTS<BITS>, sizeof own);
            for (int v = 0; v < VECTORS; v++)
                sums[r][v] = add_products<BITS>(step ? sums[r][v] : Sums<BITS>{}, line[v], ints{} + own);
        }
    };
    add(0);
    if constexpr (ROWS == 1) {
        #pragma GCC unroll 8
        for (int step = 1; step < STEPS; step++) add(step);
    } else {  // not unrolled: GCC would multiply first and add later, with products in memory meanwhile
        #pragma GCC unroll 1
        for (int step = 1; step < STEPS; step++) add(step);
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) totals[r][v] = total_of(sums[r][v]);
}

#ifdef __AMX_INT8__
// The same of TILE_ROWS rows, by tiles: 0 and 1 of sums, 2 of values, 3 and 4 of codes.
template <int BITS, int GROUP, typename Codes>
inline void multiply_group(ints (&totals)[TILE_ROWS][VECTORS], const Codes& codes, int64_t first,
                           const Code<BITS>* values, int64_t stride) {
    bytes lines[GROUP / 4][VECTORS];
    for (int i = 0; i < GROUP / 4; i++)
        for (int v = 0; v < VECTORS; v++) lines[i][v] = codes.line(first + i, v);
    _tile_zero(0);
    _tile_zero(1);
    LOAD_TILE(2, values, stride);
    LOAD_TILE(3, lines[0], LINE);
    LOAD_TILE(4, lines[0] + 1, LINE);
    _tile_dpbsud(0, 2, 3);
    _tile_dpbsud(1, 2, 4);
    _tile_stored(0, totals[0], sizeof totals[0]);
    _tile_stored(1, totals[0] + 1, sizeof totals[0]);
}
#endif

// What a product needs besides its rows and outputs.
struct Job {
    int type;  // of the results
    void* out;
    const Quantised& values;
    const Weight& weight;
};

// ROWS rows from `row` on times WIDTH outputs from `output` on. Values have scales for GROUP inputs, weights for as many,
// or for several groups, whose sums are then SHARED.
template <int BITS, int GROUP, bool SHARED, bool MINIMA, int ROWS, typename Codes>
void multiply_tile(const Job& job, const Codes& codes, int64_t row, int64_t output) {
    const auto& [type, out, values, weight] = job;
    const int64_t groups = weight.in / GROUP, shared = SHARED ? weight.group / GROUP : 1;
    const Code<BITS>* own = (const Code<BITS>*)values.codes.data() + row * weight.in;
    const float *scales = values.scales.data() + row * groups, *minima = values.sums.data() + row * groups;
    const int32_t* starts = values.starts.data() + row * groups;
    floats results[ROWS][VECTORS];
    #pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) results[r][v] = floats{};
    for (int64_t group = 0; group < weight.groups(); group++) {
        floats products[ROWS][VECTORS] = {};
        float sums[ROWS] = {};
        ints totals[ROWS][VECTORS];
        for (int64_t place = group * shared; place < (group + 1) * shared; place++) {
            multiply_group<BITS, GROUP>(totals, codes, place * (GROUP / INPUTS<BITS>), own + place * GROUP, weight.in);
            for (int r = 0; !MINIMA && r < ROWS; r++)
                for (int v = 0; v < VECTORS; v++) totals[r][v] += starts[place + r * groups];
            for (int r = 0; SHARED && r < ROWS; r++) {
                const floats scale = broadcast(scales[place + r * groups]);
                for (int v = 0; v < VECTORS; v++)
                    products[r][v] = fused(__builtin_convertvector(totals[r][v], floats), scale, products[r][v]);
                if (MINIMA) sums[r] += minima[place + r * groups];
            }
        }
        #pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++) {
            const float scale = scales[group + r * groups], sum = SHARED || !MINIMA ? sums[r] : minima[group + r * groups];
            for (int v = 0; v < VECTORS; v++) {
                if (SHARED)
                    results[r][v] = fused(products[r][v], codes.scale(group, v), results[r][v]);
                else
                    results[r][v] = fused(__builtin_convertvector(totals[r][v], floats),
                                          codes.scale(group, v) * broadcast(scale), results[r][v]);
                if (MINIMA) results[r][v] = fused(codes.minimum(group, v), broadcast(sum), results[r][v]);
            }
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
template <int BITS, int GROUP, bool SHARED, bool MINIMA, typename Codes>
int64_t multiply_by_tiles(const Job& job, const Codes& codes, int64_t row, int64_t end, int64_t output) {
    const TileShape sums{TILE_ROWS, TILE_BYTES}, of_values{TILE_ROWS, GROUP}, of_codes{GROUP / 4, TILE_BYTES};
    const Tiles tiles({sums, sums, of_values, of_codes, of_codes});
    for (; row + TILE_ROWS <= end; row += TILE_ROWS)
        multiply_tile<BITS, GROUP, SHARED, MINIMA, TILE_ROWS>(job, codes, row, output);
    return row;
}
#endif

template <int BITS, int GROUP, bool SHARED, bool MINIMA>
void multiply_rows(const Job& job, int64_t rows) {
    const Weight& weight = job.weight;
    const bool worth_threads = rows * weight.in * weight.out > WORTH_A_THREAD;
    if (rows <= FEW)
        return for_outputs_in_parallel(weight.out, BLOCK, WIDTH, worth_threads, [&](int64_t output) {
            const Stored<BITS> codes(weight, output);
            for_row_tiles<STORED_TILE<BITS>>(rows, [&]<int ROWS>(int64_t row, std::integral_constant<int, ROWS>) {
                multiply_tile<BITS, GROUP, SHARED, MINIMA, ROWS>(job, codes, row, output);
            });
        });
    for_blocks_in_parallel(rows, weight.out, VALUES_IN_CACHE / (weight.in * sizeof(Code<BITS>)), TILE, WIDTH, worth_threads,
                           [&](int64_t row, int64_t end, int64_t output) {
        const Unpacked<BITS> codes(weight, output);
#ifdef __AMX_INT8__
        if constexpr (BITS == 4 && GROUP == 32)
            if (end - row >= TILE_ROWS) row = multiply_by_tiles<BITS, GROUP, SHARED, MINIMA>(job, codes, row, end, output);
#endif
        for_row_tiles<TILE>(end - row, [&]<int ROWS>(int64_t of_block, std::integral_constant<int, ROWS>) {
            multiply_tile<BITS, GROUP, SHARED, MINIMA, ROWS>(job, codes, row + of_block, output);
        });
    });
}

template <int BITS, int GROUP, bool SHARED, bool MINIMA>
void multiply(int type, void* out, const void* values, int64_t stride, int64_t rows, const Weight& weight) {
    thread_local Quantised scratch;
    with_type(type, [&]<typename T>(T) { quantise<BITS, GROUP>(scratch, (const T*)values, stride, rows, weight); });
    multiply_rows<BITS, GROUP, SHARED, MINIMA>({type, out, scratch, weight}, rows);  // the calling thread's, in all threads
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
