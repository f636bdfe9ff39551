// Parts that the products with weights in floats of any size share.
#pragma once

#include <vector>

#include "products.h"

constexpr int BLOCK = 32;                            // outputs whose weights are interleaved
constexpr int VECTORS = 2, WIDTH = VECTORS * LANES;  // of a tile's outputs
constexpr int TILE = REGISTERS == 32 ? 12 : 4;       // rows whose sums stay in registers
constexpr int ROWS_IN_CACHE = 96;                    // rows that are multiplied by all weights before the next ones
constexpr int64_t WORTH_WIDENING = 1 << 16;          // elements that are worth a second thread

// Returns rows of values as float32 [rows, in], in memory of the calling thread.
template <typename T>
const float* widened(const T* values, int64_t stride, int64_t rows, int64_t in) {
    thread_local std::vector<float> scratch;
    scratch.resize(std::max<size_t>(scratch.size(), rows * in));
    float* to = scratch.data();
    for_range_in_parallel(rows, rows * in > WORTH_WIDENING, [&](int64_t row) {
        int64_t i = 0;
        for (; i + LANES <= in; i += LANES) store(to + row * in + i, load(values + row * stride + i));
        for (; i < in; i++) to[row * in + i] = widened(values[row * stride + i]);
    });
    return to;
}
