// Products of values and weights in float32, bfloat16 or float16, with sums in float32. Each result is added up in one
// order of the inputs, whatever the number of rows and of threads, and so a row's bits depend on that row alone.

#include <immintrin.h>

#include "products_in_float.h"
#ifdef __AMX_BF16__
#include "products_tiles.h"
#endif

namespace {

constexpr int AHEAD = 4096;  // bytes from a load to its prefetch

// Successive inputs of one output that are stored together.
template <typename T>
constexpr int INPUTS = std::is_same_v<T, bfloat16> ? 2 : 1;

#ifdef __AVX512BF16__
// Two bfloat16 are multiplied as they are by one instruction; otherwise values and weights are widened to float32.
template <typename T>
constexpr bool IN_PAIRS = std::is_same_v<T, bfloat16>;

// Adds to each lane the products of its two weights with two values.
inline floats dot(floats total, words weights, uint32_t values) {
    return (floats)_mm512_dpbf16_ps((__m512)total, (__m512bh)weights, (__m512bh)(words{} + values));
}
#else
template <typename T>
constexpr bool IN_PAIRS = false;

floats dot(floats, words, uint32_t) = delete;
#endif

template <typename T>
using Value = std::conditional_t<IN_PAIRS<T>, bfloat16, float>;

template <typename T>
struct Weight {
    const T* values;    // [blocks, in / INPUTS, BLOCK, INPUTS]
    const float* bias;  // [out], or null
    int64_t in, out;
};

// Adds to the sums of ROWS rows the products of VECTORS vectors of weights, each with INPUTS values of a row.
template <typename T, int ROWS>
inline void add_products(floats (&totals)[ROWS][VECTORS], const T* line, const Value<T>* values, int64_t stride) {
    if constexpr (IN_PAIRS<T>) {
        words weights[VECTORS];
        for (int v = 0; v < VECTORS; v++) weights[v] = *(const any_words*)(line + v * 2 * LANES);
        for (int r = 0; r < ROWS; r++) {
            uint32_t pair;
            std::memcpy(&pair, values + r * stride, sizeof pair);
            for (int v = 0; v < VECTORS; v++) totals[r][v] = dot(totals[r][v], weights[v], pair);
        }
    } else {
        floats weights[VECTORS][INPUTS<T>];
        for (int v = 0; v < VECTORS; v++) widen(weights[v], line + v * INPUTS<T> * LANES);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < INPUTS<T>; i++)
                for (int v = 0; v < VECTORS; v++)
                    totals[r][v] = fused(weights[v][i], broadcast(values[r * stride + i]), totals[r][v]);
    }
}

// ROWS rows from `row` on times WIDTH outputs from `output` on.
template <int ROWS, typename T>
void multiply_tile(T* out, const Value<T>* values, int64_t stride, const Weight<T>& weight, int64_t output) {
    const T* line = weight.values + output / BLOCK * BLOCK * weight.in + output % BLOCK * INPUTS<T>;
    floats totals[ROWS][VECTORS] = {};
    for (int64_t i = 0; i < weight.in; i += INPUTS<T>, line += INPUTS<T> * BLOCK) {
        for (size_t byte = 0; byte < WIDTH * INPUTS<T> * sizeof(T); byte += 64)
            __builtin_prefetch((const char*)line + byte + AHEAD);
        add_products<T>(totals, line, values + i, stride);
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            store_results(out + r * weight.out, totals[r][v], weight.bias, output + v * LANES, weight.out);
}

// At most ROWS_IN_CACHE rows.
template <typename T>
void multiply_rows(T* out, const Value<T>* values, int64_t stride, int64_t rows, const Weight<T>& weight) {
    const bool worth_threads = rows * weight.in * weight.out > WORTH_A_THREAD;
    for_outputs_in_parallel(weight.out, BLOCK, WIDTH, worth_threads, [&](int64_t output) {
        for_row_tiles<TILE>(rows, [&]<int ROWS>(int64_t row, std::integral_constant<int, ROWS>) {
            multiply_tile<ROWS>(out + row * weight.out, values + row * stride, stride, weight, output);
        });
    });
}

template <typename T>
void multiply(T* out, const T* values, int64_t stride, int64_t rows, const Weight<T>& weight) {
    for (int64_t first = 0; first < rows; first += ROWS_IN_CACHE) {
        const int64_t count = std::min<int64_t>(ROWS_IN_CACHE, rows - first);
        T* results = out + first * weight.out;
        const T* own = values + first * stride;
        if constexpr (std::is_same_v<T, Value<T>>)
            multiply_rows(results, own, stride, count, weight);
        else
            multiply_rows(results, widened(own, stride, count, weight.in), weight.in, count, weight);
    }
}

#ifdef __AMX_BF16__
void multiply(bfloat16* out, const bfloat16* values, int64_t stride, int64_t rows, const Weight<bfloat16>& weight) {
    multiply_by_tiles(out, values, stride, rows, weight.values, weight.bias, weight.in, weight.out);
}
#endif

template <typename T>
void gather(T* out, const int64_t* rows, const T* weight, int64_t count, int64_t in) {
    constexpr size_t BYTES_TOGETHER = INPUTS<T> * sizeof(T);
    for_range_in_parallel(count, count * in > WORTH_A_THREAD, [&](int64_t place) {
        const T* own = weight + rows[place] / BLOCK * BLOCK * in + rows[place] % BLOCK * INPUTS<T>;
        for (int64_t i = 0; i < in; i += INPUTS<T>) std::memcpy(out + place * in + i, own + i * BLOCK, BYTES_TOGETHER);
    });
}

}  // namespace

// See NativeFloatingFormat: x [rows, in], with a stride in elements, to out [rows, out]; in bfloat16 `in` is even.
extern "C" void multiply_floating(int type, void* out, const void* x, int64_t x_stride, const void* weight,
                                  const float* bias, int64_t rows, int64_t in, int64_t outputs) {
    with_type(type, [&]<typename T>(T) {
        multiply((T*)out, (const T*)x, x_stride, rows, Weight<T>{(const T*)weight, bias, in, outputs});
    });
}

// Copies rows of the weight: out [count, in].
extern "C" void gather_floating(int type, void* out, const int64_t* rows, const void* weight, int64_t count, int64_t in) {
    with_type(type, [&]<typename T>(T) { gather((T*)out, rows, (const T*)weight, count, in); });
}
