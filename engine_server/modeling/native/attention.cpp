// Attention of a step's sequences, with one token or many, over the paged KV cache, which is read in place
// (PagedAttention, arXiv 2309.06180). Sequences are cut into tiles of tokens and these into KV heads; where that is too
// little work for all threads, also into pieces of the context, which are joined afterwards (FlashDecoding). Pieces are
// computed apart and joined in their order either way, so a token's result is bitwise independent of batch composition,
// of the number of threads, and of how a prompt was cut into chunks.

#include <algorithm>
#include <vector>

#include "attention_panels.h"
#ifdef __AMX_BF16__
#include "attention_amx.h"
#endif
#include "threads.h"

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
    const int32_t* tables;
    int64_t table_stride, query_token, query_head;
    const Sequence* sequences;
    int count, heads;
    bool causal;
    int window;    // tokens that a row sees at most; 0 for all
    bool chunked;  // it sees those since the last multiple of `window`
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
    int64_t kept;  // where each piece's states are kept until all are joined; -1 if it has all pieces

    int pieces() const { return last - first; }
};

Row row_of(const Step& step, const Tokens& tokens, int index, int head) {
    const int position = tokens.position() + index, context = tokens.sequence->context;
    Row row{position, 0, step.causal ? position + 1 : context, step.alibi ? step.alibi[head] : 0};
    if (step.window) {
        row.begin = step.chunked ? position / step.window * step.window : std::max(position - step.window + 1, 0);
        row.end = std::min(row.end, position + step.window);
    }
    return row;
}

// The memory of one thread, which grows as needed.
struct Scratch {
    std::vector<uint32_t> query;
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

// The groups of piece `index` that have a token from begin to end.
Piece find(const Step& step, const Item& item, int index, int begin, int end) {
    const Pages &keys = step.keys, &values = step.values;
    const int32_t* table = step.tables + item.tokens.sequence->row * step.table_stride;
    Piece piece;
    piece.start = index * PIECE;
    piece.first = std::max(begin - piece.start, 0) / GROUP;
    piece.last = (std::min(PIECE, end - piece.start) + GROUP - 1) / GROUP;
    for (int g = piece.first; g < piece.last; g++) {
        const int place = piece.start + g * GROUP;
        const int64_t token = keys.token(table[place / keys.block_size], item.head, place % keys.block_size);
        piece.keys[g] = keys.group(token);
        piece.values[g] = values.group(token);
        piece.key_scales[g] = keys.scales + token;
        piece.value_scales[g] = values.scales + token;
    }
    return piece;
}

// Copies a row of a query as numbers of type Q.
template <typename Q, typename T>
void copy_query(uint32_t* to, const T* query, int words) {
    if constexpr (std::is_same_v<Q, T>)
        std::memcpy(to, query, words * sizeof(uint32_t));
    else
        for (int d = 0; d < words; d++) to[d] = uint32_t(query[d].bits) << 16;
}

// Computes an item; reads the beginning of `next` meanwhile, unless it is null.
template <typename T, typename Kernel>
void attend(const Step& step, const Item& item, const Item* next, float* kept, Scratch& scratch) {
    using Q = typename Kernel::Query;
    const Tokens& tokens = item.tokens;
    const int group = step.group(), rows = tokens.count * group, words = step.keys.dim * sizeof(Q) / sizeof(uint32_t);
    const int first_head = item.head * group;
    scratch.query.resize((rows + Kernel::ROWS - 1) * words);
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
        copy_query<Q>(scratch.query.data() + r * words, query, words);
        scratch.rows[r] = row_of(step, tokens, index, head);
        if (item.kept < 0) start(step, states + r * step.stride(), step.sink(head));
    }
    const int begin = scratch.rows[0].begin, end = scratch.rows[rows - 1].end;
    Tile tile{scratch.query.data(), scratch.rows.data(), states, step.stride(), rows, words, step.values.dim,
              step.scores};
    const Kernel kernel(rows);
    Piece piece = find(step, item, item.first, begin, end);
    for (int index = item.first; index < item.last; index++) {
        Piece following = piece;
        if (index + 1 < item.last)
            following = find(step, item, index + 1, begin, end);
        else if (next)
            following = find(step, *next, next->first, row_of(step, next->tokens, 0, 0).begin,
                             next->tokens.sequence->context);
        if (item.kept >= 0) {
            tile.states = states + int64_t(index - item.first) * rows * step.stride();
            for (int r = 0; r < rows; r++) start(step, tile.states + r * step.stride(), nullptr);
        }
        kernel.attend(tile, piece, ahead_of(piece, following));
        piece = following;
    }
    if (item.kept < 0)
        for (int r = 0; r < rows; r++)
            finish<T>(step, states + r * step.stride(), tokens, r / group, first_head + r % group);
}

