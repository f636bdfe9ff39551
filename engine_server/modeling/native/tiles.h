// Products of tiles, with AMX: eight registers of up to 16 rows of 64 bytes, whose shapes a thread configures.
//
// Every piece of work configures its own, since oneDNN does the same in the same threads, and releases them, since the
// system saves them at each switch of threads.
#pragma once

#include <immintrin.h>

#include <cstdint>

constexpr int TILE_ROWS = 16, TILE_BYTES = 64;  // the largest

struct TileShape {
    int rows, bytes;  // the bytes are those of a row
};

// The calling thread's tiles, from here to the end of a scope; zeros at first.
class Tiles {
  public:
    explicit Tiles(const TileShape (&shapes)[8]) {
        struct {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int tile = 0; tile < 8; tile++) {
            config.bytes[tile] = shapes[tile].bytes;
            config.rows[tile] = shapes[tile].rows;
        }
        asm volatile("" ::"r"(&config) : "memory");  // see below
        _tile_loadconfig(&config);
    }

    Tiles(const Tiles&) = delete;

    ~Tiles() { _tile_release(); }
};

// GCC's intrinsics take literal numbers of tiles, hence macros, and conceal from GCC that they read memory: without these
// barriers it moves stores to what they load past them, or omits them.
#define LOAD_TILE(tile, from, stride)      \
    do {                                   \
        asm volatile("" ::: "memory");     \
        _tile_loadd(tile, from, stride);   \
        asm volatile("" ::: "memory");     \
    } while (false)
