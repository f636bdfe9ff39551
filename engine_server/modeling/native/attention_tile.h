// The kernel of attention: rows of queries over one piece of their context, joined to the pieces before it by largest
// scores and sums (FlashAttention-2, arXiv 2307.08691). A row's operations and their order depend on its own context
// alone: other rows of a tile, and tokens that none of them sees, add exact zeros at most.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache.h"

constexpr int PIECE = 128;         // tokens, from multiples of it on
constexpr int GROUPS = PIECE / GROUP;
constexpr int DISTANCE = 4;        // groups to start to read before they are needed
constexpr float HIDDEN = -1e30f;   // a score with a weight of 0
constexpr float LOWEST = -1e29f;   // at most any largest score, so that a row which sees nothing has no weights
constexpr int HEADER = GROUP;      // of a state: the largest score, the sum of weights; then come the weighted values

// The query of one head for one token.
struct Row {
    int position, begin, end;  // its token, and the first that it sees and the first after these
    float slope;               // of ALiBi
};

struct Scores {
    float scaling, softcap;  // softcap: 0 for none
    bool alibi;
};

// Some of a KV head's tokens, by groups: those of the groups `first` to `last` from token `start` on.
struct Piece {
    int start, first, last;
    const char *keys[GROUPS], *values[GROUPS];
    const float *key_scales[GROUPS], *value_scales[GROUPS];  // of a cache of 8 bits
};

// The groups to start to read while each group of a piece is computed.
struct Ahead {
    const char *keys[GROUPS], *values[GROUPS];
};

// K, V and then K of the piece `next` are computed in this order.
inline Ahead ahead_of(const Piece& piece, const Piece& next) {
    const char* order[2 * GROUPS + DISTANCE];
    const int count = piece.last - piece.first;
    std::copy(piece.keys + piece.first, piece.keys + piece.last, order);
    std::copy(piece.values + piece.first, piece.values + piece.last, order + count);
    for (int i = 0; i < DISTANCE; i++) order[2 * count + i] = next.keys[std::min(next.first + i, next.last - 1)];
    Ahead ahead{};
    std::copy(order + DISTANCE, order + DISTANCE + count, ahead.keys + piece.first);
    std::copy(order + DISTANCE + count, order + DISTANCE + 2 * count, ahead.values + piece.first);
    return ahead;
}

// Rows of one KV head.
struct Tile {
    const uint32_t* query;  // [count, key_words]
    const Row* rows;
    float* states;          // [count, stride]
    int64_t stride;
    int count, key_words, value_dim;
    Scores scores;
};

// The type of queries and weights that are multiplied by elements of type E.
template <typename E>
using Factor = std::conditional_t<PAIR<E> == 2, bfloat16, float>;

// Adds the products of words' elements.
template <typename E>
inline floats dot(floats sum, words a, words b) {
    if constexpr (PAIR<E> == 1) return fused((floats)a, (floats)b, sum);
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    sum = fused((floats)(a << 16), (floats)(b << 16), sum);
    return fused((floats)(a & 0xffff0000), (floats)(b & 0xffff0000), sum);
#endif
}

// Stores weights for elements of type E: those of bfloat16 are rounded, whatever they are stored as.
template <typename E>
inline void store_weights(float* to, floats weights) {
    store(to, PAIR<E> == 1 ? weights : (floats)(rounded_to_bfloat16(weights) & 0xffff0000));
}

template <typename E>
inline void store_weights(bfloat16* to, floats weights) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(weights));
#else
    store(to, weights);
#endif
}

// How two states are joined: both are multiplied, and added.
struct Joint {
    float shrink, grow;
};

// Joins the largest scores and the sums of weights of rows' parts to their states; at most LANES rows. Sets the factors
// of their values.
inline void join_headers(int rows, float* states, int64_t stride, const float* most, const float* totals,
                         Joint* joints) {
    floats before = {}, part = {};
    for (int r = 0; r < rows; r++) {
        before[r] = states[r * stride];
        part[r] = most[r];
    }
    const floats now = before > part ? before : part;
    const floats shrink = exponential(before - now), grow = exponential(part - now);
    for (int r = 0; r < rows; r++) {
        float* state = states + r * stride;
        state[0] = now[r];
        state[1] = std::fma(state[1], shrink[r], totals[r] * grow[r]);
        joints[r] = {shrink[r], grow[r]};
    }
}

inline void join_values(float* to, floats values, Joint joint) {
    store(to, fused(load(to), floats{} + joint.shrink, values * joint.grow));
}

