// Operations between a model's products, each in one pass. Computes in float; rows are bitwise independent of their
// number.

#include <cmath>
#include <cstring>

#include "activations.h"
#include "threads.h"

namespace {

constexpr int64_t WORTH_THREADS = 1 << 13;  // elements: a smaller amount is done before another thread has started

// Calls `compute(row)` for all rows of `dim` elements.
template <typename Compute>
void for_rows(int64_t rows, int64_t dim, const Compute& compute) {
    for_range_in_parallel(rows, rows * dim > WORTH_THREADS, compute);
}

template <typename T>
void norm(T* total, T* out, const T* x, const T* residual, const T* weight, int64_t rows, int64_t dim, float eps,
          float offset) {
    for_rows(rows, dim, [&](int64_t row) {
        const T* own = x + row * dim;
        if (residual) {
            T* sums = total + row * dim;
            for (int64_t d = 0; d < dim; d += LANES) store(sums + d, load(own + d) + load(residual + row * dim + d));
            own = sums;
        }
        floats squares = {};
        for (int64_t d = 0; d < dim; d += LANES) squares += load(own + d) * load(own + d);
        const float scale = 1 / std::sqrt(sum(squares) / dim + eps);
        for (int64_t d = 0; d < dim; d += LANES)
            store(out + row * dim + d, load(own + d) * scale * (load(weight + d) + offset));
    });
}

// Layer normalization (Ba et al. 2016, arXiv 1607.06450).
template <typename T>
void layer_norm_rows(T* out, const T* x, const T* weight, const T* bias, int64_t rows, int64_t dim, float eps) {
    for_rows(rows, dim, [&](int64_t row) {
        const T* own = x + row * dim;
        floats total = {}, squares = {};
        for (int64_t d = 0; d < dim; d += LANES) total += load(own + d);
        const float mean = sum(total) / dim;
        for (int64_t d = 0; d < dim; d += LANES) squares += (load(own + d) - mean) * (load(own + d) - mean);
        const float scale = 1 / std::sqrt(sum(squares) / dim + eps);
        for (int64_t d = 0; d < dim; d += LANES) {
            const floats scaled = (load(own + d) - mean) * scale * load(weight + d);
            store(out + row * dim + d, bias ? scaled + load(bias + d) : scaled);
        }
    });
}

// A rest that doesn't fill a vector is padded, so that an element's bits don't depend on its place.
template <typename T, typename Activation>
void map(T* out, const T* x, int64_t count, Activation activation) {
    const int64_t whole = count / LANES * LANES;
    for_rows(whole / LANES, LANES, [&](int64_t vector) {
        store(out + vector * LANES, activation(load(x + vector * LANES)));
    });
    T rest[LANES] = {};
    std::memcpy(rest, x + whole, (count - whole) * sizeof(T));
    store(rest, activation(load(rest)));
    std::memcpy(out + whole, rest, (count - whole) * sizeof(T));
}

template <typename T, typename Activation>
void gate(T* out, const T* gate_up, int64_t rows, int64_t dim, Activation activate) {
    for_rows(rows, dim, [&](int64_t row) {
        for (int64_t d = 0; d < dim; d += LANES) {
            const T* place = gate_up + 2 * row * dim + d;
            store(out + row * dim + d, activate(load(place)) * load(place + dim));
        }
    });
}

template <typename T>
void turn(T* out, const T* x, int64_t token_stride, int64_t head_stride, const T* cos, const T* sin, int64_t tokens,
            int64_t heads, int64_t dim) {
    const int64_t half = dim / 2;
    for_rows(tokens, heads * dim, [&](int64_t token) {
        for (int64_t head = 0; head < heads; head++) {
            const T* own = x + token * token_stride + head * head_stride;
            T* to = out + (token * heads + head) * dim;
            for (int64_t d = 0; d < half; d += LANES) {
                const floats a = load(own + d), b = load(own + half + d);
                const T *c = cos + token * dim + d, *s = sin + token * dim + d;
                store(to + d, a * load(c) - b * load(s));
                store(to + half + d, b * load(c + half) + a * load(s + half));
            }
        }
    });
}

}  // namespace

// All of one type: bfloat16, or float. See layers/kernel_sets/native.py for shapes.

extern "C" void rms_norm(int is_bfloat16, void* total, void* out, const void* x, const void* residual,
                         const void* weight, int64_t rows, int64_t dim, float eps, float offset) {
    auto run = [&]<typename T>(T) {
        norm((T*)total, (T*)out, (const T*)x, (const T*)residual, (const T*)weight, rows, dim, eps, offset);
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

extern "C" void layer_norm(int is_bfloat16, void* out, const void* x, const void* weight, const void* bias, int64_t rows,
                           int64_t dim, float eps) {
    auto run = [&]<typename T>(T) {
        layer_norm_rows((T*)out, (const T*)x, (const T*)weight, (const T*)bias, rows, dim, eps);
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

// kind: the place in native.py's ACTIVATIONS.
extern "C" void activate(int is_bfloat16, int kind, void* out, const void* x, int64_t count) {
    auto run = [&]<typename T>(T) {
        switch (kind) {
            case 0: return map((T*)out, (const T*)x, count, gelu);
            case 1: return map((T*)out, (const T*)x, count, gelu_tanh);
            case 2: return map((T*)out, (const T*)x, count, gelu_quick);
            case 3: return map((T*)out, (const T*)x, count, relu);
            case 4: return map((T*)out, (const T*)x, count, silu);
            case 5: return map((T*)out, (const T*)x, count, tangent);
            default: return map((T*)out, (const T*)x, count, softplus);
        }
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

extern "C" void silu_and_mul(int is_bfloat16, void* out, const void* gate_up, int64_t rows, int64_t dim) {
    auto run = [&]<typename T>(T) { gate((T*)out, (const T*)gate_up, rows, dim, silu); };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

extern "C" void gelu_tanh_and_mul(int is_bfloat16, void* out, const void* gate_up, int64_t rows, int64_t dim) {
    auto run = [&]<typename T>(T) { gate((T*)out, (const T*)gate_up, rows, dim, gelu_tanh); };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

extern "C" void rotate(int is_bfloat16, void* out, const void* x, int64_t token_stride, int64_t head_stride,
                       const void* cos, const void* sin, int64_t tokens, int64_t heads, int64_t dim) {
    auto run = [&]<typename T>(T) {
        turn((T*)out, (const T*)x, token_stride, head_stride, (const T*)cos, (const T*)sin, tokens, heads, dim);
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}
