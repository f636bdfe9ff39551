// Recurrent layers: the sequences of a flat batch go on from their states, token by token, so that results have the same
// bits however a prompt is cut. A piece of a state is copied into the first cache, continued, and copied to its slot.
//
// `sequences` is [4][count]: each sequence's first token, the number of its tokens, the slot of the state before them (-1:
// zeros), and that of the state after them.

#include <cmath>
#include <cstring>
#include <vector>

#include "activations.h"
#include "threads.h"

namespace {

constexpr int64_t WORTH_THREADS = 1 << 14;  // elements of states that are continued by a token
// Columns of a state of the delta rule, or rows of one of a state space, that are continued together.
constexpr int WIDE = 32, NARROW = 16;
constexpr float NORM_EPSILON = 1e-6f;  // within the root of the norm of queries and keys

struct Sequence {
    int64_t start, length, source, target;
};

struct Sequences {
    const int64_t* columns;
    int64_t count;

    Sequence operator[](int64_t i) const {
        return {columns[i], columns[count + i], columns[2 * count + i], columns[3 * count + i]};
    }

    int64_t tokens() const {
        int64_t total = 0;
        for (int64_t i = 0; i < count; i++) total += columns[count + i];
        return total;
    }

    // Calls task(sequence, part) for each sequence and each of `parts` parts of its state, those of one part together, so
    // that the pieces of the threads are about equal. size: elements of a state.
    template <typename Task>
    void for_parts(int64_t parts, int64_t size, const Task& task) const {
        for_range_in_parallel(parts * count, tokens() * size > WORTH_THREADS,
                              [&](int64_t item) { task((*this)[item % count], item / count); });
    }
};

// Memory of this thread, which the next call overwrites.
float* scratch(int64_t count) {
    thread_local std::vector<float> memory;
    if ((int64_t)memory.size() < count) memory.resize(count);
    return memory.data();
}

template <typename T>
void widen_row(float* to, const T* from, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) store(to + i, load(from + i));
}

void scale_row(float* row, int64_t count, float factor) {
    for (int64_t i = 0; i < count; i += LANES) store(row + i, load(row + i) * factor);
}

float norm_factor(const float* row, int64_t count) {
    floats squares = {};
    for (int64_t i = 0; i < count; i += LANES) squares += load(row + i) * load(row + i);
    return 1 / std::sqrt(sum(squares) + NORM_EPSILON);
}

template <typename T>
struct DeltaRule {
    T* out;
    const T *query, *key, *value;
    int64_t query_stride, key_stride, value_stride;  // of a token, in elements
    const float *log_decay, *beta;                   // [tokens, heads]
    float* states;                                   // [slots, heads, dim, width]
    int64_t key_heads, heads, dim, width;
    bool normalises;

