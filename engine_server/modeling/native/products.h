// Parts that the products with all kinds of weights share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "row_tiles.h"
#include "threads.h"
#include "vectors.h"

// Multiply-adds that are worth a second thread.
constexpr int64_t WORTH_A_THREAD = 1 << 16;

// Adds the bias, if there is one, to the results from `output` on, and stores those below `outputs`.
template <typename T>
[[gnu::noinline]] void store_some_results(T* row, floats values, const float* bias, int64_t output, int64_t outputs) {
    const int64_t count = std::clamp<int64_t>(outputs - output, 0, LANES);
    for (int64_t lane = 0; bias && lane < count; lane++) values[lane] += bias[output + lane];
    T results[LANES];
    store(results, values);
    for (int64_t lane = 0; lane < count; lane++) row[output + lane] = results[lane];
}

template <typename T>
[[gnu::always_inline]] inline void store_results(T* row, floats values, const float* bias, int64_t output, int64_t outputs) {
    if (output + LANES > outputs) return store_some_results(row, values, bias, output, outputs);
    if (bias) values += load(bias + output);
    store(row + output, values);
}

// Calls `multiply(output)` for every `width`th of `outputs` outputs, on several threads; `block` of them are stored together.
template <typename Multiply>
void for_outputs_in_parallel(int64_t outputs, int block, int width, bool worth_threads, const Multiply& multiply) {
    for_parts_in_parallel((outputs + block - 1) / block, worth_threads, [&](int64_t first, int64_t end) {
        for (int64_t output = first * block; output < std::min(end * block, outputs); output += width) multiply(output);
    });
}

// Calls `multiply(first row, end, output)` for every `width`th output and for blocks of about `block` rows, in multiples of
// `tile`, on several threads. Blocks are smaller where threads would otherwise be idle.
template <typename Multiply>
void for_blocks_in_parallel(int64_t rows, int64_t outputs, int64_t block, int tile, int width, bool worth_threads,
                            const Multiply& multiply) {
    const int64_t panels = (outputs + width - 1) / width;
    const int64_t fewest = worth_threads ? (num_threads() + panels - 1) / panels : 1;
    const int64_t tiles = (rows + tile - 1) / tile;
    const int64_t blocks = std::min(tiles, std::max(fewest, (rows + block - 1) / std::max<int64_t>(block, 1)));
    for_range_in_parallel(blocks * panels, worth_threads, [&](int64_t item) {
        const int64_t number = item / panels;
        const int64_t first = tiles * number / blocks * tile, end = std::min(tiles * (number + 1) / blocks * tile, rows);
        if (first < end) multiply(first, end, item % panels * width);
    });
}

// Calls `run` with a value of the type with a number in native/library.py.
template <typename Run>
void with_type(int type, const Run& run) {
    type == 0 ? run(float{}) : type == 1 ? run(bfloat16{}) : run(float16{});
}
