// Attention of many rows over one piece of their context: its keys and values are unpacked to panels once, and multiplied
// by tiles of rows. A row's sums have the order of attention_tile.h's, and so its bits.
#pragma once

#include <vector>

#include "attention_tile.h"
#include "row_tiles.h"

namespace {

#ifdef __AVX512BF16__
constexpr bool MULTIPLIES_PAIRS = true;
#else
constexpr bool MULTIPLIES_PAIRS = false;
#endif

// What panels of elements of type E consist of: floats, or pairs where these are multiplied at once.
template <typename E>
using PanelNumber = std::conditional_t<PAIR<E> == 2 && MULTIPLIES_PAIRS, uint32_t, float>;

// Numbers that a word of the cache becomes.
template <typename E>
constexpr int NUMBERS = std::is_same_v<PanelNumber<E>, uint32_t> ? 1 : PAIR<E>;

// Writes LANES words of the cache to the same columns of NUMBERS successive lines.
template <typename E>
inline void unpack(PanelNumber<E>* to, words from) {
    typedef words any __attribute__((aligned(4), may_alias));
    *(any*)to = NUMBERS<E> == 1 ? from : from << 16;
    if (NUMBERS<E> == 2) *(any*)(to + PANEL_WIDTH) = from & 0xffff0000;
}

inline void prefetch_bytes(const char* from, int64_t count) {
    for (int64_t byte = 0; byte < count; byte += 64) __builtin_prefetch(from + byte);
}

// Returns the keys of the PANEL_WIDTH tokens from `token` of the piece on, by dims; copies them only if necessary.
template <typename E>
const PanelNumber<E>* unpack_keys(PanelNumber<E>* panel, const Piece& piece, const Ahead& ahead, int token, int words_of_key) {
    const int64_t bytes = int64_t(words_of_key) * GROUP * WORD<E>;
    for (int g = 0; g < PANEL_WIDTH / GROUP; g++) {
        const int group = token / GROUP + g;
        if (group < piece.first || group >= piece.last) {
            for (int64_t line = 0; line < words_of_key * NUMBERS<E>; line++)
                std::fill_n(panel + line * PANEL_WIDTH + g * GROUP, GROUP, PanelNumber<E>{});
            continue;
        }
        prefetch_bytes(ahead.keys[group], bytes);
        if (std::is_same_v<E, float> && PANEL_WIDTH == GROUP) return (const PanelNumber<E>*)piece.keys[group];
        for (int word = 0; word < words_of_key; word++)
            for (int lane = 0; lane < GROUP; lane += LANES)
                unpack<E>(panel + int64_t(word) * NUMBERS<E> * PANEL_WIDTH + g * GROUP + lane,
                          load_words<E>(piece.keys[group] + (word * GROUP + lane) * WORD<E>));
    }
    return panel;
}

// Copies the dims from `dim` on of the tokens `seen` of the piece: line after line those of a token, or of a pair of them,
// from the piece's first one on.
template <typename E>
void unpack_values(PanelNumber<E>* panel, const Piece& piece, const Ahead& ahead, Range seen, int dim, int dims) {
    for (int word = seen.begin / PAIR<E>; word * PAIR<E> < seen.end; word++) {
        const int group = word * PAIR<E> / GROUP, line = word % (GROUP / PAIR<E>);
        const int64_t byte = (int64_t(line) * dims + dim) * WORD<E>;
        const char* from = piece.values[group] + byte;
        prefetch_bytes(ahead.values[group] + byte, PANEL_WIDTH * WORD<E>);
        uint32_t kept = 0xffffffff;  // 0 * NaN is NaN
        if (PAIR<E> == 2 && word * 2 < seen.begin) kept = 0xffff0000;
        if (PAIR<E> == 2 && word * 2 + 1 >= seen.end) kept &= 0xffff;
        for (int v = 0; v < PANEL_VECTORS; v++) {
            const int lanes = std::clamp(dims - dim - v * LANES, 0, LANES);
            char last[LANES * WORD<E>] = {};
            const char* own = from + v * LANES * WORD<E>;
            if (lanes < LANES) own = (const char*)std::memcpy(last, own, lanes * WORD<E>);
            unpack<E>(panel + int64_t(word) * NUMBERS<E> * PANEL_WIDTH + v * LANES, load_words<E>(own) & kept);
        }
    }
}

// Attends by panels over a cache of elements of type E.
template <typename E>
class ByPanels {
    using Number = PanelNumber<E>;

