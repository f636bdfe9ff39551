// Attention of a step's sequences, with one token or many, over the paged KV cache, which is read in place
// (PagedAttention, arXiv 2309.06180). Sequences are cut into tiles of tokens and these into KV heads; where that is too
// little work for all threads, also into pieces of the context, which are joined afterwards (FlashDecoding). Pieces are
// computed apart and joined in their order either way, so a token's result is bitwise independent of batch composition,
// of the number of threads, and of how a prompt was cut into chunks.

#include <omp.h>

#include <algorithm>
#include <vector>

#include "attention_tile.h"

namespace {

constexpr int TILE = 96;             // rows
constexpr int ITEMS_PER_THREAD = 8;  // from which on threads are busy evenly

struct Sequence {
    int32_t row;      // of the block tables
    int32_t first;    // index of its first token in the step
    int32_t tokens;   // in the step
    int32_t context;  // tokens in the cache, with those of the step
};

// Arguments that all items share. Strides count elements.
struct Step {
    void* out;
    const void* query;
    Pages keys, values;
    Storage storage;
    const int32_t* tables;
    int64_t table_stride, query_token, query_head;
    const Sequence* sequences;
    int count, heads;
    bool causal;
    int window;  // 0 for none
    Scores scores;
    const float *sinks, *alibi;  // [heads], or null

    int group() const { return heads / keys.kv_heads; }
    const float* sink(int head) const { return sinks ? sinks + head : nullptr; }
    int64_t stride() const { return HEADER + (values.dim + GROUP - 1) / GROUP * GROUP; }
};

// Consecutive tokens of a sequence.
struct Tokens {
    const Sequence* sequence;
    int first, count;  // in the sequence's tokens of the step

