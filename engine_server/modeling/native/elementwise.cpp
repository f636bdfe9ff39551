// Operations of torch between a model's modules, with the same bits, for programs.

#include <algorithm>
#include <cstring>

#include "threads.h"
#include "vectors.h"

namespace {

constexpr int64_t WORTH_THREADS = 1 << 14;  // elements
constexpr int64_t PIECE = 1 << 12;          // elements of a row that one thread computes

// A tensor of up to four dimensions of bfloat16 or float, with strides in elements.
template <typename Address>
struct Tensor {
    Address address;
    int is_bfloat16;
    int64_t stride[4];
};

// Loads `count` elements from place `at` on, at most as many as a vector has.
floats take(const Tensor<const void*>& from, int64_t at, int64_t count) {
    const int64_t stride = from.stride[3];
    const float* numbers = (const float*)from.address + at;
    const bfloat16* halves = (const bfloat16*)from.address + at;
    if (stride == 1 && count == LANES) return from.is_bfloat16 ? load(halves) : load(numbers);
    auto element = [&](int64_t i) { return from.is_bfloat16 ? widened(halves[i]) : numbers[i]; };
    if (stride == 0) return floats{} + element(0);
    floats values = {};
    for (int64_t i = 0; i < count; i++) values[i] = element(i * stride);
    return values;
}

template <typename T>
void put(T* to, int64_t stride, int64_t count, floats values) {
    if (stride == 1 && count == LANES) return store(to, values);
    T elements[LANES];
    store(elements, values);
    for (int64_t i = 0; i < count; i++) to[i * stride] = elements[i];
}

template <typename Compute>
void map(const Tensor<void*>& out, const Tensor<const void*>& a, const Tensor<const void*>& b, const int64_t (&size)[4],
         Compute compute) {
    const int64_t pieces = (size[3] + PIECE - 1) / PIECE, items = size[0] * size[1] * size[2] * pieces;
    const bool worth_threads = size[0] * size[1] * size[2] * size[3] > WORTH_THREADS;
    for_range_in_parallel(items, worth_threads, [&](int64_t item) {
        const int64_t row = item / pieces, k = row % size[2], j = row / size[2] % size[1], i = row / size[2] / size[1];
        auto place = [&](const auto& of, int64_t l) {
            return i * of.stride[0] + j * of.stride[1] + k * of.stride[2] + l * of.stride[3];
        };
        const int64_t begin = item % pieces * PIECE, end = std::min(begin + PIECE, size[3]);
        for (int64_t l = begin; l < end; l += LANES) {
            const int64_t count = std::min<int64_t>(LANES, end - l), to = place(out, l);
            const floats values = compute(take(a, place(a, l), count), take(b, place(b, l), count));
            if (out.is_bfloat16)
                put((bfloat16*)out.address + to, out.stride[3], count, values);
            else
                put((float*)out.address + to, out.stride[3], count, values);
        }
    });
}

}  // namespace

// out = a OPERATION b, computed in float, for tensors that broadcast by strides of 0. operation: an
// Operation of equivalents.py; those of one operand ignore b. Where b is null, it is `number`.
extern "C" void compute(int operation, int out_bfloat16, int a_bfloat16, int b_bfloat16, void* out, const void* a,
                        const void* b, int64_t size0, int64_t to0, int64_t a0, int64_t b0, int64_t size1, int64_t to1,
                        int64_t a1, int64_t b1, int64_t size2, int64_t to2, int64_t a2, int64_t b2, int64_t size3,
                        int64_t to3, int64_t a3, int64_t b3, float number) {
    const Tensor<void*> target = {out, out_bfloat16, {to0, to1, to2, to3}};
    const Tensor<const void*> first = {a, a_bfloat16, {a0, a1, a2, a3}};
    const Tensor<const void*> second = {b ? b : &number, b && b_bfloat16, {b0, b1, b2, b3}};
    auto run = [&](auto compute) { map(target, first, second, {size0, size1, size2, size3}, compute); };
    switch (operation) {
        case 1: return run([](floats x, floats y) { return x + y; });
        case 2: return run([](floats x, floats y) { return x - y; });
        case 3: return run([](floats x, floats y) { return x * y; });
        case 4: return run([](floats x, floats) { return -x; });
        default: return run([](floats x, floats) { return x; });
    }
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
