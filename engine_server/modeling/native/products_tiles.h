// Products of bfloat16 by tiles, with sums in float32: up to 2 tiles of rows times a block of 32 outputs, 32 inputs at a
// time. Each result is summed in the order of the inputs, whatever the number of rows and the others in its tile.
#pragma once

#include "products_in_float.h"
#include "tiles.h"

constexpr int STEP = TILE_BYTES / sizeof(bfloat16);  // inputs of a tile
constexpr int64_t VALUES_IN_CACHE = 1 << 19;         // of rows that are multiplied by all weights: half of an L2 cache
constexpr int64_t FEWEST_TILES = 6;                  // of rows, even if the cache has no room for them
constexpr int BYTES_AHEAD = 8192;                    // from a load of weights to its prefetch

struct alignas(TILE_BYTES) TileRow {
    bfloat16 values[STEP];
};

// Rows of values in equal tiles. Zeros stand for the inputs and rows that the last tiles lack.
struct TiledValues {
    const TileRow* lines;  // [tiles, steps, rows of a tile]
    int64_t rows, steps, tiles;
    int tile_rows;

    // Copies values to memory of the calling thread.
    TiledValues(const bfloat16* values, int64_t stride, int64_t count, int64_t in)
        : rows(count), steps((in + STEP - 1) / STEP), tiles((rows + TILE_ROWS - 1) / TILE_ROWS),
          tile_rows((rows + tiles - 1) / tiles) {
        thread_local std::vector<TileRow> scratch;
        scratch.resize(std::max<size_t>(scratch.size(), tiles * steps * tile_rows));
        TileRow* to = scratch.data();
        lines = to;
        for_range_in_parallel(tiles * tile_rows, rows * in > WORTH_WIDENING, [&](int64_t row) {
            TileRow* line = to + row / tile_rows * steps * tile_rows + row % tile_rows;
            for (int64_t i = 0; i < in; i += STEP, line += tile_rows) {
                const int64_t own = row < rows ? std::min<int64_t>(STEP, in - i) : 0;
                std::memset(line, 0, sizeof *line);
                std::memcpy(line->values, values + row * stride + i, own * sizeof(bfloat16));
            }
        });
    }
};

// The products of TILES tiles of values from `line` on and a block of weights, whose last inputs are in `rest` if they
// don't fill a tile: to `results` [rows, BLOCK].
template <int TILES>
void multiply_tiles(float* results, const TileRow* line, const TiledValues& values, const bfloat16* weights,
                    const bfloat16* rest, bool prefetch) {
    constexpr int WEIGHT_BYTES = BLOCK * 2 * sizeof(bfloat16);  // of two inputs
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < values.steps; step++, line += values.tile_rows, weights += STEP * BLOCK) {
        for (size_t byte = 0; prefetch && byte < STEP * BLOCK * sizeof(bfloat16); byte += 64)
            __builtin_prefetch((const char*)weights + byte + BYTES_AHEAD);
        const bfloat16* own = rest && step == values.steps - 1 ? rest : weights;
        LOAD_TILE(4, line, TILE_BYTES);
        LOAD_TILE(6, own, WEIGHT_BYTES);
        LOAD_TILE(7, own + 2 * LANES, WEIGHT_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (TILES == 2) {
            LOAD_TILE(5, line + values.steps * values.tile_rows, TILE_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    constexpr int RESULT_BYTES = BLOCK * sizeof(float);
    _tile_stored(0, results, RESULT_BYTES);
    _tile_stored(1, results + LANES, RESULT_BYTES);
    if constexpr (TILES == 2) {
        _tile_stored(2, results + values.tile_rows * BLOCK, RESULT_BYTES);
        _tile_stored(3, results + values.tile_rows * BLOCK + LANES, RESULT_BYTES);
    }
}

// All rows of values times the outputs from `output` on, whose weights stay in the cache after the first rows.
inline void multiply_block(bfloat16* out, const TiledValues& values, const bfloat16* weights, const float* bias,
                           int64_t in, int64_t output, int64_t outputs) {
    alignas(64) bfloat16 rest[STEP * BLOCK] = {};
    std::memcpy(rest, weights + in / STEP * STEP * BLOCK, in % STEP * BLOCK * sizeof(bfloat16));
    for (int64_t tile = 0; tile < values.tiles; tile += 2) {
        alignas(64) float results[2 * TILE_ROWS * BLOCK];
        const auto multiply = tile + 1 < values.tiles ? multiply_tiles<2> : multiply_tiles<1>;
        multiply(results, values.lines + tile * values.steps * values.tile_rows, values, weights,
                 in % STEP ? rest : nullptr, tile == 0);
        const int64_t first = tile * values.tile_rows, count = std::min<int64_t>(2 * values.tile_rows, values.rows - first);
        for (int64_t r = 0; r < count; r++)
            for (int lane = 0; lane < BLOCK; lane += LANES)
                store_results(out + (first + r) * outputs, load(results + r * BLOCK + lane), bias, output + lane, outputs);
    }
}

// values [rows, in], with a stride in elements, times weights [blocks, in / 2, BLOCK, 2]: to out [rows, outputs].
inline void multiply_by_tiles(bfloat16* out, const bfloat16* x, int64_t stride, int64_t rows, const bfloat16* weights,
                              const float* bias, int64_t in, int64_t outputs) {
    const int64_t most = std::max<int64_t>(VALUES_IN_CACHE / in / TILE_ROWS, FEWEST_TILES) * TILE_ROWS;
    for (int64_t first = 0; first < rows; first += most) {
        const TiledValues values(x + first * stride, stride, std::min(most, rows - first), in);
        const TileShape of_rows{values.tile_rows, TILE_BYTES}, of_weights{STEP / 2, TILE_BYTES};
        const bool worth_threads = values.rows * in * outputs > WORTH_A_THREAD;
        for_parts_in_parallel((outputs + BLOCK - 1) / BLOCK, worth_threads, [&](int64_t block, int64_t end) {
            const Tiles tiles({of_rows, of_rows, of_rows, of_rows, of_rows, of_rows, of_weights, of_weights});
            for (; block < end; block++)
                multiply_block(out + first * outputs, values, weights + block * BLOCK * in, bias, in, block * BLOCK, outputs);
        });
    }
}