// Joins the pieces of some tokens that were computed apart.
template <typename T>
void join(const Step& step, const Item& item, const float* kept, Scratch& scratch) {
    const int group = step.group(), rows = item.tokens.count * group;
    scratch.states.resize(step.stride());
    float* state = scratch.states.data();
    for (int r = 0; r < rows; r++) {
        const int head = item.head * group + r % group;
        start(step, state, step.sink(head));
        for (int p = 0; p < item.pieces(); p++) {
            const float* part = kept + item.kept + (int64_t(p) * rows + r) * step.stride();
            Joint joint;
            join_headers(1, state, 0, part, part + 1, &joint);
            for (int d = HEADER; d < step.stride(); d += LANES) join_values(state + d, load(part + d), joint);
        }
        finish<T>(step, state, item.tokens, r / group, head);
    }
}

int64_t work(const Item& item) { return int64_t(item.pieces()) * item.tokens.count; }

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
    auto more_work = [](const Item& a, const Item& b) { return work(a) > work(b); };
    std::stable_sort(items.begin(), items.end(), more_work);
    return items;
}

// Work for threads: items, of which some have only some of the pieces of their tokens.
struct Plan {
    std::vector<Item> items, joins;
    int64_t kept = 0;  // floats
};

Plan plan_work(const Step& step, int threads) {
    Plan plan;
    int64_t total = 0;
    const std::vector<Item> tiles = cut_tokens(step);
    for (const Item& tile : tiles) total += work(tile);
    const int64_t most = threads == 1 ? total : total / (threads * ITEMS_PER_THREAD);
    for (Item tile : tiles) {
        const int pieces = std::max<int64_t>(most / tile.tokens.count, 1);  // of an item
        if (tile.pieces() <= pieces) {
            plan.items.push_back(tile);
            continue;
        }
        tile.kept = plan.kept;
        plan.joins.push_back(tile);
        const int64_t kept = tile.tokens.count * step.group() * step.stride();  // of a piece
        for (int first = tile.first; first < tile.last; first += pieces) {
            plan.items.push_back({tile.tokens, tile.head, first, std::min(first + pieces, tile.last), plan.kept});
            plan.kept += plan.items.back().pieces() * kept;
        }
    }
    return plan;
}

// By a kernel for few rows and one for many.
template <typename T, typename Few, typename Many>
void attend(const Step& step) {
    static thread_local std::vector<float> kept;
    static thread_local Scratch scratch;
    const int threads = num_threads();
    const Plan plan = plan_work(step, threads);
    kept.resize(std::max<size_t>(kept.size(), plan.kept));
    float* shared = kept.data();
    const int64_t count = plan.items.size();
    for_each_in_parallel(count, [&](int64_t i) {
        const int64_t next = i + threads;  // probably this thread's
        const auto run = plan.items[i].tokens.count * step.group() < Many::LEAST ? attend<T, Few> : attend<T, Many>;
        run(step, plan.items[i], next < count ? &plan.items[next] : nullptr, shared, scratch);
    });
    for_each_in_parallel(plan.joins.size(), [&](int64_t i) { join<T>(step, plan.joins[i], shared, scratch); });
}

// Attends by the kernel for caches of elements of type E.
template <typename T, typename E>
void attend_over(const Step& step) {
#ifdef __AMX_BF16__
    if constexpr (std::is_same_v<E, bfloat16>)
        if (ByTiles::take(step.keys.dim, step.values.dim)) return attend<T, ByTiles, ByTiles>(step);
#endif
    attend<T, ByVectors<E>, ByPanels<E>>(step);
}

}  // namespace

// See NativeAttention. out: [tokens, heads, value dim]; query: [tokens, heads, key dim], with strides; keys, values: a
// layer's cache as in cache.h; tables: rows of block ids; sequences: int32 [count, 4]: row, first token, tokens,
// context; window, chunked: see Step; softcap: 0 for none; sinks, alibi: [heads], or null.
extern "C" void attention(int is_bfloat16, int storage, void* out, const void* query, int64_t query_token,
                          int64_t query_head, void* keys, float* key_scales, void* values, float* value_scales,
                          const int32_t* tables, int64_t table_stride, const void* sequences, int count, int heads,
                          int kv_heads, int key_dim, int value_dim, int block_size, int causal, int window,
                          int chunked, float scaling, float softcap, const float* sinks, const float* alibi) {
    with_types(is_bfloat16, Storage(storage), [&]<typename T, typename E>(T, E) {
        attend_over<T, E>({
            out, query, {(char*)keys, key_scales, kv_heads, key_dim, block_size, sizeof(E)},
            {(char*)values, value_scales, kv_heads, value_dim, block_size, sizeof(E)}, tables, table_stride,
            query_token, query_head, (const Sequence*)sequences, count, heads, bool(causal), window, bool(chunked),
            {scaling, softcap, alibi != nullptr}, sinks, alibi,
        });
    });
}
