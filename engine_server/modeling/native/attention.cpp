// Attention of sequences with one new token each over the paged KV cache, read in place (PagedAttention, arXiv
// 2309.06180). A context is cut into pieces that are joined by their largest scores and sums (FlashDecoding). A
// piece's bounds depend on its own context alone, so results are bitwise independent of batch composition.

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "vectors.h"

namespace {

constexpr int PIECE = 128;          // tokens
constexpr float HIDDEN = -1e30f;    // a score with a weight of 0
constexpr int HEADER = LANES;       // of a piece's result: its largest score, the sum of its weights, its values

struct Sequence {
    int32_t row;      // of the block tables
    int32_t first;    // index in that row of the first block to read
    int32_t begin;    // number of tokens from there on that are hidden from the new one
    int32_t context;  // number of tokens from there on
};

struct Piece {
    int32_t sequence, start, stop;  // tokens
};

// Arguments that all pieces share. Strides count elements.
struct Step {
    const int32_t* tables;
    int64_t table_stride, query_token, query_head;
    int heads, kv_heads, dim, block_size;
    float scaling;
};

template <typename T>
void prefetch_token(const T* rows, int token, int dim) {
    auto bytes = (const char*)(rows + token * dim);
    for (size_t line = 0; line < dim * sizeof(T); line += 64) __builtin_prefetch(bytes + line);
}

// GROUP query heads of one KV head over one piece. `kept`: [GROUP, HEADER + DIM].
template <typename T, int DIM, int GROUP>
void attend(const Step& step, const Sequence& sequence, const Piece& piece, const T* query, const T* keys,
            const T* values, float* kept) {
    constexpr int PARTS = DIM / LANES;
    const int64_t block = int64_t(step.kv_heads) * step.block_size * DIM;
    const int32_t* table = step.tables + sequence.row * step.table_stride + sequence.first;
    auto place = [&](int token) { return table[token / step.block_size] * block + token % step.block_size * DIM; };

    floats queries[GROUP][PARTS];
    for (int g = 0; g < GROUP; g++)
        for (int p = 0; p < PARTS; p++) queries[g][p] = load(query + g * step.query_head + p * LANES) * step.scaling;

    alignas(BYTES) float scores[GROUP][PIECE];
    for (int start = piece.start; start < piece.stop; start += LANES) {
        const T* key = keys + place(start);
        const T* later_key = keys + place(std::min(start + LANES, piece.stop - 1) / LANES * LANES);
        const T* value = values + place(start);
        floats products[GROUP][LANES];
        for (int token = 0; token < LANES; token++) {
            prefetch_token(later_key, token, DIM);
            prefetch_token(value, token, DIM);
            floats parts[PARTS];
            for (int p = 0; p < PARTS; p++) parts[p] = load(key + token * DIM + p * LANES);
            for (int g = 0; g < GROUP; g++) {
                products[g][token] = queries[g][0] * parts[0];
                for (int p = 1; p < PARTS; p++) products[g][token] += queries[g][p] * parts[p];
            }
        }
        for (int g = 0; g < GROUP; g++) store(scores[g] + start - piece.start, sums(products[g]));
    }

    const int count = piece.stop - piece.start, hidden = std::clamp(sequence.begin - piece.start, 0, count);
    for (int g = 0; g < GROUP; g++) {
        float* own = scores[g];
        std::fill(own, own + hidden, HIDDEN);
        std::fill(own + count, own + (count + LANES - 1) / LANES * LANES, HIDDEN);
        float most = own[0];
        for (int t = 1; t < count; t++) most = own[t] <= most ? most : own[t];
        floats total = {};
        for (int t = 0; t < count; t += LANES) {
            floats weights = exponential(load(own + t) - most);
            store(own + t, weights);
            total += weights;
        }
        kept[g * (HEADER + DIM)] = most;
        kept[g * (HEADER + DIM) + 1] = sum(total);
    }

    floats output[GROUP][PARTS] = {};
    for (int token = piece.start + hidden; token < piece.stop;) {
        const T* value = values + place(token);
        const int stop = std::min((token / step.block_size + 1) * step.block_size, piece.stop);
        for (; token < stop; token++, value += DIM)
            for (int p = 0; p < PARTS; p++) {
                floats part = load(value + p * LANES);
                for (int g = 0; g < GROUP; g++) output[g][p] += part * scores[g][token - piece.start];
            }
    }
    for (int g = 0; g < GROUP; g++)
        for (int p = 0; p < PARTS; p++) store(kept + g * (HEADER + DIM) + HEADER + p * LANES, output[g][p]);
}

// `group` query heads, in groups whose sums fit into the CPU's registers.
template <typename T, int DIM, int GROUP = std::clamp(REGISTERS * 3 / 4 / (DIM / LANES), 1, 4)>
void attend_group(int group, const Step& step, const Sequence& sequence, const Piece& piece, const T* query,
                  const T* keys, const T* values, float* kept) {
    for (; group >= GROUP; group -= GROUP, query += GROUP * step.query_head, kept += GROUP * (HEADER + DIM))
        attend<T, DIM, GROUP>(step, sequence, piece, query, keys, values, kept);
    if constexpr (GROUP > 1)
        if (group) attend_group<T, DIM, GROUP - 1>(group, step, sequence, piece, query, keys, values, kept);
}

// Joins one head's `count` pieces, `stride` floats apart.
template <typename T, int DIM>
void join(T* out, const float* kept, int count, int64_t stride) {
    float most = kept[0];
    for (int k = 1; k < count; k++) most = kept[k * stride] <= most ? most : kept[k * stride];
    float total = 0;
    floats output[DIM / LANES] = {};
    for (int k = 0; k < count; k++, kept += stride) {
        float weight = exponential(floats{} + (kept[0] - most))[0];
        total += weight * kept[1];
        for (int p = 0; p < DIM / LANES; p++) output[p] += load(kept + HEADER + p * LANES) * weight;
    }
    for (int p = 0; p < DIM / LANES; p++) store(out + p * LANES, output[p] / total);
}

template <typename T, int DIM>
void decode(T* out, const T* query, const T* keys, const T* values, const Sequence* sequences, int count,
            const Step& step) {
    const int group = step.heads / step.kv_heads;
    const int64_t row = HEADER + DIM;
    std::vector<Piece> pieces;
    std::vector<int> firsts;  // each sequence's first piece, and the total number
    for (int s = 0; s < count; s++) {
        firsts.push_back(int(pieces.size()));
        for (int start = 0; start < sequences[s].context; start += PIECE)
            pieces.push_back({s, start, std::min(start + PIECE, sequences[s].context)});
    }
    firsts.push_back(int(pieces.size()));
    const auto kept = std::make_unique_for_overwrite<float[]>(pieces.size() * step.heads * row);
    #pragma omp parallel
    {
        #pragma omp for schedule(dynamic, 4)
        for (int work = 0; work < int(pieces.size()) * step.kv_heads; work++) {
            const int head = work % step.kv_heads;
            const Piece& piece = pieces[work / step.kv_heads];
            const int64_t place = int64_t(head) * step.block_size * DIM;
            attend_group<T, DIM>(
                group, step, sequences[piece.sequence], piece,
                query + piece.sequence * step.query_token + head * group * step.query_head,
                keys + place, values + place, kept.get() + int64_t(work) * group * row
            );
        }
        #pragma omp for schedule(static)
        for (int work = 0; work < count * step.heads; work++) {
            const int s = work / step.heads;
            const float* first = kept.get() + (int64_t(firsts[s]) * step.heads + work % step.heads) * row;
            join<T, DIM>(out + int64_t(work) * DIM, first, firsts[s + 1] - firsts[s], step.heads * row);
        }
    }
}

template <typename T>
void decode(void* out, const void* query, const void* keys, const void* values, const void* sequences, int count,
            const Step& step) {
    auto run = [&](auto kernel) {
        kernel((T*)out, (const T*)query, (const T*)keys, (const T*)values, (const Sequence*)sequences, count, step);
    };
    switch (step.dim) {
        case 64: return run(decode<T, 64>);
        case 80: return run(decode<T, 80>);
        case 96: return run(decode<T, 96>);
        case 128: return run(decode<T, 128>);
        case 256: return run(decode<T, 256>);
    }
}

}  // namespace