    // Continues columns [first, first + COLUMNS) of one head's state.
    template <int COLUMNS>
    void run(const Sequence& sequence, int64_t head, int64_t first) const {
        constexpr int VECTORS = COLUMNS / LANES, CHAINS = 8 / VECTORS;  // enough sums at a time to hide their latency
        float *state = scratch(dim * (COLUMNS + 2)), *q = state + dim * COLUMNS, *k = q + dim;
        const int64_t key_head = head / (heads / key_heads);
        auto slot = [&](int64_t number) { return states + (number * heads + head) * dim * width + first; };
        for (int64_t i = 0; i < dim; i++) {
            if (sequence.source < 0)
                std::memset(state + i * COLUMNS, 0, 4 * COLUMNS);
            else
                std::memcpy(state + i * COLUMNS, slot(sequence.source) + i * width, 4 * COLUMNS);
        }
        for (int64_t token = sequence.start; token < sequence.start + sequence.length; token++) {
            widen_row(q, query + token * query_stride + key_head * dim, dim);
            widen_row(k, key + token * key_stride + key_head * dim, dim);
            scale_row(q, dim, (normalises ? norm_factor(q, dim) : 1) / std::sqrt((float)dim));
            if (normalises) scale_row(k, dim, norm_factor(k, dim));
            const float decay = exponential(broadcast(log_decay[token * heads + head]))[0];
            floats found[CHAINS][VECTORS] = {};
            for (int64_t i = 0; i < dim; i += CHAINS)
                for (int chain = 0; chain < CHAINS; chain++)
                    for (int v = 0; v < VECTORS; v++)
                        found[chain][v] = fused(load(state + (i + chain) * COLUMNS + v * LANES),
                                                broadcast(k[i + chain]), found[chain][v]);
            floats missing[VECTORS], result[VECTORS] = {};
            const T* wanted = value + token * value_stride + head * width + first;
            for (int v = 0; v < VECTORS; v++) {
                for (int chain = 1; chain < CHAINS; chain++) found[0][v] += found[chain][v];
                missing[v] = (load(wanted + v * LANES) - decay * found[0][v]) * beta[token * heads + head];
            }
            for (int64_t i = 0; i < dim; i++)
                for (int v = 0; v < VECTORS; v++) {
                    float* place = state + i * COLUMNS + v * LANES;
                    const floats next = fused(missing[v], broadcast(k[i]), load(place) * decay);
                    result[v] = fused(next, broadcast(q[i]), result[v]);
                    store(place, next);
                }
            for (int v = 0; v < VECTORS; v++)
                store(out + (token * heads + head) * width + first + v * LANES, result[v]);
        }
        for (int64_t i = 0; i < dim; i++)
            std::memcpy(slot(sequence.target) + i * width, state + i * COLUMNS, 4 * COLUMNS);
    }
};

template <typename T>
struct StateSpace {
    float* out;
    const T *x, *inward, *outward;
    int64_t x_stride, inward_stride, outward_stride;  // of a token, in elements
    const float *steps, *rates, *skip;                // [tokens, heads], [heads], [heads] or null
    float* states;                                    // [slots, heads, dim, size]
    int64_t heads, groups, dim, size;

    // Continues rows [first, first + NARROW) of one head's state.
    void run(const Sequence& sequence, int64_t head, int64_t first) const {
        float *state = scratch(size * (NARROW + 2)), *b = state + size * NARROW, *c = b + size;
        const int64_t group = head / (heads / groups), bytes = 4 * NARROW * size;
        auto slot = [&](int64_t number) { return states + ((number * heads + head) * dim + first) * size; };
        if (sequence.source < 0)
            std::memset(state, 0, bytes);
        else
            std::memcpy(state, slot(sequence.source), bytes);
        for (int64_t token = sequence.start; token < sequence.start + sequence.length; token++) {
            widen_row(b, inward + token * inward_stride + group * size, size);
            widen_row(c, outward + token * outward_stride + group * size, size);
            const float step = steps[token * heads + head];
            const float decay = exponential(broadcast(rates[head] * step))[0];
            for (int row = 0; row < NARROW; row += LANES) {
                const floats inputs = load(x + token * x_stride + head * dim + first + row), scaled = inputs * step;
                floats totals[LANES] = {};
                for (int64_t i = 0; i < size; i += LANES) {
                    const floats in = load(b + i), weights = load(c + i);
                    for (int lane = 0; lane < LANES; lane++) {
                        float* place = state + (row + lane) * size + i;
                        const floats next = fused(in, broadcast(scaled[lane]), load(place) * decay);
                        totals[lane] = fused(next, weights, totals[lane]);
                        store(place, next);
                    }
                }
                floats result = sums(totals);
                if (skip) result += skip[head] * inputs;
                store(out + (token * heads + head) * dim + first + row, result);
            }
        }
        std::memcpy(slot(sequence.target), state, bytes);
    }
};

template <typename T>
struct Convolution {
    T* out;                  // [tokens, channels]
    const T* x;              // a token's channels follow each other
    int64_t stride;          // of a token, in elements
    const T *weight, *bias;  // [taps, channels], [channels] or null
    T* states;               // [slots, taps - 1, channels]
    int64_t channels, taps;

