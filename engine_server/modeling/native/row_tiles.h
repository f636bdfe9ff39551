// Tiles of rows, and their products with panels.
#pragma once

#include "vectors.h"

// Columns of a panel, and rows of a tile whose sums stay in registers.
constexpr int PANEL_VECTORS = 2, PANEL_WIDTH = PANEL_VECTORS * LANES;
constexpr int PANEL_ROWS = REGISTERS == 32 ? 12 : 6;

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

inline floats add_product(floats sum, floats column, float own) { return fused(column, broadcast(own), sum); }

#ifdef __AVX512BF16__
// Adds the products of pairs of bfloat16.
inline floats add_product(floats sum, floats column, uint32_t own) {
    return (floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)column, (__m512bh)(words{} + own));
}
#endif

// The sums of ROWS rows' products of `count` numbers, or pairs, with as many lines of a panel, in their order.
template <int ROWS>
struct PanelSums {
    floats sums[ROWS][PANEL_VECTORS];

    template <typename Number>
    PanelSums(const Number* rows, int64_t stride, const Number* panel, int64_t count) {
        #pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < PANEL_VECTORS; v++) sums[r][v] = floats{};
        #pragma GCC unroll 1
        for (int64_t i = 0; i < count; i++, panel += PANEL_WIDTH) {
            floats columns[PANEL_VECTORS];
            for (int v = 0; v < PANEL_VECTORS; v++) columns[v] = *(const any_floats*)(panel + v * LANES);
            #pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++) {
                Number own;  // of memory that may have another type
                std::memcpy(&own, rows + r * stride + i, sizeof own);
                for (int v = 0; v < PANEL_VECTORS; v++) sums[r][v] = add_product(sums[r][v], columns[v], own);
            }
        }
    }

    // Calls `take(row, vector, sums)` for each vector of the sums.
    template <typename Take>
    void for_each(const Take& take) const {
        #pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < PANEL_VECTORS; v++) take(r, v, sums[r][v]);
    }
};
