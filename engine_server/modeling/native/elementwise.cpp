// Operations of torch between a model's modules, with the same bits, for programs.

#include <cstring>

#include "vectors.h"

namespace {

constexpr int64_t WORTH_THREADS = 1 << 14;  // elements

// Calls `compute` for each vector of `count` elements, and once for a rest that is padded to a vector.
template <typename T, int INPUTS, typename Compute>
void map(T* out, const T* const (&inputs)[INPUTS], int64_t count, Compute compute) {
    const int64_t whole = count / LANES * LANES;
    auto vector = [&](T* to, const T* const* from, int64_t at) {
        floats values[INPUTS];
        for (int i = 0; i < INPUTS; i++) values[i] = load(from[i] + at);
        store(to + at, compute(values));
    };
    #pragma omp parallel for if (count > WORTH_THREADS)
    for (int64_t at = 0; at < whole; at += LANES) vector(out, inputs, at);
    if (whole == count) return;
    T padded[INPUTS + 1][LANES] = {};
    const T* rest[INPUTS];
    for (int i = 0; i < INPUTS; i++)
        rest[i] = (const T*)std::memcpy(padded[i], inputs[i] + whole, (count - whole) * sizeof(T));
    vector(padded[INPUTS], rest, 0);
    std::memcpy(out + whole, padded[INPUTS], (count - whole) * sizeof(T));
}

}  // namespace

extern "C" void add(int is_bfloat16, void* out, const void* a, const void* b, int64_t count) {
    auto run = [&]<typename T>(T) {
        map<T, 2>((T*)out, {(const T*)a, (const T*)b}, count, [](const floats* of) { return of[0] + of[1]; });
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

extern "C" void scale(int is_bfloat16, void* out, const void* values, int64_t count, float factor) {
    auto run = [&]<typename T>(T) {
        map<T, 1>((T*)out, {(const T*)values}, count, [=](const floats* of) { return of[0] * factor; });
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

// Multiplies by a tensor of one element.
extern "C" void scale_by(int is_bfloat16, void* out, const void* values, const void* factor, int64_t count) {
    auto run = [&]<typename T>(T) {
        T element[LANES] = {*(const T*)factor};
        const float by = load(element)[0];
        map<T, 1>((T*)out, {(const T*)values}, count, [=](const floats* of) { return of[0] * by; });
    };
    is_bfloat16 ? run(bfloat16{}) : run(float{});
}

extern "C" void add_integer(int64_t* out, const int64_t* values, int64_t count, int64_t number) {
    for (int64_t i = 0; i < count; i++) out[i] = values[i] + number;
}

extern "C" void widen(int64_t* out, const int32_t* values, int64_t count) {
    for (int64_t i = 0; i < count; i++) out[i] = values[i];
}

// Copies a tensor of four dimensions. Strides count bytes, `bytes` the size of an element, which may be a whole row.
extern "C" void copy(char* to, const char* from, int64_t bytes, int64_t size0, int64_t to0, int64_t from0, int64_t size1,
                     int64_t to1, int64_t from1, int64_t size2, int64_t to2, int64_t from2, int64_t size3, int64_t to3,
                     int64_t from3) {
    for (int64_t i = 0; i < size0; i++)
        for (int64_t j = 0; j < size1; j++)
            for (int64_t k = 0; k < size2; k++)
                for (int64_t l = 0; l < size3; l++)
                    std::memcpy(to + i * to0 + j * to1 + k * to2 + l * to3,
                                from + i * from0 + j * from1 + k * from2 + l * from3, bytes);
}

// Gathers rows of `bytes` bytes.
extern "C" void gather(int is_long, char* out, const char* table, const void* ids, int64_t count, int64_t bytes) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t id = is_long ? ((const int64_t*)ids)[i] : ((const int32_t*)ids)[i];
        std::memcpy(out + i * bytes, table + id * bytes, bytes);
    }
}