    // Continues LANES channels.
    template <typename Activation>
    void run(const Sequence& sequence, int64_t first, Activation activation) const {
        float* window = scratch(taps * LANES);  // the inputs of the latest `taps` tokens
        auto tail = [&](int64_t slot, int64_t tap) { return states + (slot * (taps - 1) + tap) * channels + first; };
        for (int64_t tap = 0; tap < taps - 1; tap++)
            store(window + (tap + 1) * LANES, sequence.source < 0 ? floats{} : load(tail(sequence.source, tap)));
        for (int64_t token = sequence.start; token < sequence.start + sequence.length; token++) {
            std::memmove(window, window + LANES, 4 * (taps - 1) * LANES);
            store(window + (taps - 1) * LANES, load(x + token * stride + first));
            floats result = bias ? load(bias + first) : floats{};
            for (int64_t tap = 0; tap < taps; tap++)
                result = fused(load(window + tap * LANES), load(weight + tap * channels + first), result);
            store(out + token * channels + first, activation(result));
        }
        for (int64_t tap = 0; tap < taps - 1; tap++)
            store(tail(sequence.target, tap), load(window + (tap + 1) * LANES));
    }
};

}  // namespace

// The gated delta rule (Yang et al., arXiv 2412.06464).
extern "C" void delta_rule(int is_bfloat16, void* out, const void* query, int64_t query_stride, const void* key,
                           int64_t key_stride, const void* value, int64_t value_stride, const float* log_decay,
                           const float* beta, float* states, const int64_t* sequences, int64_t count, int64_t key_heads,
                           int64_t heads, int64_t dim, int64_t width, int normalises) {
    auto run = [&]<typename T>(T) {
        const DeltaRule<T> rule = {(T*)out, (const T*)query, (const T*)key, (const T*)value, query_stride, key_stride,
                                   value_stride, log_decay, beta, states, key_heads, heads, dim, width,
                                   normalises != 0};
        const bool wide = width % WIDE == 0;
        const int64_t parts = width / (wide ? WIDE : NARROW);
        Sequences{sequences, count}.for_parts(heads * parts, heads * dim * width, [&](Sequence one, int64_t part) {
            if (wide)
                rule.template run<WIDE>(one, part / parts, part % parts * WIDE);
            else
                rule.template run<NARROW>(one, part / parts, part % parts * NARROW);
        });
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

// Mamba 2's recurrence (Dao and Gu, arXiv 2405.21060).
extern "C" void state_space(int is_bfloat16, float* out, const void* x, int64_t x_stride, const void* inward,
                            int64_t inward_stride, const void* outward, int64_t outward_stride, const float* steps,
                            const float* rates, const float* skip, float* states, const int64_t* sequences,
                            int64_t count, int64_t heads, int64_t groups, int64_t dim, int64_t size) {
    auto run = [&]<typename T>(T) {
        const StateSpace<T> space = {out, (const T*)x, (const T*)inward, (const T*)outward, x_stride, inward_stride,
                                     outward_stride, steps, rates, skip, states, heads, groups, dim, size};
        const int64_t parts = dim / NARROW;
        Sequences{sequences, count}.for_parts(heads * parts, heads * dim * size, [&](Sequence one, int64_t part) {
            space.run(one, part / parts, part % parts * NARROW);
        });
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

// A causal convolution of each channel, followed by SiLU or nothing.
extern "C" void convolve(int is_bfloat16, int is_activated, void* out, const void* x, int64_t stride, const void* weight,
                         const void* bias, void* states, const int64_t* sequences, int64_t count, int64_t channels,
                         int64_t taps) {
    auto run = [&]<typename T>(T) {
        const Convolution<T> convolution = {(T*)out, (const T*)x, stride, (const T*)weight, (const T*)bias, (T*)states,
                                            channels, taps};
        Sequences{sequences, count}.for_parts(channels / LANES, channels * taps, [&](Sequence one, int64_t part) {
            if (is_activated)
                convolution.run(one, part * LANES, silu);
            else
                convolution.run(one, part * LANES, [](floats sum) { return sum; });
        });
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}
