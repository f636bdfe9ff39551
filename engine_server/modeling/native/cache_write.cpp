// Writes a step's K and V to their slots in the paged cache, in the layout of cache.h.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cache.h"
#include "threads.h"

namespace {

constexpr float SMALLEST = 1e-30f;  // magnitude below which a row counts as zero
constexpr int PACKED = 64;          // elements at a time, so that they are computed by vectors

// A step's K, or V: [tokens, kv heads, dim]. Strides count elements.
struct Given {
    const void* rows;
    int64_t token_stride, head_stride;
};

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}

inline uint32_t bits_of(bfloat16 value) { return uint32_t(value.bits) << 16; }

inline float with_bits(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// The largest magnitude of a row; NaN, whose bits are larger than any number's, if any element is.
template <typename T>
float largest(const T* row, int dim) {
    uint32_t most = 0;
    for (int d = 0; d < dim; d++) most = std::max(most, bits_of(row[d]) & 0x7fffffff);
    return with_bits(most);
}

inline char pack(float value, int8) { return char(std::nearbyint(value)); }

// Rounds to the nearest, ties to even; |x| is at most 448.
inline char pack(float x, float8) {
    const float smallest = 0x1p-6f, ulps = 0x1p14f;  // the smallest normal number; one whose last bit is a subnormal's
    const uint32_t sign = bits_of(x) >> 31 << 7, bits = bits_of(x) & 0x7fffffff;
    const uint32_t subnormal = bits_of(with_bits(bits) + ulps) & 0xf;
    const uint32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3);
    return char(sign | (with_bits(bits) < smallest ? subnormal : normal));
}

// `place(d)`: where a group of the cache has the element d of the token.
template <typename E, typename T>
void write_row(const Pages& pages, int64_t token, const T* row, auto place) {
    char* group = pages.group(token);
    if constexpr (!SCALED<E>) {
        for (int d = 0; d < pages.dim; d++) ((T*)group)[place(d)] = row[d];
    } else {
        constexpr float most = std::is_same_v<E, int8> ? 127 : 448;
        const float scale = std::max(largest(row, pages.dim), SMALLEST) / most;
        pages.scales[token] = scale;
        for (int first = 0; first < pages.dim; first += PACKED) {
            char packed[PACKED];
            const int count = std::min(PACKED, pages.dim - first);
            for (int i = 0; i < count; i++) packed[i] = pack(with_bits(bits_of(row[first + i])) / scale, E{});
            for (int i = 0; i < count; i++) group[place(first + i)] = packed[i];
        }
    }
}

template <typename E, typename T>
void write(const Pages& keys, const Pages& values, const Given& key, const Given& value, const int64_t* slots,
           int64_t tokens) {
    const bool worth_threads = tokens * keys.kv_heads > 8;  // each row is a separate cache miss
    for_range_in_parallel(tokens, worth_threads, [&](int64_t t) {
        const int64_t block = slots[t] / keys.block_size, offset = slots[t] % keys.block_size;
        for (int head = 0; head < keys.kv_heads; head++) {
            const int64_t token = keys.token(block, head, offset);
            const int place = token % GROUP, dim = values.dim;
            write_row<E>(keys, token, (const T*)key.rows + t * key.token_stride + head * key.head_stride,
                         [=](int d) { return key_place<E>(place, d); });
            write_row<E>(values, token, (const T*)value.rows + t * value.token_stride + head * value.head_stride,
                         [=](int d) { return value_place<E>(place, d, dim); });
        }
    });
}

}  // namespace

// See NativeAttention. key, value: [tokens, kv heads, dim], with strides; slots: block id * block size + offset.
extern "C" void write_cache(int is_bfloat16, int storage, void* keys, float* key_scales, void* values,
                            float* value_scales, const void* key, int64_t key_token, int64_t key_head,
                            const void* value, int64_t value_token, int64_t value_head, const int64_t* slots,
                            int64_t tokens, int kv_heads, int key_dim, int value_dim, int block_size) {
    with_types(is_bfloat16, Storage(storage), [&]<typename T, typename E>(T, E) {
        write<E, T>({(char*)keys, key_scales, kv_heads, key_dim, block_size, sizeof(E)},
                    {(char*)values, value_scales, kv_heads, value_dim, block_size, sizeof(E)},
                    {key, key_token, key_head}, {value, value_token, value_head}, slots, tokens);
    });
}