// See NativeAttention: out [count, heads, dim]; query the same, with strides; keys, values: a layer's cache
// [blocks, kv heads, block size, dim]; sequences: [count, 4]; tables: rows of block ids.
extern "C" void decode(int is_bfloat16, void* out, const void* query, int64_t query_token, int64_t query_head,
                       const void* keys, const void* values, const int32_t* tables, int64_t table_stride,
                       const void* sequences, int count, int heads, int kv_heads, int dim, int block_size,
                       float scaling) {
    const Step step{tables, table_stride, query_token, query_head, heads, kv_heads, dim, block_size, scaling};
    (is_bfloat16 ? decode<bfloat16> : decode<float>)(out, query, keys, values, sequences, count, step);
}

// Writes the K or V of `tokens` tokens to their slots (block id * block size + offset). Strides count bytes.
extern "C" void write_cache(char* cache, const char* given, int64_t token_stride, int64_t head_stride,
                            const int64_t* slots, int64_t tokens, int kv_heads, int block_size, int64_t row_bytes) {
    #pragma omp parallel for if (tokens * kv_heads > 16)  // each row is a separate cache miss
    for (int64_t token = 0; token < tokens; token++) {
        const int64_t block = slots[token] / block_size, offset = slots[token] % block_size;
        for (int head = 0; head < kv_heads; head++)
            std::memcpy(cache + ((block * kv_heads + head) * block_size + offset) * row_bytes,
                        given + token * token_stride + head * head_stride, row_bytes);
    }
}
