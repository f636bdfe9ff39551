// Products of values and weights in float32 or bfloat16, with sums in float32. Each result is one chain of additions over
// the inputs in their order, whatever the number of rows and of threads, and so a row's bits depend on that row alone.

#include <immintrin.h>

#include "products.h"

namespace {

constexpr int BLOCK = 32;                            // outputs whose weights are interleaved
constexpr int VECTORS = 2, WIDTH = VECTORS * LANES;  // of a tile's outputs
constexpr int TILE = REGISTERS == 32 ? 12 : 4;       // rows whose sums stay in registers
constexpr int ROWS_IN_CACHE = 96;                    // rows that are multiplied by all weights before the next ones
constexpr int AHEAD = 4096;                          // bytes from a load to its prefetch

typedef uint32_t any_words __attribute__((vector_size(BYTES), aligned(4), may_alias));

// Successive inputs of one output that are stored together: one float, or two bfloat16.
template <typename T>
constexpr int INPUTS = sizeof(uint32_t) / sizeof(T);

template <typename T>
struct Weight {
    const T* values;    // [blocks, in / INPUTS, BLOCK, INPUTS]
    const float* bias;  // [out], or null
    int64_t in, out;
};

// Adds to each lane the product of its weight with a value.
inline floats dot(float, floats total, words weights, uint32_t value) {
    return fused((floats)weights, (floats)(words{} + value), total);
}

// Adds to each lane the products of its two weights with two values.
inline floats dot(bfloat16, floats total, words weights, uint32_t values) {
#ifdef __AVX512BF16__
    return (floats)_mm512_dpbf16_ps((__m512)total, (__m512bh)weights, (__m512bh)(words{} + values));
#else
    total += (floats)(weights << 16) * (floats)(words{} + (values << 16));
    return total + (floats)(weights & 0xffff0000) * (floats)(words{} + (values & 0xffff0000));
#endif
}

// ROWS rows from `row` on times WIDTH outputs from `output` on.
template <int ROWS, typename T>
void multiply_tile(T* out, const T* values, int64_t stride, const Weight<T>& weight, int64_t row, int64_t output) {
    const T* line = weight.values + output / BLOCK * BLOCK * weight.in + output % BLOCK * INPUTS<T>;
    const T* own = values + row * stride;
    floats totals[ROWS][VECTORS] = {};
    for (int64_t i = 0; i < weight.in; i += INPUTS<T>, line += INPUTS<T> * BLOCK) {
        words weights[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            weights[v] = *(const any_words*)(line + v * INPUTS<T> * LANES);
            __builtin_prefetch((const char*)(line + v * INPUTS<T> * LANES) + AHEAD);
        }
        for (int r = 0; r < ROWS; r++) {
            uint32_t inputs;
            std::memcpy(&inputs, own + r * stride + i, sizeof inputs);
            for (int v = 0; v < VECTORS; v++) totals[r][v] = dot(T{}, totals[r][v], weights[v], inputs);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++)
            store_results(out + (row + r) * weight.out, totals[r][v], weight.bias, output + v * LANES, weight.out);
}

template <typename T>
void multiply(T* out, const T* values, int64_t stride, int64_t rows, const Weight<T>& weight) {
    #pragma omp parallel if (rows * weight.in * weight.out > WORTH_A_THREAD)
    for (int64_t first = 0; first < rows; first += ROWS_IN_CACHE) {
        const int64_t count = std::min<int64_t>(ROWS_IN_CACHE, rows - first);
        #pragma omp for schedule(static) nowait
        for (int64_t block = 0; block < (weight.out + BLOCK - 1) / BLOCK; block++)
            for (int64_t output = block * BLOCK; output < std::min((block + 1) * BLOCK, weight.out); output += WIDTH)
                for_row_tiles<TILE>(count, [&]<int ROWS>(int64_t row, std::integral_constant<int, ROWS>) {
                    multiply_tile<ROWS>(out, values, stride, weight, first + row, output);
                });
    }
}

template <typename T>
void gather(T* out, const int64_t* rows, const T* weight, int64_t count, int64_t in) {
    #pragma omp parallel for if (count * in > WORTH_A_THREAD)
    for (int64_t place = 0; place < count; place++) {
        const T* own = weight + rows[place] / BLOCK * BLOCK * in + rows[place] % BLOCK * INPUTS<T>;
        for (int64_t i = 0; i < in; i += INPUTS<T>) std::memcpy(out + place * in + i, own + i * BLOCK, sizeof(uint32_t));
    }
}

}  // namespace

// See NativeFloatingFormat: x [rows, in], with a stride in elements, to out [rows, out]; in bfloat16 `in` is even.
extern "C" void multiply_floating(int is_bfloat16, void* out, const void* x, int64_t x_stride, const void* weight,
                                  const float* bias, int64_t rows, int64_t in, int64_t outputs) {
    auto run = [&]<typename T>(T) {
        multiply((T*)out, (const T*)x, x_stride, rows, Weight<T>{(const T*)weight, bias, in, outputs});
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

// Copies rows of the weight: out [count, in].
extern "C" void gather_floating(int is_bfloat16, void* out, const int64_t* rows, const void* weight, int64_t count,
                                int64_t in) {
    auto run = [&]<typename T>(T) { gather((T*)out, rows, (const T*)weight, count, in); };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}