  public:
    using Element = E;
    using Query = std::conditional_t<std::is_same_v<Number, float>, float, bfloat16>;
    static constexpr int ROWS = 1;                 // see ByVectors
    static constexpr int LEAST = 4 * PANEL_ROWS;   // rows that are worth unpacking

    explicit ByPanels(int rows) : memory(own_memory()) {
        memory.scores.resize(std::max<size_t>(memory.scores.size(), rows * PIECE));
        memory.joints.resize(std::max<size_t>(memory.joints.size(), rows));
        memory.seen.resize(std::max<size_t>(memory.seen.size(), rows));
    }

    void attend(const Tile& tile, const Piece& piece, const Ahead& ahead) const {
        Range all{PIECE, 0};
        for_row_tiles<PANEL_ROWS>(tile.count, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
            const Range seen = memory.seen[row] = seen_by(tile.rows + row, R, piece);
            if (seen.begin < seen.end) all = {std::min(all.begin, seen.begin), std::max(all.end, seen.end)};
        });
        multiply_keys(tile, piece, ahead, all);
        const auto scores = (float(*)[PIECE])memory.scores.data();
        for_row_tiles<PANEL_ROWS>(tile.count, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
            const Range seen = memory.seen[row];
            const int begin = seen.begin / LANES * LANES, end = (seen.end + LANES - 1) / LANES * LANES;
            if (seen.begin < seen.end)
                weigh_rows<E, R, Query>(R, scores + row, memory.joints.data() + row, scores + row, tile, row, piece, begin,
                                        end);
        });
        for (int dim = 0; dim < tile.value_dim; dim += PANEL_WIDTH) add_values(tile, piece, ahead, all, dim);
    }

  private:
    struct Memory {
        std::vector<Number> panel;
        std::vector<float> scores;  // [rows, PIECE], which weights replace
        std::vector<Joint> joints;  // [rows]
        std::vector<Range> seen;    // at the first row of each tile
    };

    // The calling thread's, which attends one item at a time.
    static Memory& own_memory() {
        static thread_local Memory memory;
        return memory;
    }

    Number* panel(int64_t lines) const {
        memory.panel.resize(std::max<size_t>(memory.panel.size(), lines * PANEL_WIDTH));
        return memory.panel.data();
    }

    void multiply_keys(const Tile& tile, const Piece& piece, const Ahead& ahead, Range all) const {
        const int numbers = tile.key_words, words_of_key = numbers / NUMBERS<E>;
        for (int token = all.begin / PANEL_WIDTH * PANEL_WIDTH; token < all.end; token += PANEL_WIDTH) {
            const Number* keys = unpack_keys<E>(panel(numbers), piece, ahead, token, words_of_key);
            for_row_tiles<PANEL_ROWS>(tile.count, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
                const Range seen = memory.seen[row];
                if (token >= seen.end || token + PANEL_WIDTH <= seen.begin) return;
                float* to = memory.scores.data() + row * PIECE + token;
                const PanelSums<R> sums((const Number*)tile.query + row * numbers, numbers, keys, numbers);
                sums.for_each([=](int r, int v, floats values) { store(to + r * PIECE + v * LANES, values); });
            });
        }
    }

    void add_values(const Tile& tile, const Piece& piece, const Ahead& ahead, Range all, int dim) const {
        constexpr int TOKENS = PAIR<E> / NUMBERS<E>;  // of a line
        Number* values = panel(PIECE / TOKENS);
        unpack_values<E>(values, piece, ahead, all, dim, tile.value_dim);
        for_row_tiles<PANEL_ROWS>(tile.count, [&]<int R>(int64_t row, std::integral_constant<int, R>) {
            const Range seen = memory.seen[row];
            if (seen.begin >= seen.end) return;
            const int first = seen.begin / TOKENS, last = (seen.end + TOKENS - 1) / TOKENS;
            const Number* weights = (const Number*)(memory.scores.data() + row * PIECE) + first;
            const Joint* joints = memory.joints.data() + row;
            const int64_t stride = tile.stride;
            float* states = tile.states + row * stride + HEADER + dim;
            const int vectors = (tile.value_dim - dim + LANES - 1) / LANES;
            const PanelSums<R> sums(weights, PIECE, values + int64_t(first) * PANEL_WIDTH, last - first);
            sums.for_each([=](int r, int v, floats own) {
                if (v < vectors) join_values(states + r * stride + v * LANES, own, joints[r]);
            });
        });
    }

    Memory& memory;
};

}  // namespace
