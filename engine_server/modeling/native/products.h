// Parts that the products with all kinds of weights share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "threads.h"
#include "vectors.h"

// Multiply-adds that are worth a second thread.
constexpr int64_t WORTH_A_THREAD = 1 << 16;

// Adds the bias, if there is one, to the results from `output` on, and stores those below `outputs`.
template <typename T>
void store_results(T* row, floats values, const float* bias, int64_t output, int64_t outputs) {
    const int64_t count = std::clamp<int64_t>(outputs - output, 0, LANES);
    if (count == LANES) {
        if (bias) values += load(bias + output);
        return store(row + output, values);
    }
    for (int64_t lane = 0; bias && lane < count; lane++) values[lane] += bias[output + lane];
    T results[LANES];
    store(results, values);
    for (int64_t lane = 0; lane < count; lane++) row[output + lane] = results[lane];
}

// Calls `multiply(output)` for every `width`th of `outputs` outputs, on several threads; `block` of them are stored together.
template <typename Multiply>
void for_outputs_in_parallel(int64_t outputs, int block, int width, bool worth_threads, const Multiply& multiply) {
    for_parts_in_parallel((outputs + block - 1) / block, worth_threads, [&](int64_t first, int64_t end) {
        for (int64_t output = first * block; output < std::min(end * block, outputs); output += width) multiply(output);
    });
}

// Calls `run` with a value of the type with a number in native/library.py.
template <typename Run>
void with_type(int type, const Run& run) {
    type == 0 ? run(float{}) : type == 1 ? run(bfloat16{}) : run(float16{});
}

// Calls `tile(first row, integral constant of the number of rows)` for all rows, in nearly equal tiles of at most LARGEST.
template <int LARGEST, typename Tile>
inline void for_row_tiles(int64_t rows, const Tile& tile) {
    auto call = [&]<int COUNT>(auto&& self, int64_t row, int64_t count, std::integral_constant<int, COUNT> size) -> void {
        if (count == COUNT)
            tile(row, size);
        else if constexpr (COUNT > 1)
            self(self, row, count, std::integral_constant<int, COUNT - 1>{});
    };
    int64_t row = 0;
    for (int64_t tiles = (rows + LARGEST - 1) / LARGEST; tiles; tiles--) {
        const int64_t count = (rows - row + tiles - 1) / tiles;
        call(call, row, count, std::integral_constant<int, LARGEST>{});
        row += count;
    }
}