namespace {

// Rows and vectors whose sums fit into the CPU's registers.
constexpr int ROWS = REGISTERS == 32 ? 6 : 4, VECTORS = REGISTERS == 32 ? 4 : 2;

// Starts to read the line that a vector's words begin, if they begin one.
template <typename E>
inline void prefetch(const char* from, int vector) {
    constexpr int line = 64 / (LANES * WORD<E>);
    if (line <= 1 || vector % line == 0) __builtin_prefetch(from);
}

// Scores of R rows, with COUNT vectors of keys from vector `first` of the piece on.
template <typename E, int R, int COUNT>
void multiply_keys(float (*scores)[PIECE], const Tile& tile, const uint32_t* query, const Piece& piece,
                   const Ahead& ahead, int first) {
    const char *keys[COUNT], *later[COUNT];
    for (int c = 0; c < COUNT; c++) {
        const int group = (first + c) * LANES / GROUP, byte = (first + c) * LANES % GROUP * WORD<E>;
        keys[c] = piece.keys[group] + byte;
        later[c] = ahead.keys[group] + byte;
    }
    floats sums[R][COUNT] = {};
    for (int d = 0; d < tile.key_words; d++) {
        words parts[COUNT];
        for (int c = 0; c < COUNT; c++) parts[c] = load_words<E>(keys[c] + d * GROUP * WORD<E>);
        for (int c = 0; c < COUNT; c++) prefetch<E>(later[c] + d * GROUP * WORD<E>, d * (GROUP / LANES));
        for (int r = 0; r < R; r++) {
            const words own = words{} + query[r * tile.key_words + d];
            for (int c = 0; c < COUNT; c++) sums[r][c] = dot<E>(sums[r][c], parts[c], own);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < COUNT; c++) store(scores[r] + (first + c) * LANES, sums[r][c]);
}

// x -> softcap * tanh(x / softcap)
inline floats capped(floats x, float softcap) {
    const floats power = exponential((floats)((words)x & 0x7fffffff) * (-2 / softcap));
    const floats magnitude = (1 - power) / (1 + power) * softcap;
    return (floats)((words)magnitude | ((words)x & 0x80000000));
}

// Value at the lanes whose tokens, from `place` of the piece on, the row sees; `otherwise` at the others.
inline floats seen(const Row& row, const Piece& piece, int place, floats value, float otherwise) {
    const int begin = row.begin - piece.start, end = row.end - piece.start;
    if (begin <= place && place + LANES <= end) return value;
    const ints tokens = place + LANE;
    return (tokens >= begin) & (tokens < end) ? value : floats{} + otherwise;
}

inline floats scales(const float* const* groups, int place) { return load(groups[place / GROUP] + place % GROUP); }

// Turns the products of a row into scores. Returns the largest of each lane.
template <typename E>
floats score(float* own, const Row& row, const Scores& scores, const Piece& piece, int first, int last) {
    floats most = floats{} + LOWEST;
    const float scaling = scores.scaling * UNIT<E>;
    const auto each = [&](const auto& adjust) {
        for (int place = first; place < last; place += LANES) {
            floats score = load(own + place) * scaling;
            if constexpr (SCALED<E>) score *= scales(piece.key_scales, place);
            score = adjust(place, score);
            store(own + place, score);
            most = score > most ? score : most;
        }
    };
    const bool sees_all = row.begin <= piece.start + first && piece.start + last <= row.end;
    if (sees_all && !scores.softcap && !scores.alibi) {
        each([](int, floats score) { return score; });
    } else {
        each([&](int place, floats score) {
            if (scores.softcap) score = capped(score, scores.softcap);
            if (scores.alibi)
                score -= row.slope * __builtin_convertvector(row.position - piece.start - place - LANE, floats);
            return seen(row, piece, place, score, HIDDEN);
        });
    }
    return most;
}

// Turns the scores of a row into weights, relative to `most`. Returns their sums by lanes.
template <typename E, typename F>
floats weigh(F* weights, const float* own, const Row& row, const Piece& piece, float most, int first, int last) {
    floats total = {};
    for (int place = first; place < last; place += LANES) {
        floats powers = exponential(load(own + place) - most);
        total += powers;
        if constexpr (SCALED<E>)
            powers = seen(row, piece, place, powers * (scales(piece.value_scales, place) * UNIT<E>), 0);
        store_weights<E>(weights + place, powers);
    }
    return total;
}

// Tokens of a piece, from its first one on.
struct Range {
    int begin, end;
};

// From the first to the last of the piece's tokens that any of these rows sees.
inline Range seen_by(const Row* rows, int count, const Piece& piece) {
    Range range{PIECE, 0};
    for (int r = 0; r < count; r++) {
        range.begin = std::min(range.begin, std::max(rows[r].begin - piece.start, 0));
        range.end = std::max(range.end, std::min(rows[r].end - piece.start, PIECE));
    }
    return range;
}

// Turns the products of at most R rows into weights, at the places begin to end, and joins the headers of the rows'
// parts to their states. Sets the factors of their values. Weights, of type F, may replace the scores.
template <typename E, int R, typename F = Factor<E>, typename Weights>
inline void weigh_rows(int count, Weights* weights, Joint* joints, float (*scores)[PIECE], const Tile& tile, int first,
                       const Piece& piece, int begin, int end) {
    // Each step for all rows, so that none waits for the one before it.
    const Row* rows = tile.rows + first;
    floats lanes[R];
    float most[R], totals[R];
    for (int r = 0; r < count; r++) lanes[r] = score<E>(scores[r], rows[r], tile.scores, piece, begin, end);
    for (int r = 0; r < count; r++) most[r] = largest(lanes[r]);
    for (int r = 0; r < count; r++)
        lanes[r] = weigh<E>((F*)weights[r], scores[r], rows[r], piece, most[r], begin, end);
    for (int r = 0; r < count; r++) totals[r] = sum(lanes[r]);
    join_headers(count, tile.states + first * tile.stride, tile.stride, most, totals, joints);
}

// Adds the tokens begin to end of the piece, by their weights, to COUNT vectors of R rows' states, from dim `first` on.
template <typename E, int R, int COUNT>
void add_values(const Tile& tile, float* states, const uint32_t (*weights)[PIECE / PAIR<E>], const Joint* joints,
                const Piece& piece, const Ahead& ahead, int begin, int end, int first) {
    constexpr int PAIRS = GROUP / PAIR<E>;
    const int lanes = std::min(LANES, tile.value_dim - first);
    floats sums[R][COUNT] = {};
    for (int pair = begin / PAIR<E>; pair * PAIR<E> < end; pair++) {
        const int byte = (pair % PAIRS * tile.value_dim + first) * WORD<E>;
        const char *value = piece.values[pair / PAIRS] + byte, *later = ahead.values[pair / PAIRS] + byte;
        words parts[COUNT] = {};
        if (COUNT == 1 && lanes < LANES) {
            char last[LANES * WORD<E>] = {};
            std::memcpy(last, value, lanes * WORD<E>);
            parts[0] = load_words<E>(last);
        } else {
            for (int c = 0; c < COUNT; c++) parts[c] = load_words<E>(value + c * LANES * WORD<E>);
        }
        for (int c = 0; c < COUNT; c++) prefetch<E>(later + c * LANES * WORD<E>, c);
        if (PAIR<E> == 2 && (2 * pair < begin || 2 * pair + 1 >= end)) {  // 0 * NaN is NaN
            const uint32_t kept = 2 * pair < begin ? 0xffff0000 : 0xffff;
            for (int c = 0; c < COUNT; c++) parts[c] &= kept;
        }
        for (int r = 0; r < R; r++) {
            const words weight = words{} + weights[r][pair];
            for (int c = 0; c < COUNT; c++) sums[r][c] = dot<E>(sums[r][c], parts[c], weight);
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < COUNT; c++)
            join_values(states + r * tile.stride + HEADER + first + c * LANES, sums[r][c], joints[r]);
}

// R rows from row `first` of the tile on, which see no token of the piece but some from `begin` to `end`.
template <typename E, int R>
void attend_rows(const Tile& tile, const Piece& piece, const Ahead& ahead, int first, int begin, int end) {
    alignas(BYTES) float scores[R][PIECE];
    alignas(BYTES) uint32_t weights[R][PIECE / PAIR<E>];
    Joint joints[R];
    const uint32_t* query = tile.query + int64_t(first) * tile.key_words;
    float* states = tile.states + first * tile.stride;

    const int begin_vector = begin / LANES, end_vector = (end + LANES - 1) / LANES;
    int vector = begin_vector;
    for (; vector + VECTORS <= end_vector; vector += VECTORS)
        multiply_keys<E, R, VECTORS>(scores, tile, query, piece, ahead, vector);
    for (; vector < end_vector; vector++) multiply_keys<E, R, 1>(scores, tile, query, piece, ahead, vector);

    weigh_rows<E, R>(R, weights, joints, scores, tile, first, piece, begin_vector * LANES, end_vector * LANES);

    int dim = 0;
    for (; dim + VECTORS * LANES <= tile.value_dim; dim += VECTORS * LANES)
        add_values<E, R, VECTORS>(tile, states, weights, joints, piece, ahead, begin, end, dim);
    for (; dim + 2 * LANES <= tile.value_dim; dim += 2 * LANES)
        add_values<E, R, 2>(tile, states, weights, joints, piece, ahead, begin, end, dim);
    for (; dim < tile.value_dim; dim += LANES)
        add_values<E, R, 1>(tile, states, weights, joints, piece, ahead, begin, end, dim);
}

// Rows `first` to `last` of the tile, R at a time.
template <typename E, int R = ROWS>
void attend_by_vectors(const Tile& tile, const Piece& piece, const Ahead& ahead, int first, int last) {
    for (; first + R <= last; first += R) {
        const auto [begin, end] = seen_by(tile.rows + first, R, piece);
        if (begin < end) attend_rows<E, R>(tile, piece, ahead, first, begin, end);
    }
    if constexpr (R > 1)
        if (first < last) attend_by_vectors<E, R - 1>(tile, piece, ahead, first, last);
}

// Attends by vectors over a cache of elements of type E.
template <typename E>
struct ByVectors {
    using Element = E;
    using Query = Factor<E>;
    static constexpr int ROWS = 1;  // of a query that are read at once, if only the first of them is a tile's

    explicit ByVectors(int) {}

    void attend(const Tile& tile, const Piece& piece, const Ahead& ahead) const {
        attend_by_vectors<E>(tile, piece, ahead, 0, tile.count);
    }
};

}  // namespace