    int position() const { return sequence->context - sequence->tokens + first; }
};

// Tokens, for the heads of one KV head, and the pieces of the context to compute.
struct Item {
    Tokens tokens;
    int head, first, last;
    int64_t kept;  // where its states are kept until all pieces are joined; -1 if it has all pieces
};

Row row_of(const Step& step, const Tokens& tokens, int index, int head) {
    const int position = tokens.position() + index, context = tokens.sequence->context;
    Row row{position, 0, step.causal ? position + 1 : context, step.alibi ? step.alibi[head] : 0};
    if (step.window) {
        row.begin = std::max(position - step.window + 1, 0);
        row.end = std::min(row.end, position + step.window);
    }
    return row;
}

// The memory of one thread, which grows as needed.
struct Scratch {
    std::vector<uint32_t> query, keys, values;
    std::vector<float> states;
    std::vector<Row> rows;
};

// Sets the state of a row that has seen nothing, or the sink of its head.
void start(const Step& step, float* state, const float* sink) {
    std::fill(state, state + step.stride(), 0.0f);
    state[0] = sink ? std::max(*sink, LOWEST) : LOWEST;
    state[1] = sink ? 1 : 0;
}

template <typename T>
void finish(const Step& step, const float* state, const Tokens& tokens, int index, int head) {
    const int dim = step.values.dim;
    T* out = (T*)step.out + (int64_t(tokens.sequence->first + tokens.first + index) * step.heads + head) * dim;
    for (int d = 0; d < dim; d += LANES) {
        const floats values = load(state + HEADER + d) / state[1];
        if (d + LANES <= dim) {
            store(out + d, values);
        } else {
            T last[LANES];
            store(last, values);
            std::copy(last, last + dim - d, out + d);
        }
    }
}

// The elements of a group as T, and the address of its first scale if they are of 8 bits.
template <typename T>
const uint32_t* unpack(const Pages& pages, Storage storage, int64_t token, uint32_t* to, const float** scales) {
    const char* from = pages.group(token);
    if (storage == COMPUTED) return (const uint32_t*)from;
    *scales = pages.scales + token;
    auto convert = [&](auto unpack_bytes) {
        for (int place = 0; place < GROUP * pages.dim; place += LANES)
            store_exactly((T*)to + place, unpack_bytes(from + place));
    };
    storage == INT8 ? convert(unpack_int8) : convert(unpack_float8);
    return to;
}

// The groups of a piece that have a token from begin to end.
template <typename T>
Piece piece_of(const Step& step, const Item& item, int index, int begin, int end, Scratch& scratch) {
    const Pages &keys = step.keys, &values = step.values;
    Piece piece;
    piece.start = index * PIECE;
    piece.scaled = step.storage != COMPUTED;
    const int32_t* table = step.tables + item.tokens.sequence->row * step.table_stride;
    const int key_words = GROUP / PAIR<T> * keys.dim, value_words = GROUP / PAIR<T> * values.dim;
    if (piece.scaled) {
        scratch.keys.resize(PIECE / GROUP * key_words);
        scratch.values.resize(PIECE / GROUP * value_words);
    }
    const int last = std::min(PIECE, end - piece.start);
    for (int g = std::max(begin - piece.start, 0) / GROUP; g * GROUP < last; g++) {
        const int place = piece.start + g * GROUP;
        const int64_t token = keys.token(table[place / keys.block_size], item.head, place % keys.block_size);
        piece.keys[g] = unpack<T>(keys, step.storage, token, scratch.keys.data() + g * key_words,
                                  piece.key_scales + g);
        piece.values[g] = unpack<T>(values, step.storage, token, scratch.values.data() + g * value_words,
                                    piece.value_scales + g);
    }
    return piece;
}

// Starts to read a piece that follows, which few rows compute in less time than it takes to read.
void prefetch(const Step& step, const Item& item, int index, int end) {
    const Pages &keys = step.keys, &values = step.values;
    const int32_t* table = step.tables + item.tokens.sequence->row * step.table_stride;
    for (int place = index * PIECE; place < std::min((index + 1) * PIECE, end); place += GROUP) {
        const int64_t token = keys.token(table[place / keys.block_size], item.head, place % keys.block_size);
        for (const Pages* pages : {&keys, &values})
            for (int byte = 0; byte < GROUP * pages->dim * pages->item_size; byte += 64)
                __builtin_prefetch(pages->group(token) + byte);
    }
}

template <typename T>
void attend(const Step& step, const Item& item, float* kept, Scratch& scratch) {
    const Tokens& tokens = item.tokens;
    const int group = step.group(), rows = tokens.count * group, words = step.keys.dim / PAIR<T>;
    const int first_head = item.head * group;
    scratch.query.resize(rows * words);
    scratch.rows.resize(rows);
    float* states = kept + item.kept;
    if (item.kept < 0) {
        scratch.states.resize(rows * step.stride());
        states = scratch.states.data();
    }
    for (int r = 0; r < rows; r++) {
        const int index = r / group, head = first_head + r % group;
        const T* query = (const T*)step.query
            + (tokens.sequence->first + tokens.first + index) * step.query_token + head * step.query_head;
        std::memcpy(scratch.query.data() + r * words, query, words * sizeof(uint32_t));
        scratch.rows[r] = row_of(step, tokens, index, head);
        start(step, states + r * step.stride(), item.kept < 0 ? step.sink(head) : nullptr);
    }
    const Tile tile{scratch.query.data(), scratch.rows.data(), states, step.stride(), rows, words, step.values.dim,
                    step.scores};
    for (int index = item.first; index < item.last; index++) {
        const Piece piece = piece_of<T>(step, item, index, tile.rows[0].begin, tile.rows[rows - 1].end, scratch);
        if (rows <= GROUP && index + 1 < item.last) prefetch(step, item, index + 1, tile.rows[rows - 1].end);
        attend<T>(tile, piece, 0, rows);
    }
    if (item.kept < 0)
        for (int r = 0; r < rows; r++)
            finish<T>(step, states + r * step.stride(), tokens, r / group, first_head + r % group);
}

// Joins the pieces of some tokens that were computed apart; `item` is the first of them.
template <typename T>
void join(const Step& step, const Item& item, int pieces, const float* kept, Scratch& scratch) {
    const int group = step.group(), rows = item.tokens.count * group;
    scratch.states.resize(step.stride());
    float* state = scratch.states.data();
    for (int r = 0; r < rows; r++) {
        const int head = item.head * group + r % group;
        start(step, state, step.sink(head));
        for (int p = 0; p < pieces; p++) {
            const float* part = kept + item.kept + (int64_t(p) * rows + r) * step.stride();
            const Joint joint = join_header(state, part[0], part[1]);
            for (int d = HEADER; d < step.stride(); d += LANES) join_values(state + d, load(part + d), joint);
        }
        finish<T>(step, state, item.tokens, r / group, head);
    }
}

// The tiles and heads of all sequences, those with most work first; each with all its pieces.
std::vector<Item> cut_tokens(const Step& step) {
    std::vector<Item> items;
    const int most = std::max(TILE / step.group(), 1);
    for (int s = 0; s < step.count; s++)
        for (int first = 0; first < step.sequences[s].tokens; first += most) {
            const Tokens tokens{step.sequences + s, first, std::min(most, step.sequences[s].tokens - first)};
            const int begin = row_of(step, tokens, 0, 0).begin, end = row_of(step, tokens, tokens.count - 1, 0).end;
            for (int head = 0; head < step.keys.kv_heads; head++)
                items.push_back({tokens, head, begin / PIECE, (end + PIECE - 1) / PIECE, -1});
        }
    auto work = [](const Item& item) { return (item.last - item.first) * int64_t(item.tokens.count); };
    std::stable_sort(items.begin(), items.end(), [&](const Item& a, const Item& b) { return work(a) > work(b); });
    return items;
}

// Work for threads: items, of which some have only one of several pieces.
struct Plan {
    std::vector<Item> items;
    std::vector<int> joins;  // indices of the first of such items, and of the first after the last
    int64_t kept = 0;        // floats
};

Plan plan_work(const Step& step, int threads) {
    Plan plan;
    const std::vector<Item> tiles = cut_tokens(step);
    int64_t total = 0;
    for (const Item& tile : tiles) total += int64_t(tile.last - tile.first) * tile.tokens.count;
    for (const Item& tile : tiles) {
        const int64_t pieces = tile.last - tile.first;
        if (threads == 1 || pieces < 2 || pieces * tile.tokens.count * threads * ITEMS_PER_THREAD <= total) {
            plan.items.push_back(tile);
            continue;
        }
        plan.joins.push_back(int(plan.items.size()));
        for (int piece = tile.first; piece < tile.last; piece++) {
            plan.items.push_back({tile.tokens, tile.head, piece, piece + 1, plan.kept});
            plan.kept += tile.tokens.count * step.group() * step.stride();
        }
        plan.joins.push_back(int(plan.items.size()));
    }
    return plan;
}

template <typename T>
void attend(const Step& step) {
    static thread_local std::vector<float> kept;
    const Plan plan = plan_work(step, omp_get_max_threads());
    kept.resize(std::max<size_t>(kept.size(), plan.kept));
    float* shared = kept.data();
    #pragma omp parallel if (plan.items.size() > 1)
    {
        static thread_local Scratch scratch;
        #pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < plan.items.size(); i++) attend<T>(step, plan.items[i], shared, scratch);
        #pragma omp for schedule(dynamic, 1) nowait
        for (size_t j = 0; j < plan.joins.size(); j += 2)
            join<T>(step, plan.items[plan.joins[j]], plan.joins[j + 1] - plan.joins[j], shared, scratch);
    }
}

}  // namespace

