// AMX's intrinsics in plain C++, for CPUs without AMX: included before the kernels' sources, in place of GCC's. A use that
// a CPU would refuse aborts the process. See Intel's manual, volume 2, "Intel AMX instruction reference".
#pragma once

#include <immintrin.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbusd
#undef _tile_dpbuud
#define _tile_loadconfig(config) emulated::configure(config)
#define _tile_release() emulated::release()
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stream_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store(tile, to, stride)
#define _tile_dpbf16ps(to, a, b) emulated::add_bfloat16(to, a, b)
#define _tile_dpbssd(to, a, b) emulated::add_integers<int8_t, int8_t>(to, a, b)
#define _tile_dpbsud(to, a, b) emulated::add_integers<int8_t, uint8_t>(to, a, b)
#define _tile_dpbusd(to, a, b) emulated::add_integers<uint8_t, int8_t>(to, a, b)
#define _tile_dpbuud(to, a, b) emulated::add_integers<uint8_t, uint8_t>(to, a, b)

namespace emulated {

constexpr int TILES = 8, MOST_ROWS = 16, MOST_BYTES = 64;

struct Tile {
    int rows, bytes;
    uint8_t values[MOST_ROWS][MOST_BYTES];
};

// Palette 1, as it lies in memory.
struct Palette {
    uint8_t number, start_row, reserved[14];
    uint16_t bytes[2 * TILES];
    uint8_t rows[2 * TILES];
};

inline thread_local bool configured = false;
inline thread_local Tile tiles[TILES];

inline void check(bool valid, const char* fault) {
    if (valid) return;
    std::fprintf(stderr, "emulated tiles: %s\n", fault);
    std::abort();
}

inline Tile& used(int number) {
    check(configured, "use without a configuration");
    check(number >= 0 && number < TILES && tiles[number].rows, "use of a tile that is not configured");
    return tiles[number];
}

inline void configure(const void* from) {
    Palette palette;
    std::memcpy(&palette, from, sizeof palette);
    check(palette.number == 1 && palette.start_row == 0, "unknown palette");
    for (uint8_t byte : palette.reserved) check(byte == 0, "reserved byte of a palette");
    for (int i = 0; i < 2 * TILES; i++) {
        const int rows = palette.rows[i], bytes = palette.bytes[i];
        check(rows <= MOST_ROWS && bytes <= MOST_BYTES && !rows == !bytes, "shape of a tile");
        check(i < TILES || !rows, "shape of a tile above the last");
        if (i < TILES) tiles[i] = {rows, bytes, {}};
    }
    configured = true;
}

inline void release() { configured = false; }

inline void zero(int number) {
    Tile& tile = used(number);
    std::memset(tile.values, 0, sizeof tile.values);
}

inline void load(int number, const void* from, int64_t stride) {
    zero(number);
    Tile& tile = used(number);
    for (int row = 0; row < tile.rows; row++)
        std::memcpy(tile.values[row], (const char*)from + row * stride, tile.bytes);
}

inline void store(int number, void* to, int64_t stride) {
    const Tile& tile = used(number);
    for (int row = 0; row < tile.rows; row++) std::memcpy((char*)to + row * stride, tile.values[row], tile.bytes);
}

// `a` has rows of the result, and `b` a row for every four bytes of those.
inline void check_shapes(int to, int a, int b) {
    check(to != a && to != b && a != b, "one tile as two operands");
    const Tile &result = used(to), &left = used(a), &right = used(b);
    check(left.bytes % 4 == 0 && right.bytes % 4 == 0 && result.bytes % 4 == 0, "operands of broken elements");
    check(left.rows == result.rows && right.rows == left.bytes / 4 && right.bytes == result.bytes, "operands' shapes");
}

// Denormal numbers count as zeros, in operands as in results.
inline float flushed(float value) { return std::fabs(value) < FLT_MIN ? std::copysign(0.0f, value) : value; }

// TDPBF16PS: the even inputs' sums and the odd ones' from zero on, in the order of the inputs, with fused multiply-adds;
// then the two together, and then those and the result. MXCSR isn't consulted; rounding is to nearest, ties to even.
inline void add_bfloat16(int to, int a, int b) {
    check_shapes(to, a, b);
    constexpr int COLUMNS = MOST_BYTES / 4;
    typedef uint32_t Pairs[MOST_ROWS][COLUMNS];
    const Pairs &left = (const Pairs&)tiles[a].values, &right = (const Pairs&)tiles[b].values;
    auto& results = (float(&)[MOST_ROWS][COLUMNS])tiles[to].values;
    const auto even = [](uint32_t pair) { return flushed(__builtin_bit_cast(float, pair << 16)); };
    const auto odd = [](uint32_t pair) { return flushed(__builtin_bit_cast(float, pair & 0xffff0000)); };
    for (int m = 0; m < tiles[to].rows; m++) {
        float evens[COLUMNS] = {}, odds[COLUMNS] = {};
        for (int k = 0; k < tiles[a].bytes / 4; k++)
            for (int n = 0; n < COLUMNS; n++) {
                evens[n] = flushed(std::fma(even(left[m][k]), even(right[k][n]), evens[n]));
                odds[n] = flushed(std::fma(odd(left[m][k]), odd(right[k][n]), odds[n]));
            }
        for (int n = 0; n < COLUMNS; n++)
            results[m][n] = flushed(flushed(results[m][n]) + flushed(evens[n] + odds[n]));
    }
}

// TDPBSSD and its siblings: sums of four products, modulo 2^32.
template <typename A, typename B>
void add_integers(int to, int a, int b) {
    check_shapes(to, a, b);
    auto& results = (uint32_t(&)[MOST_ROWS][MOST_BYTES / 4])tiles[to].values;
    for (int m = 0; m < tiles[to].rows; m++)
        for (int k = 0; k < tiles[a].bytes; k++)
            for (int n = 0; n < MOST_BYTES / 4; n++)
                results[m][n] += (A)tiles[a].values[m][k] * (B)tiles[b].values[k / 4][4 * n + k % 4];
}

}  // namespace emulated
