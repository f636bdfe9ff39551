// The products of attention over a cache of bfloat16 by AMX's tiles, whose columns are K and V as they lie in memory. A
// result is added up in one order of the dims, or of the groups of tokens, and no row of a tile takes part in another's.
#pragma once

#include "attention_tile.h"
#include "tiles.h"

namespace {

constexpr int SUMS = 4;              // AMX tiles of results: each has 16 tokens' scores, or 16 dims, of some rows
constexpr int WHOLE = 16, HALF = 8;  // words of a row that are multiplied at once, of its query or its weights
constexpr int LINE = LANES * sizeof(uint32_t);
static_assert(LANES == GROUP && LINE == TILE_BYTES);

// What rows are multiplied by: an AMX tile for each of `count` sums, and what to start to read meanwhile.
struct Columns {
    const char *tiles[SUMS], *later[SUMS];
    int64_t stride, later_stride;  // bytes from a word to the next one
    int count;
};

#define ADD_PRODUCT(sum, left, right)                                  \
    if (sum < columns.count) {                                         \
        LOAD_TILE(right, columns.tiles[sum] + offset, columns.stride); \
        _tile_dpbf16ps(sum, left, right);                              \
    }

// Adds to the sums the products of WORDS words of each row, and of the columns from `offset` bytes on.
template <int WORDS>
inline void add_products(const uint32_t* rows, int64_t row_stride, const Columns& columns, int64_t offset = 0) {
    if constexpr (WORDS == WHOLE) {
        LOAD_TILE(4, rows, row_stride);
        ADD_PRODUCT(0, 4, 5);
        ADD_PRODUCT(1, 4, 5);
        ADD_PRODUCT(2, 4, 5);
        ADD_PRODUCT(3, 4, 5);
    } else {
        LOAD_TILE(6, rows, row_stride);
        ADD_PRODUCT(0, 6, 7);
        ADD_PRODUCT(1, 6, 7);
        ADD_PRODUCT(2, 6, 7);
        ADD_PRODUCT(3, 6, 7);
    }
    for (int c = 0; c < columns.count; c++)
        for (int w = 0; w < WORDS; w++) __builtin_prefetch(columns.later[c] + offset + w * columns.later_stride);
}

#undef ADD_PRODUCT

inline void start_sums() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

// Stores the first `count` sums of each row side by side. The stride is the bytes from a row to the next one.
inline void store_sums(float* to, int64_t stride, int count) {
    _tile_stored(0, to, stride);
    if (count > 1) _tile_stored(1, to + LANES, stride);
    if (count > 2) _tile_stored(2, to + 2 * LANES, stride);
    if (count > 3) _tile_stored(3, to + 3 * LANES, stride);
}

// The rows' products with the keys of `groups` groups, from `group` of the piece on.
inline void multiply_keys(float (*scores)[PIECE], const Tile& tile, const Piece& piece, const Ahead& ahead, int group,
                          int groups) {
    Columns keys{{}, {}, LINE, LINE, groups};
    std::copy(piece.keys + group, piece.keys + group + groups, keys.tiles);
    std::copy(ahead.keys + group, ahead.keys + group + groups, keys.later);
    const int64_t stride = tile.key_words * sizeof(uint32_t);
    start_sums();
    int word = 0;
    for (; word + WHOLE <= tile.key_words; word += WHOLE)
        add_products<WHOLE>(tile.query + word, stride, keys, word * LINE);
    if (word < tile.key_words) add_products<HALF>(tile.query + word, stride, keys, word * LINE);
    store_sums(scores[0] + group * GROUP, sizeof *scores, groups);
}

using Copy = uint32_t[HALF][SUMS * LANES];

// Copies `vectors` vectors of the group from `token` on, with zeros for tokens outside of `seen`: 0 * NaN is NaN.
inline void copy_seen(Copy& to, const char* from, int64_t stride, int vectors, int token, Range seen) {
    for (int pair = 0; pair < HALF; pair++, token += 2) {
        const bool first = seen.begin <= token && token < seen.end;
        const bool second = seen.begin <= token + 1 && token + 1 < seen.end;
        const uint32_t kept = (first ? 0xffff : 0) | (second ? 0xffff0000 : 0);
        for (int v = 0; v < vectors; v++)
            *(any_words*)(to[pair] + v * LANES) = *(const any_words*)(from + pair * stride + v * LINE) & kept;
    }
}

// The sums of the tokens `seen` by the rows' weights, in `vectors` vectors from dim `dim` on.
inline void multiply_values(float (*sums)[SUMS * LANES], const uint32_t (*weights)[PIECE / 2], const Tile& tile,
                            const Piece& piece, const Ahead& ahead, Range seen, int dim, int vectors) {
    const int64_t stride = tile.value_dim * sizeof(uint32_t);
    start_sums();
    for (int group = seen.begin / GROUP; group * GROUP < seen.end; group++) {
        const int start = group * GROUP, byte = dim * sizeof(uint32_t);
        const char *from = piece.values[group] + byte, *later = ahead.values[group] + byte;
        Columns values{{}, {}, stride, stride, vectors};
        alignas(TILE_BYTES) Copy copied;
        if (start < seen.begin || start + GROUP > seen.end) {
            copy_seen(copied, from, stride, vectors, start, seen);
            from = (const char*)copied;
            values.stride = sizeof *copied;
        }
        for (int v = 0; v < vectors; v++) {
            values.tiles[v] = from + v * LINE;
            values.later[v] = later + v * LINE;
        }
        add_products<HALF>(weights[0] + group * HALF, sizeof *weights, values);
    }
    store_sums(sums[0], sizeof *sums, vectors);
}

// At most TILE_ROWS rows, which see no token of the piece but some from seen.begin to seen.end.
inline void attend_rows(const Tile& tile, const Piece& piece, const Ahead& ahead, Range seen) {
    alignas(TILE_BYTES) float scores[TILE_ROWS][PIECE];
    alignas(TILE_BYTES) uint32_t weights[TILE_ROWS][PIECE / 2];
    Joint joints[TILE_ROWS];
    const int begin = seen.begin / GROUP, end = (seen.end + GROUP - 1) / GROUP;
    for (int group = begin; group < end; group += SUMS)
        multiply_keys(scores, tile, piece, ahead, group, std::min(SUMS, end - group));
    weigh_rows<bfloat16, TILE_ROWS>(tile.count, weights, joints, scores, tile, 0, piece, begin * GROUP, end * GROUP);
    for (int dim = 0; dim < tile.value_dim; dim += SUMS * LANES) {
        alignas(TILE_BYTES) float sums[TILE_ROWS][SUMS * LANES];
        const int vectors = std::min(SUMS, (tile.value_dim - dim) / LANES);
        multiply_values(sums, weights, tile, piece, ahead, seen, dim, vectors);
        for (int r = 0; r < tile.count; r++) {
            float* state = tile.states + r * tile.stride + HEADER + dim;
            for (int v = 0; v < vectors; v++) join_values(state + v * LANES, load(sums[r] + v * LANES), joints[r]);
        }
    }
}

// Attends by AMX's tiles, which the calling thread holds until this is destroyed. Rows are computed in parts of as many
// as AMX's tiles have then; those that the last part lacks are computed of what lies in memory, and never read.
class ByTiles {
  public:
    using Element = bfloat16;
    using Query = bfloat16;
    static constexpr int ROWS = TILE_ROWS, LEAST = 1;

    explicit ByTiles(int rows) : ByTiles(rows, (rows + ROWS - 1) / ROWS) {}

    // Returns true if heads of these sizes fill AMX's tiles.
    static bool take(int key_dim, int value_dim) { return key_dim % (2 * HALF) == 0 && value_dim % LANES == 0; }

    void attend(const Tile& tile, const Piece& piece, const Ahead& ahead) const {
        for (int first = 0; first < tile.count; first += part_) {
            Tile part = tile;
            part.query += int64_t(first) * tile.key_words;
            part.rows += first;
            part.states += first * tile.stride;
            part.count = std::min(part_, tile.count - first);
            const Range seen = seen_by(part.rows, part.count, piece);
            if (seen.begin < seen.end) attend_rows(part, piece, ahead, seen);
        }
    }

  private:
    ByTiles(int rows, int parts)
        : part_((rows + parts - 1) / parts),
          tiles_({{part_, LINE}, {part_, LINE}, {part_, LINE}, {part_, LINE},
                  {part_, LINE}, {WHOLE, LINE}, {part_, LINE / 2}, {HALF, LINE}}) {}

    int part_;  // rows
    Tiles tiles_;
};

}  // namespace