// See NativeAttention. out: [tokens, heads, value dim]; query: [tokens, heads, key dim], with strides; keys, values: a
// layer's cache as in cache.h; tables: rows of block ids; sequences: int32 [count, 4]: row, first token, tokens,
// context; window, softcap: 0 for none; sinks, alibi: [heads], or null.
extern "C" void attention(int is_bfloat16, int storage, void* out, const void* query, int64_t query_token,
                          int64_t query_head, void* keys, float* key_scales, void* values, float* value_scales,
                          const int32_t* tables, int64_t table_stride, const void* sequences, int count, int heads,
                          int kv_heads, int key_dim, int value_dim, int block_size, int causal, int window,
                          float scaling, float softcap, const float* sinks, const float* alibi) {
    const int item_size = storage != COMPUTED ? 1 : is_bfloat16 ? 2 : 4;
    const Step step{
        out, query, {(char*)keys, key_scales, kv_heads, key_dim, block_size, item_size},
        {(char*)values, value_scales, kv_heads, value_dim, block_size, item_size}, Storage(storage), tables,
        table_stride, query_token, query_head, (const Sequence*)sequences, count, heads, bool(causal), window,
        {scaling, softcap, alibi != nullptr}, sinks, alibi,
    };
    is_bfloat16 ? attend<bfloat16>(step) : attend<float>(step);
}
